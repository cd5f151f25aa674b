"""How an audit is shown: what the engine's loader does with every name, then shapes, the vocabulary map and the config as read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from eagle3diag.findings import headline
from eagle3diag.report.form import Page, Section, Table
from eagle3diag.report.numbers import MISSING, listed, num, percent
from eagle3diag.report.views.common import engine, path_name, shape
from eagle3diag.report.views.generic import cell

if TYPE_CHECKING:
    from eagle3diag.audit import Audit, MapCheck

_ORDER = ("raises", "shape_error", "missing", "dropped", "overwritten", "ignored", "borrowed", "loaded")
_SETTLED = ("ignored", "borrowed", "loaded")  # a terminal has better things to show than a list of these
_MEANING = {
    "raises": "start-up ends",
    "shape_error": "start-up ends",
    "missing": "the engine's parameter stays as it was allocated",
    "dropped": "no parameter takes it",
    "overwritten": "loaded, then replaced by the target's",
    "borrowed": "the target's is used",
    "ignored": "not needed in serving",
}


def page(result: Audit) -> Page:
    findings = result.findings
    name = engine(result.engine, result.engine_version)
    healthy = f"{name} loads {path_name(result.draft)} as it was saved: nothing above a note."
    counts = Counter(load.outcome for load in result.loads)
    outcomes = [f"{counts[o]} {o}" for o in (*_ORDER, *sorted(counts.keys() - set(_ORDER))) if counts[o]]
    if result.facts.config.kind != "eagle3":  # the rest is measured against what an EAGLE-3 draft has
        facts = (("checkpoint", result.draft), ("tensors", num(len(result.loads))))
        return Page("audit", headline(findings, healthy), facts, findings, tuple(replace(s, terminal=False) for s in _sections(result)))
    facts = (
        ("draft", result.draft),
        ("engine", name if result.engine_known else f"{name}, whose rules are not known: those of the nearest known version were used"),
        *((("draft class", result.draft_class),) if result.draft_class else ()),
        ("tensors", listed(outcomes)),
        ("fc reads", f"{num(result.needs_target_width)} states of the target ({num(result.target_hidden_size)} wide each)"),
    )
    return Page("audit", headline(findings, healthy), facts, findings, tuple(_sections(result)))


def _sections(result: Audit) -> Iterator[Section]:
    rank = {outcome: i for i, outcome in enumerate(_ORDER)}
    loads = sorted(result.loads, key=lambda load: (rank.get(load.outcome, -1), load.canonical))
    rows = tuple(
        (
            load.name,
            shape(load.shape) if load.shape is not None else MISSING,
            load.dtype or MISSING,
            load.outcome,
            load.into or MISSING,
            load.note,
        )
        for load in loads
    )
    columns = ("name", "shape", "dtype", "outcome", "goes into", "note")
    if rows:
        table = Table(columns, rows, narrow=(0, 1, 3), code=(0, 4))
        outcomes = {load.outcome for load in result.loads}
        words = "; ".join(f"`{o}`: {meaning}" for o, meaning in _MEANING.items() if o in outcomes)
        yield Section(
            "What the loader does with every name",
            f"Trouble first. {words}." if words else "",
            tables=(table,),
            terminal=not outcomes <= set(_SETTLED),
        )
    if result.captures:
        yield _captures(result)
    differ = tuple((s.name, shape(s.expected), shape(s.found)) for s in result.shapes if s.expected != s.found)
    if differ:
        text = "Shapes that the config promises and the file does not hold."
        yield Section("Shapes", text, tables=(Table(("tensor", "expected", "found"), differ, code=(0,)),))
    if result.vocabulary is not None:
        yield _vocabulary(result.vocabulary)
    config = tuple(
        (name.replace("_", " "), cell(getattr(result, name)))
        for name in (
            "hidden_size",
            "target_hidden_size",
            "vocab_size",
            "draft_vocab_size",
            "aux_boundaries",
            "default_boundaries",
            "tie_word_embeddings",
            "norm_before_residual",
        )
    )
    steps = tuple(f"Assumed: {words}" for words in result.assumed)
    yield Section("Config as read", steps=steps, tables=(Table(("field", "value"), config),), fold=True, terminal=False)


def _captures(result: Audit) -> Section:
    """What the target will hand over, and where the ids came from."""
    rows = tuple(
        (
            c.runner or MISSING,
            _boundaries(c.boundaries, "the target's default"),
            c.source,
            _boundaries(c.ids, MISSING),
            c.offset or MISSING,
            listed(c.unread) if c.unread else MISSING,
        )
        for c in result.captures
    )
    trained = _boundaries(result.aux_boundaries, "not said")
    table = Table(("runner", "captured", "ids from", "ids", "what is done to them", "not read"), rows, narrow=(0, 1, 3), code=(2,))
    return Section("Which boundaries it will capture", f"Trained on, says the config: {trained}.", tables=(table,), terminal=False)


def _boundaries(numbers: tuple[int, ...] | None, absent: str) -> str:
    return absent if numbers is None else listed([num(n) for n in numbers]) if numbers else "none: the final, normed state"


def _vocabulary(check: MapCheck) -> Section:
    rows = (
        ("target ids inside the vocabulary", percent(check.in_range_offset), percent(check.in_range_absolute)),
        ("target ids that are distinct", percent(check.unique_offset), percent(check.unique_absolute)),
        ("target ids marked in t2d", percent(check.agree_offset), percent(check.agree_absolute)),
    )
    facts = f"d2t has {num(check.length)} entries, the config declares {num(check.declared)}" + (
        f", t2d marks {num(check.marked)}." if check.marked is not None else "; there is no t2d."
    )
    columns = ("if d2t holds ...", "offsets (the convention)", "absolute ids")
    return Section(
        "Vocabulary map",
        f"{facts} Engines read offsets, so the first column should be 100 % throughout.",
        tables=(Table(columns, rows, align="lrr"),),
    )
