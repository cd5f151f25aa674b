"""Lines of vLLM's log that matter to a draft. Read in the CPU wheels 0.9.2 to 0.32.0; those of 0.32.0 were seen printed."""

from __future__ import annotations

from eagle3diag.engines.logs import Line

#: Printed once a start, with the version and the whole configuration.
START = b"LLM engine (v"

LINES = (
    Line(
        "aux",
        b"sing auxiliary layers from",
        "boundaries in use, from the draft's config",
        "v1/worker/gpu_model_runner.py; nothing for defaults",
    ),
    Line(
        "aux",
        b"sing Eagle3 auxiliary layers from",
        "boundaries in use, from config or from the model's default",
        "V2 runner, eagle3_utils.py",
    ),
    Line(
        "sharing",
        b"without its own embed_tokens",
        "the draft has no embedding of its own, the target's is used",
        "v1/spec_decode/llm_base_proposer.py",
    ),
    Line(
        "sharing",
        b"with embed_tokens identical to",
        "the draft's embedding equals the target's, which is used",
        "v1/spec_decode/llm_base_proposer.py",
    ),
    Line("sharing", b"with distinct embed_tokens", "the draft keeps its own embedding", "v1/spec_decode/llm_base_proposer.py"),
    Line(
        "sharing",
        b"without its own lm_head",
        "the draft has no head of its own, the target's is used",
        "v1/spec_decode/llm_base_proposer.py",
    ),
    Line(
        "sharing",
        b"with lm_head identical to",
        "the draft's head equals the target's, which is used",
        "v1/spec_decode/llm_base_proposer.py",
    ),
    Line("sharing", b"with distinct lm_head", "the draft keeps its own head", "v1/spec_decode/llm_base_proposer.py"),
    Line("sharing", b"shares the same vocab embedding", "the draft uses the target's embedding", "v1/spec_decode/eagle.py, older"),
    Line("weights", b"There is no module or parameter named", "a weight has no place: the start ends", "AutoWeightsLoader"),
    Line("graph", b"Graph capturing finished", "CUDA graphs are captured", "gpu_model_runner.py"),
    Line("settings", b"multiple times of forward on same MTP layer", "one MTP layer is used for several steps", "config/speculative.py"),
    Line("capture", b"Model does not support EAGLE3 interface", "the target's class cannot give aux states", "gpu_model_runner.py"),
)
