"""Tensor names: every trainer's spelling of a draft's weights, brought to one canonical spelling."""

from __future__ import annotations

import re
from collections.abc import Iterable

#: SGLang renames the same three (``llama_eagle3.py::load_weights``, since 0.5.12).
_LEGACY = {"aux_norm_low.": "fc_norm.0.", "aux_norm_mid.": "fc_norm.1.", "aux_norm_high.": "fc_norm.2."}
#: Endings of names that no draft needs from its file: tables that every engine computes, and speculators' copies of the target's own weights.
IDLE = ("rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached", "verifier_norm.weight", "verifier_lm_head.weight")
_LAYER = re.compile(r"layers\.(\d{1,9})\.")

#: What quantised layers hold beside, or in place of, their weights.
SCALES = re.compile(r"(_scale|_scale_inv|_zero_point|\.scales?|\.qzeros|\.g_idx|weight_g_idx|weight_shape|\.qweight|weight_packed)(_2)?$")
#: The codes of a weight in place of the weight: GPTQ's and AWQ's, and compressed-tensors'.
PACKED = re.compile(r"\.(qweight|weight_packed)$")


def canonical(name: str) -> str:
    """The canonical spelling of one checkpoint name: no leading ``model.``, ``layers.0.`` for ``midlayer.``; others unchanged.

    >>> canonical("midlayer.self_attn.q_proj.weight"), canonical("model.fc.weight"), canonical("eagle_module.fc.weight")
    ('layers.0.self_attn.q_proj.weight', 'fc.weight', 'eagle_module.fc.weight')
    """
    name = name.removeprefix("model.")
    if name.startswith("midlayer."):
        return "layers.0." + name.removeprefix("midlayer.")
    for old, new in _LEGACY.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


def canonical_names(names: Iterable[str]) -> dict[str, str]:
    """Canonical name -> checkpoint name. Where two names claim one place, the canonical spelling has it; the other keeps its own name.

    >>> canonical_names(["midlayer.hidden_norm.weight", "layers.0.hidden_norm.weight"])
    {'layers.0.hidden_norm.weight': 'layers.0.hidden_norm.weight', 'midlayer.hidden_norm.weight': 'midlayer.hidden_norm.weight'}
    """
    found: dict[str, str] = {}
    for name in sorted(names, key=lambda n: (canonical(n) != n, n)):
        place = canonical(name)
        found[place if place not in found else name] = name
    return dict(sorted(found.items()))


def layer_numbers(names: Iterable[str]) -> tuple[int, ...]:
    """The numbers of the layers that the names speak of, ascending."""
    return tuple(sorted({int(m.group(1)) for n in names if (m := _LAYER.match(canonical(n)))}))


__all__ = ["IDLE", "canonical", "canonical_names", "layer_numbers"]
