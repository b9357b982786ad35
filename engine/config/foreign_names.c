/* The names that other training programs have for things, and what is here instead: of DeepSpeed, FSDP, Accelerate, the
 * Trainer of transformers, TRL, PEFT, axolotl, LLaMA-Factory, torchtune, unsloth, Megatron, llm.c and llama.cpp.
 * tests/golden/foreign_flags.json has their names, and a test checks that each is answered, and that each flag that an
 * answer names exists. */
#include "engine/config/foreign.h"

enum {
    RUN = OX_CMD_TRAIN | OX_CMD_PLAN, READS = RUN | OX_CMD_EVAL | OX_CMD_TOKENIZE, GENERATE = OX_CMD_GENERATE, ANY = 0,
    NOT_RUN = OX_CMD_EVAL | OX_CMD_GENERATE | OX_CMD_EXPORT | OX_CMD_INSPECT | OX_CMD_TOKENIZE,
};

static const char all_trained[] = "does not exist: choose what is trained by --freeze or --lora-r; what memory cannot "
                                  "hold lives on drives (--nvme)";
static const char plain_lora[] = "does not exist: of PEFT there is LoRA: --lora-r, "
                                 "--lora-alpha, --lora-dropout, --lora-target-modules, --lora-target-parameters, "
                                 "--lora-modules-to-save, --lora-bias, --use-rslora, --use-dora, --adapter";
static const char full_weights[] = "does not exist: weights are trained in full; --moments q8 makes the optimizer's "
                                   "state small";
static const char streamed[] = "does not exist: state is streamed without a configuration file; give the budgets "
                               "--device-mem, --host-mem and --nvme";
static const char use_ranks[] = "use --ranks N, or --ranks auto; CUDA_VISIBLE_DEVICES chooses among GPUs";
static const char use_sharding[] = "use --sharding NAME";
static const char not_divided[] = "does not exist: ranks divide the micro-batches of a step (--ranks) and the state "
                                  "(--sharding), the layers (--pipeline-parallel-size), the rows of sequences "
                                  "(--context-parallel-size) or heads, columns and vocabulary "
                                  "(--tensor-parallel-size); leave it out";
static const char use_tensors[] = "use --tensor-parallel-size N";
static const char all_rows[] = "is a part of --tensor-parallel-size N, whose ranks each have a part of the rows "
                               "between its products; leave it out, or give --context-parallel-size N";
static const char use_pipeline[] = "use --pipeline-parallel-size N; layers are dealt to the ranks by their work";
static const char use_chunks[] = "use --pipeline-schedule interleaved with --virtual-pipeline-size N, the runs of "
                                 "layers of each rank";
static const char one_process[] = "does not exist: the ranks of a machine are threads of one process (--ranks N); "
                                  "leave it out";
static const char use_copies[] = "use --sharding hybrid_shard, and --shard-size N: ranks that divide a copy";
static const char use_model[] = "use --model FOLDER; nothing is downloaded";
static const char use_tokenizer[] = "use --tokenizer PATH";
static const char use_data[] = "use --data PATH; data sets are files here, and are not downloaded";
static const char use_eval_data[] = "use --eval-data PATH";
static const char use_share[] = "use --eval-fraction X, the share that is held out";
static const char use_length[] = "use --max-seq-length N";
static const char use_batch[] = "use --per-device-train-batch-size N";
static const char use_global[] = "use --global-batch-size N";
static const char use_accumulation[] = "use --gradient-accumulation-steps N, of all ranks together";
static const char use_epochs[] = "use --num-train-epochs N";
static const char use_steps[] = "use --max-steps N";
static const char use_rate[] = "use --learning-rate X";
static const char use_warmup[] = "use --warmup-steps N, or a share of all steps";
static const char use_clip[] = "use --max-grad-norm X";
static const char use_output[] = "use --output PATH";
static const char use_resume[] = "use --resume-from-checkpoint latest, or the folder of a checkpoint";
static const char use_logging[] = "use --logging-steps N";
static const char use_saving[] = "use --save-steps N, or a share of all steps; 0: only at the end";
static const char use_evaluating[] = "use --eval-steps N, or a share of all steps; 0: only at the end";
static const char use_schedule[] = "use --lr-scheduler-type NAME";
static const char use_decay[] = "use --weight-decay X";
static const char use_tokens[] = "use --max-new-tokens N";
static const char use_packing[] = "use --packing pack, or pad";
static const char recomputed[] = "is planned: blocks keep their activations where memory allows it, the others "
                                 "recompute them; --kept-blocks 0 recomputes all, --kept-blocks N keeps those of N";
static const char activations_away[] = "use --activation-tier host or nvme; the planner chooses it where it helps";
static const char files_only[] = "does not exist: nothing is sent anywhere; --report-to tensorboard writes files that "
                                 "other programs read";
static const char times[] = "does not exist: metrics.jsonl has times and bytes of every step; --trace on records "
                            "every task";
static const char not_needed[] = "does not exist and is not needed; leave it out";
static const char own_kernels[] = "does not exist: there is one way to compute, which needs no choice; leave it out";
static const char use_dtype[] = "use --dtype bf16, fp16 or fp32";
static const char use_fp16[] = "use --dtype fp16, or --dtype bf16, which needs no loss scale";
static const char no_fp8[] = "does not exist: products are in the format of --dtype, fp32, bf16 or fp16";
static const char is_fp32[] = "is always so: norms, softmax, the loss and sums are fp32; leave it out";
static const char plain_loss[] = "does not exist: the loss is the plain cross entropy; leave it out";
static const char other_method[] = "does not exist: AdamW, Lion and SGD update all parameters (--optimizer)";
static const char no_preferences[] = "does not exist: preferences are trained by --dpo, and nothing by rewards";
static const char plain_dpo[] = "does not exist: of --dpo there are --dpo-loss, --dpo-beta, --dpo-label-smoothing and "
                                "--dpo-sft-coef";
static const char no_server[] = "does not exist: nothing is served; other programs read the folder that `offload "
                                "export` writes";
static const char text_alone[] = "does not exist: models and rows are of text alone";
static const char no_experts[] = "does not exist: --expert-parallel-size gives whole experts to ranks, "
                                 "--experts-per-unit says how many are a unit (those without a token: "
                                 "--idle-experts); leave it out";
static const char use_experts[] = "use --expert-parallel-size N";
static const char use_balance[] = "use --router-aux-loss-coef X, over the whole step";
static const char no_dropout[] =
    "does not exist: nothing is dropped out, but by --lora-dropout what adapters read; leave it out";
static const char use_noise[] = "use --neftune-noise-alpha X";
static const char of_config[] = "is a key of config.json: --model CONFIG.json starts with fresh weights of that shape";
static const char of_rows[] = "does not exist: a conversation is written by its chat template; --train-on all, last or "
                              "prompts chooses what is trained";
static const char no_plugins[] = "does not exist: no code of others is loaded; leave it out";
static const char no_download[] = "does not exist: nothing is downloaded or uploaded; leave it out";
static const char no_layers[] = "use --group PATTERN:lr=..., as in --group embed:lr=0.1x";
static const char whole_rows[] = "does not exist: give a shorter file (head -n 1000), --data PATH:0.1 for a tenth of "
                                 "it in each epoch, or --max-steps N";
static const char on_all_cores[] = "does not exist: text is tokenized on all cores; leave it out";
static const char from_files[] = "is always so: texts become tokens in a file once and are read from there; leave it "
                                 "out";
static const char by_weights[] = "use --data PATH:WEIGHT, once for each source";
static const char by_shares[] = "use --data PATH:SHARE, once for each source, with --mixture tokens";
static const char use_columns[] = "use --column-messages, --column-prompt, --column-completion, --column-text ..., "
                                  "which name the keys of rows";
static const char same_bits[] = "is always so: the same command gives the same bits; leave it out";
static const char of_tokenizer[] = "does not exist: tokens are those of the tokenizer's files (--tokenizer); add them "
                                   "there, and give --resize-embeddings mean";
static const char use_resize[] = "use --resize-embeddings mean, with a tokenizer that has the new tokens";
static const char use_scaling[] = "is a key of config.json (rope_scaling): edit it there";
static const char use_tune[] = "does not exist: `offload plan` says what fits, before anything runs";
static const char cuda_graphs[] = "does not exist: a step is planned, and not captured; leave it out";

const struct ox_foreign ox_foreign_names[] = {
    /* number formats */
    {"bf16 bf16-full-eval bfloat16", NULL, "use --dtype bf16", ANY},
    {"pure-bf16", NULL, "use --dtype bf16 with --moments bf16", ANY},
    {"bf16.bf16-*", NULL, "use --moments bf16; masters stay exact", ANY},
    {"bf16.enabled", NULL, "use --dtype bf16, with --moments bf16 for a narrow state", ANY},
    {"bf16.*", NULL, not_needed, ANY},
    {"seq-parallel-communication-data-type", NULL, "use --grad-dtype; sums of gradients are fp32", ANY},
    {"amp amp.*", NULL, use_dtype, ANY},
    {"gradient-allreduce-op disable-allgather dump-state nebula* graph-harvesting vocabulary-size", NULL,
     not_needed, ANY},
    {"memory-breakdown", NULL, "is always so: the plan has the memory at its fullest", ANY},
    {"pipeline pipeline.*", NULL, use_pipeline, ANY},
    {"use-data-before-expert-parallelism", NULL, no_experts, ANY},
    {"compression-training* quantize-training* eigenvalue* sparse-attention*", NULL, full_weights, ANY},
    {"curriculum-learning* data-efficiency*", NULL, "use --data-order sequential", ANY},
    {"progressive-layer-drop*", NULL, no_dropout, ANY},
    {"float32", NULL, "use --dtype fp32", ANY},
    {"fp16* float16 half", NULL, use_fp16, ANY},
    {"initial-loss-scale", NULL, "use --initial-scale-power N, of 2", ANY},
    {"min-loss-scale hysteresis", NULL,
     "does not exist: every overflow halves the scale, which ends at 1; leave it out", ANY},
    {"fp8* fp4*", NULL, no_fp8, ANY},
    {"fp32* upcast-* keep-in-fp32-modules embeddings-skip-upcast attention-softmax-in-fp32 grad-reduce-in-fp32 "
     "accumulate-allreduce-grads-in-fp32", NULL, is_fp32, ANY},
    {"data-types* communication-data-type main-grads-dtype", NULL,
     "use --grad-dtype; sums of gradients are fp32", ANY},
    {"main-params-dtype", NULL, is_fp32, ANY},
    {"exp-avg-*dtype exp-avg-dtype", NULL, "use --moments bf16, or q8", ANY},
    {"tf32", NULL, "does not exist: matrices are multiplied in the format of --dtype; leave it out", ANY},
    {"torch-autocast* autocast-dtype enable-autocast torch-dtype precision params-dtype compute-dtype "
     "infer-dtype param-dtype mixed-precision*", NULL, use_dtype, ANY},
    {"ckpt-format", NULL, "does not exist: a checkpoint has one form, which transformers reads", ANY},
    {"dtype", NULL, "use --save-dtype bf16, fp16 or fp32", OX_CMD_EXPORT},
    /* fewer parameters, fewer bits */
    {"bias", NULL, "use --lora-bias none, all or lora_only", ANY},
    {"lora-task-type", NULL, "does not exist: adapters are of language models; leave it out", ANY},
    {"additional-target", NULL, "use --lora-modules-to-save NAME", ANY},
    {"lora-target-linear", NULL, "use --lora-target-modules all-linear", ANY},
    {"lora-model-dir peft-model* lora-path* adapters", NULL, "use --adapter DIR", ANY},
    {"lora-*-kernel", NULL, own_kernels, ANY},
    {"*lora* *peft* *adapter* *dora", NULL,
     "does not exist: --adapter DIR takes an adapter as it is, and `offload export` merges it", NOT_RUN},
    {"r", NULL, "use --lora-r N", RUN},
    {"task-type", NULL, "is always so: a causal language model; leave it out", RUN},
    {"use-peft", NULL, "is what --lora-r N does", ANY},
    {"*lora* *peft* *adapter* *dora oft-* pissa-* finetuning-type", NULL, plain_lora, ANY},
    {"full-finetuning", NULL, "is the default: all parameters are trained unless --lora-r or --freeze says otherwise",
     ANY},
    {"target-modules", NULL, "use --lora-target-modules", ANY},
    {"exclude-modules module-dropout "
     "rank-pattern alpha-pattern layers-to-transform layers-pattern layer-replication fan-in-fan-out "
     "trainable-token-indices ensure-weight-tying arrow-config corda-config eva-config kasa-config loftq* "
     "megatron-config megatron-core monteclora-config runtime-config", NULL, plain_lora, ANY},
    {"*freeze* unfrozen-parameters trainable-layers", NULL,
     "use --freeze with embed, head, layers.0-15, a tensor's name with * and ?, or `all-but ...`", ANY},
    {"use-llama-pro lisa-*", NULL, all_trained, ANY},
    {"zero-quantized-gradients", NULL, "use --exchange-dtype q8: gradients between ranks in 8 bits", ANY},
    {"zero-quantized*", NULL,
     "does not exist: weights travel as they are; --exchange-dtype q8 is for gradients between ranks", ANY},
    {"load-in-4bit load-in-8bit *quant*", NULL,
     "does not exist: weights are read as they are; leave it out", OX_CMD_EVAL | GENERATE},
    {"*quant* *bits load-in-4bit load-in-8bit", NULL,
     "does not exist: weights are written in fp32, bf16 or fp16 (--save-dtype); other programs quantise "
     "that folder", OX_CMD_EXPORT},
    {"load-in-8bit", NULL, "use --base-dtype q8: what is frozen whole, as beside adapters, is kept in 8 bits", ANY},
    {"load-in-4bit", NULL, "does not exist; --base-dtype q8 keeps what is frozen, as beside adapters, in 8 bits", ANY},
    {"load-in-16bit", NULL, not_needed, ANY},
    {"*quant* *bnb* gptq* qat qat.* use-onebitllms", NULL, full_weights, ANY},
    /* where state lives, and how many devices there are */
    {"deepspeed-multinode-launcher deepspeed-hostfile deepspeed-inclusion-filter deepspeed-exclusion-filter", NULL,
     one_process, ANY},
    {"deepspeed-moe-layer-cls-names", NULL, no_experts, ANY},
    {"deepspeed* use-deepspeed", NULL, streamed, ANY},
    {"deepcompile", NULL, own_kernels, ANY},
    {"fsdp fsdp-sharding-strategy", NULL, use_sharding, ANY},
    {"fsdp-activation-checkpointing", NULL, recomputed, ANY},
    {"fsdp*prefetch", NULL, "use --prefetch-depth N; planned where it is left out", ANY},
    {"fsdp-offload-params", NULL,
     "is planned by --device-mem; forced by --weights-tier host and --state-tier host", ANY},
    {"fsdp-auto-wrap-policy fsdp-transformer-layer-cls-to-wrap fsdp-min-num-params", NULL, not_needed, ANY},
    {"fsdp*state-dict-type", NULL, "is not needed: a checkpoint has one form, which any number of ranks reads", ANY},
    {"fsdp-use-orig-params fsdp-ignored-modules fsdp-sync-module-states fsdp-cpu-ram-efficient-loading "
     "fsdp-version", NULL, not_needed, ANY},
    {"fsdp*", NULL, streamed, ANY},
    {"use-fsdp use-megatron-fsdp use-custom-fsdp data-parallel-sharding-strategy", NULL, use_sharding, ANY},
    {"use-distributed-optimizer", NULL, "use --sharding zero1", ANY},
    {"zero-stage", NULL, "use --sharding zero1, zero2 or zero3", ANY},
    {"stage", NULL, "use --sharding zero1, zero2 or zero3; rows or texts of --data decide what is trained", ANY},
    {"zero-optimization", NULL,
     "use --sharding and the budgets --device-mem, --host-mem and --nvme; docs/coming-from.md has every key", ANY},
    {"zero-hpz-partition-size mics-*", NULL, use_copies, ANY},
    {"zeropp-*", NULL, "is --exchange-dtype q8 for gradients between ranks; weights travel as they are", ANY},
    {"zero-* zero3-*", NULL, not_needed, ANY},
    {"stage3-prefetch-bucket-size", NULL, "use --prefetch-depth N, in units; planned where it is left out", ANY},
    {"stage3-max-live-parameters stage3-max-reuse-distance", NULL, "is bounded by --device-mem", ANY},
    {"stage3-gather-*", NULL, "is not needed: checkpoints are model folders; --save-dtype bf16", ANY},
    {"stage3-*", NULL, not_needed, ANY},
    {"sub-group-size", NULL, "use --chunk-elems N; planned where it is left out", ANY},
    {"reduce-scatter allgather-partitions use-multi-rank-bucket-allreduce", NULL,
     "use --reduction fixed, or library", ANY},
    {"compute-grad-norm", NULL, "is always so: metrics.jsonl has the norm of every step", ANY},
    {"aio.queue-depth", NULL, "use --queue-depth N", ANY},
    {"aio.*", NULL, not_needed, ANY},
    {"aio", NULL, "use --queue-depth and --io-backend; docs/coming-from.md has every key", ANY},
    {"offload-*.nvme-path offload-*-nvme-path", NULL, "use --nvme PATH:SIZE", ANY},
    {"offload-*.pin-memory", NULL, "is always so: host memory that a GPU reads is pinned", ANY},
    {"offload-optimizer.ratio", NULL, "use --device-state-units N", ANY},
    {"offload-optimizer.* offload-param.*", NULL, not_needed, ANY},
    {"offload-optimizer* offload-param*", NULL, streamed, ANY},
    {"offload-folder", NULL, "use --nvme PATH:SIZE", ANY},
    {"offload-embedding offload-modules", NULL, streamed, ANY},
    {"nvme-path", NULL, "use --nvme PATH:SIZE", ANY},
    {"zenflow* super-offload", NULL, "use --optimizer-overlap, which has the same bits", ANY},
    {"cpu-offload* *cpu-offload", NULL, streamed, ANY},
    {"optimizer-offload-fraction", NULL, "use --device-state-units N", ANY},
    {"overlap-cpu-optimizer-d2h-h2d", NULL, "use --optimizer-overlap; planned where it is left out", ANY},
    {"optimizer-in-bwd optimizer-fusion", NULL,
     "use --optimizer-overlap speculative; planned where it is left out", ANY},
    {"pin-cpu-*", NULL, "is always so: host memory that a GPU reads is pinned", ANY},
    {"device-map max-memory", NULL, streamed, ANY},
    {"gpu-memory* gpu-mem* vram*", NULL, "use --device-mem SIZE", ANY},
    {"cpu-mem* ram", NULL, "use --host-mem SIZE", ANY},
    {"memory mem max-mem *mem-limit *memory-limit mem-budget memory-budget", NULL,
     "use --host-mem SIZE, --device-mem SIZE", ANY},
    {"ssd* disk* swap*", NULL, "use --nvme PATH:SIZE", ANY},
    {"limit-all-gathers downcast-bf16", NULL, not_needed, ANY},
    {"dynamo-*", NULL, own_kernels, ANY},
    {"checkpoint.* elasticity*", NULL, "is not needed: any number of ranks reads a checkpoint", ANY},
    {"overlap-*", NULL, "is not needed: transfers overlap as the plan has them", ANY},
    {"tp-comm-*", NULL, not_divided, ANY},
    {"*bucket*", NULL, "is not needed: a unit is the bucket", ANY},
    {"contiguous-gradients round-robin-gradients prescale-gradients gradient-predivide-factor sparse-gradients "
     "ignore-unused-parameters memory-efficient-* load-from-fp32-weights", NULL, not_needed, ANY},
    {"elastic-checkpoint", NULL, "is not needed: any number of ranks reads a checkpoint", ANY},
    {"pipeline-loading-checkpoint override-module-apply leaf-module* legacy-stage1 log-trace-cache-warnings "
     "enable-sanity-checks parameter-alignment", NULL, not_needed, ANY},
    {"save-muon-momentum-*", NULL, other_method, ANY},
    {"hybrid-engine*", NULL, no_preferences, ANY},
    {"ddp-timeout* distributed-timeout-minutes", NULL, "use --comm-timeout, such as 30min", ANY},
    {"distributed-backend", NULL, "use --comm auto, local or nccl", ANY},
    {"torch-distributed-debug nccl-debug", NULL, "use --comm-debug, which compares each call of the ranks", ANY},
    {"ddp* distributed-type", NULL, one_process, ANY},
    {"dp-replicate-size", NULL, use_copies, ANY},
    {"local-rank* *node-rank master-* num-machines num-nodes nnodes machine-rank same-network main-process-* "
     "main-training-function compute-environment enable-cpu-affinity", NULL, one_process, ANY},
    {"multi-gpu", NULL, use_ranks, ANY},
    {"rdzv-* standalone hostfile", NULL, one_process, ANY},
    {"mpirun-*", NULL, "is not needed: `mpirun -np N offload train ...` starts processes", ANY},
    {"launcher* monitor-interval", NULL, one_process, ANY},
    {"max-restarts", NULL, "does not exist: give the same command with --resume-from-checkpoint latest again", ANY},
    {"tpu* vm", NULL, "does not exist: CPUs and GPUs compute (--device)", ANY},
    {"num-processes nproc* num-gpus* num-accelerators n-gpu n-gpus ngpu*", NULL, use_ranks, ANY},
    {"gpu", NULL, "use --device cuda; CUDA_VISIBLE_DEVICES chooses among GPUs", ANY},
    {"gpu-id*", NULL, "does not exist: CUDA_VISIBLE_DEVICES chooses among GPUs, --ranks N says how many", ANY},
    {"gpus devices world-size", NULL, use_ranks, ANY},
    {"num-layers-per-virtual-pipeline-stage num-virtual-stages-per-pipeline-rank", NULL, use_chunks, ANY},
    {"pp-size *pipeline*parallel-size megatron-lm-pp-degree", NULL, use_pipeline, ANY},
    {"pipeline-dtype pipeline-model-parallel-comm* deallocate-pipeline* microbatch-group-size* *-pipeline-num-layers "
     "account-for-*-in-pipeline-split", NULL, not_needed, ANY},
    {"tp-size *tensor*parallel*size megatron-lm-tp-degree", NULL, use_tensors, ANY},
    {"*sequence*parallel*", NULL, all_rows, ANY},
    {"*tensor*parallel* hierarchical-context-parallel* hybrid-context-parallel* "
     "parallelism-config* use-parallelism-config", NULL, not_divided, ANY},
    {"ep-size *expert*parallel*size", NULL, use_experts, ANY},
    {"expert-*", NULL, no_experts, ANY},
    {"use-megatron-lm megatron-lm* ring-attn-func heads-k-stride sp-size", NULL,
     not_divided, ANY},
    {"device", NULL, "computes on the CPU alone; leave it out", OX_CMD_TOKENIZE | OX_CMD_EXPORT | OX_CMD_INSPECT},
    {"no-cuda use-cpu cpu", NULL, "use --device cpu", ANY},
    {"cuda", NULL, "use --device cuda", ANY},
    {"num-cpu-threads-per-process", NULL, "use --compute-threads N", ANY},
    {"random-state", NULL, "use --seed N", ANY},
    {"no-tpu-cluster restart-tpuvm-pod-server", NULL, "does not exist: CPUs and GPUs compute (--device)", ANY},
    {"aws-* command-file commands env tee redirects venv-script arg1 local-addr local-ranks-filter logs-specs "
     "run-path start-method signals-to-handle shutdown-timeout virtual-local-rank print-completion "
     "event-log-handler duplicate-std* log-line-prefix-template bind-core* enable-each-rank-log exclude include "
     "force-multi no-local-rank no-ssh* ssh-port save-pid", NULL, one_process, ANY},
    {"main-gpu tensor-split split-mode", NULL,
     "does not exist: CUDA_VISIBLE_DEVICES chooses among GPUs, --ranks N says how many", ANY},
    {"perform-initialization axolotl-config-path experimental-skip-move-to-device total-num-tokens "
     "total-supervised-tokens print-param-status ignore-bias-buffers fast-inference token "
     "auto-detect-ckpt-format barrier-with-l1-time config-logger-dir cont-batching no-mmap nccl-ub "
     "disable-symmetric-registration delay-wgrad-compute defer-embedding-wgrad-compute wgrad-deferral-limit "
     "finalize-model-grads-func grad-scale-func grad-sync-func no-sync-func param-sync-func "
     "suggested-communication-unit-size preserve-fp32-weights outer-dp-sharding-strategy "
     "num-distributed-optimizer-instances batch-p2p-* use-ring-exchange-p2p variable-seq-lengths "
     "align-param-gather average-in-collective keep-fp8-transpose-cache reuse-grad-buf-for-mxfp8-param-ag "
     "ep-overlap-early-attn-memory-release max-seqlen-per-dp-cp-rank microbatch-group-size-per-vp-stage "
     "num-microbatches-with-partial-* allgather-sequential auto-cast check-grad-overflow immediate-grad-update "
     "consecutive-hysteresis gather-16bit-weights-on-model-save use-all-reduce-for-fetch-params "
     "module-granularity-threshold *-persistence-threshold max-live-parameters max-reuse-distance enabled", NULL,
     not_needed, ANY},
    {"bf16-master-weights-and-grads bf16-optimizer-states", NULL, "use --moments bf16", ANY},
    {"reduce-scatter-with-fp32-accumulation", NULL, is_fp32, ANY},
    {"rampup-batch-size", NULL, "does not exist: every step has as many sequences (--global-batch-size)", ANY},
    {"seq-length encoder-seq-length max-packed-sequence-len", NULL, use_length, ANY},
    {"ubatch-size", NULL, use_batch, ANY},
    {"val-split", NULL, use_share, ANY},
    {"data-cache-path", NULL, "use --data-cache FOLDER", ANY},
    {"learning-rate-min", NULL, "use --min-lr X", ANY},
    {"decay-epochs", NULL, "use --decay-steps N", ANY},
    {"embedding-learning-rate finetune-*layers finetune-*modules", NULL, no_layers, ANY},
    {"instruction-part response-part", NULL, of_rows, ANY},
    {"use-dist-ckpt use-checkpoint-args no-save-rng", NULL,
     "does not exist: a checkpoint has one form, which transformers reads", ANY},
    {"empty-unused-memory-level", NULL, not_needed, ANY},
    {"merge-method", NULL, all_trained, ANY},
    {"start end", NULL, of_rows, ANY},
    {"threads-batch", NULL, "use --compute-threads N", ANY},
    {"use-cpu-initialization", NULL, not_needed, ANY},
    {"threads num-threads", NULL, "use --compute-threads N", OX_CMD_EVAL | GENERATE},
    {"threads num-threads", NULL, "use --compute-threads N, --optimizer-threads N", ANY},
    {"num-workers", NULL, not_needed, ANY},
    {"n-gpu-layers ngl", NULL, "use --device-mem SIZE", ANY},
    {"mmap mlock numa*", NULL, not_needed, ANY},
    {"gradient-checkpointing* use-gradient-checkpointing disable-gradient-checkpointing "
     "enable-activation-checkpointing selective-checkpointing*", NULL, recomputed, ANY},
    {"activation-checkpointing.cpu-checkpointing", NULL, activations_away, ANY},
    {"activation-checkpointing* recompute-* ac-mode ac-option checkpoint-activations checkpoint-num-layers", NULL,
     recomputed, ANY},
    {"distribute-saved-activations", NULL, not_divided, ANY},
    {"use-reentrant-gc", NULL, recomputed, ANY},
    {"use-unsloth*", NULL, own_kernels, ANY},
    {"*activation-offloading", NULL, activations_away, ANY},
    {"layer-offloading", NULL, streamed, ANY},
    {"auto-find-batch-size autotuning* batch-size-auto", NULL, use_tune, ANY},
    /* model and tokenizer */
    {"model", NULL, "shows a run: name its folder", OX_CMD_TRACE | OX_CMD_TOP},
    {"model-name-or-path model-name model-id model-path model-dir m hf-model* base-model", NULL, use_model, ANY},
    {"base-model-config", NULL, "use --model CONFIG.json", ANY},
    {"checkpoint-dir", NULL, use_model, ANY},
    {"checkpoint-files", NULL, "is not needed: all weights of the model folder are read", ANY},
    {"checkpointer.checkpoint-dir", NULL, use_model, ANY},
    {"checkpointer.*", NULL, not_needed, ANY},
    {"checkpointer pretrained* init-from", NULL, use_model, ANY},
    {"load", NULL, "use --model FOLDER for weights, --resume-from-checkpoint latest to go on with a run", ANY},
    {"config-name model-config*", NULL, "use --model CONFIG.json", ANY},
    {"config-file c cfg conf yaml args-file", NULL, "use --config FILE", ANY},
    {"train-from-scratch init-from-scratch reinit-weights", NULL, "use --from-scratch", ANY},
    {"tokenizer", NULL, "takes the tokenizer's files along; leave it out", OX_CMD_EXPORT},
    {"tokenizer-name* tokenizer-path tokenizer-model tokenizer-config tokenizer.path", NULL, use_tokenizer, ANY},
    {"tokenizer.max-seq-len", NULL, use_length, ANY},
    {"tokenizer-*", NULL, of_tokenizer, ANY},
    {"vocab-file merge-file", NULL, use_tokenizer, ANY},
    {"chat-template-path", NULL, "use --chat-template PATH", ANY},
    {"chat-template-jinja", NULL, "use --chat-template FILE, with the template in that file", ANY},
    {"template prompt-template conversation-template", NULL,
     "the model's own template is the default; another is --chat-template with a file, or a built-in one (chatml, "
     "llama3, mistral-v3, qwen2.5, qwen3, gemma, phi3, alpaca, zephyr ...), named as nowhere else",
     ANY},
    {"jinja*", NULL, "use --chat-template FILE", ANY},
    {"enable-thinking", NULL, "use --no-thinking to have none", GENERATE},
    {"enable-thinking", NULL,
     "use --chat-template-kwargs with a JSON object such as {\"enable_thinking\": false}", ANY},
    {"preserve-thinking", NULL, "use --chat-template-kwargs with a JSON object of the template's variables", ANY},
    {"default-system*", NULL,
     "does not exist: give rows a system message, or a template that writes one (--chat-template)", ANY},
    {"tool-format", NULL, "does not exist: the chat template writes tools (--chat-template)", ANY},
    {"trust-remote-code", NULL, "does not exist: no code of a model folder is run; leave it out", NOT_RUN},
    {"trust-remote-code", NULL, "does not exist: no code of a model folder is run; leave it out", ANY},
    {"revision* *model-revision hf-token *use-auth-token use-auth*", NULL, no_download, ANY},
    {"eos-token* pad-token* bos-token* unk-token* special-tokens* additional-special-tokens eot-tokens "
     "added-tokens* add-tokens", NULL, of_tokenizer, ANY},
    {"add-special-tokens", NULL, "use --add-bos and --add-eos", ANY},
    {"resize-* mean-resizing-embeddings init-special-tokens", NULL, use_resize, ANY},
    {"new-special-tokens* tokens shrink-embeddings fix-untrained-tokens make-vocab-size-divisible-by", NULL,
     of_tokenizer, ANY},
    {"vocab-size", NULL, of_config, OX_CMD_TRAIN | OX_CMD_PLAN | OX_CMD_EVAL},
    {"split-special-tokens", NULL,
     "is the default for conversations; --parse-special turns special tokens in their texts into tokens", ANY},
    {"skip-special-tokens", NULL, "does not exist: --format json has the ids", ANY},
    {"use-fast-tokenizer low-cpu-*", NULL, not_needed, ANY},
    {"image* video* audio* use-audio-in-video *vision* media-dir processor* mm-* crop-to-patches "
     "role-boundaries", NULL, text_alone, ANY},
    /* data */
    {"data", NULL, "use --prompt TEXT or --prompt-file FILE", GENERATE},
    {"data", NULL, "reads no data; leave it out", OX_CMD_BENCH | OX_CMD_INSPECT | OX_CMD_EXPORT},
    {"d", NULL, use_data, ANY},
    {"f", NULL, "use --prompt-file FILE", GENERATE},
    {"f", NULL, use_data, ANY},
    {"file", NULL, "use --prompt-file FILE", GENERATE},
    {"file", NULL, use_data, ANY},
    {"input", NULL, "use --prompt-file FILE", GENERATE},
    {"input* i dataset dataset.source dataset.data-files", NULL, use_data, ANY},
    {"dataset.packed", NULL, use_packing, ANY},
    {"dataset.*", NULL, "is told by the rows of --data; docs/data.md has their forms", ANY},
    {"datasets.path datasets.data-files", NULL, use_data, ANY},
    {"datasets.type", NULL, "is told by the rows of --data; docs/data.md has their forms", ANY},
    {"datasets.field-messages", NULL, "use --column-messages KEY", ANY},
    {"datasets.field-tools", NULL, "use --column-tools KEY", ANY},
    {"datasets.field*", NULL, use_columns, ANY},
    {"datasets.text-column", NULL, "use --column-text KEY", ANY},
    {"datasets.message-field-role", NULL, "use --column-role KEY", ANY},
    {"datasets.message-field-content", NULL, "use --column-content KEY", ANY},
    {"datasets.message-property-mappings.role", NULL, "use --column-role KEY", ANY},
    {"datasets.message-property-mappings.content", NULL, "use --column-content KEY", ANY},
    {"datasets.message*", NULL, use_columns, ANY},
    {"datasets.train-on-* datasets.role*", NULL, of_rows, ANY},
    {"datasets.*", NULL, "is told by the rows of --data; docs/data.md has their forms", ANY},
    {"datasets pretraining-dataset*", NULL, use_data, ANY},
    {"test-datasets*", NULL, use_eval_data, ANY},
    {"dataset-config* dataset-name dataset-dir dataset-path data-path data-dir data-file* train-file "
     "train-data* training-data corpus text-file", NULL, use_data, ANY},
    {"tokenized-path dataset-prepared-path cache-dir cache", NULL, "use --data-cache FOLDER", ANY},
    {"validation-data* valid-data* test-data* val-data* validation-file eval-file test-file eval-dataset "
     "dataset-test-split", NULL, use_eval_data, ANY},
    {"dataset-train-split", NULL, use_data, ANY},
    {"validation-split* test-split* val-size val-set-size eval-split split", NULL, use_share, ANY},
    {"bench-*", NULL, use_eval_data, ANY},
    {"dataset-text-field text-field text-column* text-key json-keys", NULL, "use --column-text KEY", ANY},
    {"prompt-key prompt-column", NULL, "use --column-prompt KEY", ANY},
    {"response-key response-column", NULL, "use --column-completion KEY", ANY},
    {"messages-key conversation-column", NULL, "use --column-messages KEY", ANY},
    {"formatting-func dataset-kwargs column-mapping columns", NULL, use_columns, ANY},
    {"system-format", NULL, of_rows, ANY},
    {"max-length max-len", NULL, use_length, READS},
    {"max-length max-len", NULL, use_tokens, GENERATE},
    {"max-seq-len max-sequence-length max-context* max-model-len max-token-length model-max-length block-size "
     "cutoff-len* sequence-len* eval-sequence-len context-len* context-size context ctx* n-ctx window-size "
     "max-prompt-len* max-completion-len*", NULL, use_length, ANY},
    {"excess-length-strategy", NULL, "use --overlong split, truncate or drop", ANY},
    {"truncation-mode truncation*", NULL, "use --overlong truncate, split or drop", ANY},
    {"min-sample-len", NULL, "does not exist: rows of every length are trained; leave it out", ANY},
    {"sample-packing", NULL, "use --packing pack", ANY},
    {"sample-packing-* sample-packing-eff-est", NULL, not_needed, ANY},
    {"eval-sample-packing eval-packing", NULL, "use --packing pack, for evaluation too", ANY},
    {"neat-packing", NULL, "use --packing pack, whose documents do not see each other", ANY},
    {"packing-strategy", NULL, "is first-fit-decreasing with --packing pack; --packing stream cuts documents", ANY},
    {"padding-free batch-flattening", NULL, "use --packing pack", ANY},
    {"pad-to-*", NULL, use_packing, ANY},
    {"multipack-* pretrain-multipack-*", NULL, not_needed, ANY},
    {"curriculum-sampling", NULL, "use --data-order sequential", ANY},
    {"pretraining-sample-concatenation", NULL, "use --packing stream", ANY},
    {"block-diag-attn reset-attention-mask reset-position-ids eod-mask-loss", NULL,
     "is the default: --document-mask on", ANY},
    {"completion-only-loss", NULL,
     "is the default: of a prompt and its completion, the completion is trained; --train-on prompts trains both", ANY},
    {"assistant-only-loss", NULL,
     "is the default: of a conversation, the assistant's turns are trained; --train-on prompts trains all of it", ANY},
    {"train-on-input* train-on-prompt", NULL, "use --train-on prompts; without it prompts are not trained", ANY},
    {"train-on-responses-only mask-prompt", NULL, "is the default: prompts are not trained", ANY},
    {"mask-history last-turn-loss", NULL, "use --train-on last", ANY},
    {"roles-to-train train-on-*", NULL, of_rows, ANY},
    {"ignore-pad-token-for-loss", NULL, not_needed, ANY},
    {"ignore-data-skip", NULL, "does not exist: a resumed run goes on at its place in the data; leave it out", ANY},
    {"no-shuffle", NULL, "use --data-order sequential", ANY},
    {"shuffle*", NULL, "is the default: --data-order shuffle; sequential does not", ANY},
    {"disable-shuffling", NULL, "use --data-order sequential", ANY},
    {"train-sampling-strategy", NULL,
     "use --data-order shuffle or sequential; --packing pack leaves few places unused", ANY},
    {"group-by-length", NULL, "does not exist: --packing pack leaves few places unused", ANY},
    {"length-column-name", NULL, not_needed, ANY},
    {"length-grouped*", NULL, "does not exist: --packing pack leaves few places unused", ANY},
    {"data-seed random-seed", NULL, "use --seed N", ANY},
    {"max-samples limit num-samples", NULL, "use --max-windows N, in sequences", OX_CMD_EVAL},
    {"max-eval-samples eval-samples eval-iters eval-max-batches limit-val-batches max-eval-steps", NULL,
     "use --eval-windows N, in sequences", ANY},
    {"max-samples max-train-samples train-samples num-samples num-train-samples limit limit-train-batches "
     "subset dataset-shard-*", NULL, whole_rows, ANY},
    {"num-dataset-shards-to-save", NULL, not_needed, ANY},
    {"dataset-exact-deduplication", NULL, "does not exist: rows are trained as they are", ANY},
    {"streaming* dataset-streaming", NULL, from_files, ANY},
    {"pretrain*", NULL, use_data, ANY},
    {"buffer-size dataset-keep-in-memory preprocess-iterable", NULL, from_files, ANY},
    {"is-preprocess", NULL, "use `offload tokenize`", ANY},
    {"skip-prepare-dataset", NULL, from_files, ANY},
    {"data-shared-file-system", NULL, not_needed, ANY},
    {"mix-strategy interleave-probs", NULL, by_shares, ANY},
    {"dataset-weights data-weights", NULL, by_weights, ANY},
    {"dataloader-drop-last", NULL, "does not exist: the last step of an epoch takes what is left of it", ANY},
    {"dataloader* accelerator-config* collate-fn data-collator", NULL, not_needed, ANY},
    {"preprocessing-* dataset-num-proc dataset-processes num-proc tokenizers-parallelism", NULL, on_all_cores, ANY},
    {"remove-unused-columns label-names", NULL, not_needed, ANY},
    {"num-labels", NULL, no_preferences, ANY},
    {"overwrite-cache force-preprocess", NULL,
     "does not exist: a cache whose text has changed is made again; leave it out", ANY},
    {"role", NULL, "use --column-role KEY for the key of a message's role; a launcher's role does not exist", ANY},
    {"drop-last", NULL, "does not exist: the last step of an epoch takes what is left of it", ANY},
    {"pin-memory async non-blocking persistent-workers", NULL, not_needed, ANY},
    {"fused foreach", NULL, own_kernels, ANY},
    {"tie-embeddings tie-weights", NULL, of_config, ANY},
    {"budget* mem", NULL, "use --host-mem SIZE, --device-mem SIZE and --nvme PATH:SIZE", RUN},
    {"prometheus", NULL, "use --report-to prometheus", RUN},
    {"notes description comment", NULL, "does not exist: the folder of --output names the run", RUN},
    {"set opts overrides override", NULL, "does not exist: each option is a flag of its own", ANY},
    /* steps and rates */
    {"num-epochs n-epochs nb-epochs max-epochs train-epochs epoch e", NULL, use_epochs, ANY},
    {"steps num-steps n-steps num-train-steps num-training-steps total-steps max-train-steps max-iters iters "
     "iterations num-iterations train-iters max-updates max-steps-per-epoch", NULL, use_steps, ANY},
    {"exit-duration-in-mins", NULL, "use --max-time 8h", ANY},
    {"time-limit max-duration max-run-time", NULL, "use --max-time DURATION", ANY},
    {"exit-interval", NULL, use_steps, ANY},
    {"exit-signal-handler save-on-signal", NULL, "is always so: INT and TERM end a run with its state saved", ANY},
    {"train-micro-batch-size-per-gpu micro-batch-size mbs batch b per-gpu-*batch-size per-device-batch-size "
     "device-batch-size", NULL, use_batch, ANY},
    {"per-device-eval-batch-size eval-batch-size eval-micro-batch-size", NULL,
     "does not exist: evaluation uses --per-device-train-batch-size", ANY},
    {"perplexity ppl compute-perplexity", NULL, "is always so: the perplexity is what it prints; leave it out",
     OX_CMD_EVAL},
    {"perplexity ppl compute-perplexity", NULL, "is always so: `offload eval` prints the perplexity; leave it out",
     ANY},
    {"eval-accumulation-steps", NULL, "does not exist: an evaluation keeps sums alone; leave it out", ANY},
    {"total-batch-size effective-batch-size gbs", NULL, use_global, ANY},
    {"gradient-accumulation gradient-accumulation-step grad-accum* grad-acc* accumulation-steps "
     "accumulate-grad-batches", NULL, use_accumulation, ANY},
    {"managed-gradient-accumulation", NULL, not_needed, ANY},
    {"gradient-accumulation-fusion", NULL, own_kernels, ANY},
    {"average-tokens-across-devices calculate-per-token-loss", NULL,
     "is always so: the loss of a step is the mean over all its targets", ANY},
    {"lr-scheduler", NULL, use_schedule, ANY},
    {"lr-scheduler.*warmup-steps", NULL, use_warmup, ANY},
    {"scheduler schedule scheduler.type", NULL, use_schedule, ANY},
    {"scheduler.params.warmup-num-steps", NULL, use_warmup, ANY},
    {"scheduler.params.total-num-steps", NULL, use_steps, ANY},
    {"scheduler.params.warmup-max-lr", NULL, use_rate, ANY},
    {"scheduler.params.warmup-min-lr", NULL, "is 0: the warmup begins there", ANY},
    {"scheduler.params.* lr-decay-style lr-schedule-type", NULL, use_schedule, ANY},
    {"cosine", NULL, "use --lr-scheduler-type cosine", ANY},
    {"profiler.* metric-logger.*", NULL, times, ANY},
    {"lr-scheduler-kwargs.num-cycles", NULL, "use --lr-num-cycles X", ANY},
    {"lr-scheduler-kwargs.power", NULL, "use --lr-power X", ANY},
    {"lr-scheduler-kwargs.timescale", NULL, "use --lr-timescale N", ANY},
    {"lr-scheduler-kwargs.min-lr lr-scheduler-kwargs.lr-end", NULL, "use --min-lr X", ANY},
    {"lr-scheduler-kwargs.min-lr-*", NULL, "use --min-lr-ratio X", ANY},
    {"lr-scheduler-kwargs.num-decay-steps", NULL, "use --decay-steps N", ANY},
    {"lr-scheduler-kwargs.decay-type", NULL, "use --lr-decay-type NAME", ANY},
    {"lr-scheduler-kwargs*", NULL,
     "use --lr-num-cycles, --lr-power, --lr-timescale, --min-lr, --decay-steps and --lr-decay-type", ANY},
    {"cosine-min-lr-ratio", NULL, "use --lr-scheduler-type cosine with --min-lr-ratio X", ANY},
    {"cosine-constant-lr-ratio", NULL, "use --lr-scheduler-type wsd, and --decay-steps N", ANY},
    {"lr-decay-iters lr-decay-samples", NULL, use_steps, ANY},
    {"lr-wsd-decay-* num-decay-steps", NULL, "use --decay-steps N", ANY},
    {"num-warmup-steps lr-warmup* warmup warmup-iters warmup-epochs", NULL, use_warmup, ANY},
    {"warmup-proportion warmup-fraction", NULL, "use --warmup-ratio X", ANY},
    {"lr-quadratic-warmup", NULL, "does not exist: the warmup is linear; leave it out", ANY},
    {"lr-div-factor", NULL, "does not exist: the warmup begins at 0; --min-lr-ratio is where the rate ends", ANY},
    {"jagged-*", NULL, "use --lr-scheduler-type cosine_with_restarts", ANY},
    {"lr-groups* embedding-lr* *decoupled-lr decoupled-*lr layerwise-lr-decay", NULL, no_layers, ANY},
    {"learning-rates l alpha base-lr max-lr peak-lr", NULL, use_rate, ANY},
    {"final-lr end-lr lr-end", NULL, "use --min-lr X", ANY},
    {"use-checkpoint-opt-param-scheduler override-opt-param-scheduler", NULL, not_needed, ANY},
    {"grad-clip* gradient-clip* clip-grad* clip clipping max-norm", NULL, use_clip, ANY},
    {"wd", NULL, use_decay, ANY},
    {"decoupled-weight-decay", NULL, "is always so", ANY},
    {"start-weight-decay end-weight-decay weight-decay-incr-style", NULL, use_decay, ANY},
    {"apply-wd-to-qk-layernorm", NULL, "use --decay-all, which decays norms and biases too", ANY},
    {"no-decay-*", NULL,
     "use --no-decay-embeddings; norms and biases are not decayed unless --decay-all is given", ANY},
    {"optimizer.type optimizer.-component-", NULL, "use --optimizer adamw, lion or sgd", ANY},
    {"optimizer.params.lr optimizer.lr", NULL, use_rate, ANY},
    {"optimizer.*betas", NULL, "use --adam-beta1 and --adam-beta2", ANY},
    {"optimizer.*eps", NULL, "use --adam-epsilon X", ANY},
    {"optimizer.*weight-decay", NULL, use_decay, ANY},
    {"optimizer.*", NULL, not_needed, ANY},
    {"optim-args", NULL, "use --adam-beta1, --adam-beta2, --adam-epsilon and --weight-decay", ANY},
    {"optim-target-modules", NULL, other_method, ANY},
    {"betas", NULL, "use --adam-beta1 and --adam-beta2", ANY},
    {"beta1", NULL, "use --adam-beta1 X", ANY},
    {"beta2", NULL, "use --adam-beta2 X", ANY},
    {"adam-betas", NULL, "use --adam-beta1 and --adam-beta2", ANY},
    {"adam-eps", NULL, "use --adam-epsilon X", ANY},
    {"adam-epsilon2 adam-beta3", NULL, other_method, ANY},
    {"eps epsilon", NULL, "use --adam-epsilon X", ANY},
    {"momentum sgd-momentum", NULL, "use --adam-beta1 X with --optimizer sgd", ANY},
    {"use-muon", NULL, "use --optimizer muon", ANY},
    {"muon-num-ns-steps", NULL, "use --muon-ns-steps N", ANY},
    {"muon-use-nesterov", NULL, "use --muon-nesterov", ANY},
    {"muon-scale-mode muon-extra-scale-factor", NULL, "use --muon-adjust-lr-fn NAME", ANY},
    {"muon-fp32-* muon-split-* muon-tp-*", NULL, other_method, ANY},
    {"nesterov use-adam-mini *galore* *apollo* *badam* dion-*", NULL, other_method, ANY},
    {"use-precision-aware-optimizer", NULL, "use --moments bf16, or q8", ANY},
    {"store-param-remainders", NULL, "is so with --dtype bf16: the state keeps what bf16 weights lack", ANY},
    {"store-in-pinned-memory", NULL, not_needed, ANY},
    {"use-ema ema-rate ema-beta ema-momentum", NULL, "use --ema-decay X", ANY},
    {"ema-*", NULL, "does not exist: --ema-decay X averages after every step", ANY},
    {"loss loss.* use-dft-loss use-asft-loss use-eaft-loss dft-loss", NULL, plain_loss, ANY},
    {"*cross-entropy*", NULL, own_kernels, ANY},
    {"use-eaft eaft-* asft-* ebft* kd-*", NULL, plain_loss, ANY},
    {"*router-aux-loss-coef moe-aux-loss-coeff", NULL, use_balance, ANY},
    {"moe-z-loss-coeff", NULL, "use --router-z-loss-coef X", ANY},
    {"moe-router-dtype", NULL, "use --router-dtype fp32 or model", ANY},
    {"neftune* noisy-embedding-alpha", NULL, use_noise, ANY},
    {"label-smoothing*", NULL, "use --label-smoothing-factor X", ANY},
    {"z-loss* lm-z-loss-*", NULL, "use --z-loss-coef X", ANY},
    {"*dropout*", NULL, no_dropout, ANY},
    {"deterministic* full-determinism batch-invariant-mode cublas-workspace-config", NULL, same_bits, ANY},
    /* preferences and rewards */
    {"rl", NULL, "use --dpo for preferences; nothing else of that kind exists", ANY},
    {"pref-beta rl-beta", NULL, "use --dpo-beta X with --dpo", ANY},
    {"pref-loss dpo-loss-type", NULL, "use --dpo-loss sigmoid, ipo, robust or hinge with --dpo", ANY},
    {"pref-ftx loss-weights dpo-loss-weights", NULL, "use --dpo-sft-coef X, the factor of cross-entropy beside that of "
     "preferences", ANY},
    {"precompute-ref-*", NULL, "is so with --dpo: what the reference says is computed once before the run; leave it "
     "out", ANY},
    {"ref-model* model-ref*", NULL, "does not exist: the reference of `offload train --dpo` is what the run begins "
     "with; to measure: `offload eval --reference DIR`", ANY},
    {"dpo-* pref-* reference-free ld-alpha f-divergence-type f-alpha-divergence-coef discopop-tau use-weighting "
     "sync-ref-model", NULL, plain_dpo, ANY},
    {"rl-* trl* rpo-* kto-* orpo-* cpo-* simpo-* ppo-* grpo-* ref-* *reward* gamma "
     "kl-coeff lmbda num-generations teacher-* policy-model value-checkpointer "
     "penalise-no-eos min-response-length whiten-rewards forward-batch-size center-rewards-coefficient "
     "use-data-producer", NULL, no_preferences, ANY},
    {"vllm* sglang* use-vllm infer-backend gradio-* host port", NULL, no_server, ANY},
    {"kt-* use-kt", NULL, own_kernels, ANY},
    /* generation */
    {"max-tokens", NULL, use_tokens, GENERATE},
    {"max-tokens", NULL, use_length, ANY},
    {"max-generated-tokens max-gen* max-output-tokens max-completion-tokens n-predict", NULL, use_tokens, ANY},
    {"n num-tokens length", NULL, use_tokens, GENERATE},
    {"text", NULL, "use --data FILE, or --jsonl with lines on stdin", OX_CMD_TOKENIZE},
    {"text", NULL, use_data, RUN | OX_CMD_EVAL},
    {"p text query", NULL, "use --prompt TEXT", GENERATE},
    {"message* instruct*", NULL, "use --chat with --prompt TEXT", GENERATE},
    {"interactive* conversation", NULL, "is what --chat without --prompt is", ANY},
    {"stream", NULL, "is always so: text is printed as it comes; leave it out", GENERATE},
    {"output o", NULL, "is stdout: write `offload generate ... > FILE`", GENERATE},
    {"sys system*", NULL, "use --system-prompt TEXT", GENERATE},
    {"temp", NULL, "use --temperature X", ANY},
    {"t", NULL, "use --temperature X", GENERATE},
    {"greedy", NULL, "use --temperature 0", GENERATE},
    {"do-sample", NULL, "use --temperature X; 0 takes the most likely token each time", ANY},
    {"num-beams *beam*", NULL, "does not exist: --temperature 0 is greedy, else tokens are drawn", ANY},
    {"repeat-penalty", NULL, "use --repetition-penalty X", ANY},
    {"presence-penalty frequency-penalty length-penalty diversity-penalty min-p typical-p", NULL,
     "does not exist: tokens are drawn by --temperature, --top-k and --top-p", ANY},
    {"stop*", NULL, "use --stop TEXT", GENERATE},
    {"stop-token-ids", NULL, "does not exist: an answer ends with the end of the text or turn", ANY},
    {"use-cache use-kv-cache enable-kv-cache", NULL, not_needed, ANY},
    {"logprobs", NULL, "use --top-logits N with --format json", ANY},
    {"generation-* generate-samples num-generation-samples eval-max-new-tokens predict-with-generate "
     "sample-every", NULL, "does not exist: `offload generate` writes text, from any checkpoint", ANY},
    /* output, reports and checkpoints */
    {"o out out-dir outdir outfile output-path output-folder output-file save save-dir save-path dest* "
     "export-dir project-dir", NULL, use_output, ANY},
    {"export-*", NULL, "does not exist: `offload export` has --output and --save-dtype", ANY},
    {"overwrite overwrite-output", NULL, "use --overwrite-output-dir", OX_CMD_TRAIN},
    {"overwrite*", NULL, "never replaces a folder: name one that does not exist", OX_CMD_EXPORT},
    {"force", NULL, "use --overwrite-output-dir", OX_CMD_TRAIN},
    {"force", NULL, "never replaces a folder: name one that does not exist", OX_CMD_EXPORT},
    {"yes", NULL, not_needed, ANY},
    {"outtype", NULL, "use --save-dtype bf16, fp16 or fp32", ANY},
    {"to", NULL, use_output, OX_CMD_EXPORT},
    {"format", NULL, "writes metrics.jsonl into --output; leave it out", OX_CMD_TRAIN},
    {"json j", NULL, "use --format json", ANY},
    {"seed", NULL,
     "draws nothing at random; leave it out", OX_CMD_EVAL | OX_CMD_EXPORT | OX_CMD_INSPECT | OX_CMD_BENCH},
    {"s", NULL, "use --seed N", ANY},
    {"resume", NULL, "goes on with nothing; leave it out", OX_CMD_EVAL | OX_CMD_EXPORT | GENERATE},
    {"auto-resume*", NULL, "use --resume-from-checkpoint latest", ANY},
    {"continue* resume-* load-checkpoint* recipe-checkpoint", NULL, use_resume, ANY},
    {"ckpt*", NULL, use_resume, OX_CMD_TRAIN},
    {"ckpt*", NULL, use_model, ANY},
    {"checkpoint", NULL, use_resume, RUN},
    {"checkpoint", NULL, use_model, OX_CMD_EVAL | GENERATE | OX_CMD_EXPORT | OX_CMD_INSPECT | OX_CMD_TOKENIZE},
    {"do-train", NULL, "use `offload train`", ANY},
    {"do-eval eval", NULL, "use --eval-data FILE with --eval-steps N while training, or `offload eval`", ANY},
    {"do-predict", NULL, "use `offload generate`", ANY},
    {"do-causal-lm-eval do-bench-eval", NULL, "use --eval-steps N while training, or `offload eval`", ANY},
    {"task*", NULL,
     "does not exist: `offload eval` measures loss and perplexity; other programs read the folder "
     "that `offload export` writes", OX_CMD_EVAL | RUN},
    {"n-shot num-fewshot lang metrics", NULL,
     "does not exist: `offload eval` measures loss and perplexity", OX_CMD_EVAL | RUN},
    {"compute-accuracy eval-causal-lm-metrics compute-metrics include-for-metrics", NULL,
     "does not exist: an evaluation measures loss and perplexity", ANY},
    {"batch-eval-metrics", NULL, not_needed, ANY},
    {"prediction-loss-only", NULL, "is always so: an evaluation keeps sums alone", ANY},
    {"eval-do-concat-batches eval-use-gather-object eval-table-size", NULL, not_needed, ANY},
    {"eval-at-start eval-before-train*", NULL, "use --eval-on-start", ANY},
    {"val-check-interval", NULL, use_evaluating, ANY},
    {"eval-on-each-dataset", NULL, "is what `offload eval` does: it reports each --data", ANY},
    {"evaluation-strategy", NULL, "use --eval-strategy NAME", ANY},
    {"eval-interval eval-every* eval-freq*", NULL, use_evaluating, ANY},
    {"evals-per-epoch", NULL, "use --eval-steps, a share of all steps: 1 / (N x epochs)", ANY},
    {"saves-per-epoch", NULL, "use --save-steps, a share of all steps: 1 / (N x epochs)", ANY},
    {"save-interval save-every* save-freq* checkpoint-interval checkpoint-every* "
     "checkpointing-steps", NULL, use_saving, ANY},
    {"save-limit save-total keep-last* max-checkpoints* checkpoints-total-limit", NULL,
     "use --save-total-limit N", ANY},
    {"save-first-step", NULL, use_saving, ANY},
    {"logging-strategy log-interval log-every* log-freq* log-steps print-freq steps-per-print report-every", NULL,
     use_logging, ANY},
    {"wall-clock-breakdown comms-logger* flops-profiler* *profiler* profiling* profile-step-* profile-modules "
     "use-pytorch-profiler timing-* timers include-* log-throughput", NULL, times, ANY},
    {"log-peak-memory-stats", NULL, "is always so: the plan has the memory at its fullest", ANY},
    {"skip-memory-metrics", NULL, "does not exist: the plan has the memory at its fullest", ANY},
    {"log-params-norm log-num-zeros-in-grad", NULL, "does not exist: metrics.jsonl has the norm of the gradient", ANY},
    {"tensorboard* use-tensorboard", NULL, "use --report-to tensorboard", ANY},
    {"csv-monitor* logging-first-step", NULL, "does not exist: metrics.jsonl has every step; leave it out", ANY},
    {"logging-dir log-dir", NULL, "does not exist: --report-to tensorboard writes into --output", ANY},
    {"log-file", NULL, "does not exist: metrics.jsonl in --output has every step; lines go to stderr", ANY},
    {"logging-nan-inf-filter", NULL,
     "does not exist: a step that is not finite is skipped and said; --max-nonfinite-steps", ANY},
    {"check-for-nan* check-for-*", NULL,
     "is always so: a step that is not finite is skipped and said; --max-nonfinite-steps", ANY},
    {"rerun-mode", NULL, not_needed, ANY},
    {"loss-watchdog-*", NULL, "does not exist: --early-stopping-patience N ends a run whose evaluations no longer "
     "improve", ANY},
    {"plot-loss", NULL, "does not exist: metrics.jsonl has every step, and --report-to tensorboard draws it", ANY},
    {"metric-logger*", NULL, "does not exist: metrics.jsonl has every step; leave it out", ANY},
    {"disable-tqdm no-progress* silent q log-level* verbosity", NULL, "use --quiet", ANY},
    {"v version", NULL, "is of `offload version`; leave it out", ANY},
    {"debug*", NULL, times, ANY},
    {"save-safetensors safe-serialization", NULL, "is always so: weights are saved as safetensors", ANY},
    {"no-save-optim", NULL, "use --save-only-model", ANY},
    {"no-load-optim", NULL, "use --model CHECKPOINT: a run that begins there has a fresh optimizer", ANY},
    {"no-load-rng finetune", NULL, "use --model CHECKPOINT: a run that begins there has a fresh state", ANY},
    {"save-on-each-node log-on-each-node", NULL, not_needed, ANY},
    {"enable-jit-checkpoint", NULL, "is always so: INT and TERM end a run with its state saved", ANY},
    {"dynamic-checkpoint*", NULL, "is always so: a file offload.save in the run's folder saves a checkpoint", ANY},
    {"async-save", NULL, "is always so with --nvme: training hardly waits for checkpoints", ANY},
    {"ckpt-format dist-ckpt*", NULL, "does not exist: a checkpoint has one form, which transformers reads", ANY},
    {"restore-callback-states-from-checkpoint", NULL, not_needed, ANY},
    {"save-best*", NULL, "use --save-strategy best", ANY},
    {"early-stopping-steps patience early-stop early-stopping", NULL, "use --early-stopping-patience N", ANY},
    {"push-* hub*", NULL, files_only, ANY},
    {"*-hub-*", NULL, no_download, ANY},
    {"wandb* use-wandb *mlflow* *comet* *swanlab* trackio-* use-trackio* *otel-* neptune* clearml* aim-*", NULL,
     files_only, ANY},
    {"use-ray ray-* resources-per-worker", NULL, one_process, ANY},
    {"run-name experiment-name project* name tags", NULL, "does not exist: the folder of --output names the run", ANY},
    {"trace", NULL, "records a run: `offload train ... --trace on`", OX_CMD_EVAL | OX_CMD_BENCH | GENERATE},
    /* how a model is computed */
    {"attn-* *flash* attention-* s2-attention xformers-attention flex-attention sage-attention eager-attention "
     "multi-latent-attention *liger* *compile* *fusion *kernel* *flex-attn* sdp* large-head-attention "
     "shift-attn gemma4-* tiled-mlp*", NULL, own_kernels, ANY},
    {"*cuda-graph*", NULL, cuda_graphs, ANY},
    {"transformer-impl use-te-* use-mcore* use-mca *hyper-parallel*", NULL, own_kernels, ANY},
    {"torch-empty-cache-steps gc-steps gc-collect-steps manual-gc* empty-*cache* disable-python-gc "
     "custom-sharded-layers low-cpu-ram", NULL, not_needed, ANY},
    {"rope-scaling* rope-theta rope-* rotary-* use-rope-scaling use-pose pose-*", NULL, use_scaling, ANY},
    {"scaling-softmax* hidden-size num-layers* num-hidden-layers n-layer* n-head* n-embd num-*heads "
     "num-key-value-heads num-query-groups group-query-* kv-channels head-dim intermediate-size ffn-hidden-size "
     "max-position-embeddings position-embedding-type normalization norm-epsilon layernorm-* swiglu "
     "activation-func* init-method* add-qkv-bias disable-bias-linear add-bias-linear untie-embeddings* "
     "*tie-word-embeddings qk-layernorm overrides-of-model-* model-init-kwargs model-kwargs model-type "
     "type-of-model", NULL, of_config, ANY},
    {"model.name* model.path model.pretrained* model.id", NULL, use_model, ANY},
    {"data.path data.train* data.file*", NULL, use_data, ANY},
    {"model.-component-", NULL, "is told by the config.json in the folder of --model", ANY},
    {"is-*-derived-model architectures", NULL, of_config, ANY},
    {"moe-* *experts* mixture-of-depths", NULL, no_experts, ANY},
    {"mtp-*", NULL, plain_loss, ANY},
    {"plugins trainer-cls cls-model-config callbacks torchdistx-path module no-python", NULL, no_plugins, ANY},
    {"strict", NULL, "is always so: what is not known is refused; leave it out", RUN | OX_CMD_EVAL},
    {"download* *-hf-hub", NULL, no_download, ANY},
    {"timeout", NULL, "use --comm-timeout, such as 30min", ANY},
    {"dry", NULL, "use --dry-run", OX_CMD_TRAIN},
    {"plan", NULL, "use --dry-run, or `offload plan`", OX_CMD_TRAIN},
    {"dry-run", NULL, "is what `offload plan` does; leave it out", OX_CMD_PLAN},
    {"verify", NULL, "is always so: every checksum is verified", OX_CMD_INSPECT},
    {"target", NULL, "use --device cpu or cuda", ANY},
    {"backend", NULL, "use --io-backend for drives, --device for what computes, --comm for ranks", ANY},
    {"*-component-", NULL, not_needed, ANY},
};

const unsigned ox_foreign_count = sizeof ox_foreign_names / sizeof *ox_foreign_names;
