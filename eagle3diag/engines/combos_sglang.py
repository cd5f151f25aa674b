"""Combinations of SGLang's options that a draft does not bear, as data. Refusals were read in ``speculative_hook.py`` of 0.5.23 and
``server_args.py`` before; the rest in the reports that each row names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eagle3diag.engines.flags import Combination

if TYPE_CHECKING:
    from eagle3diag.serving.launch import Launch

ALGORITHMS = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM", "DFLASH", "DSPARK", "UNO", "FROZEN_KV_MTP")
_NO_BACKEND_FOR_TREES = "only flashinfer, fa3 and triton implement the two passes that a tree over pages needs"


def _eagle(o: Launch) -> bool:
    return (o.algorithm or "").upper() in ("EAGLE", "EAGLE3", "NEXTN")


def _eagle3(o: Launch) -> bool:
    return (o.algorithm or "").upper() == "EAGLE3"


def _tree(o: Launch) -> bool:
    return _eagle(o) and (o.topk or 1) > 1


def _backend(o: Launch) -> str:
    return o.get("attention-backend", "decode-attention-backend") or ""


def _pool(o: Launch) -> float:
    """Candidates of a tree: K at the first level, K * K at each of the others."""
    k, s = o.topk or 1, o.steps or 1
    return k + (s - 1) * k * k


def _threshold(o: Launch) -> bool:
    return any((o.number(f"speculative-accept-threshold-{kind}") or 1.0) < 1.0 for kind in ("single", "acc"))


_STEPS = ("speculative-num-steps", "speculative-eagle-topk", "speculative-num-draft-tokens")

COMBINATIONS = (
    Combination(
        "FM-03", "fails", "a draft is named, and no algorithm: nothing is drafted",
        "Without --speculative-algorithm the server runs the target alone and says nothing about the other options.",
        "Add --speculative-algorithm EAGLE3.", "server_args.py, every version",
        lambda o: o.algorithm is None and (o.draft_path is not None or o.steps is not None), ("speculative-draft-model-path", *_STEPS),
        absent=True,
    ),
    Combination(
        "FM-03", "refused", "the algorithm is not one that SGLang knows",
        f"Known are {', '.join(ALGORITHMS)}, and names that a plug-in registers.",
        "Write --speculative-algorithm EAGLE3.", "spec_info.py, SpeculativeAlgorithm.from_string",
        lambda o: o.algorithm is not None and o.algorithm.upper() not in ALGORITHMS and o.algorithm.upper() != "NONE" and "$" not in o.algorithm,
        ("speculative-algorithm",),
    ),
    Combination(
        "FM-03", "refused", "the algorithm must be written in capitals in this version",
        "Until 0.5.11 the option takes only the listed spellings; later versions read it in any case.",
        "Write --speculative-algorithm EAGLE3.", "server_args.py, choices=[...] in the wheels 0.4.5 to 0.5.11",
        lambda o: o.algorithm is not None and o.algorithm != o.algorithm.upper() and o.algorithm.upper() in ALGORITHMS,
        ("speculative-algorithm",), until="0.5.12",
    ),
    Combination(
        "FM-03", "refused", "EAGLE3 without a draft",
        "An EAGLE-3 head is a checkpoint of its own; only targets that carry MTP layers can do without one.",
        "Add --speculative-draft-model-path DRAFT.", "eagle_worker.py",
        lambda o: _eagle3(o) and o.draft_path is None and not o.has("enable-return-aux-hidden-states"),
        ("speculative-algorithm",), absent=True,
    ),
    Combination(
        "FM-03", "fails", "the draft is loaded with random weights",
        "--speculative-draft-load-format dummy fills the draft with noise: it is meant for measuring speed, and nothing will be accepted.",
        "Remove the option.", "weight loader, load_format dummy",
        lambda o: o.get("speculative-draft-load-format") == "dummy" or (o.get("load-format") == "dummy" and o.get("speculative-draft-load-format") is None),
        ("speculative-draft-load-format", "load-format"),
    ),
    Combination(
        "FM-76", "fails", "acceptance is simulated, not measured",
        "SGLANG_SIMULATE_ACC_LEN overwrites the accept length after each verification: log and metrics show the number that was asked for.",
        "Unset SGLANG_SIMULATE_ACC_LEN.", "speculative/spec_utils.py",
        lambda o: bool(o.environment.get("SGLANG_SIMULATE_ACC_LEN")) and not o.environment["SGLANG_SIMULATE_ACC_LEN"].startswith("-"),
        (),
    ),
    Combination(
        "FM-04", "changes", "a chain has steps + 1 slots; the number given is not used",
        "With topk 1 SGLang sets num_draft_tokens to num_steps + 1 and says so in one line of the log.",
        "Give --speculative-num-draft-tokens as steps + 1, or leave it out.", "speculative_hook.py; server_args.py since 0.4.6",
        lambda o: _eagle(o) and (o.topk or 1) == 1 and o.steps is not None and o.num_draft_tokens not in (None, o.steps + 1), _STEPS, absent=True,
    ),
    Combination(
        "FM-04", "refused", "topk or slots without steps",
        "The three are chosen together: when num_steps is left open, the other two must be too.",
        "Give --speculative-num-steps as well, or none of the three.", "speculative_hook.py, assertion; server_args.py before",
        lambda o: _eagle(o) and o.steps is None and (o.topk, o.num_draft_tokens) != (None, None) and not o.has("speculative-adaptive"), _STEPS, absent=True,
    ),
    Combination(
        "FM-04", "refused", "more slots than the tree has candidates",
        "topk + (steps - 1) * topk^2 candidates are drafted, and slots - 1 of them are to be chosen.",
        "Lower --speculative-num-draft-tokens.", "eagle_utils.py, organize_draft_results: torch.topk over the pool",
        lambda o: _tree(o) and o.steps is not None and o.num_draft_tokens is not None and o.num_draft_tokens - 1 > _pool(o), _STEPS,
    ),
    Combination(
        "FM-04", "changes", "the tree is too small for its deepest path",
        "A path of num_steps drafts needs num_steps + 1 slots; with fewer the last steps are drafted and never verified.",
        "Raise --speculative-num-draft-tokens, or lower --speculative-num-steps.", "eagle_utils.py",
        lambda o: _tree(o) and o.steps is not None and o.num_draft_tokens is not None and o.num_draft_tokens < o.steps + 1, _STEPS,
    ),
    Combination(
        "FM-60", "refused", "trees are not possible with trtllm_mha", "This backend verifies chains only.",
        "Set --speculative-eagle-topk 1, or another --attention-backend.", "speculative_hook.py, ValueError",
        lambda o: _tree(o) and "trtllm_mha" in _backend(o), ("attention-backend", "speculative-eagle-topk"),
    ),
    Combination(
        "FM-60", "refused", "trees over pages are not possible with this attention backend", f"Of the backends {_NO_BACKEND_FOR_TREES}.",
        "Set --page-size 1, --speculative-eagle-topk 1, or --attention-backend flashinfer.", "speculative_hook.py, ValueError",
        lambda o: _tree(o) and (o.number("page-size") or 1) > 1 and _backend(o) not in ("flashinfer", "fa3", "triton", ""),
        ("attention-backend", "page-size", "speculative-eagle-topk"),
    ),
    Combination(
        "FM-60", "refused", "torch_native cannot draft more than one step", "It has no multi-step backend for drafts.",
        "Choose another --attention-backend.", "draft_utils.py: EAGLE is not supported in decode attention backend torch_native",
        lambda o: _eagle(o) and _backend(o) == "torch_native" and (o.steps or 3) > 1, ("attention-backend", "speculative-num-steps"),
        absent=True,
    ),
    Combination(
        "FM-63", "refused", "spec V2 takes chains only in this version", "Until 0.5.12 the overlapping worker raises with topk over 1.",
        "Set --speculative-eagle-topk 1, or unset SGLANG_ENABLE_SPEC_V2.", "server_args.py 0.5.4-0.5.12",
        lambda o: _tree(o) and o.environment.get("SGLANG_ENABLE_SPEC_V2", "").lower() in ("1", "true"),
        ("speculative-eagle-topk",), since="0.5.4", until="0.5.13",
    ),
    Combination(
        "FM-63", "changes", "spec V2 is switched on; it was new in this version", "Reports found it below V1 there (3.18 against 2.14).",
        "If acceptance is low, measure once without SGLANG_ENABLE_SPEC_V2.", "sgl-project/sglang#14060, #14063",
        lambda o: _eagle(o) and o.environment.get("SGLANG_ENABLE_SPEC_V2", "").lower() in ("1", "true"), (), since="0.5.4", until="0.5.11",
    ),
    Combination(
        "FM-23", "spoils", "the draft is given the target's quantisation",
        "--quantization holds for the draft too unless the draft is given its own; a bf16 draft then fails to load, or is quantised on the fly.",
        "Add --speculative-draft-model-quantization unquant.", "model_config.py; sgl-project/sglang#28196",
        lambda o: _eagle(o) and o.draft_path is not None and o.has("quantization") and not o.has("speculative-draft-model-quantization"),
        ("quantization",), absent=True,
    ),
    Combination(
        "FM-37", "spoils", "with fused all-reduce, aux states are partial sums in this version",
        "Until 0.5.13 DeepSeek and Kimi targets were captured before the deferred all-reduce: each rank then sees its own part only.",
        "Upgrade to 0.5.14, or drop --enable-flashinfer-allreduce-fusion.", "PR #28343",
        lambda o: _eagle3(o) and o.has("enable-flashinfer-allreduce-fusion") and (o.number("tp-size", "tensor-parallel-size", "tp") or 1) > 1,
        ("enable-flashinfer-allreduce-fusion", "tp-size", "tensor-parallel-size"), since="0.5.5", until="0.5.14",
    ),
    Combination(
        "FM-40", "spoils", "with pipeline parallelism only the last stage captures",
        "Aux layers on other stages are not seen by the draft.",
        "Use tensor parallelism instead of --pp-size.", "sgl-project/sglang#33584; model_runner.py",
        lambda o: _eagle3(o) and (o.number("pp-size", "pipeline-parallel-size") or 1) > 1,
        ("pp-size", "pipeline-parallel-size"),
    ),
    Combination(
        "FM-39", "changes", "DP attention pads the rows that a draft is fed",
        "Reports: acceptance fell by a third, or NaN assertions, until the pads were stripped.",
        "If acceptance is low, measure once without --enable-dp-attention.", "sgl-project/sglang#26911, #26016",
        lambda o: _eagle(o) and o.has("enable-dp-attention"), ("enable-dp-attention",), until="0.5.14",
    ),
    Combination(
        "FM-75", "changes", "drafts are accepted that the target would not have written",
        "An accept threshold below 1 trades exactness for acceptance: the numbers are not comparable with lossless ones.",
        "Leave the thresholds at 1.0 while diagnosing.", "eagle_utils.py, eagle_sample",
        _threshold, ("speculative-accept-threshold-single", "speculative-accept-threshold-acc"),
    ),
    Combination(
        "FM-75", "refused", "rejection sampling takes chains only", "It needs --speculative-eagle-topk 1.",
        "Set --speculative-eagle-topk 1.", "speculative_hook.py, ValueError",
        lambda o: _tree(o) and o.has("speculative-use-rejection-sampling"), ("speculative-use-rejection-sampling", "speculative-eagle-topk"),
    ),
    Combination(
        "FM-14", "changes", "the token map is not used under EAGLE3", "The draft's own d2t counts; the option is ignored with a warning.",
        "Remove --speculative-token-map.", "eagle_worker.py",
        lambda o: _eagle3(o) and o.has("speculative-token-map"), ("speculative-token-map",),
    ),
    Combination(
        "FM-51", "changes", "prefill and decode run apart: both need the same draft",
        "The decode server's first drafts rest on states that the prefill server sends.",
        "Give both roles the same --speculative-... options, and look at the first rounds of each request.", "sgl-project/sglang#9976, #10801",
        lambda o: o.get("disaggregation-mode") in ("prefill", "decode"), ("disaggregation-mode",),
    ),
)  # fmt: skip
