/* A folder's inside, the layout of its experts, and the low-rank adapters of its model: for the files of hf. */
#ifndef OX_ENGINE_HF_INTERNAL_H
#define OX_ENGINE_HF_INTERNAL_H

#include "engine/hf/hf.h"
#include "engine/hf/mxfp4_tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Makes the model anew where the files have one tensor of all experts: they say so, and not config.json. */
OX_MUST enum ox_status ox_hf_choose_layout(const char *path, struct ox_st_file *const *files, uint32_t file_count,
                                           struct ox_model **model);

/* Where the values of adapters come from: the file of an adapter, or a seed. */
struct ox_hf_adapter {
    const struct ox_st_file *file;     /* its folder closes it; NULL: fresh */
    const struct ox_st_entry **entries; /* by the number of a saved tensor (ox_tensor.saved_idx) */
    const struct ox_st_entry **parts; /* of each expert, where the file has these; NULL: of all (hf_experts.c) */
    float *joined;                    /* a tensor of all that was put together last */
    uint32_t joined_idx;
    char *path;                        /* of the adapter's folder */
    uint64_t seed;
    struct ox_model *merged;  /* the adapted model, where the folder's is that of the base alone, with all added */
    uint32_t cached;          /* the tensor whose A and B these are; OX_NO_TENSOR: none */
    float *a, *b;
    double *lengths; /* with magnitudes: of the rows of the sum */
};
/* The file and entry of a tensor. */
struct ox_hf_place {
    const struct ox_st_file *file;
    const struct ox_st_entry *entry;
};

struct ox_hf_folder {
    char *path;
    json_t *config;
    struct ox_model *model;
    struct ox_st_file **files;
    uint32_t file_count;
    struct ox_hf_place *places; /* by tensor, NULL without weights */
    struct ox_mxfp4_source *mxfp4;   /* by tensor; NULL where none is in MXFP4 */
    struct ox_mxfp4_reader *reader; /* of these */
    struct ox_hf_place head;    /* lm_head.weight of a tied model, if a file has it */
    /* The mean row of each tensor that gets added rows; NULL for other tensors, and where added rows are fresh. */
    float **means;
    uint64_t seed;
    uint32_t beyond_count; /* tensors of layers behind the last, which are not read */
    bool has_parts;       /* the files also have tensors of other parts than the text model */
    struct ox_hf_adapter *adapter; /* NULL: the model has no adapters */
};

/* The parts of ox_hf_open that adapters need too. */
/* Opens a file of the folder at `where`, the model's own or that of its adapter, behind those that are open. */
OX_MUST enum ox_status ox_hf_open_file(struct ox_hf_folder *folder, const char *where, const char *name);
/* Refuses a tensor of another shape than `expects` says that it has, or of a format that cannot be read. */
OX_MUST enum ox_status ox_hf_check_shape(const struct ox_hf_place *place, uint32_t rank, const uint64_t *shape,
                                         const char *expects, const char *remedy);
OX_MUST enum ox_status ox_hf_fail_memory(const char *path);

void ox_hf_adapter_close(struct ox_hf_adapter **adapter);

/* Reads values of the base, as ox_hf_read does, also of what adapters have in its place. */
OX_MUST enum ox_status ox_hf_read_base(const struct ox_hf_folder *folder, uint32_t tensor_idx, uint64_t first,
                                       uint64_t count, float *out);
/* Reads values of a tensor as the files have it, of which the model's may be a group of heads or columns. `first`
 * counts in the file. */
OX_MUST enum ox_status ox_hf_read_whole(const struct ox_hf_folder *folder, uint32_t tensor_idx, uint64_t first,
                                        uint64_t count, float *out);
/* Refuses modules of --lora-modules-to-save that the model lacks, or that cannot be trained beside adapters. */
OX_MUST enum ox_status ox_hf_check_saved(const struct ox_model *model, const char *modules);
/* Gives a model that was tied a head of its own, which begins as the table. Pointers to the model are void. */
OX_MUST enum ox_status ox_hf_untie(struct ox_hf_folder *folder);
/* A list of names in adapter_config.json, null if it is empty; NULL: no memory. */
json_t *ox_hf_names(const char *list);
/* Reads such a list into a text of OX_LORA_TARGETS_BYTES; a missing one is empty. */
OX_MUST enum ox_status ox_hf_read_names(const char *where, const json_t *json, const char *key, char *out);
/* Reads modules_to_save and "bias". */
OX_MUST enum ox_status ox_hf_read_saved(const char *where, const json_t *json, struct ox_lora *out);
const char *ox_hf_bias_name(enum ox_lora_bias bias);

/* The last two parts of a module's name: "self_attn.q_proj". */
const char *ox_hf_last_parts(const char *module);
/* Whether a text of names with commas between has the name. */
bool ox_hf_lists(const char *names, const char *name);
/* Says what a model's targets cover, where they name tensors that have no adapters. */
void ox_hf_say_uncovered(const struct ox_model *model);

/* Reads values of an adapter's tensor of `model`, as ox_hf_read does. */
OX_MUST enum ox_status ox_hf_adapter_read(const struct ox_hf_adapter *adapter, const struct ox_model *model,
                                          uint32_t tensor_idx, uint64_t first, uint64_t count, float *out);
/* Takes an entry of an adapter's file that is of one expert's module; whether a tensor has all of its own; and values
 * of such a tensor. */
OX_MUST enum ox_status ox_hf_take_expert(struct ox_hf_folder *folder, const struct ox_st_entry *entry, bool *taken);
bool ox_hf_has_experts(const struct ox_hf_adapter *adapter, const struct ox_model *model, uint32_t tensor_idx);
OX_MUST enum ox_status ox_hf_read_experts(struct ox_hf_adapter *adapter, const struct ox_model *model,
                                          uint32_t tensor_idx, uint64_t first, uint64_t count, float *out);
/* Takes a table that PEFT has saved beside its adapter, which must be the base's. */
OX_MUST enum ox_status ox_hf_take_table(const struct ox_hf_folder *folder, const struct ox_hf_place *place,
                                        bool *taken);
/* Adds scale * B A to values of a matrix of the base, where it has an adapter. `stored`: what files have the base in,
 * to which PEFT rounds what it adds to a parameter. */
OX_MUST enum ox_status ox_hf_adapter_add(const struct ox_hf_folder *folder, uint32_t tensor_idx, enum ox_dtype stored,
                                         uint64_t first, uint64_t count, float *inout);
/* Values of fresh magnitudes: the lengths of the rows of the base's matrix. */
OX_MUST enum ox_status ox_hf_fresh_magnitudes(const struct ox_hf_folder *folder, const struct ox_tensor *magnitudes,
                                              uint64_t first, uint64_t count, float *out);

/* Reads adapter_config.json; OX_E_CONFIG names a key that asks for what does not exist here. Targets are those of the
 * tensors in the file. */
OX_MUST enum ox_status ox_hf_adapter_config(const char *folder, const struct ox_st_file *file, struct ox_lora *out);
/* Compares the base with that of base_model.json, where an adapter's folder has one. */
OX_MUST enum ox_status ox_hf_adapter_check_base(const char *folder, const struct ox_hf_folder *base);
/* The files that describe an adapter beside its weights: adapter_config.json and base_model.json. */
OX_MUST enum ox_status ox_hf_adapter_describe(const char *folder, const struct ox_model *model, const char *base,
                                              uint64_t base_hash);

#ifdef __cplusplus
}
#endif
#endif
