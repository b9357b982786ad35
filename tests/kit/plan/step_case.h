/* Steps of Llama shapes on the machines of docs/profiles, as the engine is asked to plan them. */
#ifndef OX_TESTS_STEP_CASE_H
#define OX_TESTS_STEP_CASE_H

#include "engine/step/engine.h"

enum { STEP_CASE_DRIVES_MAX = 4 };

struct step_case {
    const char *profile; /* of docs/profiles, without .json */
    uint32_t hidden, layers, width, vocab, kv_heads; /* heads of 128; kv_heads 0: as many as heads */
    uint32_t batch, seq, micro_batches;
    bool fp32;
    enum ox_moments moments;
    uint64_t device_gib, host_gib; /* device_gib 0: the CPU, in host memory */
    uint32_t drives;               /* of 4 TiB */
};

struct step_run {
    struct ox_model *model;
    struct ox_machine machine;
    uint64_t drive_bytes[STEP_CASE_DRIVES_MAX];
    struct ox_engine_config config; /* refers to the other members; the placement is left to the planner */
};

/* Ends the program on failure. Profiles are found from the root of the sources. The result must not move; the caller
 * closes its model. */
void step_case_open(const struct step_case *c, struct step_run *out);

/* Simulated seconds of what the planner makes of the request, which it leaves in the configuration; 0 where nothing
 * fits. With `tells` it prints them and the choice. */
double step_case_seconds(struct step_run *run, const struct ox_placement_request *request, bool tells);

#endif
