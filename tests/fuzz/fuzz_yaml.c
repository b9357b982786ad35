/* A configuration in YAML. What loads is written so that it loads again as the same, and passes the cross-checks or
 * is refused with a reason. */
#include "tests/fuzz/fuzz.h"

#include "engine/config/config.h"

#include <stdlib.h>
#include <string.h>

static const char *path, *path_again;
static struct ox_config fresh, config, again; /* tens of kilobytes */

static bool same_lists(void) {
    bool same =
        config.files.data_count == again.files.data_count && config.memory.nvme_count == again.memory.nvme_count;
    for (uint32_t i = 0; same && i < config.files.data_count; i++) {
        same = strcmp(config.files.data[i].path, again.files.data[i].path) == 0 &&
               config.files.data[i].weight == again.files.data[i].weight;
    }
    for (uint32_t i = 0; same && i < config.memory.nvme_count; i++) {
        same = strcmp(config.memory.nvme[i].path, again.memory.nvme[i].path) == 0 &&
               config.memory.nvme[i].bytes == again.memory.nvme[i].bytes;
    }
    return same;
}

static void check_written(unsigned command) {
    char *text = NULL, *text_again = NULL;
    FUZZ_CHECK(ox_config_to_yaml(&config, command, &text) == OX_OK);
    fuzz_write(path_again, text, strlen(text));
    again = fresh;
    FUZZ_CHECK(ox_config_load_yaml(&again, path_again, command) == OX_OK);
    FUZZ_CHECK(ox_config_to_yaml(&again, command, &text_again) == OX_OK);
    FUZZ_CHECK(strcmp(text, text_again) == 0 && (command != OX_CMD_TRAIN || same_lists()));
    free(text);
    free(text_again);
}

static void take(unsigned command) {
    config = fresh; /* making one takes as long as loading a file does */
    enum ox_status status = ox_config_load_yaml(&config, path, command);
    fuzz_accepted = fuzz_accepted || status == OX_OK;
    if (status != OX_OK) {
        fuzz_check_failure(status, path);
        return;
    }
    check_written(command);
    status = ox_config_validate(&config, command);
    if (status != OX_OK) {
        fuzz_check_failure(status, "");
    }
}

int fuzz_yaml(const uint8_t *data, size_t bytes) {
    if (path == NULL) {
        path = fuzz_path("run.yaml");
        path_again = fuzz_path("again.yaml");
        ox_config_init(&fresh);
    }
    fuzz_accepted = false;
    fuzz_write(path, data, bytes);
    take(OX_CMD_TRAIN);
    take(OX_CMD_GENERATE);
    return 0;
}
