/* What --ranks, --mesh and the sizes of axes say together, which contradictions are refused with what remedy, and
 * refusals in the words of who gave the options. */
#include "engine/config/mesh_words.h"
#include "engine/config/reword.h"
#include "tests/kit/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The words of a command, and what they make: ranks 0 is what --ranks says by itself; an error has `text`. */
static const struct {
    const char *ranks, *mesh;
    uint64_t data, pipe;
    uint32_t processes, ranks_made, data_made, pipe_made;
    const char *text;
} cases[] = {
    {"1", "", 0, 0, 1, 0, 0, 0, NULL},
    {"4", "", 0, 0, 1, 0, 0, 0, NULL},
    {"auto", "", 0, 0, 1, 0, 0, 0, NULL},
    {"auto", "auto", 0, 0, 1, 0, 0, 0, NULL},
    {"1", "dp=2,pp=4", 0, 0, 1, 8, 2, 4, NULL},
    {"8", "dp=2,pp=4", 0, 0, 1, 8, 2, 4, NULL},
    {"1", "pipe=4,data=2", 0, 0, 1, 8, 2, 4, NULL},
    {"8", "pp=2", 0, 0, 1, 8, 4, 2, NULL},
    {"8", "", 0, 4, 1, 8, 2, 4, NULL},
    {"1", "", 0, 4, 1, 4, 1, 4, NULL},
    {"1", "", 3, 0, 1, 3, 3, 1, NULL},
    {"1", "", 2, 4, 1, 8, 2, 4, NULL},
    {"1", "dp=2", 0, 4, 1, 8, 2, 4, NULL},
    {"1", "dp=2,pp=4", 2, 4, 1, 8, 2, 4, NULL},
    {"1", "", 0, 2, 4, 4, 2, 2, NULL},      /* a rank in each process */
    {"1", "", 0, 8, 4, 8, 1, 8, NULL},      /* two in each */
    {"1", "dp=1,pp=2", 0, 0, 4, 2, 1, 2, NULL}, /* refused later: fewer ranks than processes */
    {"8", "auto", 2, 0, 1, 8, 2, 4, NULL},
    {"1", "dp=2,pp=3,", 0, 0, 1, 0, 0, 0, "'' is no size of an axis; write auto, or sizes as in dp=2,pp=4"},
    {"8", "dp=2,pp=3", 0, 0, 1, 0, 0, 0, "--mesh dp=2,pp=3: makes 6 ranks, --ranks says 8; leave out --ranks"},
    {"8", "", 2, 2, 1, 0, 0, 0, "--data-parallel-size 2 and --pipeline-parallel-size 2: makes 4 ranks, --ranks says 8"},
    {"8", "dp=2", 0, 0, 1, 0, 0, 0, "--mesh dp=2: makes 2 ranks, --ranks says 8; leave out --ranks, or give "
     "--data-parallel-size 8"},
    {"6", "tp=2", 5, 0, 1, 0, 0, 0, "--mesh tp=2 and --data-parallel-size 5: makes 10 ranks, --ranks says 6; leave out "
     "--ranks, or give --data-parallel-size 3"},
    {"8", "", 1, 3, 1, 0, 0, 0, "--pipeline-parallel-size 3: makes 3 ranks, --ranks says 8; leave out --ranks"},
    {"8", "", 1, 1, 1, 0, 0, 0, "--data-parallel-size 1 and --pipeline-parallel-size 1: makes 1 ranks"},
    {"8", "", 0, 3, 1, 0, 0, 0, "--pipeline-parallel-size 3: 8 ranks cannot be divided by it; give --ranks 6"},
    {"1", "dp=2,dp=2", 0, 0, 1, 0, 0, 0, "--mesh: dp is there twice; give each axis once"},
    {"1", "data=2,dp=2", 0, 0, 1, 0, 0, 0, "--mesh: dp is there twice"},
    {"1", "dp=0", 0, 0, 1, 0, 0, 0, "--mesh dp: '0' is no size; give a number from 1 to 1024"},
    {"1", "dp=1025", 0, 0, 1, 0, 0, 0, "--mesh dp: '1025' is no size"},
    {"1", "dp=two", 0, 0, 1, 0, 0, 0, "--mesh dp: 'two' is no size"},
    {"1", "dp=2x", 0, 0, 1, 0, 0, 0, "--mesh dp: '2x' is no size"},
    {"1", "pp=-2", 0, 0, 1, 0, 0, 0, "--mesh pp: '-2' is no size"},
    {"1", "pp", 0, 0, 1, 0, 0, 0, "'pp' is no size of an axis"},
    {"1", "=2", 0, 0, 1, 0, 0, 0, "'=2' is no size of an axis"},
    {"1", "pp 2", 0, 0, 1, 0, 0, 0, "'pp 2' is no size of an axis"},
    {"1", "ppp=2", 0, 0, 1, 0, 0, 0, "--mesh ppp=...: there is no such axis; did you mean pp?"},
    {"1", "pipes=2", 0, 0, 1, 0, 0, 0, "did you mean pipe?"},
    {"1", "tp=2", 0, 0, 1, 2, 1, 1, NULL},
    {"8", "tensor=4", 0, 0, 1, 8, 2, 1, NULL},
    {"1", "dp=2,tp=2", 0, 2, 1, 8, 2, 2, NULL},
    {"6", "tp=4", 0, 0, 1, 0, 0, 0, "--mesh tp=4: 6 ranks cannot be divided by it; give --ranks 4"},
    {"1", "expert=2", 0, 0, 1, 2, 2, 1, NULL},
    {"8", "ep=2", 0, 2, 1, 8, 4, 2, NULL},
    {"1", "dp=4,ep=2", 0, 0, 1, 4, 4, 1, NULL},
    {"1", "dp=2,ep=4", 0, 0, 1, 0, 0, 0, "--expert-parallel-size 4: does not divide the 2 ranks that divide"},
    {"1", "tp=2,ep=2", 0, 0, 1, 2, 1, 1, NULL}, /* the same ranks */
    {"8", "dp=2,tp=2,ep=2", 0, 2, 1, 8, 2, 2, NULL},
    {"1", "dp=2,tp=2,ep=4", 0, 0, 1, 4, 2, 1, NULL},
    {"1", "tp=2,ep=8", 0, 0, 1, 8, 4, 1, NULL},
    {"1", "dp=2,tp=2,ep=8", 0, 0, 1, 0, 0, 0, "--expert-parallel-size 8: does not divide the 4 ranks that divide "
     "micro-batches and features; use a divisor of them, or --data-parallel-size 4"},
    {"1", "dp=2,tp=4,ep=2", 0, 0, 1, 0, 0, 0, "--expert-parallel-size 2: the 4 ranks that divide features "
     "(--tensor-parallel-size) divide the experts of a layer too, and each has as many of them; give 4, or 8 for data "
     "ranks beside them, or leave it out"},
    {"1", "cp=2", 2, 0, 1, 4, 2, 1, NULL},
    {"8", "cp=2", 0, 2, 1, 8, 2, 2, NULL},
    {"6", "context=4", 0, 0, 1, 0, 0, 0, "--mesh context=4: 6 ranks cannot be divided by it; give --ranks 4"},
    {"1", "dp=2", 4, 0, 1, 0, 0, 0, "--data-parallel-size 4: --mesh has dp=2; leave out one of them"},
    {"1", "pp=2", 0, 4, 1, 0, 0, 0, "--pipeline-parallel-size 4: --mesh has pp=2"},
    {"auto", "pp=2", 0, 0, 1, 0, 0, 0, "--ranks auto: --mesh pp=2 follows from a number of ranks; give --ranks N"},
};

/* A refusal by the option of each thing, and in the words that said it. */
static const struct {
    const char *ranks, *mesh;
    uint64_t context, batch; /* batch 0: micro-batches were not said as sequences */
    const char *before, *after;
} texts[] = {
    {"1", "cp=3,dp=2", 0, 0, "--context-parallel-size 3: 64 tokens; give --context-parallel-size 4",
     "--mesh cp=3: 64 tokens; give cp=4"},
    {"1", "context=3", 0, 0, "folder: 3 ranks (--context-parallel-size), --context-parallel-size 2 or less",
     "folder: 3 ranks (cp of --mesh), cp=2 or less"},
    {"1", "dp=2", 3, 0, "--context-parallel-size 3: no; add --tensor-parallel-size N",
     "--context-parallel-size 3: no; add --tensor-parallel-size N"},
    {"1", "cp=3", 3, 0, "--context-parallel-size 3: no", "--context-parallel-size 3: no"},
    {"4", "auto", 0, 0, "--context-parallel-size 2: no", "--context-parallel-size 2: no"},
    {"1", "dp=2,pp=2", 0, 0, "--ranks 4: no; leave out --ranks 4", 
     "--mesh dp=2,pp=2 (4 ranks): no; leave out --ranks 4"},
    {"1", "", 4, 0, "--ranks 4: no", "--context-parallel-size 4 (4 ranks): no"},
    {"4", "pp=2", 0, 0, "--ranks 4: no", "--ranks 4: no"},
    {"1", "", 0, 0, "--ranks 3: of 3 processes", "--ranks 3: of 3 processes"},
    {"1", "", 0, 2, "no; give --gradient-accumulation-steps 6", "no; give --global-batch-size 12"},
    {"1", "", 0, 0, "no; give --gradient-accumulation-steps 6", "no; give --gradient-accumulation-steps 6"},
    {"1", "", 0, 2, "no (--gradient-accumulation-steps)", "no (--gradient-accumulation-steps)"},
};

static void check_texts(struct ox_config *config) {
    for (unsigned i = 0; i < sizeof texts / sizeof *texts; i++) {
        ox_config_init(config);
        snprintf(config->ranks.count, sizeof config->ranks.count, "%s", texts[i].ranks);
        snprintf(config->ranks.mesh, sizeof config->ranks.mesh, "%s", texts[i].mesh);
        config->ranks.context_parallel_size = texts[i].context;
        config->train.as_sequences = texts[i].batch > 0;
        config->train.per_device_train_batch_size = texts[i].batch;
        CHECK(ox_config_reword(config, ox_fail(OX_E_CONFIG, "%s", texts[i].before)) == OX_E_CONFIG);
        CHECK(strcmp(ox_error_text(), texts[i].after) == 0);
    }
    CHECK(ox_config_reword(config, ox_fail(OX_E_IO, "--ranks 4")) == OX_E_IO);
    CHECK(ox_config_reword(config, OX_OK) == OX_OK);
}

int main(void) {
    struct ox_config *const config = calloc(1, sizeof *config);
    check_texts(config);
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ox_mesh_sizes sizes;
        uint32_t ranks = 0;
        ox_config_init(config);
        snprintf(config->ranks.count, sizeof config->ranks.count, "%s", cases[i].ranks);
        snprintf(config->ranks.mesh, sizeof config->ranks.mesh, "%s", cases[i].mesh);
        config->ranks.data_parallel_size = cases[i].data;
        config->ranks.pipeline_parallel_size = cases[i].pipe;
        enum ox_status status = ox_mesh_read(&config->ranks, &sizes);
        OX_THEN(status, ox_mesh_complete(&config->ranks, cases[i].processes, &sizes, &ranks));
        if (cases[i].text != NULL) {
            CHECK(status == OX_E_CONFIG && strstr(ox_error_text(), cases[i].text) != NULL);
        } else {
            CHECK(status == OX_OK && ranks == cases[i].ranks_made);
            CHECK(ranks == 0 || (sizes.data == cases[i].data_made && sizes.pipe == cases[i].pipe_made));
        }
    }
    free(config);
    return test_end();
}
