/* Runs kernels on the host: the threads of a block are fibers that take turns on one thread of the host, and give the
 * turn away where they meet others. Blocks follow one another. A barrier that not all reach is found at once. */
#include "tests/simt/inside.h"

#include "base/assert.h"
#include "base/prng/prng.h"

#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>
#include <ucontext.h>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#elif defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

/* swapcontext asks the kernel for the signal mask at each switch, and getcontext for each thread of a block. Jumps
 * do without, once a fiber runs, and a fiber that has ended its thread runs one of the next block. They are the
 * compiler's, as those of the C library look for handlers of cancellation. The sanitizers know switches alone. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { JUMPS = 0 };
#else
enum { JUMPS = 1 };
#endif

thread_local const simt_here *simt_current = nullptr;

enum { WARP = 32, STACK_BYTES = 128 * 1024, THREADS_MAX = 1024 };

enum class stop { READY, BLOCK, WARP_MEETING, DONE };

/* A cp.async copy that belongs to its thread's group number `group`. */
struct copy {
    void *to;
    const void *from;
    unsigned group;
};

struct fiber {
    ucontext_t context;
    simt_here here;
    stop at;
    bool made, begun;
    void *jump[5];
    unsigned turn; /* counts exchanges; its parity picks the set of slots */
    std::vector<copy> copies; /* under way, in order */
    unsigned groups; /* committed so far */
    void *fake_stack, *tsan;
};

/* One per thread of the host that runs kernels. */
struct machine {
    unsigned char *stacks = nullptr;
    std::vector<fiber> fibers;
    std::vector<unsigned char> slots, shared;
    ucontext_t home;
    void *home_jump[5];
    fiber *running = nullptr;
    const std::function<void()> *kernel = nullptr;
    void *home_stack = nullptr, *home_tsan = nullptr;
    const void *home_bottom = nullptr;
    size_t home_bytes = 0;
    ~machine() {
#if defined(__SANITIZE_THREAD__)
        for (fiber &f : fibers) {
            if (f.tsan != nullptr) {
                __tsan_destroy_fiber(f.tsan);
            }
        }
#endif
        if (stacks != nullptr) {
            munmap(stacks, (size_t)THREADS_MAX * STACK_BYTES);
        }
    }
};
static thread_local machine here;
static uint64_t order_seed;

/* ---- switches, told to the sanitizers ------------------------------------------------------------ */

static unsigned char *stack_of(const fiber *f) {
    return here.stacks + (size_t)(f - here.fibers.data()) * STACK_BYTES;
}

static void enter(fiber *f) {
    here.running = f;
    simt_current = &f->here;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&here.home_stack, stack_of(f), STACK_BYTES);
#elif defined(__SANITIZE_THREAD__)
    here.home_tsan = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(f->tsan, 0);
#endif
    if (!JUMPS) {
        swapcontext(&here.home, &f->context);
    } else if (__builtin_setjmp(here.home_jump) == 0) {
        if (f->begun) {
            __builtin_longjmp(f->jump, 1);
        }
        f->begun = true;
        setcontext(&f->context);
    }
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(here.home_stack, nullptr, nullptr);
#endif
    simt_current = nullptr;
}

static void leave(stop at) {
    fiber *const f = here.running;
    f->at = at;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(at == stop::DONE ? nullptr : &f->fake_stack, here.home_bottom, here.home_bytes);
#elif defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(here.home_tsan, 0);
#endif
    if (!JUMPS) {
        swapcontext(&f->context, &here.home);
    } else if (__builtin_setjmp(f->jump) == 0) {
        __builtin_longjmp(here.home_jump, 1);
    }
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(f->fake_stack, &here.home_bottom, &here.home_bytes);
#endif
}

static void fiber_main() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &here.home_bottom, &here.home_bytes);
#endif
    do {
        (*here.kernel)();
        leave(stop::DONE);
    } while (JUMPS);
}

/* ---- a block ------------------------------------------------------------------------------------- */

static void prepare(fiber *f, const simt_shape &shape, simt_index block, unsigned idx) {
    f->here.block = block;
    f->here.block_dim = simt_index{shape.block.x, shape.block.y, shape.block.z};
    f->here.grid_dim = simt_index{shape.grid.x, shape.grid.y, shape.grid.z};
    f->here.thread = simt_index{idx % shape.block.x, idx / shape.block.x % shape.block.y,
                                idx / (shape.block.x * shape.block.y)};
    f->at = stop::READY;
    f->turn = 0;
    f->copies.clear();
    f->groups = 0;
    f->fake_stack = nullptr;
    if (JUMPS && f->made) {
        return;
    }
    f->made = true;
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = stack_of(f);
    f->context.uc_stack.ss_size = STACK_BYTES;
    f->context.uc_link = nullptr;
    makecontext(&f->context, fiber_main, 0);
#if defined(__SANITIZE_THREAD__)
    if (f->tsan == nullptr) { /* kept: a fiber of theirs is most of a megabyte that is written */
        f->tsan = __tsan_create_fiber(0);
    }
#endif
}

/* Releases those of [first, past) that wait at `at`, when all that are not done do. */
static bool release(unsigned first, unsigned past, stop at) {
    unsigned waiting = 0, done = 0;
    for (unsigned i = first; i < past; i++) {
        waiting += here.fibers[i].at == at;
        done += here.fibers[i].at == stop::DONE;
    }
    if (waiting == 0 || waiting + done < past - first) {
        return false;
    }
    /* A thread that has left the kernel reaches no barrier: on a GPU the others hang, or the result is undefined. */
    OX_ASSERT(done == 0);
    for (unsigned i = first; i < past; i++) {
        here.fibers[i].at = stop::READY;
    }
    return true;
}

/* One turn of every fiber that can run; false when there is none. */
static bool run_ready(unsigned count, uint64_t turn) {
    const unsigned start = order_seed == 0 ? 0 : (unsigned)(ox_uniform(order_seed, 1, turn) * count);
    const bool down = order_seed != 0 && ox_uniform(order_seed, 2, turn) < 0.5;
    bool ran = false;
    for (unsigned i = 0; i < count; i++) {
        const unsigned idx = (start + (down ? count - i : i)) % count;
        if (here.fibers[idx].at == stop::READY) {
            enter(&here.fibers[idx]);
            ran = true;
        }
    }
    return ran;
}

static void run_block(const simt_shape &shape, simt_index block) {
    const unsigned count = shape.block.x * shape.block.y * shape.block.z;
    for (unsigned i = 0; i < count; i++) {
        prepare(&here.fibers[i], shape, block, i);
    }
    for (uint64_t turn = 0;; turn++) {
        bool moved = run_ready(count, turn + 1000u * block.x);
        for (unsigned first = 0; first < count; first += WARP) {
            moved |= release(first, first + WARP < count ? first + WARP : count, stop::WARP_MEETING);
        }
        moved |= release(0, count, stop::BLOCK);
        if (!moved) {
            break;
        }
    }
    for (unsigned i = 0; i < count; i++) {
        OX_ASSERT(here.fibers[i].at == stop::DONE); /* else threads wait for one another at different barriers */
        OX_ASSERT(here.fibers[i].copies.empty());   /* else the thread left before its copies had arrived */
    }
}

void simt_run_kernel(const simt_shape &shape, const std::function<void()> &kernel) {
    const unsigned count = shape.block.x * shape.block.y * shape.block.z;
    OX_ASSERT(count > 0 && count <= THREADS_MAX);
    if (here.stacks == nullptr) {
        here.stacks = (unsigned char *)mmap(nullptr, (size_t)THREADS_MAX * STACK_BYTES, PROT_READ | PROT_WRITE,
                                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        OX_ASSERT(here.stacks != MAP_FAILED);
        here.fibers.resize(THREADS_MAX);
        here.slots.resize((size_t)2 * THREADS_MAX * SIMT_SLOT_BYTES);
    }
    here.kernel = &kernel;
    here.shared.assign(shape.shared_bytes + 16, 0xff); /* not written yet: NaN */
    for (unsigned z = 0; z < shape.grid.z; z++) {
        for (unsigned y = 0; y < shape.grid.y; y++) {
            for (unsigned x = 0; x < shape.grid.x; x++) {
                run_block(shape, simt_index{x, y, z});
            }
        }
    }
}

void simt_sync_block() {
    leave(stop::BLOCK);
}

void simt_sync_warp() {
    leave(stop::WARP_MEETING);
}

static unsigned char *slots_of(unsigned turn) {
    return here.slots.data() + turn % 2 * (size_t)THREADS_MAX * SIMT_SLOT_BYTES;
}

/* Two sets of slots alternate: before a lane writes again, all lanes have met once more and have read the previous set.
 */
void simt_give(const void *give, size_t bytes) {
    OX_ASSERT(bytes <= SIMT_SLOT_BYTES);
    fiber *const f = here.running;
    memcpy(slots_of(++f->turn) + (size_t)(f - here.fibers.data()) * SIMT_SLOT_BYTES, give, bytes);
    leave(stop::WARP_MEETING);
}

const void *simt_given(unsigned lane) {
    const fiber *const f = here.running;
    const size_t first = (size_t)(f - here.fibers.data()) / WARP * WARP;
    return slots_of(f->turn) + (first + lane) * SIMT_SLOT_BYTES;
}

void simt_copy_later(void *to, const void *from) {
    OX_ASSERT((uintptr_t)to % 16 == 0 && (uintptr_t)from % 16 == 0);
    here.running->copies.push_back(copy{to, from, here.running->groups});
}

void simt_copy_commit() {
    here.running->groups++;
}

void simt_copy_wait(unsigned pending) {
    std::vector<copy> &copies = here.running->copies;
    size_t count = 0;
    while (count < copies.size() && copies[count].group + pending < here.running->groups) {
        const copy &done = copies[count++];
        if (done.from == nullptr) {
            memset(done.to, 0, 16);
        } else {
            memcpy(done.to, done.from, 16);
        }
    }
    copies.erase(copies.begin(), copies.begin() + (ptrdiff_t)count);
}

void *simt_shared() {
    return (void *)(((uintptr_t)here.shared.data() + 15) & ~(uintptr_t)15);
}

void simt_set_seed(uint64_t seed) {
    order_seed = seed;
}
