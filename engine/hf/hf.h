/* A Hugging Face model folder: config.json, model.safetensors or shards with an index. */
#ifndef OX_ENGINE_HF_H
#define OX_ENGINE_HF_H

#include "engine/model/model.h"
#include "engine/hf/safetensors.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ox_hf_folder;

/* Opens config.json and, when `weights`, every safetensors file, and checks that each tensor of the model
 * is there exactly once with the right shape and that nothing unknown is (unknown = error naming it); a
 * tied head that is stored as well must equal the embedding. Names in an index may not leave the folder.
 * `path` may also name a config.json file itself: then there are no weights. */
OX_MUST enum ox_status ox_hf_open(const char *path, bool weights, struct ox_hf_folder **out);
void ox_hf_close(struct ox_hf_folder **folder);
const struct ox_model *ox_hf_model(const struct ox_hf_folder *folder);
const json_t *ox_hf_config(const struct ox_hf_folder *folder);
bool ox_hf_has_weights(const struct ox_hf_folder *folder);

/* Elements [first, first + count) of tensor tensor_idx of the model, as fp32. */
OX_MUST enum ox_status ox_hf_read(const struct ox_hf_folder *folder, uint32_t tensor_idx, uint64_t first,
                                  uint64_t count, float *out);
/* The file it lies in, for messages. */
const char *ox_hf_tensor_path(const struct ox_hf_folder *folder, uint32_t tensor_idx);

/* Writing a folder: weights as `dtype`, split in shards of at most shard_bytes_max in tensor order (one file
 * without index when it fits). The folder at `path` must exist and be empty of them; room for all shards is
 * reserved at once, and the caller renames the folder when all is done. `model` outlives the writer. */
struct ox_hf_writer;
OX_MUST enum ox_status ox_hf_create(const char *path, const struct ox_model *model,
                                    const json_t *original_config, enum ox_dtype dtype,
                                    uint64_t shard_bytes_max, struct ox_hf_writer **out);
OX_MUST enum ox_status ox_hf_write(struct ox_hf_writer *writer, uint32_t tensor_idx, uint64_t first,
                                   uint64_t count, const void *data /* in dtype */);
OX_MUST enum ox_status ox_hf_finish(struct ox_hf_writer **writer);
void ox_hf_discard(struct ox_hf_writer **writer);
/* Size of the weights as one file. */
uint64_t ox_hf_bytes(const struct ox_model *model, enum ox_dtype dtype);

/* Copies tokenizer and generation files (tokenizer*.json, tokenizer.model, vocab.json, merges.txt,
 * added_tokens.json, special_tokens_map.json, generation_config.json, chat_template.*) that exist in `from`
 * to the folder `to`. */
OX_MUST enum ox_status ox_hf_copy_companions(const char *from, const char *to);

#ifdef __cplusplus
}
#endif
#endif
