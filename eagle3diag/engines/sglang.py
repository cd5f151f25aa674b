"""SGLang's dense EAGLE-3 draft class, ``srt/models/llama_eagle3.py``: what it does with each name of a checkpoint, by version.

Every rule was read in the wheels 0.4.4 to 0.5.23; those of 0.5.23 were run (parameters filled with NaN, loaded, looked at).
"""

from __future__ import annotations

import re

from eagle3diag.engines.rules import Since, Version, at

NAME = "sglang"
FIRST, LAST = Version((0, 4, 5)), Version((0, 5, 23))
DEFAULT = "0.5.23"

_V = Version.parse

#: What becomes of a decoder-layer name that starts otherwise than with ``midlayer.``.
LAYER_NAMES = (
    Since(_V("0.4.5"), "midlayer, others raise KeyError", "llama_eagle3.py 0.4.5-0.4.8: unknown stacked names raise"),
    Since(_V("0.4.9"), "midlayer", "llama_eagle3.py 0.4.9-0.5.11: own loader, unknown names are skipped in silence"),
    Since(_V("0.5.12"), "midlayer or layers.N", "PR #24663, first in 0.5.12: midlayer is renamed to layers.0"),
)

#: What the log's ``accept rate`` means.
ACCEPT_RATE = (
    Since(_V("0.4.5"), "none", "scheduler log up to 0.5.2 prints accept len only"),
    Since(_V("0.5.4"), "biased by steps", "0.5.4, 0.5.5: accepted + bonus over calls * (steps + 1)"),
    Since(_V("0.5.5.post3"), "biased", "0.5.5.post3-0.5.10: accepted + bonus over calls * slots, so 1/slots when nothing is accepted"),
    Since(_V("0.5.11"), "strict", "PR #23530, since 0.5.11: accepted drafts over proposed drafts"),
)

#: Added to the RoPE position of draft steps after the first.
POSITION_OFFSET = (
    Since(_V("0.4.5"), "1", "eagle_worker.py up to 0.5.11: positions.add_(1) before each draft forward"),
    Since(_V("0.5.12"), "0", "PR #25015, first in 0.5.12"),
)

#: Whether ids in ``eagle_config`` are read at all.
LAYER_IDS = (
    Since(_V("0.4.5"), "default only", "0.4.5-0.4.8: configured ids are never read"),
    Since(_V("0.4.9"), "eagle_config", "model_runner.py / spec_aux_hidden_state.py: eagle_config.eagle_aux_hidden_state_layer_ids, +1"),
)

_STACKED = (".q_proj", ".k_proj", ".v_proj", ".gate_proj", ".up_proj")


def default_boundaries(n_layers: int) -> tuple[int, int, int]:
    """What llama-like targets capture when the draft names no layers: boundaries (2, n//2, n-3).

    >>> default_boundaries(30)
    (2, 15, 27)
    """
    return 2, n_layers // 2, n_layers - 3


def destination(name: str, version: Version) -> str | None:
    """The canonical parameter that checkpoint name ``name`` is loaded into; ``"d2t"`` and ``"t2d"`` for the maps; None: dropped.

    Source: ``LlamaForCausalLMEagle3.load_weights``. Names are tried as they are, then with ``model.`` in front.
    """
    if "d2t" in name:
        return "d2t"
    if "t2d" in name:
        return "t2d"
    rule = at(LAYER_NAMES, version).value
    if rule == "midlayer or layers.N":
        name = name.replace("midlayer", "layers.0")
        for i, old in enumerate(("aux_norm_low", "aux_norm_mid", "aux_norm_high")):
            name = name.replace(old, f"fc_norm.{i}")
        layer = r"(?:model\.)?layers\.(\d+)\."
    else:
        layer = r"(?:model\.)?midlayer()\."
    stem = name.removeprefix("model.")
    if match := re.match(layer, name):
        rest = name[match.end() :]
        known = rest.endswith(("_proj.weight", "norm.weight")) and "q_norm" not in rest and "k_norm" not in rest
        return f"layers.{match[1] or 0}.{rest}" if known else None
    return stem if stem in ("fc.weight", "norm.weight", "lm_head.weight", "embed_tokens.weight") else _newer(stem, version)


def _newer(stem: str, version: Version) -> str | None:
    if stem.startswith("fc_norm.") and version >= _V("0.5.12"):
        return stem
    if stem == "input_norm.weight" and version >= _V("0.5.17"):
        return stem
    return None


def raises_on_unknown(name: str, version: Version) -> bool:
    """True where an unknown decoder-layer name ends the start-up with a KeyError instead of being dropped (0.4.5 to 0.4.8)."""
    return at(LAYER_NAMES, version).value.endswith("KeyError") and any(part in name for part in _STACKED)
