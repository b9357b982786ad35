/* What more hardware, or a larger step, would buy: the plan made once more with one thing changed, and simulated. */
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
    OX_ADVICE_COUNT
};
const char *ox_advice_name(enum ox_advice_kind kind); /* "drive", "host_memory", "device_memory", "tokens" */

struct ox_advice {
    bool known;     /* there is such a thing, and a plan with it */
    double seconds; /* of a step with it */
    double speedup; /* its tokens per second over those of the plan */
};

/* `now` is what the plan of `input` is predicted to take. Costs a search for each. */
OX_MUST enum ox_status ox_advise(const struct ox_predict_input *input, const struct ox_prediction *now,
                                 struct ox_advice out[OX_ADVICE_COUNT]);

enum { OX_ADVICE_TEXT_BYTES = 512 };
/* A line for each that changes more than 2 %; "" when none does. */
void ox_advice_text(const struct ox_advice advice[OX_ADVICE_COUNT], char *text);

#ifdef __cplusplus
}
#endif
#endif
