/* What a run costs a drive: flash wears by what is written, and makers rate it in terabytes written (TBW). Pure
 * functions; what to refuse is the caller's. */
#ifndef OX_NVME_WEAR_H
#define OX_NVME_WEAR_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Of one drive. */
struct ox_wear {
    uint64_t step_bytes;   /* written per optimizer step, state and spool                  */
    uint64_t step_count;   /* of the run                                                    */
    double step_seconds;   /* predicted or measured; 0: unknown                             */
    uint64_t rated_bytes;  /* the maker's rating; 0: unknown                                */
    uint64_t gone_bytes;   /* written to it before, where the user or the drive tells; or 0 */
};

struct ox_wear_forecast {
    double run_bytes, day_bytes;          /* day_bytes: 0 when the time of a step is unknown   */
    double run_share, day_share;          /* of the rating: 1 is all of it; 0 when not known   */
    double step_share;
    double steps_left, days_left;         /* until the rating is used up; 0 when not known     */
};
void ox_wear_forecast(const struct ox_wear *wear, struct ox_wear_forecast *out);

/* True when the run would use more than `share_max` of the rating; false when that is unknown. */
bool ox_wear_exceeds(const struct ox_wear *wear, double share_max);

/* One line for people: "writes 98.0 GB per step, 9.8 TB in 100 steps: 0.82 % of its rated 1.2 PB"; returns text. */
enum { OX_WEAR_TEXT_BYTES = 256 };
const char *ox_wear_text(const struct ox_wear *wear, char *text);

#ifdef __cplusplus
}
#endif
#endif
