/* The choice of a mesh in words. */
#include "engine/mesh/mesh_choice.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { TIME_BYTES = 96 };

const char *ox_mesh_kind_name(uint32_t kind) {
    static const char *const others[] = {"tensor", "context", "expert", "several"};
    return kind == OX_MESH_DATA    ? "data"
           : kind < OX_MESH_TENSOR ? ox_pipe_schedule_name((enum ox_pipe_schedule)(kind - OX_MESH_PIPE))
                                   : others[kind - OX_MESH_TENSOR];
}

const char *ox_context_mode_name(enum ox_context_mode mode) {
    static const char *const names[OX_CONTEXT_MODE_COUNT] = {"gather", "ulysses", "ring"};
    return names[mode];
}

const char *ox_mesh_sizes_text(const struct ox_mesh_tried *mesh, char text[OX_MESH_SIZES_BYTES]) {
    const struct {
        const char *name;
        uint32_t size;
    } more[] = {{"tp", mesh->tensor}, {"cp", mesh->context}, {"ep", ox_mesh_expert_ranks(mesh->expert, mesh->tensor)}};
    int used = snprintf(text, OX_MESH_SIZES_BYTES, "dp=%u,pp=%u", mesh->data, mesh->pipe);
    for (int i = 0; i < 3; i++) {
        used += more[i].size > 1 ? snprintf(text + used, OX_MESH_SIZES_BYTES - (size_t)used, ",%s=%u", more[i].name,
                                            more[i].size) : 0;
    }
    if (mesh->context > 1 && mesh->context_mode != OX_CONTEXT_GATHER) {
        used += snprintf(text + used, OX_MESH_SIZES_BYTES - (size_t)used, " %s",
                         ox_context_mode_name(mesh->context_mode));
    }
    if (mesh->chunks > 1) {
        snprintf(text + used, OX_MESH_SIZES_BYTES - (size_t)used, " x %u", mesh->chunks);
    }
    return text;
}

static const char *time_text(const struct ox_mesh_tried *mesh, bool binds, char text[TIME_BYTES]) {
    if (isfinite(mesh->seconds) && binds) {
        snprintf(text, TIME_BYTES, "%.3g s  %s %.0f %%", mesh->seconds, ox_sim_resource_name(mesh->binding),
                 100 * mesh->binding_share);
    } else if (isfinite(mesh->seconds)) {
        snprintf(text, TIME_BYTES, "%.3g s", mesh->seconds);
    } else if (mesh->planned) {
        snprintf(text, TIME_BYTES, "no plan");
    } else {
        snprintf(text, TIME_BYTES, "at least %.3g s", mesh->sketch.least);
    }
    return text;
}

const char *ox_mesh_why_none(const struct ox_mesh_choice *choice, uint32_t kind) {
    return choice->best[kind].pipe == 0 ? choice->refused[kind - OX_MESH_TENSOR] : "";
}

/* Writes why there are no ranks on an axis. */
static void refusals_text(const struct ox_mesh_choice *choice, char *text, size_t bytes) {
    size_t used = 0;
    text[0] = '\0';
    for (uint32_t kind = OX_MESH_TENSOR; kind <= OX_MESH_EXPERT && used < bytes; kind++) {
        const char *const why = ox_mesh_why_none(choice, kind);
        if (why[0] != '\0') {
            used += (size_t)snprintf(text + used, bytes - used, "; no %s ranks (%s)", ox_mesh_kind_name(kind), why);
        }
    }
}

void ox_mesh_line(const struct ox_mesh_choice *choice, char text[OX_MESH_LINE_BYTES]) {
    const struct ox_mesh_tried *const taken = &choice->best[choice->taken], *next = NULL;
    char sizes[OX_MESH_SIZES_BYTES], time[TIME_BYTES], none[2 * OX_MESH_WHY_BYTES];
    size_t used = (size_t)snprintf(text, OX_MESH_LINE_BYTES, "--mesh auto: takes %s, %s, by the predicted time of a "
                                   "step: ", ox_mesh_sizes_text(taken, sizes), ox_mesh_kind_name(choice->taken));
    const char *before = "";
    for (uint32_t i = 0; i < OX_MESH_KINDS && used < OX_MESH_LINE_BYTES; i++) {
        const struct ox_mesh_tried *const at = &choice->best[i];
        next = i != choice->taken && at->seconds < (next == NULL ? (double)INFINITY : next->seconds) ? at : next;
        if (at->pipe > 0) {
            used += (size_t)snprintf(text + used, OX_MESH_LINE_BYTES - used, "%s%s %s %s", before,
                                     ox_mesh_kind_name(i), ox_mesh_sizes_text(at, sizes), time_text(at, false, time));
            before = "; ";
        }
    }
    if (next != NULL && isfinite(next->seconds) && used < OX_MESH_LINE_BYTES) {
        used += (size_t)snprintf(text + used, OX_MESH_LINE_BYTES - used, "; %s has %s at its limit for %.0f %% of a "
                                 "step, %s has %s for %.0f %% of one %.2f times as long",
                                 ox_mesh_kind_name(choice->taken), ox_sim_resource_name(taken->binding),
                                 100 * taken->binding_share, ox_mesh_kind_name((uint32_t)(next - choice->best)),
                                 ox_sim_resource_name(next->binding), 100 * next->binding_share,
                                 next->seconds / taken->seconds);
    }
    refusals_text(choice, none, sizeof none);
    if (used < OX_MESH_LINE_BYTES) {
        snprintf(text + used, OX_MESH_LINE_BYTES - used, "; of %u meshes %u were planned%s", choice->listed,
                 choice->planned, none);
    }
}

enum ox_status ox_mesh_refuse(const struct ox_mesh_choice *choice, enum ox_status status) {
    char sizes[OX_MESH_SIZES_BYTES];
    return choice->listed == 0 || status != OX_E_CONFIG
               ? status : ox_fail_in(status, "--mesh auto: no mesh of these ranks has a plan, such as %s",
                                     ox_mesh_sizes_text(&choice->best[choice->taken], sizes));
}

void ox_mesh_table(const struct ox_mesh_choice *choice, char text[OX_MESH_TABLE_BYTES]) {
    size_t used = (size_t)snprintf(text, OX_MESH_TABLE_BYTES, "the best mesh of every kind, by a quick search: step, "
                                   "and what is at its limit\n");
    for (uint32_t i = 0; i < OX_MESH_KINDS && used < OX_MESH_TABLE_BYTES; i++) {
        const struct ox_mesh_tried *const at = &choice->best[i];
        char sizes[OX_MESH_SIZES_BYTES], time[TIME_BYTES];
        if (at->pipe > 0) {
            used += (size_t)snprintf(text + used, OX_MESH_TABLE_BYTES - used, "  %-12s %-20s %s%s\n",
                                     ox_mesh_kind_name(i), ox_mesh_sizes_text(at, sizes), time_text(at, true, time),
                                     i == choice->taken ? "  (taken)" : "");
        }
    }
}
