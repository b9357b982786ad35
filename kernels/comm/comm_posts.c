/* Calls as data: what a rank states of its call, how ranks compare, and what is said of a call that waits. */
#include "base/bytes.h"
#include "base/clock.h"
#include "base/hash/hash.h"
#include "base/log.h"
#include "kernels/comm/comm_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { WARN_MS = 10 * 1000, FAIL_MS = 600 * 1000, POST_TEXT_BYTES = OX_COMM_WHAT_BYTES + 96 };
#define MS_NS UINT64_C(1000000)

static void post_begin(struct ox_comm_post *post, enum ox_comm_call call, const char *what) {
    memset(post, 0, sizeof *post);
    post->call = call;
    snprintf(post->what, sizeof post->what, "%s", what);
}

static void post_vector(struct ox_comm_post *post, const struct ox_comm *comm, const uint64_t *cuts, bool on_host) {
    uint64_t offsets[OX_COMM_RANKS_MAX];
    for (uint32_t r = 0; r < comm->count; r++) {
        offsets[r] = cuts[r + 1] - cuts[0];
    }
    post->bytes = offsets[comm->count - 1];
    post->digest = ox_hash_seed(offsets, comm->count);
    post->on_host = on_host;
}

void ox_comm_post_gather(const struct ox_comm *comm, const struct ox_comm_gather *call, struct ox_comm_post *out) {
    post_begin(out, OX_COMM_GATHER, call->what);
    post_vector(out, comm, call->cuts, call->on_host);
}

void ox_comm_post_exchange(const struct ox_comm *comm, const struct ox_comm_exchange *call, struct ox_comm_post *out) {
    post_begin(out, OX_COMM_EXCHANGE, call->what);
    post_vector(out, comm, call->cuts, call->on_host);
    uint64_t givers = 0;
    for (uint32_t r = 0; r < comm->count; r++) {
        givers |= (uint64_t)call->gives[r] << r;
    }
    out->digest = ox_hash_seed((const uint64_t[]){out->digest, givers}, 2);
}

void ox_comm_post_reduce_scatter(const struct ox_comm *comm, const struct ox_comm_reduce_scatter *call,
                                 struct ox_comm_post *out) {
    post_begin(out, OX_COMM_REDUCE_SCATTER, call->what);
    post_vector(out, comm, call->cuts, call->on_host);
}

/* `peer` is the number among all ranks. */
static void post_transfer(struct ox_comm_post *post, uint32_t peer, uint64_t bytes, bool on_host) {
    post->peer = peer;
    post->bytes = bytes;
    post->on_host = on_host;
}

void ox_comm_post_send(const struct ox_comm *comm, const struct ox_comm_send *call, struct ox_comm_post *out) {
    post_begin(out, OX_COMM_SEND, call->what);
    post_transfer(out, ox_comm_member(comm, call->peer), call->bytes, call->on_host);
}

void ox_comm_post_recv(const struct ox_comm *comm, const struct ox_comm_recv *call, struct ox_comm_post *out) {
    post_begin(out, OX_COMM_RECV, call->what);
    post_transfer(out, ox_comm_member(comm, call->peer), call->bytes, call->on_host);
}

void ox_comm_post_meet(const struct ox_comm_meet *call, struct ox_comm_post *out) {
    post_begin(out, OX_COMM_MEET, call->what);
    out->bytes = call->slot_bytes;
    out->payload_bytes = call->mine_bytes;
    out->on_host = true;
}

/* Writes `gather "weights of unit 3" (8192 bytes)`. Posts may come from another process, so nothing in them is trusted
 * to be in range. */
static const char *post_text(const struct ox_comm_post *post, char text[POST_TEXT_BYTES]) {
    char way[40] = "";
    if (post->call == OX_COMM_SEND || post->call == OX_COMM_RECV) {
        snprintf(way, sizeof way, " %s rank %u", post->call == OX_COMM_SEND ? "to" : "from", post->peer);
    }
    const char *const name = post->call < OX_COMM_CALL_COUNT ? ox_comm_call_name((enum ox_comm_call)post->call) : "?";
    snprintf(text, POST_TEXT_BYTES, "%s \"%.*s\"%s (%" PRIu64 " bytes%s)", name, OX_COMM_WHAT_BYTES - 1, post->what,
             way, post->bytes, post->on_host ? ", host memory" : "");
    return text;
}

enum ox_status ox_comm_posts_clash(uint32_t a_rank, const struct ox_comm_post *a, uint32_t b_rank,
                                   const struct ox_comm_post *b) {
    char a_text[POST_TEXT_BYTES], b_text[POST_TEXT_BYTES];
    return ox_fail(OX_E_COMM, "rank %u: it calls %s where rank %u calls %s; all ranks must make the same calls in the "
                   "same order: start them with the same program, model and options", a_rank, post_text(a, a_text),
                   b_rank, post_text(b, b_text));
}

static bool same_name_and_size(const struct ox_comm_post *a, const struct ox_comm_post *b) {
    return a->bytes == b->bytes && a->on_host == b->on_host && strncmp(a->what, b->what, sizeof a->what) == 0;
}

enum ox_status ox_comm_posts_check(const struct ox_comm_post *posts, uint64_t ranks) {
    const uint32_t first = (uint32_t)__builtin_ctzll(ranks);
    for (uint64_t left = ranks & (ranks - 1); left != 0; left &= left - 1) {
        const uint32_t r = (uint32_t)__builtin_ctzll(left);
        if (posts[r].call != posts[first].call || !same_name_and_size(&posts[r], &posts[first])) {
            return ox_comm_posts_clash(r, &posts[r], first, &posts[first]);
        }
        if (posts[r].digest != posts[first].digest) {
            char text[POST_TEXT_BYTES];
            return ox_fail(OX_E_COMM, "rank %u: it calls %s with other slices or givers than rank %u; start all ranks "
                           "with the same program, model and options", r, post_text(&posts[r], text), first);
        }
        if (posts[r].payload_bytes > posts[r].bytes && posts[r].call == OX_COMM_MEET) {
            return ox_fail(OX_E_COMM, "rank %u: it brings %u bytes to meeting \"%.*s\", which has room for %" PRIu64, r,
                           posts[r].payload_bytes, OX_COMM_WHAT_BYTES - 1, posts[r].what, posts[r].bytes);
        }
    }
    return OX_OK;
}

bool ox_comm_posts_pair(uint32_t a_rank, const struct ox_comm_post *a, uint32_t b_rank, const struct ox_comm_post *b) {
    const bool kinds = (a->call == OX_COMM_SEND && b->call == OX_COMM_RECV) ||
                       (a->call == OX_COMM_RECV && b->call == OX_COMM_SEND);
    return kinds && a->peer == b_rank && b->peer == a_rank;
}

enum ox_status ox_comm_transfer_check(uint32_t send_rank, const struct ox_comm_post *send, uint32_t recv_rank,
                                      const struct ox_comm_post *recv) {
    const bool same = send->bytes == recv->bytes && strncmp(send->what, recv->what, sizeof send->what) == 0;
    return same ? OX_OK : ox_comm_posts_clash(send_rank, send, recv_rank, recv);
}

const char *ox_comm_ranks_text(uint64_t ranks, char *text) {
    const int count = __builtin_popcountll(ranks);
    int used = snprintf(text, OX_COMM_RANKS_TEXT_BYTES, "rank%s", ox_plural(count));
    for (int i = 0; ranks != 0; i++, ranks &= ranks - 1) {
        used += snprintf(text + used, OX_COMM_RANKS_TEXT_BYTES - (size_t)used, "%s%d",
                         i == 0 ? " " : i + 1 == count ? " and " : ", ", __builtin_ctzll(ranks));
    }
    return text;
}

uint64_t ox_comm_ranks_of(const struct ox_comm *comm) {
    uint64_t ranks = 0;
    for (uint32_t r = 0; r < comm->count; r++) {
        ranks |= UINT64_C(1) << ox_comm_member(comm, r);
    }
    return ranks;
}

void ox_comm_patience_begin(struct ox_comm_patience *patience, const struct ox_comm_limits *limits) {
    patience->begin_ns = patience->seen_ns = ox_clock_ns();
    patience->warn_ns = patience->begin_ns + (limits->warn_ms > 0 ? limits->warn_ms : WARN_MS) * MS_NS;
    patience->fail_ns = patience->begin_ns + (limits->fail_ms > 0 ? limits->fail_ms : FAIL_MS) * MS_NS;
}

uint64_t ox_comm_patience_look(struct ox_comm_patience *patience) {
    enum { LATE_MAX_NS = 2 * (uint64_t)OX_COMM_LOOK_NS };
    const uint64_t now = ox_clock_ns(), passed = now - patience->seen_ns;
    const uint64_t stopped = passed > LATE_MAX_NS ? passed - LATE_MAX_NS : 0;
    patience->begin_ns += stopped;
    patience->warn_ns += stopped;
    patience->fail_ns += stopped;
    patience->seen_ns = now;
    return now;
}

enum ox_status ox_comm_patience_check(struct ox_comm_patience *patience, const struct ox_comm *comm,
                                      const struct ox_comm_post *post, uint64_t missing) {
    const uint64_t now = ox_comm_patience_look(patience);
    if (now < patience->warn_ns && now < patience->fail_ns) {
        return OX_OK;
    }
    char call[POST_TEXT_BYTES], names[OX_COMM_RANKS_TEXT_BYTES];
    post_text(post, call);
    ox_comm_ranks_text(missing, names);
    const double seconds = (double)(now - patience->begin_ns) / 1e9;
    if (now >= patience->fail_ns) {
        return ox_fail(OX_E_COMM, "%s has waited %.1f s for %s, which did not come; look at the last lines of %s, and "
                       "resume from the last commit", call, seconds, names, names);
    }
    patience->warn_ns = patience->begin_ns + 2 * (now - patience->begin_ns);
    const uint64_t came = ox_comm_ranks_of(comm) & ~missing;
    const bool pair = post->call == OX_COMM_SEND || post->call == OX_COMM_RECV;
    const uint32_t own = ox_comm_member(comm, comm->rank);
    if (pair || (came != 0 && (uint32_t)__builtin_ctzll(came) == own)) {
        ox_log(OX_LOG_WARN, "rank %u: %s has waited %.1f s for %s; it fails after %.0f s", own, call, seconds, names,
               (double)(patience->fail_ns - patience->begin_ns) / 1e9);
    }
    return OX_OK;
}
