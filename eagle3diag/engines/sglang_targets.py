"""SGLang's targets: which class captures aux states since when, and what each does to configured layer ids.

Read in the wheels 0.4.5 to 0.5.23, ``set_eagle3_layers_to_capture`` of every model file and of what inherits it; versions between those
unpacked are not told apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from eagle3diag.checkpoints.target import Target
from eagle3diag.engines.layers import NESTED, TOP, Capture, capture, llama_default, switched_off, written
from eagle3diag.engines.rules import Since, Version, at, since

_PLUS_ONE = (since("0.4.9", "one is added", "set_eagle3_layers_to_capture: layers_to_capture = [val + 1 for val in layer_ids]"),)
_DEEPSEEK = (
    since("0.5.5", "one is added", "deepseek_v2.py 0.5.5-0.5.12"),
    since("0.5.13", "one is added if the first is 1", "PR #25454, first in 0.5.13"),
)
_GPT_OSS = (
    since("0.5.2", "one is added", "gpt_oss.py up to 0.5.16"),
    since("0.5.17", "one is added unless the last block is among them", "PR #32334, first in 0.5.17"),
)


@dataclass(frozen=True)
class Family:
    """Targets of one model file: architecture to the first version that captures for it.

    ``last_block``: the version from which the output of the last block can be captured; None: never. ``default``: from the number of
    blocks to boundaries, where the draft names none.
    """

    module: str
    classes: Mapping[str, str]
    offsets: tuple[Since[str], ...] = _PLUS_ONE
    last_block: str | None = None
    default: Callable[[int], tuple[int, ...]] = llama_default


FAMILIES = (
    Family("llama.py", {
        "LlamaForCausalLM": "0.4.5", "MistralForCausalLM": "0.4.5", "Phi3ForCausalLM": "0.4.5", "InternLM3ForCausalLM": "0.4.5",
        "Llama4ForCausalLM": "0.4.5", "Ministral3ForCausalLM": "0.5.8", "TeleFLMForCausalLM": "0.5.8", "IQuestCoderForCausalLM": "0.5.8",
    }),
    Family("mllama4.py", {"Llama4ForConditionalGeneration": "0.4.9"}),
    Family("qwen3.py", {"Qwen3ForCausalLM": "0.4.9"}),
    Family("qwen3_moe.py", {"Qwen3MoeForCausalLM": "0.4.9", "MellumForCausalLM": "0.5.16"}),
    Family("qwen2.py", {"Qwen2ForCausalLM": "0.5.2"}),
    Family("qwen2_moe.py", {"Qwen2MoeForCausalLM": "0.5.2"}),
    Family("qwen2_5_vl.py", {"Qwen2_5_VLForConditionalGeneration": "0.5.2"}),
    Family("qwen3_next.py", {"Qwen3NextForCausalLM": "0.5.10"}),
    Family("qwen3_vl.py", {
        "Qwen3VLForConditionalGeneration": "0.5.11", "Qwen3VLMoeForConditionalGeneration": "0.5.11",
        "Qwen3_5ForConditionalGeneration": "0.5.11", "Qwen3_5MoeForConditionalGeneration": "0.5.11",
        "InternS1ProForConditionalGeneration": "0.5.11", "InternS2PreviewForConditionalGeneration": "0.5.12",
    }),
    Family("apertus.py", {"ApertusForCausalLM": "0.5.4"}),
    Family("glm4_moe.py", {"Glm4MoeForCausalLM": "0.5.5"}),
    Family("glm5_next.py", {"Glm5NextForConditionalGeneration": "0.5.20"}),
    Family("deepseek_v2.py", {
        "DeepseekV2ForCausalLM": "0.5.5", "DeepseekV3ForCausalLM": "0.5.5", "DeepseekV32ForCausalLM": "0.5.5",
        "MistralLarge3ForCausalLM": "0.5.8", "Glm4MoeLiteForCausalLM": "0.5.8", "GlmMoeDsaForCausalLM": "0.5.10",
    }, _DEEPSEEK),
    Family("kimi_k25.py", {"KimiK25ForConditionalGeneration": "0.5.10"}, _DEEPSEEK),
    Family("gpt_oss.py", {"GptOssForCausalLM": "0.5.2"}, _GPT_OSS, last_block="0.5.17"),
    Family("minimax_m2.py", {"MiniMaxM2ForCausalLM": "0.5.8"}),
    Family("minimax_m3.py", {"MiniMaxM3SparseForCausalLM": "0.5.16"}, last_block="0.5.23"),
    Family(
        "minimax_m3_vl.py", {"MiniMaxM3SparseForConditionalGeneration": "0.5.20"}, last_block="0.5.23",
        default=lambda n: (3, n // 2 + 1, n - 2),
    ),
    Family("longcat_flash.py", {"LongcatFlashForCausalLM": "0.5.8"}),
    Family("exaone_moe.py", {"ExaoneMoEForCausalLM": "0.5.10", "ExaoneMoeForCausalLM": "0.5.22"}),
    Family("bailing_moe.py", {
        "BailingMoEForCausalLM": "0.5.10", "BailingMoeForCausalLM": "0.5.10", "BailingMoeV2ForCausalLM": "0.5.10",
        "SarvamMoEForCausalLM": "0.5.10",
    }),
    Family("gemma3_causal.py", {"Gemma3ForCausalLM": "0.5.12", "Gemma3ForConditionalGeneration": "0.5.12"}, last_block="0.5.23"),
    Family("gemma4_causal.py", {
        "Gemma4ForCausalLM": "0.5.12", "Gemma4ForConditionalGeneration": "0.5.12", "Gemma4UnifiedForConditionalGeneration": "0.5.13",
    }, last_block="0.5.23"),
)  # fmt: skip

#: Drafts that are made for targets of one family: whose rules hold where the target is not given.
_OF_DRAFTS: Mapping[object, Family] = {"Eagle3DeepseekV2ForCausalLM": next(f for f in FAMILIES if f.module == "deepseek_v2.py")}

#: The embedding's output (boundary 0) can be captured.
_FROM_EMBEDDING = Version.parse("0.5.22")
#: ``eagle_config.use_aux_hidden_state`` is read: first seen in 0.5.8.
_SWITCH_READ = Version.parse("0.5.8")
_IDS_READ = Version.parse("0.4.9")


def family_of(target: Target | None) -> tuple[str | None, Family | None]:
    """The target's architecture, and its family when it is one that captures in some version."""
    names = target.config.get("architectures") if target is not None else None
    name = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else None
    return name, next((family for family in FAMILIES if name in family.classes), None)


def captured(raw: Mapping[str, object], version: Version, target: Target | None) -> tuple[Capture, ...]:
    """What ``version`` captures for a draft's raw config and a target; ids are read from ``eagle_config`` alone.

    Source: ``model_runner.py`` up to 0.5.15, then ``spec_aux_hidden_state.py::_resolve_eagle_aux_hidden_state``.
    """
    name, family = family_of(target)
    if target is None:
        drafts = raw.get("architectures")
        family = _OF_DRAFTS.get(drafts[0]) if isinstance(drafts, list) and drafts and isinstance(drafts[0], str) else None
    first = None if name is None or family is None else family.classes.get(name)
    supported = None if name is None else family is not None and (first is None or Version.parse(first) <= version)
    if switched_off(raw) and version >= _SWITCH_READ:
        unread = tuple(key for key in written(raw) if key == TOP)
        source = "eagle_config.use_aux_hidden_state is false"
        return (Capture((), source, None, "", unread, "spec_aux_hidden_state.py", target_class=name, supported=supported),)
    offset = at((family.offsets if family else _PLUS_ONE), version)
    last = family is not None and family.last_block is not None and Version.parse(family.last_block) <= version
    return (
        capture(
            raw,
            keys=(NESTED,) if version >= _IDS_READ else (),
            offset=offset.value,
            default=family.default if family else llama_default,
            n=None if target is None else target.n_layers,
            reach=(0 if version >= _FROM_EMBEDDING else 1, 0 if last else 1),
            read_from=offset.source if version >= _IDS_READ else "0.4.5-0.4.8: set_eagle3_layers_to_capture() takes no ids",
            target_class=name,
            supported=supported,
        ),
    )
