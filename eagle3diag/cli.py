"""The verbs of :mod:`eagle3diag` at a shell. Exit codes: 0 clean, 1 findings, 2 bad input, 3 our own crash."""

from __future__ import annotations

import argparse
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from eagle3diag import __version__, cli_capture, cli_fault, cli_notebooks, cli_options, cli_report, progress
from eagle3diag.errors import BadArgument, Eagle3DiagError, InputError
from eagle3diag.findings import Severity, writing

if TYPE_CHECKING:
    from eagle3diag.findings import Result

CLEAN, FINDINGS, BAD_INPUT, CRASH = 0, 1, 2, 3


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; never raises, except for ``SystemExit`` from argparse (usage, --help, --version)."""
    own, command = cli_capture.split(list(sys.argv[1:] if argv is None else argv))
    args = cli_options.read(own, _VERBS)
    args.command = command
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that lacks a glyph shows "?", instead of ending the command
    try:
        with progress.shown({"auto": None, "on": True, "off": False}[args.progress]):
            code: int = args.run(args)
            sys.stdout.flush()
            return code
    except Eagle3DiagError as error:
        return _complain(f"eagle3diag: {_shown(error)}", BAD_INPUT, args.traceback)
    except KeyboardInterrupt:
        print("eagle3diag: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # whoever read our output has left (| head): not an error, and nothing more can be said on that pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:  # no space, no rights, a broken disk: nothing that a report of ours could mend
        return _complain(f"eagle3diag: the system refuses: {_shown(error)}\n  -> check the path and the disk", BAD_INPUT, args.traceback)
    except Exception as error:
        torchs_own = isinstance(error, RuntimeError) and re.search(r"out of memory|can't allocate memory|not enough memory", str(error))
        if isinstance(error, MemoryError) or torchs_own:
            return _complain(_no_memory(args.parser.prog.split()[-1], str(error)), BAD_INPUT, args.traceback)
        words = (
            f"eagle3diag: this is a fault of eagle3diag {__version__}, not of your input: {type(error).__name__}: {_shown(error)}\n"
            "  -> please report it with the command, and with what --traceback adds"
        )
        return _complain(words, CRASH, args.traceback)


_LESS = {
    "compare": "--sample 100 compares some records that stand for all; a dump of fewer boundaries is smaller still",
    "check": "--sample 100 looks at some records that stand for all; a dump of fewer boundaries is smaller still",
    "replay": "give a dump of fewer or shorter texts, and fewer --settings; --dtype bfloat16 halves the weights",
    "capture": "--boundaries 3,16,28 writes those of the draft and no others; fewer prompts and a smaller --max-new help too",
    "diagnose": "leave --target out, or give dumps with fewer records: capture with fewer prompts, and with the draft's boundaries only",
    "weights": "give the draft alone, without --target and --dump",
}
"""What makes each verb smaller."""


def _no_memory(verb: str, said: str) -> str:
    """Memory is the machine's, and neither our fault nor the input's."""
    from eagle3diag.report.safe import visible

    what = f": {visible(said)[:200]}" if said else ""
    less = _LESS.get(verb, "free some, or use a machine with more")
    return f"eagle3diag: out of memory in {verb}{what}\n  -> {less}"


def _shown(error: Exception) -> str:
    from eagle3diag.report.safe import visible  # names and values in the message come out of files

    return visible(error, keep_newlines=True)


def _complain(words: str, code: int, with_traceback: bool) -> int:
    if with_traceback:
        traceback.print_exc()
    print(words, file=sys.stderr)
    return code


def _finish(result: Result, args: argparse.Namespace) -> int:
    """Show, write and judge one result."""
    if args.html is not None:
        with writing("the report", args.html, "choose a path that can be written"):
            result.to_html(args.html, include_text=args.include_text)
    if args.json:
        print(result.to_json(include_text=args.include_text), end="")
    else:
        from eagle3diag.report import text

        print(text.render(result, colour=_colour(args.colour)))
        if args.html is not None:
            print(f"\nreport: {args.html}")
    limit = Severity.ERROR if args.fail_on == "error" else Severity.WARNING
    return FINDINGS if any(f.severity >= limit for f in result.findings) else CLEAN


def _colour(choice: str) -> bool:
    """``auto``: on a terminal that can, unless NO_COLOR (no-color.org) asks not to."""
    if choice != "auto":
        return choice == "always"
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _diagnose(args: argparse.Namespace) -> int:
    from eagle3diag.diagnose import diagnose

    names = ("draft", "target", "train", "live", "reference", "launch", "log", "acceptance")
    given: dict[str, object] = {name: value for name in names if (value := getattr(args, name)) is not None}
    if not given:
        hint = "give at least one of --draft, --train, --live, --launch, --log, --acceptance"
        raise BadArgument("nothing to look at", where="diagnose", hint=hint)
    given |= {side: _dump(getattr(args, side), args, side) for side in cli_options.SIDES if side in given}
    with progress.saying() as say:
        result = diagnose(**given, engine=args.engine, assume_fixed=args.assume_fixed, progress=say)
    return _finish(result, args)


def _compare(args: argparse.Namespace) -> int:
    from eagle3diag.compare import compare

    train, live, reference = (_dump(getattr(args, side), args, side) for side in cli_options.SIDES)
    return _finish(compare(train, live, reference=reference, target=args.target, **_at_scale(args)), args)


def _check(args: argparse.Namespace) -> int:
    from eagle3diag.compare import check_dump

    return _finish(check_dump(_dump(args.dump, args), target=args.target, **_at_scale(args)), args)


def _at_scale(args: argparse.Namespace) -> dict[str, Any]:
    return {"sample": args.sample, "seed": args.seed, "resume": args.resume, "ray": args.ray, "device": args.device}


def _dump(path: str | None, args: argparse.Namespace, side: str | None = None) -> Any:
    """The dump at ``path``; ``--names`` speaks for files of no known format only, so that one side may be of ours."""
    if path is None or not args.names:
        return path
    from eagle3diag.dumps import open_dump

    names = cli_options.names(args.names, side)
    try:
        return open_dump(path)
    except InputError:
        return open_dump(path, mapping=names or None)


def _audit(args: argparse.Namespace) -> int:
    from eagle3diag.audit import audit
    from eagle3diag.engines import DEFAULT_ENGINE

    return _finish(audit(args.draft, engine=args.engine or DEFAULT_ENGINE, target=args.target), args)


def _convert(args: argparse.Namespace) -> int:
    from eagle3diag.convert import convert
    from eagle3diag.engines import DEFAULT_ENGINE

    return _finish(convert(args.draft, args.out, to=args.to or DEFAULT_ENGINE), args)


def _weights(args: argparse.Namespace) -> int:
    from eagle3diag.weights import weights

    given = {name: value for name in ("target", "dump", "against") if (value := getattr(args, name)) is not None}
    given |= {"dump": _dump(args.dump, args)} if args.dump is not None else {}
    return _finish(weights(args.draft, spectra=args.spectra, **given), args)


def _replay(args: argparse.Namespace) -> int:
    from eagle3diag.replay import Cost, replay

    result = replay(
        args.draft,
        _dump(args.dump, args),
        target=args.target,
        steps=args.steps,
        topk=args.topk,
        num_draft_tokens=args.slots,
        engine=args.engine,
        temperature=args.temperature,
        settings=[one for one in args.settings.split(",") if one.strip()],
        cost=None if args.cost is None else Cost.parse(args.cost),
        dtype=args.dtype,
        device=args.device,
    )
    return _finish(result, args)


def _probe(args: argparse.Namespace) -> int:
    from eagle3diag.serving.probe import probe

    key = args.api_key or os.environ.get("EAGLE3DIAG_API_KEY") or None
    result = probe(args.url, api_key=key, prompts=args.prompt, max_tokens=args.max_tokens, timeout=args.timeout)
    if args.save is not None:
        with writing("the probe", args.save):
            result.save(args.save)
    return _finish(result, args)


def _report(args: argparse.Namespace) -> int:
    return _finish(cli_report.read(args), args)


def _demo(args: argparse.Namespace) -> int:
    from eagle3diag import demo

    demo.run(args.target, args.samples, args.html)
    return CLEAN


_VERBS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "diagnose": _diagnose,
    "compare": _compare,
    "audit": _audit,
    "convert": _convert,
    "weights": _weights,
    "replay": _replay,
    "check": _check,
    "probe": _probe,
    "capture": cli_capture.run,
    "fault": cli_fault.run,
    "notebooks": cli_notebooks.run,
    "report": _report,
    "export": cli_notebooks.export,
    "demo": _demo,
}


def entry() -> NoReturn:
    """The console script."""
    raise SystemExit(main())
