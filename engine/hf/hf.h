/* Reads and writes Hugging Face model folders: config.json, and model.safetensors or shards with an index. Checkpoints
 * write and load them; generate and the commands read them. */
#ifndef OX_ENGINE_HF_H
#define OX_ENGINE_HF_H

#include "engine/model/model.h"
#include "engine/hf/safetensors.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ox_hf_folder;

/* The format of a tensor in a folder whose weights are in `dtype`: F32 where the family keeps it so. */
static inline enum ox_dtype ox_hf_file_dtype(const struct ox_tensor *tensor, enum ox_dtype dtype) {
    return tensor->fp32 ? OX_DTYPE_F32 : dtype;
}

/* Opens config.json and, with `weights`, every safetensors file. It checks that the files have each tensor of the model
 * exactly once, with the right shape, and no other tensor. A tied head that is stored as well must equal the embedding.
 * File names in an index must be in the folder. Experts may have a tensor each, or one of all; the model is that of the
 * layout that the files have, and is written so. In a checkpoint config.json, index and tokenizer files must be what it
 * lists. Whatever is wrong is OX_E_CONFIG or OX_E_CORRUPT naming file and
 * tensor. `path` may also be a config.json itself; then there are no weights. */
OX_MUST enum ox_status ox_hf_open(const char *path, bool weights, struct ox_hf_folder **out);
/* Gives the model of a folder without weights the layout that a mixture's tensors have in the folder `path`. Nothing is
 * adapted or frozen yet, and pointers to the model are void afterwards. */
OX_MUST enum ox_status ox_hf_take_layout(struct ox_hf_folder *folder, const char *path);
/* Whether this is the name of a known shape (shapes.h). The second opens its model, which has no files; its config says
 * that its weights are bf16, as most are published, except those of gpt2. */
bool ox_hf_is_shape(const char *name);
OX_MUST enum ox_status ox_hf_open_shape(const char *name, struct ox_hf_folder **out);
/* Refuse what is no model, and say what it is and what to do instead; OX_OK for anything else. The first refuses a
 * `path` that is not there, and tells how to download a model whose name it may be on the Hugging Face hub; `flag` is
 * the option that names it. The second refuses a file that is no config.json, or with `weights` any file. The third
 * refuses a folder with weights of another format alone, or one of the hub's cache. */
OX_MUST enum ox_status ox_hf_check_path(const char *flag, const char *path);
/* Fails for a path of an option that is not there: the nearest path that is, or else `wanted`, is what to give. */
OX_MUST enum ox_status ox_hf_fail_missing(const char *flag, const char *path, const char *wanted);
OX_MUST enum ox_status ox_hf_check_file(const char *path, bool weights);
OX_MUST enum ox_status ox_hf_check_folder(const char *folder);
/* Whether the folder has weights of a model, in one file or several. */
bool ox_hf_has_weight_files(const char *folder);
void ox_hf_close(struct ox_hf_folder **folder);
const struct ox_model *ox_hf_model(const struct ox_hf_folder *folder);
/* The same, for a caller who says what of it is trained. */
struct ox_model *ox_hf_own_model(struct ox_hf_folder *folder);
/* Marks the tensors that the patterns of --freeze mean, with commas between them, as not trained. */
OX_MUST enum ox_status ox_hf_freeze(struct ox_model *model, const char *patterns);
/* Gives tensors the learning rates and decays that --group says: PATTERN:KEY=VALUE,... of several, with commas between
 * them. Where patterns mean the same tensor, the later one decides, key by key. `learning_rate` is the run's peak. */
OX_MUST enum ox_status ox_hf_group(struct ox_model *model, const char *groups, double learning_rate);
/* Chooses how the units that are frozen are kept (enum ox_unit_format): as bf16 where all weights of a unit are that in
 * the folder, or with `halves` as fp16, of blocks alone; where its weights are not opened, by what config.json says. */
void ox_hf_choose_formats(struct ox_hf_folder *folder, bool halves);
/* Keeps blocks and experts that are frozen in eight bits instead; OX_E_CONFIG where there are none, or where one has a
 * tensor that must be exact. */
OX_MUST enum ox_status ox_hf_choose_bytes(struct ox_model *model);
const json_t *ox_hf_config(const struct ox_hf_folder *folder);
/* The format that a config.json names for its weights; F32 if it names none. */
enum ox_dtype ox_hf_config_dtype(const json_t *config);
bool ox_hf_has_weights(const struct ox_hf_folder *folder);

/* Gives the model's table, and its head where that is its own, `vocab` rows, which are more than it has. The added rows
 * read as the mean of all rows that are there, or as fresh values of `seed`: always so where there are no weights. What
 * is frozen stays so. Pointers to the model are void afterwards. */
OX_MUST enum ox_status ox_hf_resize(struct ox_hf_folder *folder, uint32_t vocab, bool mean, uint64_t seed);
/* Makes `per_unit` experts of a block a unit of their own, 0: all a part of the block's (struct ox_mixture), and cuts
 * the model into groups of features, 0: 1. What is frozen stays so. Pointers to the model and numbers of its tensors
 * are void afterwards. OX_E_CONFIG where the model cannot be grouped so. */
OX_MUST enum ox_status ox_hf_regroup(struct ox_hf_folder *folder, uint32_t per_unit, uint32_t tensor_groups);

/* Lets so many layers in succession share the weights of the first one of them, 0: none; the last may be fewer. What is
 * frozen stays so; pointers to the model are void afterwards. OX_E_CONFIG where layers differ in shape, and with
 * `compares` where their weights in the folder do. */
OX_MUST enum ox_status ox_hf_share_layers(struct ox_hf_folder *folder, uint32_t layers, bool compares);
/* How many layers in succession shared their weights when a checkpoint was saved, whose folder has the optimizer's
 * planes of the first ones alone; 0: none did. */
#define OX_SHARED_LAYERS_KEY "shared_layers" /* of trainer_state.json */
uint32_t ox_hf_saved_sharing(const char *folder);

/* Gives the model low-rank adapters: fresh ones, whose values follow from the seed, or those of a folder that PEFT or a
 * run has saved, which OX_E_CONFIG refuses where they are of another model or need what does not exist here. Tensors
 * keep their indices; pointers to the model are void afterwards. ox_hf_open does the second for an adapter's folder,
 * with the base that this names. */
OX_MUST enum ox_status ox_hf_adapt(struct ox_hf_folder *folder, const struct ox_lora *lora, uint64_t seed);
OX_MUST enum ox_status ox_hf_load_adapter(struct ox_hf_folder *folder, const char *path);
OX_MUST enum ox_status ox_hf_open_adapter(const char *base, const char *adapter, bool weights,
                                          struct ox_hf_folder **out);
/* Adds the adapters to the matrices, as PEFT's merge_and_unload does: the model is that of the base then, and its
 * weights are read with what the adapters add, in float32. Does nothing without adapters. */
OX_MUST enum ox_status ox_hf_merge(struct ox_hf_folder *folder);
/* The name of a tensor in the file of what is saved: its own, or with adapters PEFT's. And the tensor that has such a
 * name; -1: none. */
enum { OX_HF_NAME_BYTES = 2 * OX_TENSOR_NAME_BYTES };
void ox_hf_file_name(const struct ox_model *model, const struct ox_tensor *tensor, char out[OX_HF_NAME_BYTES]);
int64_t ox_hf_find_saved(const struct ox_model *model, const char *name);
/* Refuses targets (struct ox_lora) that the model does not have, or whose adapters do not exist. */
OX_MUST enum ox_status ox_hf_check_targets(const struct ox_model *model, const struct ox_lora *lora);
/* Whether a folder has an adapter and no model of its own. */
bool ox_hf_is_adapter(const char *folder);
/* The base that an adapter's folder names, as a path; OX_E_CONFIG where that is no folder here. */
OX_MUST enum ox_status ox_hf_adapter_base(const char *folder, char *path);
/* The folder of the weights, beside which the adapters are; and that of the adapters; NULL where they are fresh, or
 * there are none. */
const char *ox_hf_base_path(const struct ox_hf_folder *folder);
const char *ox_hf_adapter_path(const struct ox_hf_folder *folder);
/* A number that tells the weights of a folder from others: of the names and shapes of all tensors of the base, and of
 * values at the beginning, in the middle and at the end of each. 0 without weights. */
OX_MUST enum ox_status ox_hf_base_hash(const struct ox_hf_folder *folder, uint64_t *out);

/* Reads the averages of a checkpoint from here on, from its optimizer file, where a weight has one. OX_E_CONFIG where
 * it has none. */
OX_MUST enum ox_status ox_hf_use_averages(struct ox_hf_folder *folder);
/* Reads elements [first, first + count) of tensor tensor_idx of the model as fp32 into out[count]. */
OX_MUST enum ox_status ox_hf_read(const struct ox_hf_folder *folder, uint32_t tensor_idx, uint64_t first,
                                  uint64_t count, float *out);
/* The format in which the tensor is stored; F32 if it has added rows. */
enum ox_dtype ox_hf_dtype(const struct ox_hf_folder *folder, uint32_t tensor_idx);
/* Compares every file that was opened with what its checkpoint lists of it, as ox_st_verify does. Whoever reads weights
 * calls it before their result is used. */
OX_MUST enum ox_status ox_hf_verify(const struct ox_hf_folder *folder);
/* The path of the file that has the tensor, for messages. */
const char *ox_hf_tensor_path(const struct ox_hf_folder *folder, uint32_t tensor_idx);

/* Writes a folder: weights in `dtype`, in tensor order, split into shards of at most shard_bytes_max (one file without
 * an index if they fit). The folder at `path` must exist and have no weights. Space for all shards is reserved at
 * creation. The caller renames the folder when it is complete. `model` must outlive the writer. */
struct ox_hf_writer;
OX_MUST enum ox_status ox_hf_create(const char *path, const struct ox_model *model,
                                    const json_t *original_config, enum ox_dtype dtype,
                                    uint64_t shard_bytes_max, struct ox_hf_writer **out);
/* Lets other processes write a part of the weights: ox_hf_join opens the files that one of them has created for the
 * same model. ox_hf_share lets that one finish without having written all; the others write no index and config.json,
 * and remove nothing. */
OX_MUST enum ox_status ox_hf_join(const char *path, const struct ox_model *model, enum ox_dtype dtype,
                                  uint64_t shard_bytes_max, struct ox_hf_writer **out);
void ox_hf_share(struct ox_hf_writer *writer);
/* Names the base of the adapters that are written, alone, as PEFT writes them: its folder, a text that must outlive the
 * writer, and its ox_hf_base_hash. */
void ox_hf_set_base(struct ox_hf_writer *writer, const char *base, uint64_t base_hash);
/* `data` is in the tensor's ox_hf_file_dtype(). Of limbs it has the sums, count / OX_LIMBS of them, which
 * ox_hf_join_limbs makes; first and count are multiples of OX_LIMBS. */
OX_MUST enum ox_status ox_hf_write(struct ox_hf_writer *writer, uint32_t tensor_idx, uint64_t first,
                                   uint64_t count, const void *data);
void ox_hf_join_limbs(const float *limbs, uint64_t count, float *out /* may be limbs */);
/* Syncs the shards and writes index and config.json; unless they are shared every element must have been written. Frees
 * the writer, even on failure. */
OX_MUST enum ox_status ox_hf_finish(struct ox_hf_writer **writer);
/* Removes what was written and frees the writer. */
void ox_hf_discard(struct ox_hf_writer **writer);
/* The size in bytes of the weights as one file. */
uint64_t ox_hf_bytes(const struct ox_model *model, enum ox_dtype dtype);

/* Copies the tokenizer and generation files that exist in the folder `from` to the folder `to`: tokenizer*.json,
 * tokenizer.model, vocab.json, merges.txt, added_tokens.json, special_tokens_map.json, generation_config.json,
 * chat_template.*. Of a link its target is copied. A copy has no wider permissions than its source. Some are not
 * copied, and one warning names them: links out of the folder to what is no file of that kind, files too large for
 * their kind, links to nothing, and files that cannot be read. */
OX_MUST enum ox_status ox_hf_copy_companions(const char *from, const char *to);
/* Copies the folder of further chat templates in the same way, if there is one. A checkpoint has none: its templates
 * are in tokenizer_config.json (ox_hf_write_tokens). */
#define OX_HF_TEMPLATES "additional_chat_templates"
OX_MUST enum ox_status ox_hf_copy_templates(const char *from, const char *to);

/* What a run knows of its tokenizer, for the folders that it saves. */
enum { OX_HF_ENDS_MAX = 8 };
struct ox_hf_tokens {
    json_t *templates;             /* texts of its chat templates by name; NULL: the folder's own stay */
    int64_t ends[OX_HF_ENDS_MAX];  /* tokens that end a text: EOS, and the ends of turns */
    uint32_t end_count;
    int64_t bos, pad;              /* ids, or -1 */
    bool replaces;                 /* the model is fresh: its ids are these, and not what its config.json has */
};
/* Makes a copy of a config.json whose "eos_token_id" has these ends too; of a fresh model, these ids. */
OX_MUST enum ox_status ox_hf_config_with(const json_t *config, const struct ox_hf_tokens *tokens, json_t **out);
/* Writes them into a folder that has its companion files: generation_config.json, and the chat template into every file
 * where it is read, in place of what is there. `original` is the model's config.json, or NULL. */
OX_MUST enum ox_status ox_hf_write_tokens(const char *folder, const json_t *original,
                                          const struct ox_hf_tokens *tokens);
/* The folder with the files of a model's tokenizer, to `path` (OX_PATH_BYTES): `model` itself, or for an adapter
 * without tokenizer.json that of the model that it names (OX_E_CONFIG: there is no such folder). */
OX_MUST enum ox_status ox_hf_tokenizer_folder(const char *model, char *path);
/* Warns of a file of `folder`, or beside that tokenizer, to which ox_hf_write_tokens cannot add because it is no JSON;
 * saves say nothing of it. */
void ox_hf_warn_tokens(const char *folder, const struct ox_hf_tokens *tokens);
/* Writes JSON as transformers does: indented, keys in their order, and reals with the fewest digits that read back to
 * the same value. */
OX_MUST enum ox_status ox_hf_write_json(const char *folder, const char *name, const json_t *json);

#ifdef __cplusplus
}
#endif
#endif
