"""Which boundaries of the target an engine feeds to a draft, as data: where ids are read, and what is done to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

NESTED, TOP = "eagle_config.eagle_aux_hidden_state_layer_ids", "eagle_aux_hidden_state_layer_ids"
#: AngelSlim's and vLLM's V2 runner's own names for the same list.
OTHERS = ("aux_hidden_states_layer_ids", "eagle_config.layer_ids")
DEFAULT = "the engine's default"

#: What an engine does to configured ids, for a target of n blocks, to get boundaries.
OFFSETS: Mapping[str, Callable[[tuple[int, ...], int | None], tuple[int, ...]]] = {
    "as they are": lambda ids, n: ids,
    "one is added": lambda ids, n: tuple(i + 1 for i in ids),
    "one is added if the first is 1": lambda ids, n: tuple(i + 1 for i in ids) if ids[0] == 1 else ids,
    "one is added unless the last block is among them": lambda ids, n: ids if max(ids) == n else tuple(i + 1 for i in ids),
}


@dataclass(frozen=True)
class Capture:
    """What an engine version would capture for one draft and target.

    Attributes
    ----------
    boundaries: ascending, as engines concatenate them; None when they depend on a target that was not given; empty when aux states are
        switched off and the final, normed state is fed.
    lost: boundaries asked for that this target's class never captures.
    source: the config key that won, or :data:`DEFAULT`. ids: what stands there. offset: a key of :data:`OFFSETS`.
    unread: keys that hold ids and are not read.
    target_class: the target's architecture; supported: whether its class can capture in this version (None: not known).
    runner: the part of the engine that this holds for, where it has two that differ.
    read_from: where the rule was read.
    """

    boundaries: tuple[int, ...] | None
    source: str
    ids: tuple[int, ...] | None
    offset: str
    unread: tuple[str, ...]
    read_from: str
    lost: tuple[int, ...] = ()
    target_class: str | None = None
    supported: bool | None = None
    runner: str | None = None


def llama_default(n: int) -> tuple[int, int, int]:
    """The layers that every engine takes when a draft names none: boundaries (2, n//2, n-3).

    >>> llama_default(30)
    (2, 15, 27)
    """
    return 2, n // 2, n - 3


def written(raw: Mapping[str, object]) -> dict[str, tuple[int, ...]]:
    """Every key of a raw draft config that holds layer ids, and what it holds."""
    eagle = raw.get("eagle_config")
    nested = eagle if isinstance(eagle, Mapping) else {}
    values = {
        NESTED: nested.get("eagle_aux_hidden_state_layer_ids"),
        TOP: raw.get(TOP),
        OTHERS[0]: raw.get(OTHERS[0]),
        OTHERS[1]: nested.get("layer_ids"),
    }
    return {key: ids for key, value in values.items() if (ids := _numbers(value))}


def switched_off(raw: Mapping[str, object]) -> bool:
    """Whether ``eagle_config.use_aux_hidden_state`` is false: the draft wants the final state alone."""
    eagle = raw.get("eagle_config")
    return isinstance(eagle, Mapping) and eagle.get("use_aux_hidden_state", True) is False


def capture(
    raw: Mapping[str, object],
    *,
    keys: tuple[str, ...],
    offset: str,
    default: Callable[[int], tuple[int, ...]],
    n: int | None,
    reach: tuple[int, int],
    read_from: str,
    target_class: str | None = None,
    supported: bool | None = None,
    runner: str | None = None,
) -> Capture:
    """Resolve as an engine does: the first of ``keys`` that holds ids, else ``default``; sorted, each once.

    ``n``: blocks of the target, None when it is not known. ``reach``: how far the capture goes at both ends, as boundaries counted from
    0 and from ``n``: ``(0, 0)`` reaches everything, ``(1, 1)`` neither the embedding nor the last block's output.
    """
    held = written(raw)
    key = next((k for k in keys if k in held), DEFAULT)
    ids = held.get(key)
    asked: tuple[int, ...] | None
    if ids is not None:
        asked = OFFSETS[offset](ids, n)
    else:
        asked = None if n is None else default(n)
    lost = tuple(b for b in sorted(set(asked or ())) if b < reach[0] or (n is not None and b > n - reach[1]))
    return Capture(
        boundaries=None if asked is None else tuple(b for b in sorted(set(asked)) if b not in lost),
        source=key,
        ids=ids,
        offset=offset if ids is not None else "",
        unread=tuple(k for k in held if k not in keys),
        read_from=read_from,
        lost=lost,
        target_class=target_class,
        supported=supported,
        runner=runner,
    )


def _numbers(value: object) -> tuple[int, ...] | None:
    if isinstance(value, (list, tuple)) and value and all(type(i) is int for i in value):
        return tuple(value)
    return None
