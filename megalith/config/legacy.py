"""What becomes of Megatron-LM flags that are no settings here: one table.

A row's names are separated by blanks and may hold `*`. The first row that fits a flag decides;
rows of whole names come before rows with `*`. A flag is renamed, accepted with a notice (only
where it tunes a kernel or infrastructure and cannot change a result, or asks for what is always
done), or refused with the reason and the nearest thing that there is.
"""

from megalith.config.fates import ACCEPTED, REFUSED, RENAMED, Entry, Row


def find(flag: str) -> Entry | None:
    """The table's entry for a flag; `--disable-x` is another spelling of `--no-x`."""
    spellings = [flag]
    if flag.startswith("--disable-"):
        spellings.append("--no-" + flag.removeprefix("--disable-"))
    found = (row.find(spelling) for spelling in spellings for row in TABLE)
    return next((entry for entry in found if entry), None)


def names() -> list[str]:
    """All whole flag names of the table."""
    words = (word for row in TABLE for word in row.names.split())
    return [name for name in (word.partition("=")[0] for word in words) if "*" not in name]


TABLE = (
    Row(
        RENAMED,
        "--checkpoint-activations",
        "--recompute-granularity full --recompute-method uniform",
    ),
    Row(RENAMED, "--recompute-activations", "--recompute-granularity selective"),
    Row(
        RENAMED,
        "--checkpoint-num-layers= --activations-checkpoint-num-layers=",
        "--recompute-num-layers",
    ),
    Row(
        RENAMED,
        "--activations-checkpoint-method= --checkpoint-method=",
        "--recompute-granularity full --recompute-method",
    ),
    Row(RENAMED, "--checkpoint-granularity=", "--recompute-granularity"),
    Row(RENAMED, "--use-rotary-position-embeddings", "--position-embedding-type rope"),
    Row(
        RENAMED,
        "--no-position-embedding",
        "--position-embedding-type none",
        unless="--use-rotary-position-embeddings --position-embedding-type",
    ),
    Row(RENAMED, "--multi-query-attention", "--group-query-attention --num-query-groups 1"),
    Row(RENAMED, "--calculate-per-token-loss", "--loss-average global"),
    Row(ACCEPTED, "--local-rank=", ""),
    Row(
        ACCEPTED,
        """--use-flash-attn --attention-backend= --flash-attention-version=
        --no-masked-softmax-fusion
        --no-scaled-masked-softmax-fusion --scaled-upper-triang-masked-softmax-fusion
        --no-bias-swiglu-fusion --no-bias-dropout-fusion --no-rope-fusion --no-persist-layer-norm
        --no-gradient-accumulation-fusion --cross-entropy-loss-fusion --cross-entropy-fusion-impl=
        --fused-residual-rmsnorm --use-te-activation-func --use-transformer-engine-op-fuser
        --disable-jit-fuser --apply-query-key-layer-scaling --no-query-key-layer-scaling
        --attention-softmax-in-fp32 --no-clone-scatter-output-in-embedding
        --use-fused-weighted-squared-relu --disable-bf16-reduced-precision-matmul""",
        "no effect: it tunes a kernel of Megatron-LM; kernels here are PyTorch's, with sums and "
        "softmax in at least float32",
    ),
    Row(
        ACCEPTED,
        """--sequence-parallel --model-parallel-memory-opt --tp-comm-overlap
        --no-tp-comm-bulk-wgrad --no-tp-comm-bulk-dgrad --no-tp-comm-overlap-ag
        --no-tp-comm-overlap-rs --tp-comm-overlap-rs-dgrad --no-tp-comm-split-ag
        --no-tp-comm-split-rs --tp-comm-bootstrap-backend= --tp-comm-overlap-cfg=
        --no-async-tensor-model-parallel-allreduce --use-tp-pp-dp-mapping
        --use-ring-exchange-p2p --no-overlap-p2p-communication --overlap-p2p-communication
        --overlap-p2p-communication-warmup-flush --no-scatter-gather-tensors-in-pipeline
        --pipeline-model-parallel-comm-backend= --account-for-embedding-in-pipeline-split
        --account-for-loss-in-pipeline-split --standalone-embedding-stage
        --defer-embedding-wgrad-compute --wgrad-deferral-limit= --delay-wgrad-compute""",
        "no effect: it concerns tensor or pipeline parallelism, whose sizes are 1 here",
    ),
    Row(
        ACCEPTED,
        "--use-distributed-optimizer --create-all-gather-group --overlap-param-gather "
        "--overlap-param-gather-with-optimizer-step --no-align-param-gather --delay-param-gather",
        "no effect: each rank keeps the whole optimizer for now: same result, more memory",
    ),
    Row(
        ACCEPTED,
        """--no-align-grad-reduce --no-delay-grad-reduce --ddp-num-buckets=
        --ddp-average-in-collective --ddp-pad-buckets-for-high-nccl-busbw --DDP-impl=
        --no-contiguous-buffers-in-local-ddp --use-contiguous-buffers-in-ddp
        --no-gradient-reduce-div-fusion --no-use-layer-wise-param-layout""",
        "no effect: gradients lie in flat buckets, whose size is --ddp-bucket-size",
    ),
    Row(
        ACCEPTED,
        """--accumulate-allreduce-grads-in-fp32 --fp32-allreduce
        --ddp-reduce-scatter-with-fp32-accumulation
        --ddp-param-name-patterns-for-fp32-local-accumulation=+""",
        "always so: gradients are summed and reduced in at least float32",
    ),
    Row(
        ACCEPTED,
        "--use-cpu-initialization --no-initialization --init-model-with-meta-device",
        "no effect: initial weights depend on seed, name and place alone",
    ),
    Row(
        ACCEPTED,
        """--no-ckpt-fully-parallel-save --ckpt-fully-parallel-save --ckpt-fully-parallel-load
        --ckpt-fully-parallel-load-exchange-algo= --ckpt-fully-parallel-load-per-rank-objects
        --ckpt-fully-parallel-save-process-group= --ckpt-fully-parallel-load-process-group=
        --ckpt-assume-constant-structure --no-ckpt-load-validate-sharding-integrity
        --ckpt-format= --auto-detect-ckpt-format --use-dist-ckpt --dist-ckpt-format=
        --dist-ckpt-optim-fully-reshardable --distrib-optim-fully-reshardable-mem-efficient
        --dist-ckpt-workers= --verify-integrity --ckpt-drop-redundant-extra-state
        --ckpt-pg-tensors-cache-path= --ckpt-pg-tensors-cache-create
        --no-strict-fsdp-dtensor-load""",
        "no effect: checkpoints have one format, for any layout: safetensors and JSON",
    ),
    Row(
        ACCEPTED,
        """--async-save --async-strategy= --use-persistent-ckpt-worker --async-ckpt-cpu-priority=
        --async-ckpt-io-priority= --async-ckpt-use-cpu-shm""",
        "no effect: training waits while a checkpoint is written",
    ),
    Row(
        ACCEPTED,
        "--no-use-tokenizer-model-from-checkpoint-args --no-save-tokenizer-assets",
        "always so: the tokenizer is the one that the settings name",
    ),
    Row(
        ACCEPTED,
        """--use-sharp --sharp-enabled-group= --nccl-communicator-config-path= --use-nccl-ub
        --disable-symmetric-registration --high-priority-stream-groups=+
        --disable-gloo-process-groups --flight-recorder-dump-path=
        --flight-recorder-trace-buffer-size= --no-flight-recorder-dump-on-timeout
        --flight-recorder-include-stack-trace --no-flight-recorder-include-only-active
        --no-flight-recorder-extra-dump-on-exec --distributed-timeout-seconds-after-init=""",
        "no effect: it tunes NCCL; use NCCL's and PyTorch's environment variables",
    ),
    Row(
        ACCEPTED,
        """--manual-gc --manual-gc-interval= --no-manual-gc-eval --empty-unused-memory-level=
        --train-sync-interval= --no-barrier-with-level-1-timing --num-dataset-builder-threads=
        --no-mmap-bin-files --mmap-warmup --dataloader-fast-cache-load
        --dataloader-defer-npy-index-mmap --no-create-attention-mask-in-dataloader
        --keep-sequential-samples --chunk-size= --tensorboard-queue-size= --logging-level=""",
        "no effect: it tunes how Megatron-LM works inside, not what it computes",
    ),
    Row(
        ACCEPTED,
        """--log-batch-size-to-tensorboard --no-log-learnig-rate-to-tensorboard
        --no-log-loss-scale-to-tensorboard --log-validation-ppl-to-tensorboard
        --log-timers-to-tensorboard --log-world-size-to-tensorboard --timing-log-option=""",
        "no effect: all that is logged goes to TensorBoard, Weights & Biases and JSONL",
    ),
    Row(
        ACCEPTED,
        """--no-one-logger --enable-one-logger --one-logger-project= --one-logger-run-name=
        --one-logger-async --one-logger-entity= --app-tag-run-name= --app-tag-run-version=
        --disable-msc --disable-straggler-on-startup --exit-signal-handler-for-dataloader""",
        "no effect: there is no such service here",
    ),
    Row(
        ACCEPTED,
        "--exit-signal-handler-for-training",
        "always so: see --exit-signal-handler",
    ),
    Row(
        ACCEPTED,
        """--use-mcore-models --use-legacy-models --legacy-tokenizer --enable-experimental
        --onnx-safe --te-rng-tracker --inference-rng-tracker --moe-use-legacy-grouped-gemm""",
        "no effect: there is one implementation",
    ),
    Row(
        ACCEPTED,
        "--make-vocab-size-divisible-by= --tensor-model-parallel-size=",
        "no effect here: the vocabulary is padded when a model is built",
    ),
    Row(REFUSED, "--transformer-impl=local|transformer_engine", "layers are plain PyTorch"),
    Row(
        REFUSED,
        "--data-impl=mmap|infer --dataset-impl=mmap|infer",
        "corpora are .bin/.idx pairs read through memory maps; older formats must be prepared "
        "again with `megalith data prepare`",
    ),
    Row(
        REFUSED,
        "--exit-signal=SIGTERM|SIGUSR1",
        "SIGTERM and SIGUSR1 save and stop, no other signal",
    ),
    Row(
        REFUSED,
        """--softmax-type=vanilla --glu-linear-offset=0|0.0 --activation-func-clamp-value
        --attention-output-gate --qk-l2-norm --qk-clip* --enable-mhc-connections --mhc-*
        --apply-residual-connection-post-layernorm --openai-gelu --mrope-section""",
        "this variant of the model is not built here; see the options under Model in --help",
    ),
    Row(
        REFUSED,
        "--fp32-residual-connection --embedding-weights-in-fp32 --fp16-lm-cross-entropy "
        "--output-logit-dtype=fp32",
        "one type for all weights and activations (--params-dtype); norms, softmax and loss are "
        "computed in at least float32",
    ),
    Row(REFUSED, "--freeze-all-layers", "all weights are trained; --skip-train only evaluates"),
    Row(
        REFUSED,
        "--yarn-* --no-yarn-* --rope-type=rope --mscale* --rotary-scaling-factor=1.0",
        "no YaRN; longer contexts by --rotary-base, --use-rope-scaling or "
        "--rotary-seq-len-interpolation-factor",
    ),
    Row(
        REFUSED,
        """--multi-latent-attention --q-lora-rank --kv-lora-rank --qk-head-dim
        --qk-pos-emb-head-dim --v-head-dim --mla-down-proj-fusion --cache-mla-latents""",
        "no multi-latent attention; --group-query-attention makes keys and values small too",
    ),
    Row(
        REFUSED,
        "--use-mup --mup-*",
        "no muP scaling; --decoupled-lr and --init-method-std set learning rate and spread by hand",
    ),
    Row(
        REFUSED,
        """--num-experts=0 --moe-* --expert-tensor-parallel-size=1 --expert-parallel
        --expert-tensor-parallel-num-weight-shards --overlap-moe-* --high-priority-a2a-comm-stream
        --use-grouped-gemm-* --overlap-dispatch-backward-with-experts-wgrad
        --ep-overlap-early-attn-memory-release --save-tokens-per-expert-interval""",
        "no mixture of experts yet; every layer has a dense MLP of --ffn-hidden-size",
    ),
    Row(
        REFUSED,
        """--num-layers-per-virtual-pipeline-stage --num-virtual-stages-per-pipeline-rank
        --decoder-first-pipeline-num-layers --decoder-last-pipeline-num-layers
        --pipeline-model-parallel-layout --pipeline-model-parallel-split-rank
        --microbatch-group-size-per-virtual-pipeline-stage
        --encoder-tensor-model-parallel-size=0 --encoder-pipeline-model-parallel-size=0""",
        "no pipeline parallelism yet; all layers lie on each rank "
        "(--pipeline-model-parallel-size 1), and more ranks train on more data",
    ),
    Row(
        REFUSED,
        """--cp-comm-type=p2p|a2a|allgather|a2a+p2p --hierarchical-context-parallel-sizes
        --hybrid-context-parallel --max-seqlen-per-dp-cp-rank""",
        "no context parallelism yet (--context-parallel-size 1)",
    ),
    Row(
        REFUSED,
        "--distribute-saved-activations --distribute-checkpointed-activations "
        "--tensor-parallel-num-weight-shards --gtp-*",
        "no tensor parallelism yet (--tensor-model-parallel-size 1)",
    ),
    Row(
        REFUSED,
        "--recompute-modules=core_attn --mlp-chunks-for-training=1",
        "recomputed is either a whole layer or its attention: --recompute-granularity",
    ),
    Row(
        REFUSED,
        """--fp8-* --no-fp8-* --fp4-* --te-precision-config-file --first-last-layers-bf16
        --num-layers-at-start-in-bf16 --num-layers-at-end-in-bf16 --keep-fp8-transpose-cache*
        --reuse-grad-buf-for-mxfp8-param-ag --kitchen-* --use-kitchen-attention""",
        "no fp8 or fp4; the smallest type of weights and products is --bf16 (or --fp16)",
    ),
    Row(
        REFUSED,
        """--grad-reduce-in-bf16 --main-grads-dtype=fp32 --main-params-dtype=fp32
        --exp-avg-dtype=fp32 --exp-avg-sq-dtype=fp32 --use-precision-aware-optimizer
        --load-main-params-from-ckpt""",
        "optimizer state and gradients are float32, or float64 by --params-dtype float64",
    ),
    Row(
        REFUSED,
        """--optimizer-cpu-offload --optimizer-offload-fraction --optimizer-cuda-graph
        --use-torch-optimizer-for-cpu-offload --overlap-cpu-optimizer-d2h-h2d --no-pin-cpu-grads
        --no-pin-cpu-params --cpu-offloading-* --fine-grained-* --offload-modules
        --min-offloaded-tensor-size --delay-offload-until-cuda-graph
        --delta-offload-bytes-across-pp-ranks --activation-offload-fraction""",
        "nothing is moved off the processor; --recompute-granularity full saves activation memory",
    ),
    Row(
        REFUSED,
        "--cuda-graph-* --enable-cuda-graph --external-cuda-graph",
        "no CUDA graphs; leave it out, the result is the same",
    ),
    Row(
        REFUSED,
        """--use-megatron-fsdp --use-custom-fsdp --use-torch-fsdp2 --megatron-fsdp-* --fsdp-*
        --torch-fsdp2-* --data-parallel-sharding-strategy=no_shard
        --outer-dp-sharding-strategy=no_shard --num-distributed-optimizer-instances=1
        --enable-full-sharding-in-hsdp --suggested-communication-unit-size""",
        "no sharding of weights over replicas yet; every rank holds the whole model",
    ),
    Row(REFUSED, "--no-weight-decay-cond-type", "it is now --apply-wd-to-qk-layernorm"),
    Row(
        REFUSED,
        "--muon-* --lion-* --dump-param-to-param-group-map",
        "optimizers are adam and sgd (--optimizer)",
    ),
    Row(
        REFUSED,
        """--train-data-path --valid-data-path --test-data-path --data-args-path
        --per-split-data-args-path --mid-level-dataset-surplus=0.005 --per-dataset-sequences-path
        --multiple-validation-sets --validation-set-names --renormalize-blend-weights
        --phase-transition-iterations --object-storage-cache-path --s3-cache-path
        --sample-rate=1.0""",
        "one corpus on a local path for now: --data-path PREFIX, cut by --split",
    ),
    Row(
        REFUSED,
        "--dataloader-inter-document-masking",
        "use --reset-attention-mask, which keeps documents apart, and --reset-position-ids",
    ),
    Row(
        REFUSED,
        """--tokenizer-model --tokenizer-metadata --tokenizer-special-tokens --tiktoken-*
        --tokenizer-sentencepiece-legacy --no-tokenizer-sentencepiece-ignore-extra-whitespaces
        --tokenizer-hf-* --trust-remote-code --null-tokenizer-* --chat-template --use-gigatoken
        --vocab-extra-ids=0 --allow-ambiguous-pad-tokens""",
        "tokenizers are GPT2BPETokenizer (--vocab-file and --merge-file) and ByteLevelTokenizer",
    ),
    Row(
        REFUSED,
        """--encoder-num-layers --decoder-num-layers --encoder-seq-length --decoder-seq-length
        --mask-prob --short-seq-prob --bert-* --output-bert-embeddings
        --relative-attention-* --split-sentences --keep-newlines --lang=english""",
        "BERT and T5 are not trained here yet; GPT has --num-layers and --seq-length",
    ),
    Row(
        REFUSED,
        "--find-optimal-num-workers --workers-to-check --max-documents",
        "choose --workers yourself; one for each core is a good number",
    ),
    Row(
        REFUSED,
        "--partitions=1",
        "the corpus is read in one piece by --workers processes; partitions are not needed",
    ),
    Row(
        REFUSED,
        """--sft* --fim-* --logits-save-* --logits-load-* --no-data-sharding""",
        "pretraining on plain text only; neither fine-tuning formats nor distillation",
    ),
    Row(
        REFUSED,
        """--mtp-* --spec=local --window-attn-skip-freq --no-rope-freq --hybrid-* --mamba-*
        --is-hybrid-model --disable-mamba-* --gdp-* --heterogeneous-layers-config-* --linear-*
        --dsa-* --no-dsa-* --experimental-attention-variant""",
        "layers are attention and MLP, all alike; no state-space, linear or sparse layers, "
        "no multi-token prediction",
    ),
    Row(
        REFUSED,
        """--pretrained-checkpoint --load-model-opt-format --dist-ckpt-save-pre-mcore-014
        --dist-ckpt-strictness=assume_ok_unexpected --ckpt-convert-* --override-ckpt-iteration
        --use-mp-args-from-checkpoint-args --non-persistent-* --replication*
        --result-rejected-tracker-filename --save-params-interval --save-activations-interval
        --save-wgrads-interval --save-dgrads-interval""",
        "a checkpoint is saved whole to --save and loaded from --load (--ckpt-step, --finetune), "
        "whatever the layout",
    ),
    Row(
        REFUSED,
        "--rerun-mode=disabled --error-injection-* --check-for-spiky-loss --check-for-large-grads "
        "--fault-injector-* --check-weight-hash-across-dp-replicas-interval --test-mode",
        "steps are not run twice to find faults; --check-for-nan-in-loss-and-grad and --nan-policy "
        "look at each step",
    ),
    Row(
        REFUSED,
        """--log-max-attention-logit --log-straggler --straggler-* --log-progress
        --log-memory-to-tensorboard --log-memory-interval --log-device-memory-used --log-energy
        --run-workload-inspector-server
        --otel-* --config-logger-dir""",
        "not measured; the log has losses, rates and phases (--log-interval, --timing-log-level, "
        "--log-throughput)",
    ),
    Row(
        REFUSED,
        """--profile --profile-* --use-pytorch-profiler --pytorch-profiler-*
        --record-memory-history --memory-snapshot-path --record-shapes --nvtx-ranges""",
        "no profiler; --timing-log-level shows where the time goes",
    ),
    Row(
        REFUSED,
        "--inprocess-* --enable-ft-package --calc-ft-timeouts --ft-* --adlr-autoresume* "
        "--gpu-sniff-test-interval --enable-msc",
        "no restart inside a process: start the same command again with --load equal to --save, or "
        "let `torchrun --max-restarts` do it",
    ),
    Row(
        REFUSED,
        "--data-parallel-random-init --lazy-mpu-init --fake-process-group --yaml-cfg",
        "not possible here; settings files are read by --config, and replicas always start equal",
    ),
    Row(
        REFUSED,
        "--epochs --train-data --valid-data --test-data --tokenizer-path --lazy-loader "
        "--loose-json",
        "name of 2019: prepare the text with `megalith data prepare`, then give --data-path, "
        "--split and --train-iters",
    ),
    Row(
        REFUSED,
        """--inference-* --use-legacy-static-engine --max-tokens-to-oom --decode-only-cuda-graphs
        --enable-chunked-prefill --disable-chunked-prefill --num-speculative-tokens --flash-decode
        --use-same-sampling-seed-across-dp-ranks --batch-invariant-* --symmetric-ar-type
        --nccl-all-reduce-for-prefill --mlp-chunks-for-prefill=1""",
        "this command trains; text is generated by `megalith generate`",
    ),
    Row(
        REFUSED,
        "--rl-* --grpo-* --langrl-* --perform-rl-step --refit-method",
        "no reinforcement learning; this command pretrains",
    ),
    Row(
        REFUSED,
        """--retro-* --ict-* --biencoder-* --titles-data-path --query-in-block-prob
        --use-one-sent-docs --evidence-data-path --retriever-* --block-data-path --embedding-path
        --indexer-* --report-topk-accuracies --faiss-use-gpu""",
        "no retrieval models; Megatron-LM has dropped them too",
    ),
    Row(
        REFUSED,
        """--num-classes --img-* --num-channels --patch-dim --classes-fraction
        --data-per-class-fraction --head-lr-mult --vision-* --swin-* --mask-type --mask-factor
        --iter-per-epoch --dino-*""",
        "no vision models; text only",
    ),
    Row(
        REFUSED,
        """--export-* --finetune-hf-dataset --finetune-data-* --qad-train-target
        --freeze-base-for-mtp --modelopt-enabled --enable-gpt-oss""",
        "no quantisation, distillation or export by ModelOpt; weights are trained in the type of "
        "--params-dtype",
    ),
    Row(
        REFUSED,
        """--distillation --distill-* --flextron --flextron-* --binary-mask --slice --enable-router
        --add-skipping --no-attn-skip --lr-mult-router --flex-* --is-flex-eval --freeze-router
        --freeze-model --router-* --normalize-router-logits --soft-mask --budget-*
        --prefill-chunk-size --mem-infer-seq-len --mem-batch-size --original-model-sample-prob
        --force-router-skip --force-mlp --force-mamba --force-emb --skip-num-attn-layer-constraint
        --skip-total-layer-constraint --disable-budget --curr-iteration --hard-sample-th
        --loss-alpha --tau-init --tau-decay --override-selected-budget --mlp-per-list
        --emb-per-list --mlp-int-list --emb-int-list --memory-profile --memory-profile-path
        --bpe-* --param-budget-target --layer-ranking-list --log-budgets --basemodel-type""",
        "no elastic models (Flextron); a model has one size, set by --num-layers and --hidden-size",
    ),
    Row(
        REFUSED,
        """--port --host --parsers --max-batch-size --return-log-probs --num-tokens-to-prompt
        --num-tokens-from-file --top-n-logprobs --incoming-requests-* --model-provider
        --skip-prompt-log-probs --stop-words --output-path --output-every-n-results
        --output-request-events --prompt-file --prompt-file-num-truncate
        --use-flashinfer-fused-rope --no-record-throughput --termination-id
        --suspend-resume-interval --suspend-timeout --throughput-check-only
        --drain-between-batches --batch-boundaries --coordinator-schedule-output-path""",
        "no server and no inference benchmarks yet; `megalith generate` continues prompts",
    ),
    Row(
        REFUSED,
        "--model-type --loader --saver --load-dir --save-dir --max-queue-size --no-checking",
        "no conversion to and from other programs' checkpoints yet; Megalith's own load at any "
        "number of processes",
    ),
    Row(
        REFUSED,
        "--multimodal --prepare-cache-world-size",
        "datasets hold text alone, and are put in order at the start of a run, by the main rank",
    ),
)
