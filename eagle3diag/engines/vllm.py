"""vLLM 0.9 to 0.33: its draft classes, and where it finds aux layer ids, by version."""

from __future__ import annotations

from collections.abc import Mapping

from eagle3diag.checkpoints.target import Target
from eagle3diag.engines.engine import Engine
from eagle3diag.engines.layers import NESTED, OTHERS, TOP, Capture, capture, llama_default
from eagle3diag.engines.rules import Bug, Since, Span, Version, at, since
from eagle3diag.engines.vllm_config import architecture, view
from eagle3diag.engines.vllm_drafts import DEEPSEEK, LLAMA, QWEN3

__all__ = ["ENGINE", "TARGET_TYPES", "V1_KEYS", "V2_KEYS"]

#: Keys that the V1 runner reads ids from, in order.
V1_KEYS: tuple[Since[tuple[str, ...]], ...] = (
    since("0.9.0", (), "gpu_model_runner.py before 0.11.1: always the default"),
    since("0.11.1", (TOP,), "PR #25961, first in 0.11.1"),
    since("0.22.0", (TOP, NESTED), "PR #42764, first in 0.22.0: _get_eagle3_aux_layers_from_config"),
)
#: The same of the V2 runner: ids nested under SGLang's name are not read.
V2_KEYS = (TOP, OTHERS[1])
#: The runner that runs unless VLLM_USE_V2_MODEL_RUNNER says otherwise (0.22-0.28: V2 for some architectures). V2 needs Triton.
RUNNER = (since("0.9.0", "V1", "the V1 model runner"), since("0.29.0", "V2", "V2 where supported, since 0.29"))
_UP_TO_0_11 = ("llama", "qwen", "minicpm", "gpt_oss")
_UP_TO_0_17 = (*_UP_TO_0_11, "hunyuan_vl", "hunyuan_v1_dense", "afmoe", "nemotron_h")
_UP_TO_0_18 = (*_UP_TO_0_17, "deepseek_v2", "deepseek_v3", "kimi_k2", "kimi_k25")
#: What the target's model_type must contain; None: its class decides (SupportsEagle3), which is not told here.
TARGET_TYPES: tuple[Since[tuple[str, ...] | None], ...] = (
    since("0.9.0", ("llama",), "config.py: Eagle3 is only supported for Llama models"),
    since("0.10.2", ("llama", "qwen"), "config/speculative.py 0.10.2"),
    since("0.11.0", _UP_TO_0_11, "config/speculative.py 0.11.0"),
    since("0.16.0", _UP_TO_0_17[:-1], "config/speculative.py 0.16.0"),
    since("0.17.0", _UP_TO_0_17, "config/speculative.py 0.17.0"),
    since("0.18.0", _UP_TO_0_18, "config/speculative.py 0.18.0"),
    since("0.20.0", (*_UP_TO_0_18, "minimax_m2", "gemma4"), "config/speculative.py 0.20.0"),
    since("0.21.0", (*_UP_TO_0_18, "minimax_m2", "gemma4", "laguna"), "config/speculative.py 0.21.0"),
    since("0.22.0", None, "no list of model types any more"),
)
#: The output of the last block, and the embedding, can be captured.
_ENDS_REACHED = Span.of("0.18.0")


def captured(raw: Mapping[str, object], version: Version, target: Target | None) -> tuple[Capture, ...]:
    """What is captured, the runner that runs by default first; ids are state ids, that is boundaries."""
    seen, n = view(raw, version), None if target is None else target.n_layers
    reach = (0, 0) if version in _ENDS_REACHED else (1, 1)
    v1 = at(V1_KEYS, version)
    v2 = Span.of("0.22.0")
    name, supported = _target(target, version)
    runners = {
        "V1": capture(
            seen, keys=v1.value, offset="as they are", default=llama_default, n=n, reach=reach, read_from=v1.source,
            runner="V1" if version in v2 else None, target_class=name, supported=supported,
        ),
        "V2": capture(
            seen, keys=V2_KEYS, offset="as they are", default=llama_default, n=n, reach=reach, runner="V2",
            target_class=name, supported=supported, read_from="v1/worker/gpu/spec_decode/eagle/eagle3_utils.py",
        ),
    }  # fmt: skip
    first = at(RUNNER, version).value
    return (runners[first], *(c for name, c in runners.items() if name != first and version in v2))


def _target(target: Target | None, version: Version) -> tuple[str | None, bool | None]:
    """The target's model type, and whether this version serves EAGLE-3 for it."""
    kind = target.text_config.get("model_type") if target is not None else None
    types = at(TARGET_TYPES, version).value
    if not isinstance(kind, str):
        return None, None
    return kind, None if types is None else any(known in kind for known in types)


BUGS = (
    Bug(
        "FM-14",
        Span.of("0.9.0", "0.9.1"),
        "reduced vocabulary",
        "d2t is loaded and then thrown away in this version",
        "After loading, the name that d2t had in the file is looked for among the parameters' names, is not found, and the map is set to None: "
        "draft ids are read as the first ids of the target (1.12 where 2.99 was right).",
        "Upgrade to vLLM 0.9.1 or newer; the file is right as it is.",
        "PR #18488 (2025-05-21) brought it, PR #18909 took it away; which releases lie between is told by their dates",
    ),
)

ENGINE = Engine(
    name="vllm",
    first=Version.parse("0.9.0"),
    last=Version.parse("0.33.0"),
    classes=(LLAMA, QWEN3, DEEPSEEK),
    architecture=architecture,
    captured=captured,
    default=llama_default,
    bugs=BUGS,
)
