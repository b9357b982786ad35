/* Replaces cudnn.c in builds without cuDNN's headers and in the emulation: takes no case. */
#include "kernels/cuda/cudnn.h"

#include <stdio.h>

static void say(struct ox_cudnn_words *words) {
    snprintf(words->text, sizeof words->text, "this build was made without the headers of cuDNN");
}

void ox_cudnn_open(uint32_t capability, struct ox_cudnn **out, struct ox_cudnn_words *words) {
    (void)capability;
    *out = NULL;
    say(words);
}

void ox_cudnn_close(struct ox_cudnn **cudnn) {
    *cudnn = NULL;
}

enum ox_status ox_cudnn_attention_forward(const struct ox_cuda_queue *queue, const struct ox_op_attention_forward *op,
                                          bool *took) {
    (void)queue;
    (void)op;
    *took = false;
    return OX_OK;
}

enum ox_status ox_cudnn_attention_backward(const struct ox_cuda_queue *queue,
                                           const struct ox_op_attention_backward *op, bool *took) {
    (void)queue;
    (void)op;
    *took = false;
    return OX_OK;
}

void ox_cudnn_ask(const struct ox_cudnn_question *question, struct ox_cudnn_answer *out) {
    (void)question;
    *out = (struct ox_cudnn_answer){.engine = -1};
    say(&out->words);
}
