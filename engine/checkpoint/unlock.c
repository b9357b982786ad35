/* From a checkpoint of layers that share their weights to one of layers that each have their own. Its files of weights
 * have every layer already, so these are copied; the optimizer's planes, of which there is one set, are written for
 * each layer. */
#include "base/assert.h"
#include "base/bytes.h"
#include "engine/checkpoint/checkpoint_internal.h"

#include <stdlib.h>
#include <string.h>

enum { UNLOCK_ELEMS = 1 << 18 };

struct unlocking {
    const char *source;
    enum ox_unlock_moments moments;
    struct ox_manifest manifest; /* of the source */
    struct ox_hf_folder *folder;
    struct ox_st_file *optim;
    struct ox_st_writer *writer;
    float *values; /* UNLOCK_ELEMS */
};

/* Plane `idx` of the file that is written: that of which tensor, and where its values come from. */
struct plane_copy {
    const struct ox_st_entry *from;
    enum ox_plane plane;
    uint32_t layers; /* that shared it */
};

struct copies {
    struct plane_copy *list;
    struct ox_st_spec *specs;
    char *names;
    uint32_t count;
};

static void copies_close(struct copies *copies) {
    free(copies->list);
    free(copies->specs);
    free(copies->names);
}

/* Lists the planes of each tensor: those that the file has of the tensor whose weights it shares. */
static enum ox_status list_copies(const struct unlocking *u, struct copies *out) {
    const struct ox_model *const model = ox_hf_model(u->folder);
    const size_t most = (size_t)model->saved_count * OX_PLANE_COUNT + 1;
    out->list = calloc(most, sizeof *out->list);
    out->specs = calloc(most, sizeof *out->specs);
    out->names = calloc(most, OX_OPTIM_NAME_BYTES);
    if (out->list == NULL || out->specs == NULL || out->names == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory to list the optimizer's state", u->source);
    }
    for (uint32_t i = 0; i < model->saved_count * OX_PLANE_COUNT; i++) {
        const struct ox_tensor *const tensor = &model->tensors[model->saved[i / OX_PLANE_COUNT]];
        const enum ox_plane plane = (enum ox_plane)(i % OX_PLANE_COUNT);
        const struct ox_tensor *const first =
            tensor->shares_idx == OX_NO_TENSOR ? tensor : &model->tensors[tensor->shares_idx];
        const struct ox_st_entry *const from = ox_optim_find(u->optim, first, plane);
        if (from == NULL) {
            continue;
        }
        uint32_t layers = 1;
        for (uint32_t next = first->next_sharing; next != OX_NO_TENSOR; next = model->tensors[next].next_sharing) {
            layers++;
        }
        char *const name = out->names + (size_t)out->count * OX_OPTIM_NAME_BYTES;
        ox_optim_name(tensor, plane, name);
        out->list[out->count] = (struct plane_copy){.from = from, .plane = plane, .layers = layers};
        out->specs[out->count] = (struct ox_st_spec){.name = name, .dtype = OX_DTYPE_F32, .rank = from->rank};
        memcpy(out->specs[out->count++].shape, from->shape, from->rank * sizeof *from->shape);
    }
    return OX_OK;
}

/* What a layer's moment is of the shared one; both divisions are in float32. */
static void convert(enum ox_unlock_moments moments, const struct plane_copy *copy, uint64_t count, float *values) {
    const float layers = (float)copy->layers, parts = copy->plane == OX_PLANE_V ? layers * layers : layers;
    const bool is_moment = copy->plane == OX_PLANE_M || copy->plane == OX_PLANE_V;
    for (uint64_t i = 0; i < count && is_moment && copy->layers > 1 && moments != OX_UNLOCK_COPY; i++) {
        values[i] = moments == OX_UNLOCK_ZERO ? 0.0f : values[i] / parts;
    }
}

static enum ox_status write_planes(struct unlocking *u, const char *tmp) {
    struct copies copies = {0};
    char path[OX_PATH_BYTES];
    enum ox_status status = list_copies(u, &copies);
    OX_THEN(status, ox_checkpoint_check_space(tmp, status == OX_OK ? ox_st_file_bytes(copies.specs, copies.count) : 0));
    OX_THEN(status, ox_path_join(tmp, OX_OPTIM_FILE, path));
    OX_THEN(status, ox_st_create(path, copies.specs, copies.count, &u->writer));
    for (uint32_t i = 0; i < copies.count && status == OX_OK; i++) {
        const struct plane_copy *const copy = &copies.list[i];
        for (uint64_t first = 0; first < copy->from->count && status == OX_OK; first += UNLOCK_ELEMS) {
            const uint64_t count = ox_min_u64(UNLOCK_ELEMS, copy->from->count - first);
            status = ox_st_read_f32(u->optim, copy->from, first, count, u->values);
            convert(u->moments, copy, count, u->values);
            OX_THEN(status, ox_st_write(u->writer, i, first * sizeof *u->values, u->values, count * sizeof *u->values));
        }
    }
    OX_THEN(status, ox_st_finish(&u->writer));
    ox_st_discard(&u->writer);
    copies_close(&copies);
    return status;
}

/* Copies what the checkpoint lists beside the optimizer's state. */
static enum ox_status copy_files(const struct unlocking *u, const char *tmp) {
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < u->manifest.list.count && status == OX_OK; i++) {
        const char *const name = u->manifest.list.files[i].name;
        char from[OX_PATH_BYTES], to[OX_PATH_BYTES];
        if (strcmp(name, OX_OPTIM_FILE) != 0) {
            status = ox_path_join(u->source, name, from);
            OX_THEN(status, ox_path_join(tmp, name, to));
            OX_THEN(status, ox_file_copy(from, to));
        }
    }
    return status;
}

static enum ox_status fill(void *context, const char *tmp) {
    struct unlocking *const u = context;
    struct ox_manifest manifest = {.state = u->manifest.state, .weights_dtype = u->manifest.weights_dtype,
                                   .model_dtype = u->manifest.model_dtype, .eval = u->manifest.eval};
    enum ox_status status = copy_files(u, tmp);
    OX_THEN(status, write_planes(u, tmp));
    OX_THEN(status, ox_manifest_collect(tmp, &manifest));
    OX_THEN(status, ox_manifest_write(tmp, &manifest));
    ox_manifest_close(&manifest);
    return status;
}

enum ox_status ox_checkpoint_unlock(const char *source, const char *path, enum ox_unlock_moments moments,
                                    uint32_t *layers) {
    struct unlocking u = {.source = source, .moments = moments};
    char optim_path[OX_PATH_BYTES];
    OX_TRY(ox_manifest_read(source, &u.manifest));
    *layers = u.manifest.shared_layers;
    enum ox_status status = ox_checkpoint_check_state(source);
    if (status == OX_OK && *layers == 0) {
        status = ox_fail(OX_E_CONFIG, "%s: no layers share their weights; go on from it as it is", source);
    }
    OX_THEN(status, ox_checkpoint_verify(source)); /* what is copied gets new checksums */
    OX_THEN(status, ox_hf_open(source, true, &u.folder));
    OX_THEN(status, ox_hf_share_layers(u.folder, *layers, false));
    OX_THEN(status, ox_path_join(source, OX_OPTIM_FILE, optim_path));
    OX_THEN(status, ox_st_open(optim_path, &u.optim));
    if (status == OX_OK) {
        u.values = malloc(UNLOCK_ELEMS * sizeof *u.values);
        status = u.values != NULL ? ox_folder_write(path, fill, &u)
                                  : ox_fail(OX_E_NOMEM, "%s: no memory to unlock it", source);
    }
    free(u.values);
    ox_st_close(&u.optim);
    ox_hf_close(&u.folder);
    ox_manifest_close(&u.manifest);
    return status;
}
