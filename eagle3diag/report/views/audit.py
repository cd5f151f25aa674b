"""How an audit is shown: what the engine's loader does with every name, then the checks of config, shapes and vocabulary map."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any

from eagle3diag.report.form import Page, Section, Table
from eagle3diag.report.numbers import listed
from eagle3diag.report.views.common import engine, path_name, shape, verdict
from eagle3diag.report.views.generic import cell, records, sections

if TYPE_CHECKING:
    from eagle3diag.audit import Audit

_ORDER = ("shape_error", "missing", "dropped", "overwritten", "ignored", "borrowed", "loaded")


def page(result: Audit) -> Page:
    findings = result.findings
    name = engine(result.engine, result.engine_version)
    healthy = f"{name} will load {path_name(result.draft)} as it was trained: nothing above a note."
    counts = Counter(load.outcome for load in result.loads)
    facts = [
        ("draft", result.draft),
        ("engine", name + ("" if result.engine_known else " (no facts about this version: the nearest known one was used)")),
    ]
    if counts:
        facts.append(
            (
                "tensors",
                listed([f"{counts[o]} {o.replace('_', ' ')}" for o in (*_ORDER, *sorted(counts.keys() - set(_ORDER))) if counts[o]]),
            )
        )
    return Page("audit", verdict(findings, healthy), tuple(facts), findings, tuple(_sections(result)))


def _sections(result: Audit) -> Iterator[Section]:
    if result.loads:
        rank = {outcome: i for i, outcome in enumerate(_ORDER)}
        loads = sorted(result.loads, key=lambda load: (rank.get(load.outcome, -1), load.canonical or load.name or ""))
        rows = tuple(
            (load.name or "-", shape(load.shape) if load.shape else "-", load.dtype or "-", load.outcome.replace("_", " "), load.into or "-", load.note)
            for load in loads
        )
        columns = ("name in the checkpoint", "shape", "dtype", "outcome", "goes into", "note")
        yield Section(
            "What the loader does with every name",
            "An engine's loader drops what it does not know without a word; trouble first.",
            tables=(Table(columns, rows, narrow=(0, 1, 3, 4), code=(0, 4)),),
        )
    checks: Sequence[Any] = getattr(result, "checks", ())
    if checks:
        table = records(checks) if is_dataclass(checks[0]) else Table(("check",), tuple((cell(c),) for c in checks))
        yield Section("Checks", tables=(table,), terminal=False)
    config = getattr(result, "config", None)
    if is_dataclass(config):
        (fields, *_) = sections(config)
        yield Section("Config as read", fields.caption, tables=fields.tables, fold=True, terminal=False)
    elif config:
        yield Section(
            "Config as read",
            tables=(Table(("field", "value"), tuple((str(k), cell(v)) for k, v in dict(config).items()), code=(0,)),),
            fold=True,
            terminal=False,
        )
