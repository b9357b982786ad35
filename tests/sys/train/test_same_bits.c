/* One training under many placements: losses, norms, rates and the final files are the same bytes. */
#include "tests/sys/train/same_bits.inc"
#include "tests/kit/files.h"

static const struct group groups[] = {
    {"llama in fp32", "llama", "--dtype fp32", 3},
    {"gpt2 in fp32", "gpt2", "--dtype fp32", 2},
    {"llama in bf16", "llama", "--dtype bf16", 2},
    {"gpt2 in bf16", "gpt2", "--dtype bf16 --save-dtype bf16", 3},
    {"llama in fp16, with steps that overflow", "llama",
     "--dtype fp16 --initial-scale-power 26 --loss-scale-window 4", 1},
    {"llama in bf16 with bf16 gradients", "llama", "--dtype bf16 --grad-dtype bf16", 1},
    {"gpt2 in fp32 with bf16 gradients", "gpt2", "--dtype fp32 --grad-dtype bf16", 1},
};

int main(void) {
    text_path = sys_write_text(40000);
    for (unsigned i = 0; i < sizeof groups / sizeof *groups; i++) {
        printf("%s\n", groups[i].name);
        run_group(&groups[i], i == 0);
    }
    return test_end();
}
