/* The state of a group of ranks, and the events that change it. */
#include "kernels/comm/comm_group.h"

#include "base/assert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void wake_all(struct ox_comm_group *group) {
    for (uint32_t i = 0; i < OX_COMM_CHANNEL_COUNT; i++) {
        pthread_cond_broadcast(&group->channels[i].moved);
    }
}

/* Ends all calls with this text. A failure during a revival replaces the one before it and ends the revival; one that
 * was raised before its rank knew of that one does not. */
static void fail_all(struct ox_comm_group *group, enum ox_status status, const char *text, uint32_t aborts) {
    struct ox_comm_channel *const revival = &group->channels[OX_COMM_CHANNEL_REVIVE];
    if (group->cause != OX_OK && (revival->arrived == 0 || aborts != group->abort_count)) {
        return;
    }
    group->cause = status;
    snprintf(group->cause_text, sizeof group->cause_text, "%s", text);
    group->abort_count++;
    revival->arrived = 0;
    wake_all(group);
}

/* The number of ended rounds of a rank's group. */
static uint64_t *round_of(struct ox_comm_group *group, uint32_t channel, uint32_t rank) {
    const uint64_t ranks = group->members[rank].groups[ox_comm_endpoint_of_channel(channel)];
    return &group->channels[channel].rounds[__builtin_ctzll(ranks)];
}

/* Two ranks that wait for each other in calls of their endpoints `number` that can never match: a send or recv whose
 * peer waits for all ranks, or, unless it may do both at a time, for the same side of a transfer. */
static enum ox_status check_deadlock(struct ox_comm_group *group, uint32_t number) {
    const uint32_t channel = OX_COMM_CHANNEL_LINK + number;
    const struct ox_comm_channel *const link = &group->channels[channel];
    for (uint32_t i = 0; i < 2 * group->count; i++) {
        const uint32_t r = i / 2, side = i % 2;
        const struct ox_comm_transfer *const one = &group->members[r].transfers[number][side];
        if (one->state != OX_COMM_WAITING) {
            continue;
        }
        const uint32_t peer = one->post.peer;
        const struct ox_comm_transfer *const other = &group->members[peer].transfers[number][side];
        if ((link->arrived >> peer & 1) != 0) {
            return ox_comm_posts_clash(r, &one->post, peer, &link->posts[*round_of(group, channel, peer) % 2][peer]);
        }
        if (other->state == OX_COMM_WAITING && other->post.peer == r && !group->duplex[number]) {
            return ox_comm_posts_clash(r, &one->post, peer, &other->post);
        }
    }
    return OX_OK;
}

/* All ranks have come back after a failure: whatever they had begun is forgotten. */
static void revived(struct ox_comm_group *group) {
    for (uint32_t i = 0; i < OX_COMM_CHANNEL_REVIVE; i++) {
        group->channels[i].arrived = 0;
    }
    for (uint32_t r = 0; r < group->count; r++) {
        for (uint32_t i = 0; i < OX_COMM_ENDPOINTS; i++) {
            group->members[r].transfers[i][0].state = group->members[r].transfers[i][1].state = OX_COMM_IDLE;
        }
    }
    group->cause = OX_OK;
}

static enum ox_status arrives(struct ox_comm_group *group, const struct ox_comm_event *event, const void *payload) {
    struct ox_comm_channel *const channel = &group->channels[event->channel];
    const uint32_t number = ox_comm_endpoint_of_channel(event->channel);
    const uint64_t ranks = group->members[event->rank].groups[number];
    uint64_t *const round = round_of(group, event->channel, event->rank);
    const uint32_t parity = (uint32_t)(*round % 2);
    channel->posts[parity][event->rank] = event->post;
    if (event->payload_bytes > 0) {
        memcpy(channel->payloads[parity] + (size_t)event->rank * channel->payload_bytes, payload,
               event->payload_bytes);
    }
    channel->arrived |= UINT64_C(1) << event->rank;
    const bool is_link = event->channel == OX_COMM_CHANNEL_LINK + number;
    if ((channel->arrived & ranks) != ranks) {
        return is_link ? check_deadlock(group, number) : OX_OK;
    }
    OX_TRY(ox_comm_posts_check(channel->posts[parity], ranks));
    channel->arrived &= ~ranks;
    ++*round;
    if (is_link) {
        channel->copying |= (ox_comm_ranks_all(group->local) << group->first) & ranks;
    }
    if (event->channel == OX_COMM_CHANNEL_REVIVE) {
        revived(group);
    }
    pthread_cond_broadcast(&channel->moved);
    return OX_OK;
}

static enum ox_status transfers(struct ox_comm_group *group, const struct ox_comm_event *event) {
    const uint32_t number = ox_comm_endpoint_of_channel(event->channel);
    const uint32_t side = ox_comm_side(&event->post);
    struct ox_comm_transfer *const one = &group->members[event->rank].transfers[number][side];
    struct ox_comm_transfer *const other = &group->members[event->post.peer].transfers[number][1 - side];
    one->post = event->post;
    one->state = OX_COMM_WAITING;
    if (other->state != OX_COMM_WAITING ||
        !ox_comm_posts_pair(event->rank, &one->post, event->post.peer, &other->post)) {
        return check_deadlock(group, number);
    }
    const bool sends = one->post.call == OX_COMM_SEND;
    const enum ox_status status =
        sends ? ox_comm_transfer_check(event->rank, &one->post, event->post.peer, &other->post)
              : ox_comm_transfer_check(event->post.peer, &other->post, event->rank, &one->post);
    if (status == OX_OK) {
        one->state = other->state = OX_COMM_MATCHED;
        pthread_cond_broadcast(&group->channels[OX_COMM_CHANNEL_LINK + number].moved);
    }
    return status;
}

/* Calls that were on their way when a failure came do not count. */
void ox_comm_group_apply(struct ox_comm_group *group, const struct ox_comm_event *event, const void *payload) {
    const bool dead = group->cause != OX_OK;
    enum ox_status status = OX_OK;
    switch ((enum ox_comm_event_kind)event->kind) {
    case OX_COMM_ARRIVES:
        status = dead && event->channel != OX_COMM_CHANNEL_REVIVE ? OX_OK : arrives(group, event, payload);
        break;
    case OX_COMM_TRANSFERS: status = dead ? OX_OK : transfers(group, event); break;
    case OX_COMM_ABORTS: {
        char text[OX_ERROR_TEXT_BYTES];
        group->members[event->rank].applied++;
        snprintf(text, sizeof text, "rank %u: %.*s", event->rank, (int)event->payload_bytes, (const char *)payload);
        fail_all(group, (enum ox_status)event->status, text, event->aborts);
        wake_all(group);
        break;
    }
    case OX_COMM_LEAVES:
        group->gone |= UINT64_C(1) << event->rank;
        wake_all(group);
        break;
    case OX_COMM_LIVES: break;
    }
    if (status != OX_OK) {
        fail_all(group, status, ox_error_text(), group->abort_count);
    }
}

void ox_comm_group_submit(struct ox_comm_group *group, const struct ox_comm_event *event, const void *payload) {
    if (group->remote != NULL) {
        ox_comm_remote_submit(group, event, payload);
    } else {
        ox_comm_group_apply(group, event, payload);
    }
}

void ox_comm_group_abort(struct ox_comm_group *group, uint32_t rank, enum ox_status status, const char *text) {
    group->members[rank].raised++;
    const size_t bytes = strnlen(text, OX_ERROR_TEXT_BYTES - 1);
    const struct ox_comm_event event = {.kind = OX_COMM_ABORTS, .rank = rank, .status = status,
                                        .payload_bytes = (uint32_t)bytes, .aborts = group->abort_count};
    ox_comm_group_submit(group, &event, text);
}

/* ---- open and close --------------------------------------------------------------------------------- */

static bool channel_open(struct ox_comm_channel *channel, uint32_t count, uint32_t payload_bytes) {
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&channel->moved, &attr);
    pthread_condattr_destroy(&attr);
    bool room = true;
    channel->payload_bytes = payload_bytes;
    for (int parity = 0; parity < 2; parity++) {
        channel->posts[parity] = calloc(count, sizeof *channel->posts[parity]);
        channel->payloads[parity] = payload_bytes > 0 ? calloc(count, payload_bytes) : NULL;
        room = room && channel->posts[parity] != NULL && (payload_bytes == 0 || channel->payloads[parity] != NULL);
    }
    return room;
}

void ox_comm_group_close(struct ox_comm_group *group) {
    for (uint32_t i = 0; i < OX_COMM_CHANNEL_COUNT; i++) {
        struct ox_comm_channel *const channel = &group->channels[i];
        for (int parity = 0; parity < 2; parity++) {
            free(channel->posts[parity]);
            free(channel->payloads[parity]);
        }
        pthread_cond_destroy(&channel->moved);
    }
    for (uint32_t r = 0; r < group->count; r++) {
        for (uint32_t i = 0; i < OX_COMM_SPLITS && group->endpoints[r] != NULL; i++) {
            free(group->endpoints[r]->splits[i]);
        }
        free(group->endpoints[r]);
    }
    pthread_mutex_destroy(&group->lock);
    free(group);
}

enum ox_status ox_comm_group_open(const struct ox_comm_local_config *config, uint32_t first, uint32_t count,
                                  struct ox_comm_group **out) {
    OX_ASSERT(config->count > 0 && first + config->count <= count && count <= OX_COMM_RANKS_MAX);
    struct ox_comm_group *const group = calloc(1, sizeof *group);
    *out = NULL;
    bool room = group != NULL;
    if (room) {
        group->count = count;
        group->first = first;
        group->local = group->open_count = config->count;
        group->limits = config->limits;
        pthread_mutex_init(&group->lock, NULL);
        for (uint32_t i = 0; i < OX_COMM_CHANNEL_COUNT; i++) {
            const bool of_group = i > OX_COMM_CHANNEL_MEET && i < OX_COMM_CHANNEL_REVIVE;
            room = channel_open(&group->channels[i], count, i < OX_COMM_CHANNELS ? OX_COMM_MEET_BYTES
                                                            : of_group ? OX_COMM_GROUP_MEET_BYTES : 0) && room;
        }
        for (uint32_t r = 0; r < count; r++) {
            group->members[r].groups[0] = ox_comm_ranks_all(count);
        }
        for (uint32_t r = first; r < first + config->count; r++) {
            group->endpoints[r] = calloc(1, sizeof *group->endpoints[r]);
            room = room && group->endpoints[r] != NULL;
        }
    }
    if (!room) {
        if (group != NULL) {
            ox_comm_group_close(group);
        }
        return ox_fail(OX_E_NOMEM, "communication of %u ranks: no memory for its state", count);
    }
    *out = group;
    return OX_OK;
}
