/* `offload eval`: perplexity of a model folder on a text. */
#include "tools/cmd.h"

#include "engine/trainer.h"

#include <jansson.h>
#include <string.h>

int ox_cmd_eval(const struct ox_config *config) {
    struct ox_eval_report report;
    const enum ox_status status = ox_evaluate(config, &report);
    if (status != OX_OK) {
        return ox_cmd_fail(status);
    }
    if (report.tokens == 0) {
        return ox_cmd_fail(ox_fail(OX_E_CONFIG, "%s: no token to be predicted", config->data[0].path));
    }
    if (strcmp(config->format, "json") == 0) {
        json_t *const json = json_pack("{s:f, s:f, s:I}", "mean_nll", report.loss, "perplexity", report.perplexity,
                                       "tokens", (json_int_t)report.tokens);
        const int written = json == NULL ? -1 : json_dumpf(json, stdout, JSON_COMPACT | JSON_REAL_PRECISION(17));
        json_decref(json);
        printf("\n");
        return written < 0 ? ox_cmd_fail(ox_fail(OX_E_IO, "the result could not be written to stdout")) : OX_EXIT_OK;
    }
    printf("loss %.6f | perplexity %.4f | %llu tokens | %.1f s\n", report.loss, report.perplexity,
           (unsigned long long)report.tokens, report.seconds);
    return OX_EXIT_OK;
}
