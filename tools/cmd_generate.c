/* `offload generate`: text from a model. */
#include "tools/cmd.h"

int ox_cmd_generate(const struct ox_config *config) {
    return ox_cmd_fail(ox_fail(OX_E_CONFIG, "%s: generate is not in this build", config->model));
}
