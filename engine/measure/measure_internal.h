/* The parts of a measurement, and the file that keeps them. */
#ifndef OX_ENGINE_MEASURE_INTERNAL_H
#define OX_ENGINE_MEASURE_INTERNAL_H

#include "engine/measure/measure.h"

#ifdef __cplusplus
extern "C" {
#endif

struct json_t;

enum { OX_MEASURE_KEY_BYTES = 256, OX_MEASURE_VALUES_MAX = 8 };

/* Each part measures until `end_ns` (ox_clock_ns) and has a list of values with these names. */
struct ox_measure_value {
    const char *name;
    double value;
};

/* GEMM operations per second of the device on its threads, the bytes that they packed for each operation, and
 * attention's operations per second, by the counts of engine/model. They are measured in up to two turns, some time
 * apart: for each layer, and for attention, the faster one counts, so that a slow second does not decide. */
struct ox_measure_compute {
    double gemm_flops, packed_bytes_per_flop, attention_flops;
};
struct ox_measure_turns;
/* `input` must stay until the turns are closed. */
OX_MUST enum ox_status ox_measure_turns_open(const struct ox_measure_input *input, struct ox_measure_turns **out);
void ox_measure_turns_close(struct ox_measure_turns **turns);
/* Measures until `end_ns`; may be called twice. The first turn chooses how much a round computes. */
OX_MUST enum ox_status ox_measure_turn(struct ox_measure_turns *turns, uint64_t end_ns);
/* Returns what the turns have found, of which there was one at least. */
void ox_measure_turns_result(const struct ox_measure_turns *turns, struct ox_measure_compute *out);

/* Seconds of one parameter's update in one loop over all, which takes less than chunk by chunk (update.c). OX_E_BUSY:
 * the machine gives memory too slowly. */
OX_MUST enum ox_status ox_measure_update(const struct ox_measure_input *input, struct ox_state_format format,
                                         uint64_t end_ns, double *seconds);

/* Fills the measured fields of a drive. */
OX_MUST enum ox_status ox_measure_drive(const struct ox_measure_input *input, uint32_t drive_idx, uint64_t end_ns,
                                        struct ox_machine_drive *out);

/* ---- what is kept: engine/measure/kept.c ----------------------------------------------------------- */

struct ox_measure_kept {
    char machine[OX_MEASURE_KEY_BYTES]; /* what the measurements are of */
    char path[OX_PATH_BYTES];           /* "": nothing is kept */
    struct json_t *parts;
    struct json_t *put; /* the parts that were put since the file was read, under the same keys */
};
/* Reads the file of this machine in `folder`. A file that cannot be used counts as empty, and `note` says why. */
void ox_measure_kept_open(const char *folder, const char *machine, struct ox_measure_kept *out, char *note,
                          size_t note_bytes);
/* Reads all `count` values of a part, its day, and which share of the processors others used meanwhile (0: no more
 * than they may); false if the part is not there or incomplete. */
bool ox_measure_kept_get(const struct ox_measure_kept *kept, const char *key, struct ox_measure_value *values,
                         uint32_t count, char *day, double *others);
void ox_measure_kept_put(struct ox_measure_kept *kept, const char *key, const struct ox_measure_value *values,
                         uint32_t count, const char *day);
/* Marks the parts that were put as measured while others used this share of the processors. */
void ox_measure_kept_mark(struct ox_measure_kept *kept, double others);
/* Writes the file if a part was put. */
OX_MUST enum ox_status ox_measure_kept_save(struct ox_measure_kept *kept);
void ox_measure_kept_close(struct ox_measure_kept *kept);

#ifdef __cplusplus
}
#endif
#endif
