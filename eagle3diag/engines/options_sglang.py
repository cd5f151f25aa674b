"""SGLang's command line: every option of the versions read, and the combinations that matter to a draft.

Options were read from ``server_args.py`` and ``arg_groups/fields`` of the wheels in :data:`READ`; those of 0.5.23 from its own parser.
"""

from __future__ import annotations

from eagle3diag.engines.flags import OptionTable

READ = ("0.4.5", "0.4.8", "0.4.10", "0.5.2", "0.5.4", "0.5.6", "0.5.9", "0.5.11", "0.5.13", "0.5.17", "0.5.20", "0.5.23")

#: Options by the first of the read versions that has them.
ADDED: dict[str, str] = {
    "0.4.5": """
        allow-auto-truncate api-key attention-backend base-gpu-id chat-template chunked-prefill-size completion-template
        constrained-json-whitespace-pattern context-length cpu-offload-gb cuda-graph-bs cuda-graph-max-bs data-parallel-size
        debug-tensor-dump-inject debug-tensor-dump-input-file debug-tensor-dump-output-folder decode-log-interval deepep-mode
        delete-ckpt-after-loading device disable-cuda-graph disable-cuda-graph-padding disable-custom-all-reduce disable-mla
        disable-outlines-disk-cache disable-overlap-schedule disable-radix-cache disable-shared-experts-fusion
        disaggregation-bootstrap-port disaggregation-mode dist-init-addr dist-timeout download-dir dp-size ds-channel-config-path
        ds-heavy-channel-num ds-heavy-channel-type ds-heavy-token-num ds-sparse-decode-threshold dtype enable-cache-report
        enable-custom-logit-processor enable-deepep-moe enable-double-sparsity enable-dp-attention enable-ep-moe
        enable-flashinfer-mla enable-flashmla enable-hierarchical-cache enable-memory-saver enable-metrics enable-mixed-chunk
        enable-nan-detection enable-nccl-nvls enable-p2p-check enable-torch-compile ep-size expert-parallel-size file-storage-path
        flashinfer-mla-disable-ragged gpu-id-step grammar-backend hicache-ratio host is-embedding json-model-override-args
        kv-cache-dtype load-balance-method load-format log-level log-level-http log-requests log-requests-level lora-backend
        lora-paths max-loras-per-batch max-prefill-tokens max-running-requests max-total-tokens mem-fraction-static model-path
        n-share-experts-fusion nccl-init-addr nnodes node-rank num-continuous-decode-steps page-size port quantization
        quantization-param-path random-seed reasoning-parser revision sampling-backend schedule-conservativeness schedule-policy
        served-model-name show-time-cost skip-tokenizer-init speculative-accept-threshold-acc speculative-accept-threshold-single
        speculative-algorithm speculative-draft-model-path speculative-eagle-topk speculative-num-draft-tokens speculative-num-steps
        speculative-token-map stream-interval stream-output tensor-parallel-size tokenizer-mode tokenizer-path tool-call-parser
        torch-compile-max-bs torchao-config tp-size triton-attention-num-kv-splits triton-attention-reduce-in-fp32 trust-remote-code
        warmups watchdog-timeout
    """,
    "0.4.8": """
        bucket-e2e-request-latency bucket-inter-token-latency bucket-time-to-first-token collect-tokens-histogram
        custom-weight-loader debug-tensor-dump-prefill-only deepep-config disable-chunked-prefix-cache disable-fast-image-processor
        disable-overlap-cg-plan disaggregation-decode-dp disaggregation-decode-tp disaggregation-ib-device disaggregation-prefill-pp
        disaggregation-transfer-backend enable-dp-lm-head enable-eplb enable-expert-distribution-metrics enable-flashinfer-moe
        enable-mscclpp enable-multimodal enable-profile-cuda-graph enable-request-time-stats-logging enable-return-hidden-states
        enable-tokenizer-batch-encode enable-two-batch-overlap ep-dispatch-algorithm ep-num-redundant-experts eplb-algorithm
        eplb-rebalance-layers-per-chunk eplb-rebalance-num-iterations expert-distribution-recorder-buffer-size
        expert-distribution-recorder-mode hicache-size hicache-write-policy impl init-expert-location kv-events-config
        max-micro-batch-size mm-attention-backend moe-dense-tp-size num-reserved-decode-tokens pdlb-url pipeline-parallel-size
        pp-size preferred-sampling-params sleep-on-idle weight-loader-disable-mmap
    """,
    "0.4.10": """
        crash-dump-folder decode-attention-backend disable-hybrid-swa-memory enable-flashinfer-allreduce-fusion
        enable-flashinfer-cutlass-moe enable-flashinfer-trtllm-moe enable-lora enable-metrics-for-all-schedulers enable-pdmux
        enable-triton-kernel-moe ep hicache-io-backend hicache-storage-backend hybrid-kvcache-ratio lora-target-modules
        max-lora-rank max-queued-requests model model-impl model-loader-extra-config nccl-port prefill-attention-backend
        skip-server-warmup sm-group-num swa-full-tokens-ratio
    """,
    "0.5.2": """
        disable-flashinfer-cutlass-moe-fp4-allgather enable-cudagraph-gc enable-flashinfer-mxfp4-moe enable-lmcache enable-symm-mem
        eplb-min-rebalancing-utilization-threshold flashinfer-mxfp4-moe-precision gc-warning-threshold-secs
        generation-tokens-buckets hicache-mem-layout hicache-storage-backend-extra-config hicache-storage-prefetch-policy
        mamba-ssm-dtype max-loaded-loras max-mamba-cache-size moe-a2a-backend moe-runner-backend numa-node offload-group-size
        offload-mode offload-num-in-group offload-prefetch-step prefill-round-robin-balance prompt-tokens-buckets
        scheduler-recv-interval speculative-attention-mode speculative-draft-model speculative-draft-model-revision
        tbo-token-distribution-threshold tokenizer-worker-num tool-server weight-version
    """,
    "0.5.4": """
        abort-on-priority-when-disabled checkpoint-engine-wait-weights-before-ready config constrained-json-disable-any-whitespace
        disable-tokenizer-batch-decode disaggregation-decode-enable-offload-kvcache disaggregation-decode-polling-interval
        dynamic-batch-tokenizer-batch-size dynamic-batch-tokenizer-batch-timeout elastic-ep-backend enable-beta-spec
        enable-deterministic-inference enable-dynamic-batch-tokenizer enable-flashinfer-cutedsl-moe enable-fp32-lm-head
        enable-piecewise-cuda-graph enable-priority-scheduling enable-single-batch-overlap enable-torch-symm-mem enable-trace
        enable-weights-cpu-backup grpc-mode keep-mm-feature-on-device kt-amx-method kt-amx-weight-path kt-cpuinfer
        kt-num-gpu-experts kt-threadpool-count load-watch-interval lora-eviction-policy mamba-full-memory-ratio max-lora-chunk-size
        modelopt-checkpoint-restore-path modelopt-checkpoint-save-path modelopt-export-path modelopt-quant mooncake-ib-device
        multi-item-scoring-delimiter nsa-decode-backend nsa-prefill-backend oltp-traces-endpoint pdmux-config-path
        piecewise-cuda-graph-compiler piecewise-cuda-graph-max-tokens piecewise-cuda-graph-tokens pp-max-micro-batch-size
        priority-scheduling-preemption-threshold quantize-and-serve radix-eviction-policy
        remote-instance-weight-loader-seed-instance-ip remote-instance-weight-loader-seed-instance-service-port
        remote-instance-weight-loader-send-weights-group-ports sampling-defaults schedule-low-priority-values-first
        speculative-draft-load-format speculative-ngram-branch-length speculative-ngram-capacity speculative-ngram-match-type
        speculative-ngram-max-bfs-breadth speculative-ngram-max-match-window-size speculative-ngram-min-bfs-breadth
        speculative-ngram-min-match-window-size tokenizer-metrics-allowed-custom-labels tokenizer-metrics-custom-labels-header
        triton-attention-split-tile-size
    """,
    "0.5.6": """
        debug-tensor-dump-layers decrypted-config-file decrypted-draft-config-file dllm-algorithm dllm-block-size
        enable-attn-tp-input-scattered enable-broadcast-mm-inputs-process enable-draft-weights-cpu-backup enable-flashinfer-autotune
        enable-layerwise-nvtx-marker enable-nsa-prefill-context-parallel enable-torch-compile-debug-mode export-metrics-to-file
        export-metrics-to-file-dir fastapi-root-path forward-hooks kt-max-deferred-experts-per-token kt-method kt-weight-path
        mm-enable-dp-encoder mm-max-concurrent-calls mm-per-request-timeout mm-process-config otlp-traces-endpoint
        rl-on-policy-target speculative-moe-runner-backend
    """,
    "0.5.9": """
        admin-api-key attention-context-parallel-size attn-cp-size custom-sigquit-handler disable-flashinfer-autotune
        disable-hicache-numa-detect dllm-algorithm-config enable-dynamic-chunking enable-fused-qk-norm-rope
        enable-lora-overlap-loading enable-multi-layer-eagle enable-precise-embedding-interpolation enable-prefill-delayer
        enable-prefix-mm-cache enable-return-routed-experts encoder-only encoder-transfer-backend encoder-urls extra-metric-labels
        fp4-gemm-backend fp8-gemm-backend hf-chat-template-name hierarchical-sparse-attention-extra-config language-only
        limit-mm-data-per-request log-requests-format log-requests-target mamba-backend mamba-scheduler-strategy
        mamba-track-interval model-checksum moe-data-parallel-size moe-dp-size nsa-prefill-cp-mode pp-async-batch-depth
        prefill-delayer-forward-passes-buckets prefill-delayer-max-delay-passes prefill-delayer-token-usage-low-watermark
        prefill-delayer-wait-seconds-buckets prefill-max-requests remote-instance-weight-loader-backend
        remote-instance-weight-loader-start-seed-via-transfer-engine rl-quant-profile soft-watchdog-timeout
        speculative-draft-attention-backend speculative-draft-model-quantization speculative-moe-a2a-backend
        uvicorn-access-log-exclude-prefixes
    """,
    "0.5.11": """
        batch-notify-size debug-cuda-graph default-priority-value disable-piecewise-cuda-graph disable-priority-preemption
        disaggregation-decode-enable-radix-cache elastic-ep-rejoin enable-adaptive-dispatch-to-encoder enable-aiter-allreduce-fusion
        enable-breakable-cuda-graph enable-dp-attention-local-control-broadcast enable-elastic-expert-backup
        enable-fused-moe-sum-all-reduce enable-hisparse enable-http2 enable-mfu-metrics enable-mis enable-mm-global-cache
        enable-prefill-context-parallel enable-quant-communications enable-ssl-refresh enable-streaming-session
        enforce-disable-flashinfer-allreduce-fusion enforce-piecewise-cuda-graph enforce-shared-experts-fusion
        engine-info-bootstrap-port experts-shared-outer-loras gc-threshold grpc-http-sidecar-port hisparse-config
        incremental-streaming-output linear-attn-backend linear-attn-decode-backend linear-attn-prefill-backend lora-strict-loading
        lora-use-virtual-experts modelexpress-config msprobe-dump-config pre-warm-nccl prefill-cp-mode record-nolora-graph
        speculative-adaptive speculative-adaptive-config speculative-dflash-block-size speculative-dflash-draft-window-size
        speculative-ngram-external-corpus-max-tokens speculative-ngram-external-corpus-path speculative-ngram-external-sam-budget
        speculative-ngram-max-trie-depth speculative-skip-dp-mlp-sync ssl-ca-certs ssl-certfile ssl-keyfile ssl-keyfile-password
        stream-response-default-include-usage strip-thinking-cache tokenizer-backend use-ray weight-loader-prefetch-checkpoints
        weight-loader-prefetch-num-threads
    """,
    "0.5.13": """
        asr-max-buffer-seconds asr-max-concurrent-sessions deepep-dispatcher-output-dtype detokenizer-worker-num
        disable-attn-tp-gather dsa-decode-backend dsa-prefill-backend dsa-prefill-cp-mode dsa-topk-backend enable-deepep-waterfill
        enable-deepseek-v4-fp4-indexer enable-dsa-prefill-context-parallel enable-forward-pass-metrics enable-return-indexer-topk
        enable-strict-thinking encoder-bootstrap-port encoder-register-urls forward-pass-metrics-ipc-name
        forward-pass-metrics-worker-id hierarchical-sparse-attention-extra-config kv-canary kv-canary-real-data
        kv-canary-sweep-interval lmcache-config-file load-snapshot-publish-interval lora-drain-wait-threshold model-config-parser
        optimistic-prefill-retries prefill-delayer-max-delay-ms prefill-delayer-queue-min-ratio prefill-only-disable-kv-cache
        radix-cache-backend speculative-draft-window-size trace-modules weight-loader-drop-cache-after-load
    """,
    "0.5.17": """
        bf16-gemm-backend cp-strategy cuda-graph-backend-decode cuda-graph-backend-prefill cuda-graph-bs-decode
        cuda-graph-bs-prefill cuda-graph-config cuda-graph-max-bs-decode cuda-graph-max-bs-prefill cuda-graph-tc-compiler
        dcp-comm-backend dcp-replicate-q-proj dcp-size decode-context-parallel-size decoupled-spec-bind-endpoint
        decoupled-spec-connect-endpoints decoupled-spec-rank decoupled-spec-role default-chat-template-kwargs
        disable-decode-cuda-graph disable-prefill-cuda-graph disaggregation-decode-extra-slots dllm-fdfo
        dsa-paged-mqa-logits-backend dwdp-size elastic-ep-initial-size elastic-ep-join-mode elastic-ep-join-rank-offset
        elastic-ep-scale-timeout enable-cp-decode-attn-tp enable-dsa-cache-layer-split enable-flexkv enable-gdn-replayssm-spec
        enable-int8-mamba-checkpoint enable-linear-replayssm enable-linear-replayssm-spec enable-mamba-cache-stochastic-rounding
        enable-page-major-kv-layout enable-prefill-cp enable-scattered-sconv enable-session-radix-cache enable-tf32-matmul
        enable-unified-memory enable-waterfill flashinfer-allreduce-fusion-backend flashinfer-autotune-skip-ops flexkv-config-file
        fuseep-mode grpc-port int8-mamba-ckpt-size linear-attn-verify-backend linear-replayssm-cache-len mamba-cache-philox-rounds
        mamba-max-states-per-path mamba-radix-cache-strategy max-ep-size min-free-slots-delay mm-feature-transport mm-io-worker-num
        mm-processor-worker-num no-dcp-replicate-q-proj no-dllm-fdfo no-experts-shared-outer-loras no-lora-strict-loading
        optimistic-prefill-attempts retraction-policy return-hidden-states-mode sidecar sidecar-args smg-grpc-mode
        smg-http-sidecar-port spec-trace-dir speculative-dspark-align-verify-tokens-to-graph-tier speculative-dspark-block-size
        speculative-dspark-confidence-sts-path speculative-dspark-sps-table-path speculative-use-rejection-sampling stat-loggers
        weight-cache-mode weight-cache-socket weight-cache-timeout
    """,
    "0.5.20": """
        allowed-media-domains c128-page-size deepep-v2-mode disaggregation-decode-retraction-backup dsv4-attn-backend
        dsv4-prefill-backend enable-dense-mlp-attn-tp enable-layernorm-sp enable-lean-attention enable-response-store
        enable-shared-experts-attn-tp enable-tp-lm-head-all-to-all enable-unified-cache-external-linker enable-w4a4-mxfp4-megamoe
        expert-balancedness-report-mode flashinfer-a2a-dispatch-type gated-launch-port hicache-host-memory-mode
        hicache-storage-prefetch-retry-max-attempts hicache-storage-prefetch-retry-poll-interval
        http2-initial-connection-window-size http2-max-concurrent-streams image-processor-backend language-model-only
        load-publish-endpoint media-url-max-file-size-mb mlx-enable-sampling mm-global-cache-backend mm-preprocess-cache-size-mb
        no-enable-tp-lm-head-all-to-all no-ple-offload-embedding ple-offload-backend ple-offload-dir ple-offload-embedding
        prefill-decode-interval radix-eviction-policy-config return-input-ids return-output-ids sampling-mask-max-tokens
        speculative-domino-candidate-pool-size speculative-draft-kv-cache-dtype speculative-dsa-topk-backend
        startup-weight-load-mode trust-mm-content-hashes unified-cache-external-linker-backend uno-lora-path
    """,
    "0.5.23": """
        attention-data-parallel-size attn-dp-size boundary-reduction constrained-json-max-whitespace-cnt context-bucket
        cuda-graph-max-seq-len-prefill cuda-graph-prefill-max-context disable-aiter-allreduce-fusion-in-decode
        disable-aiter-allreduce-fusion-in-prefill disaggregation-decode-allocation-policy
        disaggregation-decode-host-receive-threshold disaggregation-enable-kv-checksum dsa-triton-union enable-amd-monokernel
        enable-decoder-swa-bounded-replay enable-dsa-fused-indexer enable-encoder-swa-bounded-replay enable-hicache
        enable-http-worker-reuseport enable-kv-cache-sharding enable-linker-mla-dedup enable-megamoe-for-layernorm-sp
        enable-nvidia-megakernel enable-paged-experts enable-pd-role-switch enable-return-aux-hidden-states enable-watermark
        grpc-response-timeout-secs hicache-host-memory-fraction monokernel-backend no-enable-decoder-swa-bounded-replay
        no-enable-dsa-fused-indexer no-enable-fused-qk-norm-rope no-enable-tf32-matmul no-mm-enable-dp-encoder
        no-speculative-enable-w4a4-mxfp4-megamoe otlp-service-name paged-experts-num-resident prefill-decode-interval-min-bs
        prefill-kv-cache-dequant-dtype qsa-indexer-dtype return-aux-hidden-state-layer-ids shared-experts-tp-size
        speculative-draft-sink-size speculative-enable-w4a4-mxfp4-megamoe speculative-use-block-verification swa-prefix-tails
        trust-request-chat-template unified-cache-external-linker-config watermark-config
    """,
}

#: Options by the first of the read versions that no longer has them.
GONE: dict[str, str] = {
    "0.4.8": """
        disable-mla enable-flashinfer-mla enable-flashmla n-share-experts-fusion
    """,
    "0.4.10": """
        disable-overlap-cg-plan enable-flashinfer-moe impl
    """,
    "0.5.2": """
        pdlb-url
    """,
    "0.5.4": """
        debug-tensor-dump-prefill-only max-micro-batch-size
    """,
    "0.5.6": """
        enable-beta-spec enable-deepep-moe enable-ep-moe enable-flashinfer-cutedsl-moe enable-flashinfer-cutlass-moe
        enable-flashinfer-mxfp4-moe enable-flashinfer-trtllm-moe enable-triton-kernel-moe kt-amx-method kt-amx-weight-path
        oltp-traces-endpoint
    """,
    "0.5.9": """
        dllm-block-size enable-flashinfer-autotune load-watch-interval
    """,
    "0.5.11": """
        disable-hicache-numa-detect disaggregation-decode-dp disaggregation-decode-tp disaggregation-prefill-pp
        ds-channel-config-path ds-heavy-channel-num ds-heavy-channel-type ds-heavy-token-num ds-sparse-decode-threshold
        enable-double-sparsity hierarchical-sparse-attention-extra-config mm-max-concurrent-calls mm-per-request-timeout
        multi-item-scoring-delimiter speculative-ngram-branch-length speculative-ngram-max-match-window-size
        speculative-ngram-min-match-window-size
    """,
    "0.5.13": """
        enable-nan-detection record-nolora-graph
    """,
    "0.5.17": """
        debug-tensor-dump-inject enable-deepep-waterfill enable-piecewise-cuda-graph hybrid-kvcache-ratio optimistic-prefill-retries
    """,
    "0.5.20": """
        collect-tokens-histogram cuda-graph-bs cuda-graph-max-bs custom-sigquit-handler disable-piecewise-cuda-graph
        dsa-prefill-cp-mode enable-breakable-cuda-graph enable-dsa-prefill-context-parallel enable-expert-distribution-metrics
        enable-gdn-replayssm-spec enable-nsa-prefill-context-parallel enable-prefill-context-parallel enforce-piecewise-cuda-graph
        mamba-scheduler-strategy nsa-decode-backend nsa-prefill-backend nsa-prefill-cp-mode piecewise-cuda-graph-compiler
        piecewise-cuda-graph-max-tokens piecewise-cuda-graph-tokens prefill-cp-mode prefill-round-robin-balance
        speculative-dflash-draft-window-size stat-loggers stream-output torchao-config
    """,
    "0.5.23": """
        cuda-graph-tc-compiler elastic-ep-rejoin keep-mm-feature-on-device speculative-skip-dp-mlp-sync
    """,
}

TABLE = OptionTable(READ, ADDED, GONE)
