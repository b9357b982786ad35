/* Checksums of spool pieces: a hash map with open addressing, in memory because spool data does not outlive the
 * process. Every step has the same pieces, so it grows only during the first. */
#include "base/hash/hash.h"
#include "nvme/store_impl.h"

#include <stdlib.h>

enum { PIECES_MIN = 64, PIECES_GUESS_MAX = 1 << 16, PIECE_BYTES_GUESS = 1 << 20 };

/* Returns the entry of a piece, or the free entry where it belongs. */
static struct ox_spool_piece *find(const struct ox_spool_map *map, uint32_t extent_idx, uint64_t from) {
    const uint64_t words[2] = {extent_idx, from};
    uint64_t at = ox_hash_seed(words, 2);
    for (;; at++) {
        struct ox_spool_piece *const piece = &map->pieces[at & (map->piece_count_max - 1)];
        if (!piece->used || (piece->extent_idx == extent_idx && piece->from == from)) {
            return piece;
        }
    }
}

static enum ox_status grow(struct ox_spool_map *map) {
    struct ox_spool_map larger = {.piece_count = map->piece_count,
                                  .piece_count_max = 2 * map->piece_count_max};
    larger.pieces = calloc(larger.piece_count_max, sizeof *larger.pieces);
    if (larger.pieces == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory for the checksums of spooled data");
    }
    for (uint64_t i = 0; i < map->piece_count_max; i++) {
        const struct ox_spool_piece *const piece = &map->pieces[i];
        if (piece->used) {
            *find(&larger, piece->extent_idx, piece->from) = *piece;
        }
    }
    free(map->pieces);
    map->pieces = larger.pieces;
    map->piece_count_max = larger.piece_count_max;
    return OX_OK;
}

enum ox_status ox_spool_map_open(uint64_t bytes, struct ox_spool_map *map) {
    map->piece_count = 0;
    map->piece_count_max = PIECES_MIN;
    while (map->piece_count_max < 2 * (bytes / PIECE_BYTES_GUESS) &&
           map->piece_count_max < PIECES_GUESS_MAX) {
        map->piece_count_max *= 2;
    }
    map->pieces = calloc(map->piece_count_max, sizeof *map->pieces);
    if (map->pieces == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory for the checksums of spooled data");
    }
    pthread_mutex_init(&map->mutex, NULL);
    return OX_OK;
}

void ox_spool_map_close(struct ox_spool_map *map) {
    pthread_mutex_destroy(&map->mutex);
    free(map->pieces);
    map->pieces = NULL;
}

enum ox_status ox_spool_map_set(struct ox_spool_map *map, const struct ox_spool_piece *piece) {
    enum ox_status status = OX_OK;
    pthread_mutex_lock(&map->mutex);
    struct ox_spool_piece *at = find(map, piece->extent_idx, piece->from);
    if (!at->used && 4 * (map->piece_count + 1) > 3 * map->piece_count_max) {
        status = grow(map);
        at = status == OX_OK ? find(map, piece->extent_idx, piece->from) : NULL;
    }
    if (at != NULL) {
        map->piece_count += !at->used;
        *at = *piece;
        at->used = true;
    }
    pthread_mutex_unlock(&map->mutex);
    return status;
}

bool ox_spool_map_get(struct ox_spool_map *map, struct ox_spool_piece *piece) {
    pthread_mutex_lock(&map->mutex);
    *piece = *find(map, piece->extent_idx, piece->from);
    pthread_mutex_unlock(&map->mutex);
    return piece->used;
}
