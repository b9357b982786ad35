/* What more hardware or a larger step would gain: makes the plan again with one thing changed, and simulates it. */
#ifndef OX_ENGINE_ADVISE_H
#define OX_ENGINE_ADVISE_H

#include "engine/run/predict.h"

#ifdef __cplusplus
extern "C" {
#endif

enum ox_advice_kind {
    OX_ADVICE_DRIVE,  /* one more, of the sort and size of the last */
    OX_ADVICE_HOST,   /* 32 GiB more host memory                    */
    OX_ADVICE_DEVICE, /* 8 GiB more device memory                   */
    OX_ADVICE_TOKENS, /* twice the micro-batches in a step          */
    OX_ADVICE_RANKS,  /* twice the GPUs                             */
    OX_ADVICE_ONE_RANK, /* one GPU instead of several               */
    OX_ADVICE_LIBRARY,  /* gradients of GPUs added by NCCL          */
    OX_ADVICE_COUNT
};
const char *ox_advice_name(enum ox_advice_kind kind); /* "drive", "host_memory", ... */

struct ox_advice {
    bool known;     /* the change is possible, and a plan with it exists */
    uint32_t ranks, sum_groups; /* with the change */
    double seconds; /* predicted time of a step with the change */
    double speedup; /* tokens per second with the change over those without */
};

/* Judges every change; `now` is the prediction for the plan of `input`. Takes one search for a plan per change. */
OX_MUST enum ox_status ox_advise(const struct ox_predict_input *input, const struct ox_prediction *now,
                                 struct ox_advice out[OX_ADVICE_COUNT]);

/* Adds to the error of a plan that does not fit (`refused`, which it returns; OX_OK: nothing) the placement options
 * that are given and without which one fits, as ", or leave out --state-tier": one alone where that is enough. */
OX_MUST enum ox_status ox_advise_without(const struct ox_engine_config *config, enum ox_status refused);

enum { OX_ADVICE_LINE_BYTES = 192 };
/* Writes the change that gains most, if that is more than 2 %; returns whether one does. */
bool ox_advice_best_text(const struct ox_advice advice[OX_ADVICE_COUNT], char text[OX_ADVICE_LINE_BYTES]);

enum { OX_ADVICE_TEXT_BYTES = 1024 };
/* Writes a line for each change that gains more than 2 %, and whatever it gains for another number of ranks. */
void ox_advice_text(const struct ox_advice advice[OX_ADVICE_COUNT], char *text);

#ifdef __cplusplus
}
#endif
#endif
