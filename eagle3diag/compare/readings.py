"""The last states of a dump through the target's norm and head: which way of reading them gives the recorded tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3diag.checkpoints import Target
from eagle3diag.compare.gain import final_norm_gain
from eagle3diag.compare.metrics import median, rows_rms
from eagle3diag.compare.partial import Partial, Top
from eagle3diag.devices import CPU
from eagle3diag.dumps import Record
from eagle3diag.errors import MismatchedInputs

PREDICTED_SHIFTS = (-1, 0, 1, 2, 3)
WORK = 2e11  # multiplications spent on the target's head: a second or two on one core
RECORD_ROWS = 256  # of one record, at most
HELD_AGAINST = 64  # records that are held against each other


@dataclass(frozen=True)
class Reading:
    """A way to read the last states, and how often it is right: ``form`` of the state (``as it is`` or ``after the norm``) through the head
    gives token ``t + shift``. ``agreement`` over ``tokens`` of answers (of everything, where the dump does not say what the answer is)."""

    part: str
    form: str
    shift: int
    agreement: float
    tokens: int


@dataclass(frozen=True)
class RecordReading:
    """One record under the declared reading; ``other`` is the record whose tokens its states predict best instead."""

    record: str
    agreement: float
    tokens: int
    other: str
    other_agreement: float


@dataclass(frozen=True)
class Readings:
    """What all records say together; the fields of :class:`~eagle3diag.compare.DumpCheck` of the same names."""

    readings: tuple[Reading, ...]
    declared: Reading | None
    final_rms: float | None
    by_record: tuple[RecordReading, ...]


class Reader:
    """Reads last states through the target's norm and head, on ``device``, each record by itself; ``records`` is their number."""

    def __init__(self, target: Target, records: int, device: torch.device = CPU) -> None:
        self._target, self._gain, self._head = target, final_norm_gain(target).to(device), target.head().to(device)
        rows = max(int(WORK / (self._head.numel() * 2)), RECORD_ROWS)
        self._every = max(records // max(rows // 64, 1), 1)
        self._used = -(-records // self._every)
        self._rows = max(min(rows // self._used, RECORD_ROWS), 1)

    def read(self, record: Record, number: int) -> Partial:
        """The tokens that each reading of one record predicts, when its number is among those that are read.

        Raises
        ------
        MismatchedInputs: the states are not as wide as the target.
        """
        if number % self._every:
            return Partial()
        at = _answer(record).nonzero().flatten()[: self._rows]
        predicted: dict[str, list[int]] = {}
        rms: dict[str, Tensor] = {}
        for name, rows in self._last_states(record).items():
            if rows.shape[1] != len(self._gain):
                raise MismatchedInputs(
                    f"the {name} state is {rows.shape[1]} wide, the target's hidden size is {len(self._gain)}",
                    where=f"record {record.name}",
                    hint="give the target that the dump was made with",
                )
            states = rows[at].to(self._head.device).float()
            normed = states * (states.square().mean(-1, keepdim=True) + self._target.rms_norm_eps).rsqrt() * self._gain
            predicted[f"{name}/as it is"] = self._tokens(states)
            predicted[f"{name}/after the norm"] = self._tokens(normed)
            if name == "final":
                rms["rms"] = rows_rms(states[at > 0], self._gain).cpu()
        if not predicted or not len(at):
            return Partial()
        value = [record.name, record.input_ids.tolist(), at.tolist(), predicted]
        return Partial(rms, {}, {"read": Top.of(self._used, [(float(number), value)])})

    def _last_states(self, record: Record) -> dict[str, Tensor]:
        """The final state, and the last one before the norm under whichever name it is stored."""
        found = {name: record.part(name) for name in ("final", "last")}
        if found["last"] is None:
            found["last"] = record.part(f"boundary.{self._target.n_layers}")
        return {name: rows for name, rows in found.items() if rows is not None}

    def _tokens(self, states: Tensor) -> list[int]:
        head = self._head
        found: list[int] = torch.cat([(part.to(head.dtype) @ head.T).argmax(-1) for part in states.split(64)]).tolist()
        return found


@dataclass(frozen=True)
class _Read:
    """One record that was read: its ids, the rows that were sent through the head, and what each reading predicted there."""

    name: str
    ids: Tensor
    at: Tensor
    predicted: dict[str, Tensor]

    def hits(self, key: str, shift: int, ids: Tensor | None = None) -> Tensor:
        """Where the predictions of one reading are the tokens at ``shift``, of this record or of another's ``ids``; float32."""
        ids = self.ids if ids is None else ids
        there = self.at + shift
        inside = (there >= 0) & (there < len(ids))
        return (self.predicted[key][inside] == ids[there[inside]]).float()


def conclude(whole: Partial) -> Readings | None:
    """What all records say; None when none had a last state."""
    read = [
        _Read(name, torch.tensor(ids), torch.tensor(at), {k: torch.tensor(v) for k, v in predicted.items()})
        for name, ids, at, predicted in whole.entries("read")
    ]
    readings = []
    for key in dict.fromkeys(key for r in read for key in r.predicted):
        part, form = key.split("/")
        for s in PREDICTED_SHIFTS:
            joined = torch.cat([r.hits(key, s) for r in read if key in r.predicted])
            readings.append(Reading(part, form, s, _mean(joined), len(joined)))
    if not readings:
        return None
    claimed = {"final": "as it is", "last": "after the norm"}
    declared = next((r for r in readings if r.form == claimed[r.part] and r.shift == 1), None)
    best = declared or max(readings, key=lambda r: -1.0 if math.isnan(r.agreement) else r.agreement)
    rms = median(whole.rows["rms"]) if "rms" in whole.rows else None
    return Readings(tuple(readings), declared, rms, _by_record(read, f"{best.part}/{best.form}", best.shift))


def _by_record(read: Sequence[_Read], key: str, shift: int) -> tuple[RecordReading, ...]:
    made = []
    seen = [r for r in read if key in r.predicted][:HELD_AGAINST]
    for one in seen:
        own = one.hits(key, shift)
        others = [(_mean(one.hits(key, shift, other.ids)), other.name) for other in seen if other.name != one.name]
        score, other = max((o for o in others if not math.isnan(o[0])), default=(float("nan"), ""))
        made.append(RecordReading(one.name, _mean(own), len(own), other, score))
    return tuple(sorted(made, key=lambda r: 2.0 if math.isnan(r.agreement) else r.agreement)[:20])


def _mean(hits: Tensor) -> float:
    return float(hits.mean()) if len(hits) else float("nan")


def _answer(record: Record) -> Tensor:
    """Mask [T] of the tokens whose next one the target wrote itself: prompts are anybody's text."""
    if record.prompt_length is not None and record.prompt_length < record.tokens:
        positions = record.positions if record.positions is not None else torch.arange(record.tokens)
        return positions >= record.prompt_length - 1
    mask = record.loss_mask
    if mask is not None and bool(mask.bool().any()):
        return torch.cat([mask[1:].bool(), mask.new_zeros(1).bool()])
    return torch.ones(record.tokens, dtype=torch.bool)
