"""Combinations of vLLM's options that a draft does not bear, as data. Read in ``config/speculative.py`` of 0.9.2 to 0.32.0."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eagle3diag.engines.flags import Combination

if TYPE_CHECKING:
    from eagle3diag.serving.launch import Launch

METHODS = (
    "eagle", "eagle3", "ngram", "ngram_gpu", "medusa", "mlp_speculator", "draft_model", "suffix", "custom_class", "mtp", "dflash", "dspark",
    "extract_hidden_states",
)  # fmt: skip
_METHOD = ("speculative-config", "spec-method")


def method(o: Launch) -> str | None:
    """The method as vLLM takes it: the one given, else by the draft's name (a name with "eagle-" is EAGLE-1, even when it says 3 later).

    >>> from eagle3diag.serving import parse_launch
    >>> method(parse_launch("vllm serve T -sc.model yuhuili/EAGLE3-LLaMA3.1"))
    'eagle3'
    """
    if o.algorithm is not None or o.draft_path is None:
        return o.algorithm
    name = o.draft_path.lower()
    return next(
        (m for part, m in (("eagle-", "eagle"), ("eagle3", "eagle3"), ("dflash", "dflash"), ("dspark", "dspark")) if part in name),
        "draft_model",
    )


def _tp(o: Launch) -> float:
    return o.number("tensor-parallel-size") or 1


COMBINATIONS = (
    Combination(
        "FM-03", "refused", "the method is not one that vLLM knows", f"Known are {', '.join(METHODS)}, in small letters.",
        'Write "method": "eagle3".', "config/speculative.py, SpeculativeMethod",
        lambda o: o.algorithm is not None and o.algorithm not in METHODS and not o.algorithm.endswith("_mtp") and "$" not in o.algorithm, _METHOD,
    ),
    Combination(
        "FM-01", "fails", "no method is named, and the draft's name does not say EAGLE-3",
        "vLLM then guesses from the draft's name: without \"eagle3\" in it the draft is run as a plain model or as EAGLE-1.",
        'Add "method": "eagle3".', "config/speculative.py, __post_init__; vllm-project/vllm#21737",
        lambda o: o.algorithm is None and o.draft_path is not None and method(o) in ("eagle", "draft_model"), _METHOD, absent=True,
    ),
    Combination(
        "FM-03", "refused", "eagle3 without a draft", "num_speculative_tokens was provided but without speculative model.",
        'Add "model": "DRAFT".', "config/speculative.py, ValueError",
        lambda o: o.algorithm in ("eagle", "eagle3") and o.draft_path is None, _METHOD, absent=True,
    ),
    Combination(
        "FM-04", "changes", "the number of drafts a round is not given",
        "num_speculative_tokens is then taken from a speculators config; for other drafts the start ends with an error.",
        'Add "num_speculative_tokens".', "config/speculative.py",
        lambda o: o.algorithm in ("eagle", "eagle3") and o.draft_path is not None and o.steps is None and not o.has("num-speculative-tokens"), _METHOD,
        absent=True,
    ),
    Combination(
        "FM-76", "fails", "acceptance is synthetic, not measured",
        "rejection_sample_method synthetic accepts drafts at a rate that was asked for.",
        "Remove rejection_sample_method and the synthetic_... fields.", "config/speculative.py, since 0.18",
        lambda o: o.speculative.get("rejection_sample_method") == "synthetic", _METHOD,
    ),
    Combination(
        "FM-80", "refused", "the draft's tensor parallelism is neither 1 nor the target's",
        "draft_tensor_parallel_size can only be 1 or the same as the target's.",
        "Remove draft_tensor_parallel_size.", "config/speculative.py, _verify_and_get_draft_tp",
        lambda o: float(o.speculative.get("draft_tensor_parallel_size") or 1) not in (1.0, _tp(o)),
        ("speculative-config", "tensor-parallel-size"), absent=True,
    ),
    Combination(
        "FM-40", "spoils", "with pipeline parallelism aux layers live on other stages", "The draft sees the layers of its own stage only.",
        "Use tensor parallelism instead.", "vllm-project/vllm#50514",
        lambda o: o.algorithm == "eagle3" and (o.number("pipeline-parallel-size") or 1) > 1, ("pipeline-parallel-size",),
    ),
    Combination(
        "FM-74", "changes", "the V0 engine counts drafts after a wrong one too", "Its acceptance rate is above the strict one.",
        "Unset VLLM_USE_V1=0.", "spec_decode/metrics.py up to 0.9",
        lambda o: o.environment.get("VLLM_USE_V1") == "0" and o.algorithm is not None, (), until="0.11",
    ),
)  # fmt: skip
