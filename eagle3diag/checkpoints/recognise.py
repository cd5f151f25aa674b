"""What a checkpoint is: an EAGLE-3 draft or another kind of one, and whose trainer's layout it has. Judged by names, shapes and config."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from eagle3diag.checkpoints.names import canonical_names, layer_numbers
from eagle3diag.checkpoints.tensors import Tensors

EAGLE3 = ("eagle3", "peagle")
"""Kinds that are read as EAGLE-3 drafts; P-EAGLE is one with a learned state for tokens that are drafted in parallel."""

KIND_WORDS: Mapping[str, str] = {
    "eagle3": "an EAGLE-3 draft",
    "peagle": "a P-EAGLE draft (EAGLE-3 with parallel drafting)",
    "eagle": "an EAGLE-1/2 draft: one state of the target, no aux states",
    "mtp": "MTP/NextN layers",
    "medusa": "Medusa heads",
    "dflash": "a DFlash draft",
    "dspark": "a DSpark draft",
    "xpress": "an XPress draft",
    "model": "a whole language model",
}

#: ``speculators_model_type`` -> kind. Source: speculators 0.9.0, the classes registered in ``speculators/models``.
_MARKERS = {"eagle3": "eagle3", "peagle": "peagle", "eagle": "eagle", "mtp": "mtp", "dflash": "dflash", "dflash2": "dflash"} | {
    name: name for name in ("dspark", "xpress")
}

#: Names that only one kind has.
_NAMES = (
    ("peagle", re.compile(r"(^|\.)mask_hidden$")),
    ("medusa", re.compile(r"^medusa_heads?\.|^\d{1,3}\.\d{1,3}\.linear\.weight$")),
    ("mtp", re.compile(r"(^|\.)mtp(_layers|_block)?\.|\.(eh_proj|enorm|hnorm|shared_head)\.")),
    ("dspark", re.compile(r"(^|\.)markov_w[12]\b")),
)

#: Fields of the config that only one kind has.
_FIELDS = (("medusa", "medusa_num_heads"), ("dflash", "dflash_config"))

#: Parts of an architecture's name, the telling ones first.
_ARCHITECTURES = tuple((part, kind) for part, kind in (
    ("peagle", "peagle"), ("eagle3", "eagle3"), ("dflash", "dflash"), ("dspark", "dspark"), ("xpress", "xpress"), ("medusa", "medusa"),
    ("nextn", "mtp"), ("mtp", "mtp"), ("eagle", "eagle"),
))  # fmt: skip


@dataclass(frozen=True)
class Marks:
    """What recognition looks at. ``names`` are the file's own; ``shape`` answers by canonical name."""

    raw: Mapping[str, Any]
    names: frozenset[str]
    tensors: Tensors | None

    @classmethod
    def of(cls, raw: Mapping[str, Any], tensors: Tensors | None) -> Marks:
        return cls(raw, frozenset(tensors or ()), tensors)

    @property
    def architecture(self) -> str:
        """The first entry of ``architectures``; empty when there is none."""
        found = self.raw.get("architectures")
        return found[0] if isinstance(found, list) and found and isinstance(found[0], str) else ""

    @property
    def speculators(self) -> bool:
        return "speculators_model_type" in self.raw or isinstance(self.raw.get("transformer_layer_config"), Mapping)

    @property
    def eagle_config(self) -> Mapping[str, Any]:
        found = self.raw.get("eagle_config")
        return found if isinstance(found, Mapping) else {}

    def named(self, pattern: str) -> bool:
        """Whether some name of the file matches."""
        return any(re.search(pattern, name) for name in self.names)

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a canonical name; empty when it is not there."""
        stored = canonical_names(self.names).get(name)
        return () if stored is None or self.tensors is None else self.tensors.info(stored).shape


def kind_of(marks: Marks) -> tuple[str, str]:
    """The kind, a key of :data:`KIND_WORDS`, and what says so. A file's tensors weigh more than its config, which is often inherited."""
    marker = marks.raw.get("speculators_model_type")
    if isinstance(marker, str) and marker in _MARKERS:
        return _MARKERS[marker], f"speculators_model_type {marker}"
    for kind, pattern in _NAMES:
        if named := sorted(n for n in marks.names if pattern.search(n)):
            if kind == "mtp" and len(layer_numbers(marks.names)) > 3:  # a target that carries its MTP layers along
                break
            return kind, f"the name {named[0]}"
    if any(n.removeprefix("model.").endswith(".hidden_norm.weight") for n in marks.names):
        return "eagle3", "a layer with a hidden_norm"
    for kind, field in _FIELDS:
        if field in marks.raw:
            return kind, f"the field {field}"
    q, fc = marks.shape("layers.0.self_attn.q_proj.weight"), marks.shape("fc.weight")
    plain = len(q) == 2 and q[1] == marks.raw.get("hidden_size")
    dflash = "dflash" in marks.architecture.lower() or "dspark" in marks.architecture.lower()
    if plain and len(fc) == 2 and fc[1] == 2 * q[1] and not dflash:
        return "eagle", f"fc over two states of width {q[1]}, and a layer that reads one"
    if plain and not marks.named(r"(^|\.)fc\."):
        return "model", "a layer that reads one state, and no fc"
    for part, kind in _ARCHITECTURES:
        if part in marks.architecture.lower():
            return kind, f"architecture {marks.architecture}"
    return "eagle3", "nothing says otherwise"


@dataclass(frozen=True)
class _Sign:
    trainer: str
    words: str
    seen: Callable[[Marks], bool]


_MODELOPT_SWITCHES = {"use_input_layernorm_in_first_layer", "use_last_layernorm", "use_mtp_layernorm", "next_layer_regular"}
_SGLANG_CLASS = ("LlamaForCausalLMEagle3",)
_EMBEDDING = r"(^|\.)embed_tokens\."

#: The first sign that is seen decides. Source: each trainer's export code, versions in docs/checkpoints.md.
_SIGNS = (
    _Sign("speculators", "its own format (speculators_model_type, transformer_layer_config)", lambda m: m.speculators),
    _Sign("Model-Optimizer", "its switches in eagle_config", lambda m: bool(_MODELOPT_SWITCHES & m.eagle_config.keys())),
    _Sign("AngelSlim", "the field aux_hidden_states_layer_ids", lambda m: "aux_hidden_states_layer_ids" in m.raw),
    _Sign("AngelSlim", "architecture Eagle3LlamaForCausalLM over midlayer.* names",
          lambda m: m.architecture == "Eagle3LlamaForCausalLM" and m.named(r"^midlayer\.")),
    _Sign("Automodel", "its architecture", lambda m: bool(re.fullmatch(r"\w*Eagle3DraftModel", m.architecture))),
    _Sign("Automodel", "model.layers.0.* names beside a vocabulary map", lambda m: m.named(r"^model\.layers\.0\.") and m.named(r"^t2d$")),
    _Sign("TorchSpec", "an MLA draft with its own embedding (Model-Optimizer's MLA drafts have none)",
          lambda m: m.architecture.startswith("Eagle3Deepseek") and m.named(_EMBEDDING)),
    _Sign("Model-Optimizer", "an MLA draft under layers.0.* without an embedding",
          lambda m: m.architecture.startswith("Eagle3Deepseek") and m.named(r"^layers\.0\.") and not m.named(_EMBEDDING)),
    _Sign("TorchSpec", "SGLang's architecture with an embedding in the file (SpecForge's exporter to_hf writes the same)",
          lambda m: m.architecture in _SGLANG_CLASS and m.named(r"^(midlayer|layers\.0)\.") and m.named(_EMBEDDING)),
    _Sign("SpecForge", "SGLang's architecture over midlayer.* names, no embedding in the file",
          lambda m: m.architecture in _SGLANG_CLASS and m.named(r"^midlayer\.")),
    _Sign("Model-Optimizer", "SGLang's architecture over layers.0.* names, no embedding and no t2d in the file",
          lambda m: m.architecture in _SGLANG_CLASS and m.named(r"^layers\.0\.") and not m.named(r"^t2d$")),
    _Sign("EAGLE", "the target's architecture over midlayer.* names",
          lambda m: m.named(r"^midlayer\.") and m.architecture.endswith("ForCausalLM") and "Eagle" not in m.architecture),
)  # fmt: skip


def trainer_of(marks: Marks) -> tuple[str, str]:
    """The trainer whose layout this is, ``"unknown"`` when no sign is seen, and one sentence that says so."""
    for sign in _SIGNS:
        if sign.seen(marks):
            return sign.trainer, f"written by {_generation(sign.trainer, marks.raw)}, as seen by {sign.words}"
    return "unknown", "no trainer's layout is recognised"


#: A field that speculators' eagle3 config has since the version. Source: the wheels 0.1.0 to 0.9.0, ``models/eagle3/config.py``.
_SPECULATORS_SINCE = (
    (("fc_norm", "norm_output"), "0.7 or later"),
    (("norm_before_fc",), "0.5 or 0.6"),
    (("embed_requires_grad",), "0.4"),
    (("eagle_aux_hidden_state_layer_ids",), "0.3"),
)


def _generation(trainer: str, raw: Mapping[str, Any]) -> str:
    if trainer != "speculators":
        return trainer
    version = raw.get("speculators_version")
    if isinstance(version, str) and re.fullmatch(r"\d+(\.\d+)*\w{0,20}", version):
        return f"speculators {version}"
    return f"speculators {speculators_since(raw)} (by its fields)"


def speculators_since(fields: Iterable[str]) -> str:
    """Which versions write these fields, in words."""
    held = set(fields)
    return next((words for names, words in _SPECULATORS_SINCE if held & set(names)), "0.1 or 0.2")


__all__ = ["EAGLE3", "KIND_WORDS", "Marks", "kind_of", "speculators_since", "trainer_of"]
