"""vLLM's command line and the fields of its ``--speculative-config``, by version.

Read from ``engine/arg_utils.py``, ``entrypoints/openai/cli_args.py`` and ``config/speculative.py`` of the CPU wheels in :data:`READ`.
"""

from __future__ import annotations

from eagle3diag.engines.flags import OptionTable

READ = ("0.9.2", "0.11.0", "0.14.1", "0.18.1", "0.22.1", "0.27.1", "0.32.0")

#: Options by the first of the read versions that has them.
ADDED: dict[str, str] = {
    "0.9.2": """
        additional-config allow-credentials allowed-headers allowed-local-media-path allowed-methods allowed-origins api-key
        api-server-count block-size calculate-kv-scales chat-template chat-template-content-format code-revision
        collect-detailed-traces compilation-config config config-format cpu-offload-gb cuda-graph-sizes data-parallel-address
        data-parallel-backend data-parallel-rank data-parallel-rpc-port data-parallel-size data-parallel-size-local
        data-parallel-start-rank device disable-async-output-proc disable-cascade-attn disable-chunked-mm-input
        disable-custom-all-reduce disable-fastapi-docs disable-frontend-multiprocessing disable-hybrid-kv-cache-manager
        disable-log-requests disable-log-stats disable-mm-preprocessor-cache disable-sliding-window disable-uvicorn-access-log
        distributed-executor-backend download-dir dtype enable-auto-tool-choice enable-chunked-prefill enable-eplb
        enable-expert-parallel enable-force-include-usage enable-lora enable-lora-bias enable-multimodal-encoder-data-parallel
        enable-prefix-caching enable-prompt-adapter enable-prompt-embeds enable-prompt-tokens-details enable-reasoning
        enable-request-id-headers enable-server-load-tracking enable-sleep-mode enable-ssl-refresh enforce-eager
        eplb-log-balancedness eplb-step-interval eplb-window-size expand-tools-even-if-tool-choice-none fully-sharded-loras
        generation-config gpu-memory-utilization guided-decoding-backend guided-decoding-disable-additional-properties
        guided-decoding-disable-any-whitespace guided-decoding-disable-fallback headless hf-config-path hf-overrides hf-token host
        ignore-patterns kv-cache-dtype kv-events-config kv-transfer-config limit-mm-per-prompt load-format log-config-file
        logits-processor-pattern long-lora-scaling-factors long-prefill-token-threshold lora-dtype lora-extra-vocab-size
        lora-modules max-cpu-loras max-log-len max-logprobs max-long-partial-prefills max-lora-rank max-loras max-model-len
        max-num-batched-tokens max-num-partial-prefills max-num-seqs max-parallel-loading-workers max-prompt-adapter-token
        max-prompt-adapters max-seq-len-to-capture media-io-kwargs middleware mm-processor-kwargs model model-impl
        model-loader-extra-config multi-step-stream-outputs num-gpu-blocks-override num-lookahead-slots num-redundant-experts
        num-scheduler-steps otlp-traces-endpoint override-attention-dtype override-generation-config override-neuron-config
        override-pooler-config pipeline-parallel-size port preemption-mode prefix-caching-hash-algo prompt-adapters
        pt-load-map-location qlora-adapter-name-or-path quantization ray-workers-use-nsight reasoning-parser response-role
        return-tokens-as-token-ids revision root-path rope-scaling rope-theta scheduler-cls scheduler-delay-factor scheduling-policy
        seed served-model-name show-hidden-metrics-for-version skip-tokenizer-init speculative-config ssl-ca-certs ssl-cert-reqs
        ssl-certfile ssl-keyfile swap-space task tensor-parallel-size tokenizer tokenizer-mode tokenizer-pool-extra-config
        tokenizer-pool-size tokenizer-pool-type tokenizer-revision tool-call-parser tool-parser-plugin trust-remote-code
        use-tqdm-on-load use-v2-block-manager uvicorn-log-level worker-cls worker-extension-cls
    """,
    "0.11.0": """
        allowed-media-domains async-scheduling convert data-parallel-hybrid-lb dbo-decode-token-threshold
        dbo-prefill-token-threshold decode-context-parallel-size default-mm-loras enable-dbo enable-log-outputs enable-log-requests
        enable-tokenizer-info-endpoint eplb-config exclude-tools-when-tool-choice-none expert-placement-strategy
        h11-max-header-count h11-max-incomplete-event-size interleave-mm-strings io-processor-plugin kv-cache-memory-bytes
        kv-sharing-fast-prefill log-error-stack logits-processors logprobs-mode mamba-cache-dtype mamba-ssm-cache-dtype
        mm-encoder-tp-mode mm-processor-cache-gb mm-processor-cache-type mm-shm-cache-max-object-size-mb pooler-config runner
        safetensors-load-strategy skip-mm-profiling structured-outputs-config tool-server trust-request-chat-template uds
        video-pruning-rate
    """,
    "0.14.1": """
        aggregate-engine-logging all2all-backend allow-deprecated-quantization attention-backend attention-config
        cp-kv-cache-interleave-size cudagraph-capture-sizes cudagraph-metrics data-parallel-external-lb dcp-kv-cache-interleave-size
        default-chat-template-kwargs disable-nccl-for-dp-synchronization ec-transfer-config enable-layerwise-nvtx-tracing
        enable-log-deltas enable-logging-iteration-details enable-mfu-metrics enable-mm-embeds enable-offline-docs
        enable-return-routed-experts enable-tower-connector-lora kv-cache-metrics kv-cache-metrics-sample kv-offloading-backend
        kv-offloading-size mamba-block-size master-addr master-port max-cudagraph-capture-size mm-encoder-attn-backend nnodes
        node-rank optimization-level prefill-context-parallel-size profiler-config reasoning-parser-plugin stream-interval
        tokens-only ubatch-size
    """,
    "0.18.1": """
        cpu-offload-params dcp-comm-backend disable-access-log-for-endpoints distributed-timeout-seconds enable-elastic-ep
        enable-ep-weight-filter enable-flashinfer-autotune fail-on-environ-validation gdn-prefill-backend grpc kernel-config
        language-model-only mamba-cache-mode mm-encoder-only moe-backend offload-backend offload-group-size offload-num-in-group
        offload-params offload-prefetch-step performance-mode shutdown-timeout specialize-active-lora ssl-ciphers
        weight-transfer-config
    """,
    "0.22.1": """
        cpu-distributed-timeout-seconds data-parallel-multi-port-external-lb data-parallel-supervisor-port
        dp-supervisor-probe-failure-threshold dp-supervisor-probe-interval-s dp-supervisor-probe-timeout-s enable-cumem-allocator
        enable-flash-late-interaction enable-mamba-cache-stochastic-rounding enable-mixed-moe-lora-format fingerprint-mode
        fingerprint-value ir-op-priority kv-cache-dtype-skip-layers linear-backend lora-target-modules mamba-backend
        mamba-cache-philox-rounds mm-encoder-attn-dtype mm-encoder-fp8-scale-path mm-encoder-fp8-scale-save-margin
        mm-encoder-fp8-scale-save-path mm-tensor-ipc numa-bind numa-bind-cpus numa-bind-nodes quantization-config reasoning-config
        renderer-num-workers safetensors-prefetch-block-size safetensors-prefetch-num-threads scheduler-reserve-full-isl spec-method
        spec-model spec-tokens use-fp64-gumbel
    """,
    "0.27.1": """
        cohere-format cohere-is-reasoning-model device-ids diffusion-config enable-bf16x3-router-gemm enable-fault-tolerance
        enable-moe-shared-loras enable-per-request-metrics fault-tolerance-config jit-monitor-mode jit-monitor-verbose
        kda-prefill-backend mamba-ssu-algorithm max-num-scheduled-tokens mm-hasher-algorithm mm-ipc-gpu-memory-gb
        model-class-overrides prefill-schedule-interval prefix-match-unit replayssm-buffer-len use-replayssm video-pruning-method
        watermark
    """,
    "0.32.0": """
        anthropic-disabled-thinking-effort aux-output-config custom-histogram-buckets dcp-q-replicate device-memory-utilization
        dp-sync-interval ec-manager-config elastic-ep-max-dp-size enable-batch-sharded-sampling enable-hc-sp
        enable-mamba-shared-prefix-checkpoint enable-nccl-comm-suspend enable-scale-out enable-shm-tensor-arena enable-trace-replay
        engram-config grpc-port kda-decode-backend log-level logging-config long-prefill-token-threshold-adaptive
        max-lora-cls-labels max-num-active-seqs max-num-queued-reqs max-num-queued-tokens mm-device-do-normalize mm-processor-device
        per-request-spec-decode-metrics prefix-cache-retention-interval return-sampling-mask sleep-mode-offload-cudagraph
        sleep-preserve-parameter-names sparse-indexer-topk-backend sse-keep-alive-interval swa-bounded-replay tool-strict-level
        trust-request-mm-kwargs watermark-config
    """,
}

#: Options by the first of the read versions that no longer has them.
GONE: dict[str, str] = {
    "0.11.0": """
        device disable-async-output-proc enable-prompt-adapter enable-reasoning expand-tools-even-if-tool-choice-none
        guided-decoding-backend guided-decoding-disable-additional-properties guided-decoding-disable-any-whitespace
        guided-decoding-disable-fallback long-lora-scaling-factors max-prompt-adapter-token max-prompt-adapters
        max-seq-len-to-capture multi-step-stream-outputs num-scheduler-steps override-neuron-config preemption-mode prompt-adapters
        qlora-adapter-name-or-path scheduler-delay-factor tokenizer-pool-extra-config tokenizer-pool-size tokenizer-pool-type
        use-v2-block-manager
    """,
    "0.14.1": """
        cuda-graph-sizes disable-mm-preprocessor-cache enable-lora-bias enable-multimodal-encoder-data-parallel
        eplb-log-balancedness eplb-step-interval eplb-window-size lora-extra-vocab-size num-lookahead-slots num-redundant-experts
        override-pooler-config rope-scaling rope-theta task
    """,
    "0.18.1": """
        disable-log-requests logits-processor-pattern swap-space
    """,
    "0.22.1": """
        disable-frontend-multiprocessing
    """,
    "0.27.1": """
        max-long-partial-prefills max-num-partial-prefills
    """,
    "0.32.0": """
        calculate-kv-scales enable-bf16x3-router-gemm override-attention-dtype
    """,
}

#: Fields of --speculative-config, likewise; any other field ends the start.
CONFIG_ADDED: dict[str, str] = {
    "0.9.2": """
        acceptance_method code_revision disable_by_batch_size disable_log_stats disable_logprobs disable_mqa_scorer
        draft_tensor_parallel_size enable_chunked_prefill max_model_len method model num_speculative_tokens posterior_alpha
        posterior_threshold prompt_lookup_max prompt_lookup_min quantization revision speculative_token_tree
    """,
    "0.11.0": """
        disable_padded_drafter_batch enforce_eager
    """,
    "0.14.1": """
        suffix_decoding_max_cached_requests suffix_decoding_max_spec_factor suffix_decoding_max_tree_depth
        suffix_decoding_min_token_prob
    """,
    "0.18.1": """
        draft_load_config parallel_drafting rejection_sample_method tensor_parallel_size use_local_argmax_reduction
    """,
    "0.22.1": """
        attention_backend draft_sample_method moe_backend synthetic_acceptance_length synthetic_acceptance_rates
    """,
    "0.27.1": """
        kv_cache_dtype num_speculative_tokens_per_batch_size use_heterogeneous_vocab
    """,
    "0.32.0": """
        disable_eagle_block_drop dspark_draft_topk enable_adaptive_verification index_share_for_mtp_iteration
    """,
}

#: Fields of --speculative-config that were taken away, likewise.
CONFIG_GONE: dict[str, str] = {
    "0.11.0": """
        acceptance_method disable_mqa_scorer posterior_alpha posterior_threshold
    """,
    "0.14.1": """
        disable_log_stats disable_logprobs enable_chunked_prefill
    """,
    "0.18.1": """
        disable_by_batch_size
    """,
    "0.22.1": """
        speculative_token_tree
    """,
}

TABLE = OptionTable(READ, ADDED, GONE)
CONFIG = OptionTable(READ, CONFIG_ADDED, CONFIG_GONE)
