"""SGLang 0.4.5 to 0.5.23: its draft classes, its targets, how it counts acceptance, and its known faults, by version."""

from __future__ import annotations

from eagle3diag.engines.engine import Engine, plain_architecture
from eagle3diag.engines.layers import llama_default as default_boundaries
from eagle3diag.engines.rules import Bug, Span, Version, since
from eagle3diag.engines.sglang_drafts import DENSE, MLA
from eagle3diag.engines.sglang_targets import captured

__all__ = ["ACCEPT_RATE", "BUGS", "ENGINE", "POSITION_OFFSET", "default_boundaries"]

#: What the log's ``accept rate`` means.
ACCEPT_RATE = (
    since("0.4.5", "none", "scheduler log up to 0.5.2 prints accept len only"),
    since("0.5.4", "biased by steps", "0.5.4, 0.5.5: accepted + bonus over calls * (steps + 1)"),
    since("0.5.5.post3", "biased", "0.5.5.post3-0.5.10: accepted + bonus over calls * slots, so 1/slots when nothing is accepted"),
    since("0.5.11", "strict", "PR #23530, since 0.5.11: accepted drafts over proposed drafts"),
)

#: Added to the RoPE position of draft steps after the first.
POSITION_OFFSET = (
    since("0.4.5", "1", "eagle_worker.py up to 0.5.11: positions.add_(1) before each draft forward"),
    since("0.5.12", "0", "PR #25015, first in 0.5.12"),
)

BUGS = (
    Bug(
        "FM-28",
        Span.of("0.4.9", "0.5.11"),
        "configured ids differ from the default, graphs on",
        "CUDA graphs of this version capture the default layers, whatever the config names",
        "The graphs are captured before the configured ids are set: prefill is fed the configured layers, every verification that a graph "
        "replays the default ones.",
        "Upgrade to SGLang 0.5.11 or newer; --disable-cuda-graph shows whether it is this.",
        "PR #22836: CudaGraphRunner.__init__ called set_eagle3_layers_to_capture() without ids",
    ),
    Bug(
        "FM-49",
        Span.of("0.4.5", "0.5.12"),
        "several steps",
        "draft steps after the first run one RoPE position too far in this version",
        "positions.add_(1) runs before each draft forward, so step s sees L+1+s where training saw L+s: a small loss from the second "
        "draft on, for every draft.",
        "Upgrade to SGLang 0.5.12 or newer. eagle3diag.replay copies it when told the engine.",
        "PR #25015, eagle_worker.py up to 0.5.11",
    ),
    Bug(
        "FM-37",
        Span.of("0.5.5", "0.5.14"),
        "DeepSeek or Kimi target, tensor parallel",
        "with tensor parallelism the captured states are partial sums in this version",
        "DeepSeek's code read hidden + residual before the deferred all-reduce: each rank hands over its own share.",
        "Upgrade to SGLang 0.5.14 or newer, or turn the fused all-reduce off.",
        "PR #28343, first in 0.5.14",
    ),
    Bug(
        "FM-50",
        Span.of("0.4.5"),
        "tree",
        "in a tree, a branch attends to the keys of its own column, not of its ancestors",
        "Draft KV is not reordered by parent when the frontier changes: hidden states follow the true parent, keys and values do not.",
        "Compare with a chain (--speculative-eagle-topk 1) before blaming the draft.",
        "issue #7523; PR #8409 was closed unmerged",
    ),
)

ENGINE = Engine(
    name="sglang",
    first=Version.parse("0.4.5"),
    last=Version.parse("0.5.23"),
    classes=(DENSE, MLA),
    architecture=plain_architecture,
    captured=captured,
    default=default_boundaries,
    bugs=BUGS,
)
