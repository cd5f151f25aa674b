"""``eagle3diag report``: a folder of evidence, a saved result, or two of them, as one report."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from eagle3diag import progress
from eagle3diag.evidence import EVIDENCE, evidence

if TYPE_CHECKING:
    from eagle3diag.findings import Result


def add(parser: argparse.ArgumentParser) -> None:
    """The arguments of the verb."""
    names = ", ".join(name for found in EVIDENCE.values() for name in found)
    parser.add_argument("source", metavar="SOURCE", help=f"a saved result (JSON or HTML), or a folder with whatever there is of {names}")
    parser.add_argument("after", metavar="AFTER", nargs="?", help="a second one: what the fix changed, before and after")
    parser.add_argument("--draft", metavar="PATH", help="the draft's checkpoint, when it is not in the folder")
    parser.add_argument("--target", metavar="PATH", help="the target's checkpoint, when it is not in the folder")
    parser.add_argument("--engine", metavar="NAME==VERSION", help="of a folder; default: as its log, live dump or launch command say")


def read(args: argparse.Namespace) -> Result:
    """The result that the command asks for."""
    from eagle3diag.before_after import before_after

    first = _result(Path(args.source), args)
    return first if args.after is None else before_after(first, _result(Path(args.after), args))


def _result(source: Path, args: argparse.Namespace) -> Result:
    if not source.is_dir():
        from eagle3diag.report.saved import load

        return load(source)
    from eagle3diag.diagnose import diagnose

    found = evidence(source) | {name: value for name in ("draft", "target") if (value := getattr(args, name)) is not None}
    with progress.saying() as say:
        return diagnose(**found, engine=args.engine, progress=say)
