/* One training under several placements, for every optimizer and format of its state. */
#include "tests/sys/train/same_bits.inc"
#include "tests/kit/files.h"

static const struct group groups[] = {
    {"llama in bf16 with q8 moments", "llama", "--dtype bf16 --moments q8 --save-dtype bf16", 1},
    {"gpt2 in fp32 with bf16 moments", "gpt2", "--dtype fp32 --moments bf16", 0},
    {"lion with a q8 moment", "gpt2", "--dtype bf16 --optimizer lion --moments q8", 0},
    {"sgd in fp32", "llama", "--optim sgd", 0},
};

int main(void) {
    text_path = sys_write_text(40000);
    for (unsigned i = 0; i < sizeof groups / sizeof *groups; i++) {
        printf("%s\n", groups[i].name);
        run_group(&groups[i], false);
    }
    return test_end();
}
