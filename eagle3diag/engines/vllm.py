"""vLLM 0.9 to 0.33: its draft classes, and where it finds aux layer ids, by version."""

from __future__ import annotations

from collections.abc import Mapping

from eagle3diag.checkpoints.target import Target
from eagle3diag.engines.engine import Engine
from eagle3diag.engines.layers import NESTED, OTHERS, TOP, Capture, capture, llama_default
from eagle3diag.engines.rules import Span, Version, at, since
from eagle3diag.engines.vllm_config import architecture, view
from eagle3diag.engines.vllm_drafts import DEEPSEEK, LLAMA, QWEN3

__all__ = ["ENGINE", "V1_KEYS", "V2_KEYS"]

#: Keys that the V1 runner reads ids from, in order.
V1_KEYS = (
    since("0.9.0", (), "gpu_model_runner.py before 0.11.1: always the default"),
    since("0.11.1", (TOP,), "PR #25961, first in 0.11.1"),
    since("0.22.0", (TOP, NESTED), "PR #42764, first in 0.22.0: _get_eagle3_aux_layers_from_config"),
)
#: The same of the V2 runner: ids nested under SGLang's name are not read.
V2_KEYS = (TOP, OTHERS[1])
#: The runner that runs unless VLLM_USE_V2_MODEL_RUNNER says otherwise (0.22-0.28: V2 for some architectures). V2 needs Triton.
RUNNER = (since("0.9.0", "V1", "the V1 model runner"), since("0.29.0", "V2", "V2 where supported, since 0.29"))
#: The output of the last block, and the embedding, can be captured.
_ENDS_REACHED = Span.of("0.18.0")


def captured(raw: Mapping[str, object], version: Version, target: Target | None) -> tuple[Capture, ...]:
    """What is captured, the runner that runs by default first; ids are state ids, that is boundaries."""
    seen, n = view(raw, version), None if target is None else target.n_layers
    reach = (0, 0) if version in _ENDS_REACHED else (1, 1)
    v1 = at(V1_KEYS, version)
    v2 = Span.of("0.22.0")
    runners = {
        "V1": capture(
            seen, keys=v1.value, offset="as they are", default=llama_default, n=n, reach=reach, read_from=v1.source,
            runner="V1" if version in v2 else None,
        ),
        "V2": capture(
            seen, keys=V2_KEYS, offset="as they are", default=llama_default, n=n, reach=reach, runner="V2",
            read_from="v1/worker/gpu/spec_decode/eagle/eagle3_utils.py",
        ),
    }  # fmt: skip
    first = at(RUNNER, version).value
    return (runners[first], *(c for name, c in runners.items() if name != first and version in v2))


ENGINE = Engine(
    name="vllm",
    first=Version.parse("0.9.0"),
    last=Version.parse("0.33.0"),
    classes=(LLAMA, QWEN3, DEEPSEEK),
    architecture=architecture,
    captured=captured,
    default=llama_default,
)
