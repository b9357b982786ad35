/* Signals to this process, from its first instruction on. */
#ifndef OX_TOOLS_SIGNALS_H
#define OX_TOOLS_SIGNALS_H

#include "engine/run/trainer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Makes HUP, INT, TERM, USR1 and USR2 wait until one of the two below is called; the first thing that main does. An
 * abort says from then on what it is: libraries end the process so without a word. */
void ox_signals_hold(void);
/* For commands that such a signal may simply end: what was held acts now, unless the parent process held it too. */
void ox_signals_release(void);
/* For `train`: from here on the signals are requests, which the result holds; also those that were held, and what the
 * parent process held. The first INT, TERM or HUP asks for a stop, a further INT or TERM ends the process at once;
 * either way the last commit is intact. */
const struct ox_trainer_events *ox_signals_take(void);

#ifdef __cplusplus
}
#endif
#endif
