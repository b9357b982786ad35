#include "tests/kit/comm/comm_hub.h"

#include "base/clock.h"
#include "base/prng/prng.h"
#include "tests/kit/test.h"

#include <pthread.h>
#include <string.h>

enum { PROCESSES_MAX = 8 };

struct letter {
    struct letter *next;
    uint64_t due_ns;
    uint32_t from, bytes;
    unsigned char data[];
};

/* The sums that all processes begin as their nth; it goes when all have taken their piece. */
struct total {
    struct total *next;
    float *values;
    uint64_t nth;
    uint32_t came, left;
};

struct ox_wire_request {
    struct ox_wire_request *next;
    struct ox_wire_transfer transfer;
    struct total *total; /* of a sum; such a request is in no list */
    struct ox_wire_sum sum;
    uint64_t first, count; /* the process's piece */
    uint32_t process; /* that has begun it */
    uint64_t due_ns;
    bool done, dropped;
};

struct wire {
    struct ox_wire base;
    struct comm_hub *hub;
};

struct comm_hub {
    pthread_mutex_t lock;
    uint32_t open_count;
    uint64_t seed, turn, delay_ns;
    struct letter *letters[PROCESSES_MAX]; /* by receiver, in order */
    struct ox_wire_request *requests;      /* in order */
    struct total *totals;
    uint64_t sum_count[PROCESSES_MAX]; /* sums that a process has begun */
    uint32_t process_count;
    bool lost[PROCESSES_MAX], stopped[PROCESSES_MAX];
    struct wire wires[PROCESSES_MAX];
};

static struct comm_hub *hub_of(struct ox_wire *wire) {
    return ((struct wire *)wire)->hub;
}

static uint64_t due_ns(struct comm_hub *hub) {
    return ox_clock_ns() + (uint64_t)(ox_uniform(hub->seed, 0, hub->turn++) * (double)hub->delay_ns);
}

static enum ox_status hub_post(struct ox_wire *wire, uint32_t process, const void *message, uint32_t bytes) {
    struct comm_hub *const hub = hub_of(wire);
    struct letter *const letter = malloc(sizeof *letter + bytes);
    CHECK(bytes <= OX_WIRE_MESSAGE_BYTES && process != wire->process);
    letter->next = NULL;
    letter->from = wire->process;
    letter->bytes = bytes;
    memcpy(letter->data, message, bytes);
    pthread_mutex_lock(&hub->lock);
    letter->due_ns = due_ns(hub);
    struct letter **at = &hub->letters[process];
    while (*at != NULL) {
        at = &(*at)->next;
    }
    if (hub->lost[wire->process] || hub->stopped[wire->process]) {
        free(letter);
    } else {
        *at = letter;
    }
    pthread_mutex_unlock(&hub->lock);
    return OX_OK;
}

/* Takes the first letter that is due and before which none from the same sender waits. */
static enum ox_status hub_poll(struct ox_wire *wire, uint32_t *process, void *message, uint32_t *bytes) {
    struct comm_hub *const hub = hub_of(wire);
    const uint64_t now = ox_clock_ns();
    bool waits[PROCESSES_MAX] = {false};
    *bytes = 0;
    pthread_mutex_lock(&hub->lock);
    const bool takes = !hub->lost[wire->process] && !hub->stopped[wire->process];
    for (struct letter **at = &hub->letters[wire->process]; *at != NULL && takes; at = &(*at)->next) {
        struct letter *const letter = *at;
        if (letter->due_ns <= now && !waits[letter->from]) {
            *process = letter->from;
            *bytes = letter->bytes;
            memcpy(message, letter->data, letter->bytes);
            *at = letter->next;
            free(letter);
            break;
        }
        waits[letter->from] = true;
    }
    pthread_mutex_unlock(&hub->lock);
    return OX_OK;
}

static bool hub_sending(struct ox_wire *wire) {
    (void)wire;
    return false;
}

static enum ox_status hub_begin(struct ox_wire *wire, const struct ox_wire_transfer *transfer,
                                struct ox_wire_request **out) {
    struct comm_hub *const hub = hub_of(wire);
    struct ox_wire_request *const request = calloc(1, sizeof *request);
    CHECK(transfer->bytes > 0 && transfer->tag < 1 << 15 && transfer->process != wire->process);
    request->transfer = *transfer;
    request->process = wire->process;
    pthread_mutex_lock(&hub->lock);
    request->due_ns = due_ns(hub);
    struct ox_wire_request **at = &hub->requests;
    while (*at != NULL) {
        at = &(*at)->next;
    }
    *at = request;
    pthread_mutex_unlock(&hub->lock);
    *out = request;
    return OX_OK;
}

/* Adds a process's vector when it begins its sum, so whoever comes first is first in the sum. */
static enum ox_status hub_sum(struct ox_wire *wire, const struct ox_wire_sum *sum, struct ox_wire_request **out) {
    struct comm_hub *const hub = hub_of(wire);
    struct ox_wire_request *const request = calloc(1, sizeof *request);
    uint64_t count = 0;
    for (uint32_t p = 0; p < hub->process_count; p++) {
        request->first += p < wire->process ? sum->counts[p] : 0;
        count += sum->counts[p];
    }
    pthread_mutex_lock(&hub->lock);
    const uint64_t nth = hub->sum_count[wire->process]++;
    struct total *total = hub->totals;
    while (total != NULL && total->nth != nth) {
        total = total->next;
    }
    if (total == NULL) {
        total = calloc(1, sizeof *total);
        *total = (struct total){.next = hub->totals, .values = calloc(count + 1, sizeof(float)), .nth = nth};
        hub->totals = total;
    }
    for (uint64_t i = 0; i < count; i++) {
        total->values[i] += sum->source[i];
    }
    total->came++;
    request->total = total;
    request->sum = *sum;
    request->count = sum->counts[wire->process];
    request->process = wire->process;
    request->due_ns = due_ns(hub);
    pthread_mutex_unlock(&hub->lock);
    *out = request;
    return OX_OK;
}

/* The caller holds the lock. */
static void total_leave(struct comm_hub *hub, struct total *total) {
    struct total **at = &hub->totals;
    if (++total->left < hub->process_count) {
        return;
    }
    while (*at != total) {
        at = &(*at)->next;
    }
    *at = total->next;
    free(total->values);
    free(total);
}

/* The caller holds the lock. */
static bool sum_has_ended(struct comm_hub *hub, struct ox_wire_request *request) {
    struct total *const total = request->total;
    if (total->came < hub->process_count || ox_clock_ns() < request->due_ns) {
        return false;
    }
    memcpy(request->sum.target, total->values + request->first, request->count * sizeof(float));
    total_leave(hub, total);
    free(request);
    return true;
}

static bool match(const struct ox_wire_request *a, const struct ox_wire_request *b) {
    return !b->done && a->process == b->transfer.process && b->process == a->transfer.process &&
           a->transfer.tag == b->transfer.tag && a->transfer.sends != b->transfer.sends;
}

/* The caller holds the lock. */
static void request_free(struct comm_hub *hub, struct ox_wire_request *request) {
    struct ox_wire_request **at = &hub->requests;
    while (*at != request) {
        at = &(*at)->next;
    }
    *at = request->next;
    free(request);
}

static enum ox_status hub_test(struct ox_wire *wire, struct ox_wire_request *request, bool *done) {
    struct comm_hub *const hub = hub_of(wire);
    pthread_mutex_lock(&hub->lock);
    if (request->total != NULL) {
        *done = sum_has_ended(hub, request);
        pthread_mutex_unlock(&hub->lock);
        return OX_OK;
    }
    struct ox_wire_request *other = hub->requests;
    while (other != NULL && !match(request, other)) {
        other = other->next;
    }
    if (!request->done && other != NULL && ox_clock_ns() >= request->due_ns && !hub->lost[request->transfer.process]) {
        CHECK(request->transfer.bytes == other->transfer.bytes);
        void *const target = request->transfer.sends ? other->transfer.at : request->transfer.at;
        memcpy(target, request->transfer.sends ? request->transfer.at : other->transfer.at, request->transfer.bytes);
        request->done = other->done = true;
    }
    *done = request->done;
    if (request->done) {
        request_free(hub, request);
    }
    pthread_mutex_unlock(&hub->lock);
    return OX_OK;
}

static void hub_drop(struct ox_wire *wire, struct ox_wire_request *request) {
    struct comm_hub *const hub = hub_of(wire);
    pthread_mutex_lock(&hub->lock);
    if (request->total != NULL) {
        total_leave(hub, request->total);
        free(request);
    } else {
        request_free(hub, request);
    }
    pthread_mutex_unlock(&hub->lock);
}

static bool hub_lost(struct ox_wire *wire, uint32_t process) {
    struct comm_hub *const hub = hub_of(wire);
    pthread_mutex_lock(&hub->lock);
    const bool lost = hub->lost[process] || hub->lost[wire->process];
    pthread_mutex_unlock(&hub->lock);
    return lost;
}

static const char *hub_name(struct ox_wire *wire, uint32_t process) {
    static const char *const names[] = {"process 0", "process 1", "process 2", "process 3"};
    (void)wire;
    return names[process % 4];
}

static void hub_close(struct ox_wire *wire, bool clean) {
    struct comm_hub *const hub = hub_of(wire);
    (void)clean;
    pthread_mutex_lock(&hub->lock);
    const bool last = --hub->open_count == 0;
    pthread_mutex_unlock(&hub->lock);
    if (!last) {
        return;
    }
    for (uint32_t p = 0; p < PROCESSES_MAX; p++) {
        while (hub->letters[p] != NULL) {
            struct letter *const next = hub->letters[p]->next;
            free(hub->letters[p]);
            hub->letters[p] = next;
        }
    }
    while (hub->totals != NULL) {
        struct total *const next = hub->totals->next;
        free(hub->totals->values);
        free(hub->totals);
        hub->totals = next;
    }
    pthread_mutex_destroy(&hub->lock);
    free(hub);
}

static const struct ox_wire_ops hub_ops = {
    .post = hub_post,
    .poll = hub_poll,
    .sending = hub_sending,
    .begin = hub_begin,
    .sum = hub_sum,
    .test = hub_test,
    .drop = hub_drop,
    .lost = hub_lost,
    .name = hub_name,
    .close = hub_close,
};

struct comm_hub *comm_hub_open(uint32_t process_count, uint64_t seed, uint64_t delay_ns, struct ox_wire **wires) {
    struct comm_hub *const hub = calloc(1, sizeof *hub);
    pthread_mutex_init(&hub->lock, NULL);
    hub->open_count = hub->process_count = process_count;
    hub->seed = seed;
    hub->delay_ns = delay_ns;
    for (uint32_t p = 0; p < process_count; p++) {
        hub->wires[p] = (struct wire){
            .base = {.ops = &hub_ops, .label = "hub", .process = p, .process_count = process_count}, .hub = hub};
        wires[p] = &hub->wires[p].base;
    }
    return hub;
}

static void set(struct comm_hub *hub, bool *flag) {
    pthread_mutex_lock(&hub->lock);
    *flag = true;
    pthread_mutex_unlock(&hub->lock);
}

void comm_hub_lose(struct comm_hub *hub, uint32_t process) {
    set(hub, &hub->lost[process]);
}

void comm_hub_stop(struct comm_hub *hub, uint32_t process) {
    set(hub, &hub->stopped[process]);
}
