/* The page: what it says in words, who holds what, and what crosses the links. */
#include "tools/picture/picture.h"

#include "base/bytes.h"
#include "tools/trace/trace_report.h"

#include <inttypes.h>
#include <string.h>

/* Embeds the style sheet from the source tree; that of the report of a recording has the colours. */
__asm__(".pushsection .rodata\n"
        ".globl ox_picture_css\nox_picture_css:\n.incbin \"tools/picture/picture.css\"\n.byte 0\n"
        ".popsection\n");
extern const char ox_picture_css[], ox_trace_page_css[];

enum { COLUMNS_MAX = 16, NAME_BYTES = 96 };

static uint32_t column_count(const struct ox_picture *p) {
    return p->rank_count < COLUMNS_MAX ? p->rank_count : COLUMNS_MAX;
}

static const struct ox_shard *shard_at(const struct ox_picture *p, uint32_t rank, uint32_t unit_idx) {
    return &p->ranks[rank].input->table->shards[unit_idx];
}

static bool is_block(const struct ox_unit *unit) {
    return unit->kind == OX_UNIT_BLOCK;
}

/* What a unit is, to people. */
static void unit_name(const struct ox_model *model, uint32_t unit_idx, char name[NAME_BYTES]) {
    const struct ox_unit *const unit = &model->units[unit_idx];
    const struct ox_unit *const own = &model->units[unit->own];
    const char *const kind = own->kind == OX_UNIT_EMBED ? "embedding" : own->kind == OX_UNIT_HEAD ? "head" : "block";
    if (unit->kind == OX_UNIT_EXPERTS || (own->kind == OX_UNIT_EXPERTS && unit->group != OX_NO_GROUP)) {
        snprintf(name, NAME_BYTES, "experts %u to %u of block %u", unit->expert_first,
                 unit->expert_first + unit->expert_count - 1, unit->layer);
    } else if (unit->group != OX_NO_GROUP && unit->own != unit_idx) {
        const int used = snprintf(name, NAME_BYTES, "group %u of %s%s", unit->group, kind, is_block(own) ? "s" : "");
        if (unit->expert_count > 0) {
            snprintf(name + used, NAME_BYTES - (size_t)used, ", experts %u to %u", unit->expert_first,
                     unit->expert_first + unit->expert_count - 1);
        }
    } else if (unit->own != unit_idx) {
        snprintf(name, NAME_BYTES, "beside %s%s", kind, is_block(own) ? "s" : "");
    } else {
        snprintf(name, NAME_BYTES, "%s%s", kind, is_block(own) ? " " : "");
    }
}

/* Whether two units of a kind lie on every rank alike, so that a row has both. */
static bool are_alike(const struct ox_picture *p, uint32_t a, uint32_t b) {
    const struct ox_unit *const x = &p->model->units[a], *const y = &p->model->units[b];
    bool alike = x->kind == y->kind && (x->own == a) == (y->own == b) &&
                 p->model->units[x->own].kind != OX_UNIT_EXPERTS &&
                 x->group == y->group && x->expert_count == y->expert_count;
    for (uint32_t r = 0; alike && r < p->rank_count; r++) {
        const struct ox_shard *const s = shard_at(p, r, a), *const t = shard_at(p, r, b);
        alike = s->fixed == t->fixed && memcmp(&s->homes, &t->homes, sizeof s->homes) == 0 &&
                s->elem_count == t->elem_count;
    }
    return alike;
}

static void put_tier(FILE *out, const char *what, enum ox_tier tier, bool is_there) {
    const char *const name = ox_tier_name(tier);
    fprintf(out, "<i class=\"%s\" title=\"%s: %s\"></i>", is_there ? name : "none", what, is_there ? name : "none");
}

static void put_cell(const struct ox_picture *p, uint32_t rank, uint32_t unit_idx, FILE *out) {
    const struct ox_shard *const shard = shard_at(p, rank, unit_idx);
    const uint64_t whole = p->model->units[unit_idx].elem_count;
    if (shard->elem_count == 0) {
        fputs("<td class=\"home\"></td>", out);
        return;
    }
    fputs("<td class=\"home\">", out);
    put_tier(out, "weights", shard->homes.weights, true);
    put_tier(out, "state", shard->homes.state, !shard->fixed);
    put_tier(out, "gradient", shard->homes.grad, !shard->fixed);
    if (shard->elem_count < whole) {
        fprintf(out, "<span>%.3g %%</span>", 100.0 * (double)shard->elem_count / (double)whole);
    }
    fputs("</td>", out);
}

static void put_row(const struct ox_picture *p, uint32_t first, uint32_t last, FILE *out) {
    const struct ox_plan_model *const model = &p->ranks[0].input->model;
    const uint32_t unit_idx = model->order[first];
    const struct ox_unit *const unit = &p->model->units[unit_idx];
    char name[NAME_BYTES], params[OX_SIZE_TEXT_BYTES];
    unit_name(p->model, unit_idx, name);
    fprintf(out, "<tr><th>%s", name);
    if (is_block(unit)) {
        fprintf(out, "%u", unit->layer);
        if (last > first) {
            fprintf(out, " to %u", p->model->units[model->order[last]].layer);
        }
    }
    fprintf(out, "</th><td>%s%s</td>", ox_count_text((double)unit->param_count, params), last > first ? " each" : "");
    for (uint32_t r = 0; r < column_count(p); r++) {
        put_cell(p, r, unit_idx, out);
    }
    fputs("</tr>\n", out);
}

static void put_holders(const struct ox_picture *p, FILE *out) {
    const struct ox_plan_model *const model = &p->ranks[0].input->model;
    fputs("<section><h2>Who holds what</h2>\n<p class=\"note\">Three boxes: where weights, optimizer state and the "
          "finished gradient of a unit live between their uses; a percentage: the part that the rank has.</p>\n"
          "<ul class=\"legend tiers\"><li><i class=\"device\"></i>device</li><li><i class=\"host\"></i>host memory</li>"
          "<li><i class=\"nvme\"></i>drives</li><li><i class=\"none\"></i>none, because it is not trained</li></ul>\n"
          "<div class=\"scroll\"><table class=\"holders\"><thead><tr><th>unit</th><th>parameters</th>", out);
    for (uint32_t r = 0; r < column_count(p); r++) {
        fprintf(out, "<th class=\"text\">rank %u</th>", p->ranks[r].idx);
    }
    fputs("</tr></thead><tbody>\n", out);
    for (uint32_t i = 0; i < model->unit_count;) {
        uint32_t last = i;
        while (last + 1 < model->unit_count && are_alike(p, model->order[i], model->order[last + 1])) {
            last++;
        }
        put_row(p, i, last, out);
        i = last + 1;
    }
    fputs("</tbody></table></div>\n", out);
    if (p->rank_count > COLUMNS_MAX) {
        fprintf(out, "<p class=\"note\">Ranks %u to %u go on in the same way.</p>", COLUMNS_MAX, p->rank_count - 1);
    }
    fputs("</section>\n", out);
}

/* Bytes of all ranks. */
static uint64_t link_bytes(const struct ox_picture *p, enum ox_link link) {
    uint64_t sum = 0;
    for (uint32_t r = 0; r < p->rank_count; r++) {
        for (int kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
            sum += p->ranks[r].plan->traffic[link][kind];
        }
    }
    return sum;
}

static void put_traffic_row(const struct ox_picture *p, enum ox_link link, FILE *out) {
    for (uint32_t r = 0; r < column_count(p); r++) {
        const uint64_t *const traffic = p->ranks[r].plan->traffic[link];
        uint64_t sum = 0;
        char text[OX_SIZE_TEXT_BYTES], title[256] = "";
        for (int kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
            const size_t used = strlen(title);
            sum += traffic[kind];
            if (traffic[kind] > 0) {
                snprintf(title + used, sizeof title - used, "%s%s %s", used > 0 ? ", " : "",
                         ox_traffic_name((enum ox_traffic_kind)kind), ox_size_text(traffic[kind], text));
            }
        }
        fprintf(out, "<td title=\"%s\">%s</td>", title, sum > 0 ? ox_size_text(sum, text) : "");
    }
}

static void put_traffic(const struct ox_picture *p, FILE *out) {
    fputs("<section><h2>What travels in a step</h2>\n<div class=\"scroll\"><table class=\"traffic\"><thead><tr><th>link"
          "</th>", out);
    for (uint32_t r = 0; r < column_count(p); r++) {
        fprintf(out, "<th>rank %u</th>", p->ranks[r].idx);
    }
    fputs("</tr></thead><tbody>\n", out);
    for (int link = 0; link < ox_plan_link_count(p->ranks[0].input); link++) {
        if (link_bytes(p, (enum ox_link)link) > 0) {
            fprintf(out, "<tr><th>%s</th>", ox_link_name((enum ox_link)link));
            put_traffic_row(p, (enum ox_link)link, out);
            fputs("</tr>\n", out);
        }
    }
    const bool bounded = ox_plan_experts(p->ranks[0].input) > 1;
    fprintf(out,
            "</tbody></table></div>\n<p class=\"note\">Point at a number for what it is made of.%s</p></section>\n",
            bounded ? " Tokens are rows that go to the ranks with their experts and back: the most that there can be; "
                      "a step moves as many as the router chooses." : "");
}

static void put_head(const struct ox_picture *p, FILE *out) {
    char seconds[OX_SIZE_TEXT_BYTES];
    fputs("<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">"
          "<meta name=\"viewport\" content=\"width=device-width\"><title>Plan: ", out);
    ox_html_put(out, p->title);
    fprintf(out, "</title><style>%s%s</style></head><body><main>\n<h1>", ox_trace_page_css, ox_picture_css);
    ox_html_put(out, p->title);
    fprintf(out, "</h1>\n<p class=\"lead\">A step takes <span class=\"mark\">%s</span> on %u rank%s of ",
            ox_seconds_text(p->seconds, seconds), p->rank_count, ox_plural(p->rank_count));
    ox_html_put(out, p->machine);
    fputs(", by the simulator. Nothing has run yet.</p>\n", out);
}

enum ox_status ox_picture_write(const struct ox_picture *picture, FILE *out) {
    put_head(picture, out);
    put_holders(picture, out);
    put_traffic(picture, out);
    const enum ox_status status = ox_picture_lanes(picture, out);
    fputs("</main></body></html>\n", out);
    return status;
}
