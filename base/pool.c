#include "base/pool.h"

#include "base/assert.h"
#include "base/bytes.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

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
    _Atomic uint64_t round; /* written under the lock; read without it while spinning */
    _Atomic uint32_t running;
    bool closing;
    ox_pool_fn *fn;
    void *context;
    struct ox_nodes nodes; /* count below 2: no thread is bound */
};

/* The pool that this thread was last bound for, as its share 0. */
static _Thread_local const struct ox_pool *bound_to;

/* A thread spins before it sleeps: on the compute lane the next loop usually follows within microseconds. */
enum { SPIN_COUNT = 4000 };

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Binds a thread to the node of its share; returns an errno. */
static int bind_thread(const struct ox_pool *pool, pthread_t thread, uint32_t idx, uint32_t thread_count) {
    if (pool->nodes.count < 2) {
        return 0;
    }
    const cpu_set_t *const cpus = &pool->nodes.cpus[(uint64_t)idx * pool->nodes.count / thread_count];
    return pthread_setaffinity_np(thread, sizeof *cpus, cpus);
}

/* A thread of the pool: waits for the next loop, runs its share, and counts itself out. */
static void *worker_main(void *context) {
    struct worker *const worker = context;
    struct ox_pool *const pool = worker->pool;
    uint64_t seen = 0;
    for (;;) {
        for (int spin = 0; spin < SPIN_COUNT && atomic_load(&pool->round) == seen; spin++) {
            relax();
        }
        pthread_mutex_lock(&pool->lock);
        while (atomic_load(&pool->round) == seen && !pool->closing) {
            pthread_cond_wait(&pool->start, &pool->lock);
        }
        const bool closing = pool->closing;
        seen = atomic_load(&pool->round);
        ox_pool_fn *const fn = pool->fn;
        void *const fn_context = pool->context;
        pthread_mutex_unlock(&pool->lock);
        if (closing) {
            return NULL;
        }
        fn(fn_context, worker->idx, pool->size);
        if (atomic_fetch_sub(&pool->running, 1) == 1) {
            pthread_mutex_lock(&pool->lock);
            pthread_cond_signal(&pool->end);
            pthread_mutex_unlock(&pool->lock);
        }
    }
}

uint32_t ox_pool_size(const struct ox_pool *pool) {
    return pool->size;
}

void ox_pool_run(struct ox_pool *pool, ox_pool_fn *fn, void *context) {
    if (pool->nodes.count > 1 && bound_to != pool) {
        bound_to = pool;
        const int err = bind_thread(pool, pthread_self(), 0, pool->size);
        (void)err; /* failing to bind costs speed only */
    }
    if (pool->size == 1) {
        fn(context, 0, 1);
        return;
    }
    pthread_mutex_lock(&pool->lock);
    OX_ASSERT(atomic_load(&pool->running) == 0);
    pool->fn = fn;
    pool->context = context;
    atomic_store(&pool->running, pool->size - 1);
    atomic_fetch_add(&pool->round, 1);
    pthread_cond_broadcast(&pool->start);
    pthread_mutex_unlock(&pool->lock);
    fn(context, 0, pool->size);
    for (int spin = 0; spin < SPIN_COUNT && atomic_load(&pool->running) > 0; spin++) {
        relax();
    }
    pthread_mutex_lock(&pool->lock);
    while (atomic_load(&pool->running) > 0) {
        pthread_cond_wait(&pool->end, &pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
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
