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

/* The tops of stacks lie some lines of the cache apart: else all would be in the same ones. */
enum { WARP = 32, THREADS_MAX = 1024, COLOURS = 16, COLOUR_BYTES = 9 * 64 };

enum class stop : unsigned char { READY, BLOCK, WARP_MEETING, DONE };

/* A cp.async copy that belongs to its thread's group number `group`. */
struct copy {
    void *to;
    const void *from;
    unsigned group;
};

struct fiber {
    ucontext_t context;
    bool made, begun;
    void *jump[5];
    unsigned turn; /* counts exchanges; its parity picks the set of slots */
    std::vector<copy> copies; /* under way, in order */
    unsigned groups; /* committed so far */
    void *fake_stack, *tsan;
};

/* One per thread of the host that runs kernels. */
struct simt_machine {
    unsigned char *region = nullptr; /* of stacks */
    std::vector<fiber> fibers;
    stop at[THREADS_MAX]; /* of each fiber: all are looked at after every turn */
    std::vector<unsigned char> slots, shared;
    ucontext_t home;
    void *home_jump[5];
    fiber *running = nullptr;
    unsigned count, start, nth; /* of a turn: fibers, the first one, the one that runs */
    bool down;
    const std::function<void()> *kernel = nullptr;
    void *home_stack = nullptr, *home_tsan = nullptr;
    const void *home_bottom = nullptr;
    size_t home_bytes = 0;
    ~simt_machine() {
#if defined(__SANITIZE_THREAD__)
        for (fiber &f : fibers) {
            if (f.tsan != nullptr) {
                __tsan_destroy_fiber(f.tsan);
            }
        }
#endif
        if (region != nullptr) {
            munmap(region, SIMT_REGION_BYTES);
        }
    }
};
static uint64_t order_seed;

/* ---- switches, told to the sanitizers ------------------------------------------------------------ */

static unsigned idx_of(const simt_machine *here, const fiber *f) {
    return (unsigned)(f - here->fibers.data());
}

static unsigned char *stack_of(const simt_machine *here, const fiber *f) {
    return here->region + (1 + (size_t)idx_of(here, f)) * SIMT_STACK_BYTES;
}

static size_t stack_bytes(const simt_machine *here, const fiber *f) {
    return SIMT_STACK_BYTES - idx_of(here, f) % COLOURS * COLOUR_BYTES;
}

/* The machine of the running fiber. */
static simt_machine *own() {
    return simt_self()->machine;
}

/* gcc wants no jump in a function that is jumped into; and that is not inlined, so that it saves the registers of its
 * callers. */
static __attribute__((noinline, noreturn)) void jump(void **to) {
    __builtin_longjmp(to, 1);
}

static __attribute__((noinline)) void enter(simt_machine *here, fiber *f) {
    here->running = f;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&here->home_stack, stack_of(here, f), stack_bytes(here, f));
#elif defined(__SANITIZE_THREAD__)
    here->home_tsan = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(f->tsan, 0);
#endif
    if (!JUMPS) {
        swapcontext(&here->home, &f->context);
    } else if (__builtin_setjmp(here->home_jump) == 0) {
        if (f->begun) {
            jump(f->jump);
        }
        f->begun = true;
        setcontext(&f->context);
    }
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(here->home_stack, nullptr, nullptr);
#endif
}

/* The nth fiber of a turn. */
static unsigned idx_in_turn(const simt_machine *here, unsigned nth) {
    const unsigned at = here->start + (here->down ? here->count - nth : nth);
    return at < here->count ? at : at - here->count;
}

/* The next one of this turn that can run, where it has run before; else null, and the turn goes on from home. */
static fiber *next_in_turn(simt_machine *here) {
    for (unsigned nth = here->nth + 1; nth < here->count; nth++) {
        const unsigned idx = idx_in_turn(here, nth);
        if (here->at[idx] == stop::READY) {
            fiber *const f = &here->fibers[idx];
            here->nth = f->begun ? nth : nth - 1;
            return f->begun ? f : nullptr;
        }
    }
    here->nth = here->count;
    return nullptr;
}

static __attribute__((noinline)) void leave(stop at) {
    simt_machine *const here = own();
    fiber *const f = here->running;
    here->at[idx_of(here, f)] = at;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(at == stop::DONE ? nullptr : &f->fake_stack, here->home_bottom, here->home_bytes);
#elif defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(here->home_tsan, 0);
#endif
    if (!JUMPS) {
        swapcontext(&f->context, &here->home);
    } else if (__builtin_setjmp(f->jump) == 0) {
        fiber *const next = next_in_turn(here);
        here->running = next;
        jump(next != nullptr ? next->jump : here->home_jump);
    }
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(f->fake_stack, &here->home_bottom, &here->home_bytes);
#endif
}

static void fiber_main() {
    simt_machine *const here = own();
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &here->home_bottom, &here->home_bytes);
#endif
    do {
        (*here->kernel)();
        leave(stop::DONE);
    } while (JUMPS);
}

/* ---- a block ------------------------------------------------------------------------------------- */

static void prepare(simt_machine *here, const simt_shape &shape, simt_index block, unsigned idx) {
    fiber *const f = &here->fibers[idx];
    simt_here *const self = (simt_here *)here->region + 1 + idx;
    self->block = block;
    self->block_dim = simt_index{shape.block.x, shape.block.y, shape.block.z};
    self->grid_dim = simt_index{shape.grid.x, shape.grid.y, shape.grid.z};
    self->thread = simt_index{idx % shape.block.x, idx / shape.block.x % shape.block.y,
                              idx / (shape.block.x * shape.block.y)};
    self->machine = here;
    here->at[idx] = stop::READY;
    f->turn = 0;
    f->copies.clear();
    f->groups = 0;
    f->fake_stack = nullptr;
    if (JUMPS && f->made) {
        return;
    }
    f->made = true;
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = stack_of(here, f);
    f->context.uc_stack.ss_size = stack_bytes(here, f);
    f->context.uc_link = nullptr;
    makecontext(&f->context, fiber_main, 0);
#if defined(__SANITIZE_THREAD__)
    if (f->tsan == nullptr) { /* kept: a fiber of theirs is most of a megabyte that is written */
        f->tsan = __tsan_create_fiber(0);
    }
#endif
}

/* Releases those of [first, past) that wait at `at`, when all that are not done do. */
static bool release(simt_machine *here, unsigned first, unsigned past, stop at) {
    unsigned waiting = 0, done = 0;
    for (unsigned i = first; i < past; i++) {
        waiting += here->at[i] == at;
        done += here->at[i] == stop::DONE;
    }
    if (waiting == 0 || waiting + done < past - first) {
        return false;
    }
    /* A thread that has left the kernel reaches no barrier: on a GPU the others hang, or the result is undefined. */
    OX_ASSERT(done == 0);
    for (unsigned i = first; i < past; i++) {
        here->at[i] = stop::READY;
    }
    return true;
}

/* One turn of every fiber that can run; false when there is none. */
static bool run_ready(simt_machine *here, unsigned count, uint64_t turn) {
    bool ran = false;
    here->count = count;
    here->start = order_seed == 0 ? 0 : (unsigned)(ox_uniform(order_seed, 1, turn) * count);
    here->down = order_seed != 0 && ox_uniform(order_seed, 2, turn) < 0.5;
    for (here->nth = 0; here->nth < count; here->nth++) { /* or further, where fibers go on with one another */
        const unsigned idx = idx_in_turn(here, here->nth);
        if (here->at[idx] == stop::READY) {
            enter(here, &here->fibers[idx]);
            ran = true;
        }
    }
    return ran;
}

static void run_block(simt_machine *here, const simt_shape &shape, simt_index block) {
    const unsigned count = shape.block.x * shape.block.y * shape.block.z;
    for (unsigned i = 0; i < count; i++) {
        prepare(here, shape, block, i);
    }
    for (uint64_t turn = 0;; turn++) {
        bool moved = run_ready(here, count, turn + 1000u * block.x);
        for (unsigned first = 0; first < count; first += WARP) {
            moved |= release(here, first, first + WARP < count ? first + WARP : count, stop::WARP_MEETING);
        }
        moved |= release(here, 0, count, stop::BLOCK);
        if (!moved) {
            break;
        }
    }
    for (unsigned i = 0; i < count; i++) {
        OX_ASSERT(here->at[i] == stop::DONE); /* else threads wait for one another at different barriers */
        OX_ASSERT(here->fibers[i].copies.empty());   /* else the thread left before its copies had arrived */
    }
}

/* A region that is aligned to its size: what was mapped too much around it is given back. */
static unsigned char *region_open() {
    unsigned char *const all = (unsigned char *)mmap(nullptr, 2 * SIMT_REGION_BYTES, PROT_READ | PROT_WRITE,
                                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    OX_ASSERT(all != MAP_FAILED);
    const size_t before = -(uintptr_t)all & (SIMT_REGION_BYTES - 1);
    OX_ASSERT(before == 0 || munmap(all, before) == 0);
    OX_ASSERT(munmap(all + before + SIMT_REGION_BYTES, SIMT_REGION_BYTES - before) == 0);
    return all + before;
}

void simt_run_kernel(const simt_shape &shape, const std::function<void()> &kernel) {
    const unsigned count = shape.block.x * shape.block.y * shape.block.z;
    OX_ASSERT(count > 0 && count <= THREADS_MAX);
    /* What CUDA refuses: no blocks, and more than these in the second and third direction. */
    OX_ASSERT(shape.grid.x > 0 && shape.grid.y > 0 && shape.grid.z > 0 && shape.grid.y < 65536 && shape.grid.z < 65536);
    static thread_local simt_machine machine;
    simt_machine *const here = &machine;
    if (here->region == nullptr) {
        here->region = region_open();
        here->fibers.resize(THREADS_MAX);
        here->slots.resize((size_t)2 * THREADS_MAX * SIMT_SLOT_BYTES);
    }
    here->kernel = &kernel;
    here->shared.assign(shape.shared_bytes + 16, 0xff); /* not written yet: NaN */
    for (unsigned z = 0; z < shape.grid.z; z++) {
        for (unsigned y = 0; y < shape.grid.y; y++) {
            for (unsigned x = 0; x < shape.grid.x; x++) {
                run_block(here, shape, simt_index{x, y, z});
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

static unsigned char *slots_of(simt_machine *here, unsigned turn) {
    return here->slots.data() + turn % 2 * (size_t)THREADS_MAX * SIMT_SLOT_BYTES;
}

/* Two sets of slots alternate: before a lane writes again, all lanes have met once more and have read the previous set.
 */
void simt_give(const void *give, size_t bytes) {
    OX_ASSERT(bytes <= SIMT_SLOT_BYTES);
    simt_machine *const here = own();
    fiber *const f = here->running;
    memcpy(slots_of(here, ++f->turn) + (size_t)idx_of(here, f) * SIMT_SLOT_BYTES, give, bytes);
    leave(stop::WARP_MEETING);
}

const void *simt_given(unsigned lane) {
    simt_machine *const here = own();
    const fiber *const f = here->running;
    const size_t first = idx_of(here, f) / WARP * WARP;
    return slots_of(here, f->turn) + (first + lane) * SIMT_SLOT_BYTES;
}

void simt_copy_later(void *to, const void *from) {
    OX_ASSERT((uintptr_t)to % 16 == 0 && (uintptr_t)from % 16 == 0);
    fiber *const f = own()->running;
    f->copies.push_back(copy{to, from, f->groups});
}

void simt_copy_commit() {
    own()->running->groups++;
}

void simt_copy_wait(unsigned pending) {
    fiber *const f = own()->running;
    std::vector<copy> &copies = f->copies;
    size_t count = 0;
    while (count < copies.size() && copies[count].group + pending < f->groups) {
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
    return (void *)(((uintptr_t)own()->shared.data() + 15) & ~(uintptr_t)15);
}

void simt_set_seed(uint64_t seed) {
    order_seed = seed;
}
