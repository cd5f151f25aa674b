"""One dump alone: are its rows sound, and do its last states predict the tokens that follow?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations

import torch
from torch import Tensor

from eagle3diag.checkpoints import Target, open_target
from eagle3diag.compare.comparison import Alike
from eagle3diag.compare.gain import final_norm_gain
from eagle3diag.compare.metrics import median, rows_largest, rows_norm, rows_relative_error, rows_rms
from eagle3diag.dumps import HiddenStates, Record, open_dump
from eagle3diag.errors import BadArgument, MismatchedInputs
from eagle3diag.findings import Finding, Result
from eagle3diag.progress import track

PREDICTED_SHIFTS = (-1, 0, 1, 2, 3)
WORK = 2e11  # multiplications spent on the target's head: a second or two on one core
ROWS = 2048  # tokens of each part that are looked at in full when blocks are held against each other


@dataclass(frozen=True)
class PartCheck:
    """The rows of one stored state: ``part`` is ``features`` block ``block``, ``boundary.15``, ``final`` or ``last``.

    ``zero_rows``, ``nonfinite_rows``; ``duplicate_rows`` equal the row before although the token is another; ``norm``: median, sink left out.
    """

    part: str
    block: int
    tokens: int
    zero_rows: int
    nonfinite_rows: int
    duplicate_rows: int
    norm: float


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
class DumpCheck(Result):
    """What :func:`eagle3diag.check_dump` measured.

    Attributes
    ----------
    parts: soundness of each stored state. alike: every two blocks against each other (medians of the relative difference).
    readings: of the last states, when a target is given. declared: the reading that the dump claims (form, next token).
    final_rms: median root mean square of (final state / gain of the final norm): 1 when it is normed.
    by_record: agreement of each record under the declared reading, the worst twenty.
    """

    name: str
    side: str
    engine: str
    records: int
    tokens: int
    boundaries: tuple[int, ...]
    assumed: tuple[str, ...]
    parts: tuple[PartCheck, ...]
    alike: tuple[Alike, ...]
    readings: tuple[Reading, ...] = ()
    declared: Reading | None = None
    final_rms: float | None = None
    by_record: tuple[RecordReading, ...] = ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        from eagle3diag.faults import judge

        return judge(self)


def check_dump(dump: object, *, target: object = None, sample: int | None = None) -> DumpCheck:
    """Check one dump without another to compare it with.

    Parameters
    ----------
    dump: anything :func:`eagle3diag.open_dump` takes. target: the target (folder or open): then its last states must predict the tokens.
    sample: look at this many records only, spread evenly; all by default.

    Raises
    ------
    MismatchedInputs: the dump's last states are not as wide as the target. Reading errors pass through.
    """
    opened = open_dump(dump, target=target) if not isinstance(dump, HiddenStates) else dump  # type: ignore[arg-type]
    if sample is not None and sample < 1:
        raise BadArgument(f"sample={sample}", hint="a positive number of records")
    if not len(opened):
        raise MismatchedInputs("the dump holds no records", where=opened.path)
    step = max(len(opened) // sample, 1) if sample else 1
    tally: dict[tuple[str, int], _Tally] = {}
    pairs: dict[tuple[int, int], list[Tensor]] = {}
    known = None if target is None else _Reader(open_target(target), len(range(0, len(opened), step)))  # type: ignore[arg-type]
    tokens = 0
    for number in track(range(0, len(opened), step), "checking records"):
        record = opened[number]
        tokens += record.tokens
        hidden = opened.target.hidden_size
        for part, block, rows in _states(record, hidden):
            tally.setdefault((part, block), _Tally()).add(rows, record)
        for i, j, apart in _apart(record, hidden):
            pairs.setdefault((i, j), []).append(apart)
        if known is not None:
            known.read(record)
    checked = DumpCheck(
        name=opened.path or f"{opened.side} in memory",
        side=opened.side,
        engine=opened.engine,
        records=len(range(0, len(opened), step)),
        tokens=tokens,
        boundaries=opened.boundaries,
        assumed=opened.assumed,
        parts=tuple(t.result(part, block) for (part, block), t in tally.items()),
        alike=tuple(Alike(i, j, median(torch.cat(a)), float("nan")) for (i, j), a in pairs.items()),
    )
    return checked if known is None else known.add_to(checked)


def _states(record: Record, hidden_size: int) -> Iterator[tuple[str, int, Tensor]]:
    """Every state that is stored, block by block: (part, block, rows)."""
    features = record.part("features")
    if features is not None and not record.declared:
        h = hidden_size if hidden_size and features.shape[1] % hidden_size == 0 else features.shape[1]
        for i in range(features.shape[1] // h):
            yield "features", i, features[:, i * h : (i + 1) * h]
    for b in record.boundaries:
        yield f"boundary.{b}", record.declared.index(b) if b in record.declared else -1, record.state(b)
    for part in ("final", "last"):
        rows = record.part(part)
        if rows is not None:
            yield part, -1, rows


def _apart(record: Record, hidden_size: int) -> Iterator[tuple[int, int, Tensor]]:
    """Relative differences of every two aux blocks of one record."""
    held = [(block, rows[1:ROWS]) for _, block, rows in _states(record, hidden_size) if block >= 0]
    for (i, x), (j, y) in combinations(held, 2):
        if x.shape == y.shape:
            yield i, j, rows_relative_error(x, y)


@dataclass
class _Tally:
    """Running counts of one part."""

    tokens: int = 0
    zero: int = 0
    odd: int = 0
    duplicate: int = 0
    norms: list[Tensor] = field(default_factory=list)

    def add(self, rows: Tensor, record: Record) -> None:
        largest = rows_largest(rows)
        self.tokens += len(rows)
        self.zero += int((largest == 0).sum())
        self.odd += int((~largest.isfinite()).sum())
        same = (rows[1:] == rows[:-1]).all(-1) & (largest[1:] > 0)
        self.duplicate += int((same & (record.input_ids[1:] != record.input_ids[:-1])).sum())
        self.norms.append(rows_norm(rows[1:ROWS]).float())

    def result(self, part: str, block: int) -> PartCheck:
        return PartCheck(part, block, self.tokens, self.zero, self.odd, self.duplicate, median(torch.cat(self.norms)))


class _Reader:
    """Reads last states through the target's norm and head, record by record."""

    def __init__(self, target: Target, records: int) -> None:
        self._target, self._gain, self._head = target, final_norm_gain(target), target.head()
        self._eps = target.rms_norm_eps
        rows = max(int(WORK / (self._head.numel() * 2)), 256)
        self._records, self._rows = max(rows // 64, 1), rows
        self._every = max(records // self._records, 1)
        self._count = 0
        self._seen: list[tuple[str, Tensor, Tensor, dict[tuple[str, str], Tensor], Tensor]] = []
        self._rms: list[Tensor] = []

    def read(self, record: Record) -> None:
        """Keep the tokens that each reading of one record predicts."""
        self._count += 1
        if (self._count - 1) % self._every or self._rows <= 0:
            return
        answer = _answer(record)
        at = answer.nonzero().flatten()[: min(self._rows, 256)]
        predicted: dict[tuple[str, str], Tensor] = {}
        for part in ("final", "last", f"boundary.{self._target.n_layers}"):
            rows = record.part(part)
            if rows is None or (part.startswith("boundary") and "last" in {p for p, _ in predicted}):
                continue
            if rows.shape[1] != len(self._gain):
                raise MismatchedInputs(
                    f"{part} is {rows.shape[1]} wide, the target's hidden size is {len(self._gain)}",
                    where=f"record {record.name}",
                    hint="give the target that the dump was made with",
                )
            name = "final" if part == "final" else "last"
            states = rows[at].float()
            predicted[name, "as it is"] = self._tokens(states)
            normed = states * (states.square().mean(-1, keepdim=True) + self._eps).rsqrt() * self._gain
            predicted[name, "after the norm"] = self._tokens(normed)
            if name == "final":
                self._rms.append(rows_rms(states[at > 0], self._gain))
        if predicted and len(at):
            self._rows -= len(at)
            self._seen.append((record.name, record.input_ids, at, predicted, answer))

    def _tokens(self, states: Tensor) -> Tensor:
        head = self._head
        return torch.cat([(states[i : i + 64].to(head.dtype) @ head.T).argmax(-1) for i in range(0, len(states), 64)] or [torch.arange(0)])

    def add_to(self, checked: DumpCheck) -> DumpCheck:
        """The same with the fields that need the target."""
        readings = []
        for part, form in dict.fromkeys(key for _, _, _, predicted, _ in self._seen for key in predicted):
            for s in PREDICTED_SHIFTS:
                hits = [self._hits(ids, at, p[part, form], s) for _, ids, at, p, _ in self._seen if (part, form) in p]
                joined = torch.cat(hits) if hits else torch.zeros(0)
                readings.append(Reading(part, form, s, float(joined.float().mean()) if len(joined) else float("nan"), len(joined)))
        if not readings:
            return checked
        best = max(readings, key=lambda r: r.agreement if r.agreement == r.agreement else -1.0)
        claimed = {"final": "as it is", "last": "after the norm"}
        declared = next((r for r in readings if r.form == claimed[r.part] and r.shift == 1), None)
        return replace(
            checked,
            readings=tuple(readings),
            declared=declared,
            final_rms=median(torch.cat(self._rms)) if self._rms else None,
            by_record=self._by_record(declared or best),
        )

    @staticmethod
    def _hits(ids: Tensor, at: Tensor, predicted: Tensor, shift: int) -> Tensor:
        there = at + shift
        inside = (there >= 0) & (there < len(ids))
        return predicted[inside] == ids[there[inside]]

    def _by_record(self, best: Reading) -> tuple[RecordReading, ...]:
        key, made = (best.part, best.form), []
        seen = [s for s in self._seen if key in s[3]][:64]
        for name, ids, at, predicted, _ in seen:
            own = self._hits(ids, at, predicted[key], best.shift).float()
            others = [(float(self._hits(o, at, predicted[key], best.shift).float().mean()), n) for n, o, *_ in seen if n != name]
            others = [o for o in others if o[0] == o[0]]
            score, other = max(others, default=(float("nan"), ""))
            made.append(RecordReading(name, float(own.mean()) if len(own) else float("nan"), len(own), other, score))
        return tuple(sorted(made, key=lambda r: r.agreement if r.agreement == r.agreement else 2.0)[:20])


def _answer(record: Record) -> Tensor:
    """Mask [T] of the tokens whose next one the target wrote itself: prompts are anybody's text."""
    if record.prompt_length is not None and record.prompt_length < record.tokens:
        positions = record.positions if record.positions is not None else torch.arange(record.tokens)
        return positions >= record.prompt_length - 1
    mask = record.loss_mask
    if mask is not None and bool(mask.bool().any()):
        return torch.cat([mask[1:].bool(), mask.new_zeros(1).bool()])
    return torch.ones(record.tokens, dtype=torch.bool)
