/* The lanes of a step as they follow from the plan: a strip for each, a box for each task or for several that are too
 * short to be seen alone, and a line for each transfer from one rank to another. */
#include "tools/picture/picture.h"

#include "base/bytes.h"
#include "tools/trace/trace_page.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { LEFT = 96, WIDTH = 1200, STRIP = 15, GAP = 3, RANK_GAP = 30, TOP = 34, TICKS = 6 };
/* Boxes that are narrower, with as little between them, become one. */
static const double NARROW = 0.5;

/* A rank that is drawn: where its strips lie. */
struct drawn {
    const struct ox_picture_rank *rank;
    double top;
    double lane_top[OX_LANE_COUNT]; /* 0: the lane has no task */
    double bottom;
};

struct canvas {
    FILE *out;
    double scale; /* units of the drawing in a second */
    struct drawn drawn[OX_PICTURE_DRAWN];
    uint32_t count;
};

struct box {
    const char *color;
    double x, past;
    uint32_t tasks, first;
};

static double x_of(const struct canvas *c, double seconds) {
    return LEFT + seconds * c->scale;
}

/* The rank with which a transfer is. */
static uint32_t peer_of(const struct ox_picture_rank *rank, const struct ox_task *task) {
    const struct ox_rank_group pipe = ox_plan_group(rank->input, OX_AXIS_PIPE);
    return ox_rank_group_member(&pipe, task->peer);
}

static void put_title(FILE *out, const struct ox_picture_rank *rank, const struct box *box) {
    const struct ox_task *const task = &rank->plan->tasks[box->first];
    const uint32_t number = ox_task_number(task);
    char length[OX_SIZE_TEXT_BYTES], at[OX_SIZE_TEXT_BYTES];
    const double begin = rank->begin[box->first], end = rank->end[box->first + box->tasks - 1];
    fprintf(out, "<title>%s", ox_task_name(task));
    if (task->stage_idx != OX_NONE || number != OX_NONE) {
        fprintf(out, ", %s %u", task->stage_idx != OX_NONE ? "stage" : "unit",
                task->stage_idx != OX_NONE ? task->stage_idx : number);
    }
    if (task->mb_idx != OX_NONE) {
        fprintf(out, ", micro-batch %u", task->mb_idx);
    }
    if (task->peer != OX_NONE) {
        fprintf(out, ", %s rank %u", task->lane == OX_LANE_LINK_IN ? "from" : "to", peer_of(rank, task));
    }
    if (box->tasks > 1) {
        fputs(" and others", out);
    }
    fprintf(out, ": %s, from %s on</title>", ox_seconds_text(end - begin, length), ox_seconds_text(begin, at));
}

static void put_box(const struct canvas *c, const struct drawn *d, int lane, const struct box *box) {
    if (box->color != NULL) {
        const double width = box->past - box->x;
        fprintf(c->out, "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%d\" fill=\"var(--%s)\">", box->x,
                d->lane_top[lane], width > 0.3 ? width : 0.3, STRIP, box->color);
        put_title(c->out, d->rank, box);
        fputs("</rect>\n", c->out);
    }
}

/* The tasks of a lane come one after the other, so a box that goes on is the last one. */
static void put_lane(const struct canvas *c, const struct drawn *d, int lane) {
    const struct ox_plan *const plan = d->rank->plan;
    struct box box = {NULL, 0, 0, 0, 0};
    for (uint32_t i = 0; i < plan->task_count; i++) {
        if (plan->tasks[i].lane != lane || !(d->rank->end[i] > d->rank->begin[i])) {
            continue;
        }
        const double x = x_of(c, d->rank->begin[i]), past = x_of(c, d->rank->end[i]);
        const char *const color = ox_page_kind_color(ox_task_name(&plan->tasks[i]));
        const bool goes_on = box.color == color && x - box.past < NARROW && past - x < NARROW;
        if (!goes_on) {
            put_box(c, d, lane, &box);
            box = (struct box){color, x, past, 1, i};
        } else {
            box.past = past;
        }
    }
    put_box(c, d, lane, &box);
}

static void put_rank(const struct canvas *c, const struct drawn *d) {
    fprintf(c->out, "<text class=\"rank\" x=\"0\" y=\"%.1f\">rank %u</text>\n", d->top + 13, d->rank->idx);
    for (int lane = 0; lane < OX_LANE_COUNT; lane++) {
        if (d->lane_top[lane] > 0) {
            fprintf(c->out, "<text x=\"0\" y=\"%.1f\">%s</text><rect class=\"lane\" x=\"%d\" y=\"%.1f\" width=\"%d\" "
                    "height=\"%d\"/>\n", d->lane_top[lane] + 11, ox_lane_name((enum ox_lane_id)lane), LEFT,
                    d->lane_top[lane], WIDTH - LEFT, STRIP);
            put_lane(c, d, lane);
        }
    }
}

static const struct drawn *drawn_of(const struct canvas *c, uint32_t rank_idx) {
    for (uint32_t i = 0; i < c->count; i++) {
        if (c->drawn[i].rank->idx == rank_idx) {
            return &c->drawn[i];
        }
    }
    return NULL;
}

/* The task that receives what `task` of a rank sends; OX_NONE: none. */
static uint32_t receiver_of(const struct drawn *to, uint32_t from_idx, const struct ox_task *task) {
    for (uint32_t i = 0; i < to->rank->plan->task_count; i++) {
        const struct ox_task *const other = &to->rank->plan->tasks[i];
        if (other->lane == OX_LANE_LINK_IN && peer_of(to->rank, other) == from_idx && other->move == task->move &&
            other->stage_idx == task->stage_idx && other->mb_idx == task->mb_idx) {
            return i;
        }
    }
    return OX_NONE;
}

/* The transfers that a rank sends to others that are drawn. */
static void put_transfers(const struct canvas *c, const struct drawn *from) {
    const struct ox_plan *const plan = from->rank->plan;
    for (uint32_t i = 0; i < plan->task_count; i++) {
        const struct ox_task *const task = &plan->tasks[i];
        const struct drawn *const to = task->lane == OX_LANE_LINK_OUT ? drawn_of(c, peer_of(from->rank, task)) : NULL;
        const uint32_t at = to != NULL ? receiver_of(to, from->rank->idx, task) : OX_NONE;
        if (at != OX_NONE) {
            const bool down = to->top > from->top;
            fprintf(c->out, "<path class=\"transfer\" d=\"M%.2f %.1f L%.2f %.1f\"/>\n",
                    x_of(c, from->rank->begin[i]), from->lane_top[OX_LANE_LINK_OUT] + (down ? STRIP : 0),
                    x_of(c, to->rank->end[at]), to->lane_top[OX_LANE_LINK_IN] + (down ? 0 : STRIP));
        }
    }
}

bool ox_picture_same_list(const struct ox_plan *a, const struct ox_plan *b) {
    bool same = a->task_count == b->task_count;
    for (uint32_t i = 0; same && i < a->task_count; i++) {
        const struct ox_task *const x = &a->tasks[i], *const y = &b->tasks[i];
        same = x->kind == y->kind && x->lane == y->lane && x->move == y->move && x->unit_idx == y->unit_idx &&
               x->stage_idx == y->stage_idx && x->mb_idx == y->mb_idx;
    }
    return same;
}

/* Chooses the ranks and places their strips; returns the bottom of the drawing. */
static double place(const struct ox_picture *p, struct canvas *c) {
    double y = TOP;
    for (uint32_t r = 0; r < p->rank_count && c->count < OX_PICTURE_DRAWN; r++) {
        const struct ox_picture_rank *const rank = &p->ranks[r];
        bool shown = rank->begin == NULL;
        for (uint32_t k = 0; k < c->count && !shown; k++) {
            shown = ox_picture_same_list(c->drawn[k].rank->plan, rank->plan);
        }
        if (shown) {
            continue;
        }
        struct drawn *const d = &c->drawn[c->count++];
        *d = (struct drawn){.rank = rank, .top = y};
        bool has[OX_LANE_COUNT] = {false};
        for (uint32_t i = 0; i < rank->plan->task_count; i++) {
            has[rank->plan->tasks[i].lane] |= rank->end[i] > rank->begin[i];
        }
        y += STRIP + GAP;
        for (int lane = 0; lane < OX_LANE_COUNT; lane++) {
            d->lane_top[lane] = has[lane] ? y : 0;
            y += has[lane] ? STRIP + GAP : 0;
        }
        d->bottom = y;
        y += RANK_GAP;
    }
    return y;
}

static void put_ticks(const struct canvas *c, double seconds, double bottom) {
    for (int i = 0; i <= TICKS; i++) {
        const double at = seconds * i / TICKS;
        char text[OX_SIZE_TEXT_BYTES];
        fprintf(c->out, "<line class=\"grid\" x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%.1f\"/><text x=\"%.1f\" y=\"%d\" "
                "text-anchor=\"%s\">%s</text>\n", x_of(c, at), TOP - 12, x_of(c, at), bottom, x_of(c, at), TOP - 18,
                i == 0 ? "start" : i == TICKS ? "end" : "middle", i == 0 ? "0" : ox_seconds_text(at, text));
    }
}

static void put_legend(FILE *out) {
    static const char *const pairs[][2] = {{"forward", "forward"},   {"backward", "backward"},
                                           {"head", "head"},         {"weights", "weights"},
                                           {"activations", "activations"}, {"gradients", "gradients"},
                                           {"norm", "norm"},         {"update", "adam"},
                                           {"commit", "commit"},     {"between ranks", "gathered"}};
    fputs("<ul class=\"legend\">", out);
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        fprintf(out, "<li><i style=\"background:var(--%s)\"></i>%s</li>", pairs[i][1], pairs[i][0]);
    }
    fputs("</ul>\n", out);
}

enum ox_status ox_picture_lanes(const struct ox_picture *picture, FILE *out) {
    struct canvas *const c = calloc(1, sizeof *c);
    if (c == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory to draw the plan");
    }
    const double bottom = place(picture, c);
    double seconds = picture->seconds;
    for (uint32_t i = 0; i < c->count; i++) {
        for (uint32_t k = 0; k < c->drawn[i].rank->plan->task_count; k++) {
            seconds = c->drawn[i].rank->end[k] > seconds ? c->drawn[i].rank->end[k] : seconds;
        }
    }
    c->out = out;
    c->scale = seconds > 0 ? (WIDTH - LEFT) / seconds : 0;
    if (c->count > 0) {
        fputs("<section><h2>What happens when</h2>\n<p class=\"note\">Every lane does its tasks one after the other; "
              "point at a box for what it is. Ranks that do the same with micro-batches of their own are drawn "
              "once.</p>\n", out);
        put_legend(out);
        fprintf(out, "<div class=\"scroll\"><svg class=\"lanes\" viewBox=\"0 0 %d %.0f\" role=\"img\" "
                "aria-label=\"lanes of a step\">\n", WIDTH, bottom);
        put_ticks(c, seconds, bottom - RANK_GAP);
        for (uint32_t i = 0; i < c->count; i++) {
            put_rank(c, &c->drawn[i]);
        }
        for (uint32_t i = 0; i < c->count; i++) {
            put_transfers(c, &c->drawn[i]);
        }
        fputs("</svg></div></section>\n", out);
    }
    free(c);
    return OX_OK;
}
