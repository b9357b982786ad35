/* Names of other training programs, for the files of this folder that answer them. */
#ifndef OX_ENGINE_CONFIG_FOREIGN_H
#define OX_ENGINE_CONFIG_FOREIGN_H

#include "engine/config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Without `value` an answer to a name that is not an option of `commands` (0: of any), else to a value of a name. Names
 * and values are patterns of fnmatch in small letters, parted by spaces, names with '-'; the first that matches counts.
 * An answer that begins with "use --x" and a name in capitals takes the same value as the foreign name. */
struct ox_foreign {
    const char *name, *value, *answer;
    unsigned commands;
};

extern const struct ox_foreign ox_foreign_names[];  /* without values */
extern const struct ox_foreign ox_foreign_values[]; /* with them */
extern const struct ox_foreign ox_foreign_same[];   /* with values that mean what is done here anyway */
extern const unsigned ox_foreign_count, ox_foreign_value_count, ox_foreign_same_count;

/* Refuses a configuration of another program, the configuration of a model, or a file with several keys that are not
 * options of the commands `accepted`, after lines of the log that answer each key for `command`. OX_OK also for what is
 * no mapping of YAML: the reader says what is wrong there. */
OX_MUST enum ox_status ox_config_check_program(const char *path, const char *text, size_t bytes, unsigned command,
                                               unsigned accepted);

#ifdef __cplusplus
}
#endif
#endif
