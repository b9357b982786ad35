/* The checksum that a JSON object carries of itself, as its member "checksum". It is of what the object says, not of
 * the spaces between. run.json and trainer_state.json have one. */
#ifndef OX_BASE_SEAL_H
#define OX_BASE_SEAL_H

#include "base/json.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Adds the checksum of all other members, as the last one. False without memory. */
bool ox_seal_add(json_t *object);
/* Compares the object with its checksum, which is then removed from it: OX_E_CORRUPT, naming `where`, when they differ,
 * or when there is none where it is required. */
OX_MUST enum ox_status ox_seal_check(const char *where, json_t *object, bool required);

#ifdef __cplusplus
}
#endif
#endif
