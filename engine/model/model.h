/* A model as a description: units, tensors and shapes follow from a configuration; units.h computes with them. */
#ifndef OX_ENGINE_MODEL_H
#define OX_ENGINE_MODEL_H

#include "base/optim_format.h"
#include "engine/family/model_config.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { OX_TENSOR_ALIGN_ELEMS = 64, OX_TENSOR_NAME_BYTES = 96 };
enum { OX_NO_UNIT = UINT32_MAX, OX_NO_TENSOR = UINT32_MAX };
/* Groups of features; what is in none of them. */
enum { OX_TENSOR_GROUPS_MAX = 8, OX_NO_GROUP = UINT32_MAX };
/* The most units that a stage uses beside the head's table: its own, what is frozen of it, and adapters; or its own and
 * one of each group, and as many with adapters. */
enum { OX_MODEL_STAGE_UNITS_MAX = 2 * (1 + OX_TENSOR_GROUPS_MAX) };

/* What a tensor's update has in place of the run's numbers. */
struct ox_tensor_group {
    bool given;
    double rate_share;   /* times the run's learning rate */
    double weight_decay; /* NAN: the run's, where the tensor decays */
};

/* One tensor of a model's files. */
struct ox_tensor {
    char name[OX_TENSOR_NAME_BYTES]; /* as written to files */
    uint32_t unit_idx;
    uint32_t layer;  /* of a block's */
    enum ox_role role;
    uint32_t row;  /* of a model that is cut: in the family's table; of an adapter's tensor a number behind all of
                      these, in the order of files */
    uint32_t rank; /* 1 to 3 */
    uint64_t shape[3]; /* 1 from `rank` on */
    uint64_t count;  /* elements */
    /* A tensor of all experts is one in files; each unit with some of the experts has a part of it, under its
     * name. So has each group of features of a tensor that is cut. */
    uint64_t whole[3];   /* the extents of the tensor in files: shape, of a part more */
    uint64_t part_first; /* its first element within the tensor in files */
    uint64_t run, run_stride; /* of a part with some columns: it lies there in runs of so many elements, whose
                                 beginnings are so far apart; run 0: in one */
    uint32_t next_part; /* the part behind it; OX_NO_TENSOR: none */
    uint64_t offset; /* first element within its unit's flat vector */
    uint64_t place;  /* the same with all experts of a block in its unit, which names it for random roundings */
    bool decay;      /* weight decay applies: a matrix, or several. The trainer decides about embeddings, by role */
    bool trained;    /* else its elements keep their bits */
    bool fp32;       /* files have it in F32, whatever the others are in */
    bool limbs;      /* its last dimension is OX_LIMBS, of which files have the sums (base/planes.h) */
    enum ox_init_kind init;
    uint32_t base_idx; /* of an adapter's: the matrix that it adapts, or the first part that its group has of it; else
                          OX_NO_TENSOR */
    /* The tensor whose weights this one shares, and in whose unit and place it is, where layers share: files have it
     * under its own name, and no unit's range has it. And the next one that shares a tensor; OX_NO_TENSOR: none. */
    uint32_t shares_idx, next_sharing;
    uint32_t saved_idx; /* its number among those that checkpoints have, parts alike; OX_NO_TENSOR: they lack it */
    struct ox_tensor_group group;
};

/* Elements of the tensor in files, of which this is all or a part. */
static inline uint64_t ox_tensor_whole_count(const struct ox_tensor *tensor) {
    return tensor->whole[0] * tensor->whole[1] * tensor->whole[2];
}
/* Where element `idx` lies within the tensor in files. */
static inline uint64_t ox_tensor_in_files(const struct ox_tensor *tensor, uint64_t idx) {
    return tensor->part_first +
           (tensor->run > 0 ? idx / tensor->run * tensor->run_stride + idx % tensor->run : idx);
}
/* How many of `count` elements from `idx` on lie behind one another there. */
static inline uint64_t ox_tensor_together(const struct ox_tensor *tensor, uint64_t idx, uint64_t count) {
    const uint64_t left = tensor->run > 0 ? tensor->run - idx % tensor->run : count;
    return left < count ? left : count;
}
/* Copies what a folder's tensor has been given since its model was made: whether it is trained, and so on. */
void ox_tensor_take(struct ox_tensor *to, const struct ox_tensor *from);

/* Whether two tensors are updated with the same numbers, as far as their groups say. */
bool ox_tensor_same_group(const struct ox_tensor *a, const struct ox_tensor *b);


/* Elements of a tensor in memory for one in files. */
static inline uint32_t ox_tensor_limbs(const struct ox_tensor *tensor) {
    return tensor->limbs ? OX_LIMBS : 1;
}

/* A unit's tensors lie in one flat vector of elem_count elements (a multiple of OX_GROUP_ELEMS); gaps
 * between tensors and at the end hold zeros and stay zero. They are those of the range below that name the unit: a unit
 * shares it with one beside it that has what is frozen. */
struct ox_unit {
    enum ox_unit_kind kind;
    uint32_t tensor_first, tensor_count; /* into ox_model.tensors */
    uint64_t elem_count;
    uint64_t param_count; /* elem_count without gaps, and without limbs, which are no parameters */
    uint64_t role_offset[OX_ROLE_COUNT]; /* element offset of the role's first tensor; UINT64_MAX: none */
    uint32_t window; /* of a block's attention: a token sees itself and window - 1 before it; 0: all before it */
    bool rope;       /* a block that rotates queries and keys */
    uint32_t rotation; /* by which of the model's rotations */
    /* What of it is trained: any tensor; any tensor of a role. And whether a stage before it has something trained, so
     * that its backward makes the gradient of its input. */
    bool trained, role_trained[OX_ROLE_COUNT], gives_dx;
    uint32_t own;  /* the stage's own unit: this one, or the one that it is beside */
    uint32_t next; /* the next unit of its stage: what is beside the stage's own unit; OX_NO_UNIT: none */
    uint32_t layer; /* of a block, and of a unit with experts of it */
    uint32_t expert_first, expert_count; /* of a unit with some of a block's experts, such as those of a group of
                                            features: which; else 0 */
    uint32_t group; /* of a unit with the tensors of a group of features: which; else OX_NO_GROUP */
    uint32_t stream; /* the number that the unit would have with all experts in their blocks' units, as `place` */
    bool whole; /* it has matrices that Muon updates, so one chunk has all of it, and one rank */
    bool one_moment; /* such matrices alone, so its state has no second moment */
    /* A unit is trained or frozen as a whole for all that moves: any trained tensor makes it trained, and then it has
     * its fp32 master. So what is worth it of a stage trained in part is a unit of its own (ox_model_settle_trained).
     * The format of a frozen one is chosen when the run begins, after what is trained is settled, by
     * ox_hf_choose_formats: that of the folder's weights, which it holds exactly, so no bit depends on it; or, if the
     * user asks for it, eight bits. From then on it is a fact of the run (run.json), because the store is laid out by
     * it. */
    enum ox_unit_format format;
};

/* Where the head's table (vocab, hidden) begins: in the head's own unit, in the embedding's where they are tied, or in
 * one beside the head's. With groups of features: that of the first (ox_model_table_unit). */
struct ox_table {
    uint32_t unit_idx;
    uint64_t offset; /* first element within the unit's flat vector */
};

/* Units are found by these names alone: their numbers say nothing about their order or their kind.
 *
 * Experts of a block may be units of their own, in groups of config.mixture.per_unit. Each group is a stage behind its
 * block's, so that they pass through compute one after the other. The blocks' experts begin with a whole
 * OX_GROUP_ELEMS, role by role, and end with one, and so do those of each group: so groups are cut where the sums of a
 * gradient's squares are, and all that is summed or rounded lies in whole OX_GROUP_ELEMS that are the same however
 * experts are grouped. */
struct ox_model {
    struct ox_model_config config;
    struct ox_tensor *tensors; /* a unit's lie together, by offset */
    uint32_t tensor_count;
    struct ox_unit *units;
    uint32_t unit_count;
    uint32_t *stages;           /* (stage_count): each one's own unit, in the order of forward */
    uint32_t stage_count;
    uint32_t own_count;         /* units that are some stage's own; fewer than stages where layers share */
    struct ox_unit *faces;      /* (stage_count): each one's own unit as the stage sees it (ox_model_stage_unit); NULL:
                                   as it is */
    uint32_t *blocks;           /* (block_count): the blocks among the stages, once for each layer */
    uint32_t block_count;
    uint32_t embed_idx, head_idx; /* the head's unit has the final norm, and its table unless that is tied */
    struct ox_table table;
    uint32_t adapter_first; /* tensors from this one on are adapters': tensor_count without */
    uint32_t *saved, saved_count; /* (saved_count): tensors that are saved: all, or with adapters what is trained; of
                                     parts the first */
    uint64_t param_count, trained_count; /* elements of tensors, and of trained ones */
    uint32_t *by_name, name_slots; /* a table of tensors, found by the hash of their names; behind each index + 1 */
};

/* Refuses sizes that overflow or exceed the limits above, layers that cannot share (config.shared_layers) because their
 * tensors differ, and adapters of modules that the model lacks. With adapters,
 * these alone are trained. Close with ox_model_close. */
OX_MUST enum ox_status ox_model_build(const struct ox_model_config *config, struct ox_model **out);
void ox_model_close(struct ox_model **model);
/* Works out what follows from which tensors are trained, after a caller has changed that; a new model trains all.
 * Every unit then has its master. Of a block or a head that is trained in part, the matrices that are frozen whole
 * become a unit beside it, where they are an eighth of it or more: that has no gradient and no moments. With
 * config.whole_matrices, what Muon does not update of a unit is another one beside it. Tensors keep their indices. */
void ox_model_settle_trained(struct ox_model *model);
/* The own unit of a stage, as what it computes needs it: layers that share weights may differ in window and rotation,
 * and in whether a stage before trains something. Only its `own` names the unit's number. */
const struct ox_unit *ox_model_stage_unit(const struct ox_model *model, uint32_t stage_idx);
/* OX_E_CONFIG with `option` and two names where tensors that share weights differ in what they were given: whether they
 * are trained, and their group. */
OX_MUST enum ox_status ox_model_check_shared(const struct ox_model *model, const char *option);
/* The units of the stage whose own unit is `unit`, that one first; for the head without a table of another unit. Roles
 * are those of one of them alone. Returns how many. */
uint32_t ox_model_stage_units(const struct ox_model *model, const struct ox_unit *unit,
                              const struct ox_unit *out[OX_MODEL_STAGE_UNITS_MAX]);
/* How many units have experts of a block, in whose unit they are not; `first`: where they begin among the stages. */
uint32_t ox_model_expert_units(const struct ox_model *model, uint32_t block_unit_idx, uint32_t *first);
/* Groups of features, 1 or more, and whether the model can be cut into them: OX_E_CONFIG says why not. */
static inline uint32_t ox_model_groups(const struct ox_model_config *config) {
    return config->tensor_groups > 1 ? config->tensor_groups : 1;
}
OX_MUST enum ox_status ox_model_check_groups(const struct ox_model_config *config);
/* Where the range of a group begins, of an extent that is cut into groups as evenly as may be. */
uint64_t ox_groups_begin(uint64_t extent, uint32_t groups, uint32_t group);
/* The unit with a group's part of the head's table. */
uint32_t ox_model_table_unit(const struct ox_model *model, uint32_t group);
/* The part that has element `at` of a tensor in files, of which `part_idx` is the first part: its index, the element's
 * there, and how many lie behind one another from it on, in both. OX_NO_TENSOR: none has it. */
uint32_t ox_model_part_at(const struct ox_model *model, uint32_t part_idx, uint64_t at, uint64_t *idx,
                          uint64_t *count);
/* Whether a grouping of a mixture can be: OX_E_CONFIG where groups do not fill whole OX_GROUP_ELEMS, or where the model
 * has no such experts. */
OX_MUST enum ox_status ox_model_check_grouping(const struct ox_model_config *config);
/* Whether something is trained that a stage uses: its units, or for the head with tied weights the table. */
bool ox_model_stage_is_trained(const struct ox_model *model, uint32_t stage_idx);

/* A unit's tensor behind `tensor`, by offset, or its first one for NULL; NULL behind the last. */
const struct ox_tensor *ox_unit_next_tensor(const struct ox_model *model, const struct ox_unit *unit,
                                            const struct ox_tensor *tensor);
/* Whether one of a stage's units has a role; `unit` is the stage's own. */
bool ox_model_stage_has(const struct ox_model *model, const struct ox_unit *unit, enum ox_role role);
/* Where a role of a unit begins that comes behind the role `before`, whose tensors end at `end`. */
uint64_t ox_unit_role_begin(uint64_t end, enum ox_role role, enum ox_role before);
/* Whether the tensor is one or several matrices inside a block that Muon updates whole: not tables, heads, routers and
 * gates of experts, and biases. And the sizes of one of them. */
bool ox_tensor_is_hidden(const struct ox_tensor *tensor);
void ox_tensor_matrix(const struct ox_tensor *tensor, uint64_t *rows, uint64_t *cols);
/* Gives a unit's tensors their places, in their order, and the unit its sizes. */
void ox_unit_lay_out(const struct ox_model *model, struct ox_unit *unit);

/* Finds a tensor by its name in a file, with or without the family's prefix ("transformer." of gpt2, "model."). Returns
 * its index, of parts that of the first; -1 for an unknown name; -2 for a known one to ignore (gpt2's attention masks,
 * a tied lm_head.weight). */
int64_t ox_model_find_tensor(const struct ox_model *model, const char *name);

/* A tensor's module: its name without ".weight"; false for what is no matrix. */
bool ox_tensor_module(const struct ox_tensor *tensor, char out[OX_TENSOR_NAME_BYTES]);
/* Writes the module's name as transformers 5, and so PEFT, has it; ox_lora_parameter the name of the parameter that an
 * expert's matrix or a router is (a part of) there, such as "model.layers.0.mlp.experts.gate_up_proj"; false for other
 * tensors. */
bool ox_lora_module(const struct ox_model_config *config, const struct ox_tensor *tensor,
                    char out[OX_TENSOR_NAME_BYTES]);
bool ox_lora_parameter(const struct ox_model_config *config, const struct ox_tensor *tensor,
                       char out[OX_TENSOR_NAME_BYTES]);
/* A name of the family's files as PEFT has it, and the other way round; `out` has room for both. */
void ox_lora_name(const struct ox_model_config *config, const char *name, char *out, size_t bytes);
void ox_lora_name_in_files(const struct ox_model_config *config, const char *name, char *out, size_t bytes);
/* The role of the A of a block's matrix, behind which that of B comes; OX_ROLE_COUNT for what has no adapter. */
enum ox_role ox_adapter_role(enum ox_role matrix);
/* The other way round; and the role of the magnitudes beside an A, OX_ROLE_COUNT: there are none. */
enum ox_role ox_adapted_role(enum ox_role a);
enum ox_role ox_magnitude_role(enum ox_role a);
static inline bool ox_role_is_magnitude(enum ox_role role) {
    return role >= OX_ROLE_QKV_M && role <= OX_ROLE_SHARED_DOWN_M;
}
/* The next name of a list of targets from *at on, and its length; NULL behind the last. */
const char *ox_lora_next_target(const char **at, size_t *length);
/* Gives `lora` the form that PEFT gives a configuration: names of an expert's modules in files, and of a router, become
 * parameters, in families whose names transformers 5 has changed. OX_E_CONFIG for a gate without its up. */
OX_MUST enum ox_status ox_lora_settle(const struct ox_model_config *config, struct ox_lora *lora);
/* Whether settled names mean the tensor, as PEFT compares: a module's whole name, or its last parts, or those of a
 * parameter; and it can have an adapter. */
bool ox_lora_is_target(const struct ox_model_config *config, const struct ox_lora *lora,
                       const struct ox_tensor *tensor);
/* Whether names of modules_to_save mean a tensor of this name, as PEFT compares: a module that it is in, at any depth,
 * ends with one of them, also within a word ("norm" means input_layernorm). */
bool ox_lora_is_saved(const struct ox_model_config *config, const char *modules, const char *tensor_name);
/* Whether what is trained whole or adapted is the table of a tied model, or its head: as in PEFT these are two then.
 * And whether targets mean a head, also one that a tied model has no tensor of. */
bool ox_lora_unties(const struct ox_model *model, const struct ox_lora *lora);
bool ox_lora_means_head(const struct ox_lora *lora);

/* Initial value of element `idx` of a tensor: a pure function of seed, tensor name and index. */
float ox_model_init_value(const struct ox_model *model, const struct ox_tensor *tensor, uint64_t seed,
                          uint64_t idx);
/* Writes the initial values of `count` elements from `first` on: the same bits, much faster. */
void ox_model_init_values(const struct ox_model *model, const struct ox_tensor *tensor, uint64_t seed, uint64_t first,
                          uint64_t count, float *out);

#ifdef __cplusplus
}
#endif
#endif
