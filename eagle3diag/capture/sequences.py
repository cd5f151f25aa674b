"""Rows of one batch, gathered over prefill and decode steps and handed out as one record per sequence, padding removed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass
class Forward:
    """What one forward of the target fed and gave: ``ids``/``valid`` [B, Q], ``states`` {boundary: [B, Q, H]}, ``final`` [B, Q, H]."""

    ids: Tensor
    valid: Tensor
    states: dict[int, Tensor]
    final: Tensor
    past: int  # tokens (padding included) that the cache held before this forward

    @property
    def width(self) -> int:
        return self.ids.shape[1]

    def _map(self, fn: Callable[[Tensor], Tensor]) -> Forward:
        return Forward(fn(self.ids), fn(self.valid), {b: fn(s) for b, s in self.states.items()}, fn(self.final), self.past)

    def first(self, columns: int) -> Forward:
        return self._map(lambda t: t[:, :columns])

    def rows(self, index: Tensor) -> Forward:
        return self._map(lambda t: t.index_select(0, index.to(t.device)))


class Batch:
    """Forwards that share one cache. ``number`` is the number of its first sequence, counted over the whole capture."""

    def __init__(self, first: Forward, number: int, cache: object | None) -> None:
        self.steps = [first]
        self.number = number
        self.cropped = False
        self._cache = None if cache is None else weakref.ref(cache)
        if cache is not None:
            self._follow_reordering(cache)

    @property
    def size(self) -> int:
        return self.steps[0].ids.shape[0]

    @property
    def end(self) -> int:
        """Columns fed so far, those before the capture began included."""
        return self.steps[-1].past + self.steps[-1].width

    @property
    def alive(self) -> bool:
        """Whether a later forward can still continue this batch."""
        return self._cache is not None and self._cache() is not None

    def has(self, cache: object | None) -> bool:
        return cache is not None and self._cache is not None and self._cache() is cache

    def accepts(self, step: Forward) -> bool:
        """Whether ``step`` continues these sequences; a cache that was cut back (assisted generation) still does."""
        return step.ids.shape[0] == self.size and self.steps[0].past < step.past <= self.end

    def append(self, step: Forward) -> None:
        """Add a step, first forgetting what the cache forgot."""
        while self.end > step.past:
            self.cropped = True
            last = self.steps.pop()
            if last.past < step.past:
                self.steps.append(last.first(step.past - last.past))
        self.steps.append(step)

    def records(self, pad_ids: frozenset[int], eos_ids: frozenset[int]) -> Iterator[dict[str, Any]]:
        """One dict each, on the CPU: ``input_ids`` [T], ``states`` {b: [T, H]}, ``final`` [T, H], ``prompt_length``, ``positions``."""
        self.release()
        ids = torch.cat([s.ids for s in self.steps], 1).cpu()
        valid = torch.cat([s.valid for s in self.steps], 1).cpu()
        prompt = self._prompt_columns()
        if prompt is not None and self.size > 1:
            masked = frozenset(ids[:, :prompt][~valid[:, :prompt]].tolist())
            for row in range(self.size):
                valid[row, _end_of_answer(ids[row].tolist(), prompt, pad_ids | masked, eos_ids) :] = False
        start = self.steps[0].past
        for row in range(self.size):
            keep = valid[row]
            if not bool(keep.any()):
                continue  # a row of padding only (engines pad batches to a fixed size) is no sequence
            yield {
                "input_ids": ids[row][keep],
                "states": {b: self._row([s.states[b] for s in self.steps], row, keep) for b in self.steps[0].states},
                "final": self._row([s.final for s in self.steps], row, keep),
                "prompt_length": None if prompt is None or start else int(keep[:prompt].sum()),
                "positions": torch.arange(start, start + int(keep.sum())) if start else None,
            }

    def release(self) -> None:
        """Take the wrapper off the cache object again."""
        cache = None if self._cache is None else self._cache()
        if cache is not None:
            vars(cache).pop("reorder_cache", None)

    @staticmethod
    def _row(chunks: list[Tensor], row: int, keep: Tensor) -> Tensor:
        # clone: without it a record would keep the whole batch alive, padding included
        return torch.cat([c[row] for c in chunks], 0).cpu()[keep].clone()

    def _prompt_columns(self) -> int | None:
        """Columns before the first one-token step, when all steps from there on are one token wide (plain decoding)."""
        first = next((i for i, s in enumerate(self.steps) if i and s.width == 1), None)
        if first is None or self.cropped or any(s.width != 1 for s in self.steps[first:]):
            return None
        return sum(s.width for s in self.steps[:first])

    def _follow_reordering(self, cache: object) -> None:
        """Beam search moves sequences between rows by ``cache.reorder_cache``; rows gathered here must move along."""
        original = getattr(cache, "reorder_cache", None)
        if original is None or not hasattr(cache, "__dict__") or "reorder_cache" in vars(cache):
            return
        this = weakref.ref(self)
        # the function of the class, not the bound method: that would tie the cache to itself and keep it alive
        plain, owner = getattr(original, "__func__", original), weakref.ref(cache)

        def reorder_cache(beam_idx: Tensor, *args: Any, **kwargs: Any) -> Any:
            batch = this()
            if batch is not None:
                batch.steps = [s.rows(beam_idx) for s in batch.steps]
            return plain(owner(), beam_idx, *args, **kwargs)

        vars(cache)["reorder_cache"] = reorder_cache


def valid_columns(mask: object, batch: int, width: int, past: int) -> Tensor | None:
    """Which of the ``width`` tokens of a forward are real, from whatever mask it was given; [B, Q] bool, or None for all.

    2-D masks ([B, past + Q], or [B, Q]) say it directly. Of 4-D masks ([B, 1, Q, KV], bool or additive; a dict of them for models
    that mix window sizes) the diagonal says it: padding may not look at itself. Rows that look at everything, the future included,
    are padding that a kernel work-around unmasked.
    """
    if isinstance(mask, Mapping):
        mask = mask.get("full_attention", next(iter(mask.values()), None))
    if not isinstance(mask, Tensor):
        return None
    if mask.dim() == 2:
        columns = mask[:, past : past + width] if mask.shape[1] >= past + width else mask[:, -width:]
        return columns.bool() if columns.shape == (batch, width) else None
    if mask.dim() != 4 or mask.shape[-1] < past + width:
        return None
    seen = (mask if mask.dtype == torch.bool else mask >= 0)[:, 0, :, : past + width]
    own = seen.diagonal(offset=past, dim1=1, dim2=2)
    unmasked = seen.all(-1)
    unmasked[:, -1] = False  # the last real token rightly looks at everything
    return (own & ~unmasked).expand(batch, width)


def _end_of_answer(ids: list[int], prompt: int, pad_ids: frozenset[int], eos_ids: frozenset[int]) -> int:
    """Where a finished row of a batch ends: ``generate`` goes on feeding it padding, unmasked, until its neighbours are done."""
    for at in range(prompt, len(ids)):
        if ids[at] in eos_ids:
            tail = set(ids[at + 1 :])
            # a conversation that goes on after an end token feeds other tokens than padding, and keeps them
            return at + 1 if len(tail) == 1 and tail <= (pad_ids | eos_ids) else len(ids)
    return len(ids)
