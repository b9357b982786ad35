#include "base/pool.h"

#include "base/assert.h"
#include "base/bytes.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

/* How long a thread spins before it sleeps, in turns of the loop, and how often that was in vain. */
struct spin {
    uint32_t count, in_vain;
};

struct worker {
    struct ox_pool *pool;
    pthread_t thread;
    uint32_t idx;
};

struct ox_pool {
    uint32_t size;
    struct worker *workers; /* size - 1 */
    pthread_mutex_t lock;
    pthread_cond_t start, end;
    struct spin spin; /* used by the caller alone */
    /* Counts loops, twice; odd while the caller waits for every thread. Written under the lock, and read without it by
     * threads that spin: such a loop they begin at once, since the caller changes nothing before they have ended. */
    _Atomic uint64_t round;
    _Atomic uint32_t running; /* threads that the caller waits for */
    bool closing;
    ox_pool_fn *fn; /* NULL: the loop is over for those who have not begun it */
    void *context;
    bool may_miss; /* a thread is waited for only once it has begun */
    struct ox_nodes nodes; /* count below 2: no thread is bound */
};

/* The pool that this thread was last bound for, as its share 0. */
static _Thread_local const struct ox_pool *bound_to;

/* A thread spins before it sleeps: on the compute lane the next loop usually follows within microseconds, and chunks of
 * an update within the time by which threads differ. Where it does not, or where other threads need the processor,
 * spinning only delays them: each wait in vain halves the next one. Once all sleep before every loop, a wait that would
 * have been long enough is not seen any more, so now and then a thread tries one. */
enum { SPIN_MAX = 4000, SPIN_MIN = 60, SPIN_TRIED = 500, TRIED_EVERY = 32 };

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void after_spin(struct spin *spin, bool in_vain) {
    spin->in_vain += in_vain;
    if (!in_vain) {
        spin->count = (uint32_t)ox_min_u64(SPIN_MAX, 2 * (uint64_t)spin->count);
    } else if (spin->in_vain % TRIED_EVERY == 0 && spin->count < SPIN_TRIED) {
        spin->count = SPIN_TRIED;
    } else {
        spin->count = (uint32_t)ox_max_u64(SPIN_MIN, spin->count / 2);
    }
}

/* Binds a thread to the node of its share; returns an errno. */
static int bind_thread(const struct ox_pool *pool, pthread_t thread, uint32_t idx, uint32_t thread_count) {
    if (pool->nodes.count < 2) {
        return 0;
    }
    const cpu_set_t *const cpus = &pool->nodes.cpus[(uint64_t)idx * pool->nodes.count / thread_count];
    return pthread_setaffinity_np(thread, sizeof *cpus, cpus);
}

/* Sleeps until there is a loop that this thread has not seen; true: it runs `*fn`, and counts itself out. */
static bool begin_loop(struct ox_pool *pool, uint64_t *seen, ox_pool_fn **fn, void **context) {
    pthread_mutex_lock(&pool->lock);
    do {
        while (atomic_load(&pool->round) == *seen && !pool->closing) {
            pthread_cond_wait(&pool->start, &pool->lock);
        }
        *seen = atomic_load(&pool->round);
    } while (pool->fn == NULL && !pool->closing);
    const bool run = !pool->closing;
    *fn = pool->fn;
    *context = pool->context;
    if (run && pool->may_miss) {
        atomic_fetch_add(&pool->running, 1);
    }
    pthread_mutex_unlock(&pool->lock);
    return run;
}

/* A thread of the pool: waits for the next loop, runs its share, and counts itself out. */
static void *worker_main(void *own) {
    struct worker *const worker = own;
    struct ox_pool *const pool = worker->pool;
    uint64_t seen = 0;
    struct spin spin = {.count = SPIN_MAX};
    ox_pool_fn *fn = NULL;
    void *context = NULL;
    for (;;) {
        for (uint32_t i = 0; i < spin.count && atomic_load(&pool->round) == seen; i++) {
            relax();
        }
        const uint64_t round = atomic_load(&pool->round);
        after_spin(&spin, round == seen);
        if (round != seen && round % 2 == 1) {
            seen = round;
            fn = pool->fn;
            context = pool->context;
        } else if (!begin_loop(pool, &seen, &fn, &context)) {
            return NULL;
        }
        fn(context, worker->idx, pool->size);
        if (atomic_fetch_sub(&pool->running, 1) == 1) {
            /* The caller has seen 0, or holds the lock until it sleeps. */
            pthread_mutex_lock(&pool->lock);
            pthread_mutex_unlock(&pool->lock);
            pthread_cond_signal(&pool->end);
        }
    }
}

uint32_t ox_pool_size(const struct ox_pool *pool) {
    return pool->size;
}

static void bind_caller(const struct ox_pool *pool) {
    if (pool->nodes.count > 1 && bound_to != pool) {
        bound_to = pool;
        const int err = bind_thread(pool, pthread_self(), 0, pool->size);
        (void)err; /* failing to bind costs speed only */
    }
}

/* Runs the caller's share 0 beside those of the threads, as ox_pool_run or, with may_miss, as ox_pool_items says. */
static void run_loop(struct ox_pool *pool, ox_pool_fn *fn, void *context, bool may_miss) {
    bind_caller(pool);
    if (pool->size == 1) {
        fn(context, 0, 1);
        return;
    }
    pthread_mutex_lock(&pool->lock);
    OX_ASSERT(atomic_load(&pool->running) == 0);
    pool->fn = fn;
    pool->context = context;
    pool->may_miss = may_miss;
    atomic_store(&pool->running, may_miss ? 0 : pool->size - 1);
    const uint64_t last = atomic_load(&pool->round);
    atomic_store(&pool->round, last - last % 2 + (may_miss ? 2 : 3));
    pthread_mutex_unlock(&pool->lock);
    pthread_cond_broadcast(&pool->start);
    fn(context, 0, pool->size);
    uint32_t i = 0;
    for (; i < pool->spin.count && atomic_load(&pool->running) > 0; i++) {
        relax();
    }
    after_spin(&pool->spin, i == pool->spin.count);
    pthread_mutex_lock(&pool->lock);
    if (may_miss) {
        pool->fn = NULL;
    }
    while (atomic_load(&pool->running) > 0) {
        pthread_cond_wait(&pool->end, &pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
}

void ox_pool_run(struct ox_pool *pool, ox_pool_fn *fn, void *context) {
    run_loop(pool, fn, context, false);
}

void ox_pool_run_grains(struct ox_pool *pool, uint64_t total, uint64_t grain, ox_pool_fn *fn, void *context) {
    if (total > grain) {
        run_loop(pool, fn, context, false);
    } else {
        bind_caller(pool);
        fn(context, 0, 1);
    }
}

struct items {
    ox_pool_item_fn *fn;
    void *context;
    uint32_t count;
    _Atomic uint32_t next;
};

static void items_share(void *context, uint32_t idx, uint32_t count) {
    (void)count;
    struct items *const items = context;
    for (;;) {
        const uint32_t item = atomic_fetch_add(&items->next, 1);
        if (item >= items->count) {
            return;
        }
        items->fn(items->context, item, idx);
    }
}

void ox_pool_items(struct ox_pool *pool, uint32_t item_count, ox_pool_item_fn *fn, void *context) {
    struct items items = {.fn = fn, .context = context, .count = item_count};
    if (item_count == 1) {
        fn(context, 0, 0);
        return;
    }
    run_loop(pool, items_share, &items, true);
}

void ox_pool_close(struct ox_pool **pool_ptr) {
    struct ox_pool *const pool = *pool_ptr;
    if (pool == NULL) {
        return;
    }
    pthread_mutex_lock(&pool->lock);
    pool->closing = true;
    pthread_cond_broadcast(&pool->start);
    pthread_mutex_unlock(&pool->lock);
    for (uint32_t i = 0; i + 1 < pool->size; i++) {
        pthread_join(pool->workers[i].thread, NULL);
    }
    pthread_cond_destroy(&pool->end);
    pthread_cond_destroy(&pool->start);
    pthread_mutex_destroy(&pool->lock);
    free(pool->workers);
    free(pool);
    *pool_ptr = NULL;
}

enum ox_status ox_pool_open(uint32_t thread_count, struct ox_pool **out) {
    return ox_pool_open_on(NULL, thread_count, out);
}

enum ox_status ox_pool_open_on(const struct ox_nodes *nodes, uint32_t thread_count, struct ox_pool **out) {
    OX_ASSERT(thread_count > 0);
    *out = NULL;
    struct ox_pool *pool = calloc(1, sizeof *pool);
    struct worker *const workers = calloc(thread_count, sizeof *workers);
    if (pool == NULL || workers == NULL) {
        free(pool);
        free(workers);
        return ox_fail(OX_E_NOMEM, "thread pool: no memory for %u threads", thread_count);
    }
    pool->workers = workers;
    pool->size = 1;
    pool->spin = (struct spin){.count = SPIN_MAX};
    if (nodes != NULL) {
        pool->nodes = *nodes;
    }
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->start, NULL);
    pthread_cond_init(&pool->end, NULL);
    for (uint32_t i = 0; i + 1 < thread_count; i++) {
        workers[i] = (struct worker){.pool = pool, .idx = i + 1};
        const int err = pthread_create(&workers[i].thread, NULL, worker_main, &workers[i]);
        if (err != 0) {
            ox_pool_close(&pool);
            return ox_fail_errno(OX_E_NOMEM, err, "thread pool: cannot start thread %u of %u", i + 2,
                                 thread_count);
        }
        pool->size++;
        const int bind_err = bind_thread(pool, workers[i].thread, i + 1, thread_count);
        if (bind_err != 0) {
            ox_pool_close(&pool);
            return ox_fail_errno(OX_E_CONFIG, bind_err, "thread pool: cannot bind thread %u to its memory node", i + 2);
        }
    }
    *out = pool;
    return OX_OK;
}

struct ox_range ox_pool_range(uint64_t total, uint64_t grain, uint32_t idx, uint32_t count) {
    const uint64_t grain_count = ox_div_up(total, grain);
    const uint64_t begin = grain_count * idx / count * grain;
    const uint64_t end = grain_count * (idx + 1) / count * grain;
    return (struct ox_range){.begin = ox_min_u64(begin, total), .end = ox_min_u64(end, total)};
}

uint32_t ox_processor_count(void) {
    const long count = sysconf(_SC_NPROCESSORS_ONLN);
    return count > 0 ? (uint32_t)count : 1;
}
