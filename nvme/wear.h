/* Forecasts drive wear: flash wears by bytes written, and makers rate it in terabytes written (TBW). Pure functions;
 * trainer and trace report call them and decide what to refuse. */
#ifndef OX_NVME_WEAR_H
#define OX_NVME_WEAR_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The figures of one drive. */
struct ox_wear {
    uint64_t step_bytes;   /* written per optimizer step: state and spool */
    uint64_t step_count;   /* steps of the run */
    double step_seconds;   /* predicted or measured; 0: unknown                             */
    uint64_t rated_bytes;  /* the maker's rating; 0: unknown                                */
    uint64_t gone_bytes;   /* written to it before, if known; else 0 */
};

struct ox_wear_forecast {
    double run_bytes, day_bytes;          /* day_bytes: 0 without the time of a step */
    double run_share, day_share;          /* share of the rating, 1 = all of it; 0: unknown */
    double step_share;
    double steps_left, days_left;         /* until the rating is used up; 0: unknown */
};
void ox_wear_forecast(const struct ox_wear *wear, struct ox_wear_forecast *out);

/* Returns true when the run would use more than `share_max` of a known rating. */
bool ox_wear_exceeds(const struct ox_wear *wear, double share_max);

/* Writes one line to `text` (OX_WEAR_TEXT_BYTES) and returns it: "writes 98.0 GB per step, 9.8 TB in 100 steps: 0.82 %
 * of its rated 1.2 PB". */
enum { OX_WEAR_TEXT_BYTES = 256 };
const char *ox_wear_text(const struct ox_wear *wear, char *text);

#ifdef __cplusplus
}
#endif
#endif
