"""The view of a result that has none of its own: its plain fields, then its lists as tables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from eagle3diag.findings import Result, headline
from eagle3diag.report.form import Page, Section, Table
from eagle3diag.report.numbers import MISSING, num


def generic(result: Result) -> Page:
    kind = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(result).__name__).lower()
    findings = result.findings
    return Page(kind, headline(findings), (), findings, sections(result))


def sections(value: object) -> tuple[Section, ...]:
    """The fields of a dataclass as one table, and each of its lists of dataclasses as another."""
    if not is_dataclass(value):
        return ()
    single: list[tuple[str, str]] = []
    tables: list[Section] = []
    for field in fields(value):
        item, name = getattr(value, field.name), field.name.replace("_", " ")
        if isinstance(item, Sequence) and item and is_dataclass(item[0]):
            tables.append(Section(name, tables=(records(item),)))
        else:
            single.append((name, cell(item)))
    return (Section("What was measured", tables=(Table(("field", "value"), tuple(single)),)), *tables)


def records(items: Sequence[Any]) -> Table:
    """A list of dataclasses of one kind, one row each."""
    names = [f.name for f in fields(items[0])]
    rows = tuple(tuple(cell(getattr(item, name)) for name in names) for item in items)
    numeric = [all(isinstance(getattr(item, name), (int, float)) or getattr(item, name) is None for item in items) for name in names]
    return Table(tuple(name.replace("_", " ") for name in names), rows, align="".join("r" if n else "l" for n in numeric))


def cell(item: object) -> str:
    """Any plain value in one cell; long lists are counted, not shown."""
    if item is None:
        return MISSING
    if isinstance(item, bool):
        return "yes" if item else "no"
    if isinstance(item, (int, float)):
        return num(item, 4)
    if isinstance(item, str):
        return item
    if is_dataclass(item):
        return ", ".join(f"{f.name.replace('_', ' ')} {cell(getattr(item, f.name))}" for f in fields(item))
    if isinstance(item, Mapping):
        return ", ".join(f"{k}: {cell(v)}" for k, v in item.items()) or MISSING
    if isinstance(item, Sequence):
        return ", ".join(map(cell, item)) if 0 < len(item) <= 12 else f"{len(item)} values" if item else MISSING
    return str(item)
