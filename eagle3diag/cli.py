"""The verbs of :mod:`eagle3diag` at a shell. Exit codes: 0 clean, 1 findings, 2 bad input, 3 our own crash."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from eagle3diag import __version__, cli_capture, cli_notebooks, cli_report, progress
from eagle3diag.errors import BadArgument, Eagle3DiagError
from eagle3diag.findings import Severity

if TYPE_CHECKING:
    from eagle3diag.findings import Result

CLEAN, FINDINGS, BAD_INPUT, CRASH = 0, 1, 2, 3

_EPILOG = """\
exit codes:
  0  nothing at or above --fail-on was found
  1  something was
  2  the input cannot be used (the message says what, where, and what to do)
  3  eagle3diag itself failed

example:
  eagle3diag diagnose --draft ./draft --target ./target --train ./train_dump \\
      --launch "python -m sglang.launch_server --speculative-algorithm EAGLE ..." --log server.log --html report.html
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; never raises, except for ``SystemExit`` from argparse (usage, --help, --version)."""
    own, command = cli_capture.split(list(sys.argv[1:] if argv is None else argv))
    args = _parser().parse_args(own)
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
        return 130
    except BrokenPipeError:
        # whoever read our output has left (| head): not an error, and nothing more can be said on that pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:  # no space, no rights, a broken disk: nothing that a report of ours could mend
        return _complain(f"eagle3diag: the system refuses: {_shown(error)}\n  -> check the path and the disk", BAD_INPUT, args.traceback)
    except Exception as error:
        words = (
            f"eagle3diag: this is a fault of eagle3diag {__version__}, not of your input: {type(error).__name__}: {_shown(error)}\n"
            "  -> please report it with the command, and with what --traceback adds"
        )
        return _complain(words, CRASH, args.traceback)


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
        try:
            result.to_html(args.html, include_text=args.include_text)
        except OSError as error:
            raise BadArgument(
                f"cannot write the report: {error.strerror or error}", where=args.html, hint="choose a path that can be written"
            ) from error
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
        raise BadArgument("nothing to look at", where="diagnose", hint="give at least one of --draft, --train, --live, --launch, --log")
    with progress.saying() as say:
        result = diagnose(**given, engine=args.engine, assume_fixed=args.assume_fixed, progress=say)
    return _finish(result, args)


def _compare(args: argparse.Namespace) -> int:
    from eagle3diag.compare import compare

    result = compare(args.train, args.live, reference=args.reference, target=args.target, **_at_scale(args))
    return _finish(result, args)


def _check_dump(args: argparse.Namespace) -> int:
    from eagle3diag.compare import check_dump

    return _finish(check_dump(args.dump, target=args.target, **_at_scale(args)), args)


def _at_scale(args: argparse.Namespace) -> dict[str, Any]:
    return {"sample": args.sample, "seed": args.seed, "resume": args.resume, "ray": args.ray}


def _audit(args: argparse.Namespace) -> int:
    from eagle3diag.audit import audit

    return _finish(audit(args.draft, engine=args.engine, target=args.target), args)


def _convert(args: argparse.Namespace) -> int:
    from eagle3diag.convert import convert

    return _finish(convert(args.draft, args.out, to=args.to), args)


def _weights(args: argparse.Namespace) -> int:
    from eagle3diag.weights import weights

    given = {name: value for name in ("target", "dump", "against") if (value := getattr(args, name)) is not None}
    return _finish(weights(args.draft, spectra=args.spectra, **given), args)


def _replay(args: argparse.Namespace) -> int:
    from eagle3diag.replay import Cost, replay

    result = replay(
        args.draft,
        args.dump,
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
        try:
            result.save(args.save)
        except OSError as error:
            raise BadArgument(f"cannot write the probe: {error.strerror or error}", where=args.save) from error
    return _finish(result, args)


def _report(args: argparse.Namespace) -> int:
    return _finish(cli_report.read(args), args)


def _demo(args: argparse.Namespace) -> int:
    from eagle3diag import demo

    demo.run(args.target, args.samples, args.html)
    return CLEAN


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="eagle3diag",
        description="Finds out why an EAGLE-3 draft is not accepted.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"eagle3diag {__version__}")
    verbs = parser.add_subparsers(metavar="VERB", required=True)

    verb = _verb(verbs, "diagnose", _diagnose, "run what the evidence allows and rank the faults that explain it")
    verb.add_argument("--draft", metavar="PATH", help="the draft's checkpoint")
    verb.add_argument("--target", metavar="PATH", help="the target's checkpoint")
    verb.add_argument("--train", metavar="DUMP", help="hidden states from training")
    verb.add_argument("--live", metavar="DUMP", help="hidden states captured in the engine")
    verb.add_argument("--reference", metavar="DUMP", help="hidden states at every boundary of the target")
    verb.add_argument("--launch", metavar="COMMAND", help="the server's launch command, as one argument; it is read, never run")
    verb.add_argument("--log", metavar="FILE", help="the server's log, plain or gzip")
    verb.add_argument(
        "--acceptance",
        metavar="AL",
        help="the accept length that the server shows (1.00: nothing accepted), or a file: counts as JSON, a saved probe, a page of /metrics",
    )
    verb.add_argument("--engine", metavar="NAME==VERSION", help="default: as the log, the live dump or the launch command say")
    verb.add_argument(
        "--assume-fixed", action="append", default=[], metavar="FM-NN", help="judge without this fault, which was mended since; repeatable"
    )

    verb = _verb(verbs, "compare", _compare, "hold what the draft is fed live against what it was trained on")
    verb.add_argument("train", metavar="TRAIN", help="dump from training")
    verb.add_argument("live", metavar="LIVE", help="dump from the engine")
    verb.add_argument("--reference", metavar="DUMP", help="hidden states at every boundary, to name the layer that live delivers")
    verb.add_argument("--target", metavar="PATH", help="the target's checkpoint, for the test whether the last state is already normed")

    _add_scale(verb, "live records")

    verb = _verb(verbs, "check-dump", _check_dump, "check one dump alone: broken rows, one buffer twice, and what its last states predict")
    verb.add_argument("dump", metavar="DUMP")
    verb.add_argument("--target", metavar="PATH", help="the target's checkpoint: its head must give the recorded tokens")
    _add_scale(verb, "records")

    verb = _verb(verbs, "audit", _audit, "what an engine's loader does with the checkpoint: names, shapes, config, vocabulary map")
    verb.add_argument("draft", metavar="DRAFT")
    verb.add_argument("--engine", default="sglang==0.5.23", metavar="NAME==VERSION", help="default: %(default)s")
    verb.add_argument("--target", metavar="PATH", help="the target's checkpoint")

    verb = _verb(verbs, "convert", _convert, "write a repaired copy of a draft for an engine version; never in place")
    verb.add_argument("draft", metavar="DRAFT")
    verb.add_argument("out", metavar="OUT", help="a new folder")
    verb.add_argument(
        "--to", default="sglang==0.5.23", metavar="NAME==VERSION", help="sglang==V, vllm==V or speculators (default: %(default)s)"
    )

    verb = _verb(verbs, "weights", _weights, "spectra, norms and distance to initialisation of every tensor")
    verb.add_argument("draft", metavar="DRAFT")
    verb.add_argument(
        "--spectra", choices=("auto", "full", "none"), default="auto", help="which singular values to compute (default: %(default)s)"
    )
    verb.add_argument("--target", metavar="PATH", help="the target's checkpoint: find what was copied from it")
    verb.add_argument("--dump", metavar="DUMP", help="a training dump: what fc reads of its states, and which order and norm it expects")
    verb.add_argument(
        "--against", metavar="DRAFT", action="append", help="another checkpoint of this draft: what changed (repeat for more)"
    )

    verb = _verb(verbs, "replay", _replay, "the accept length to expect, without a server")
    verb.add_argument("draft", metavar="DRAFT")
    verb.add_argument("dump", metavar="DUMP", help="hidden states to draft from, with the target's own answers")
    verb.add_argument("--target", metavar="PATH", help="the target's checkpoint: embedding and head, when the draft borrows them")
    verb.add_argument("--steps", type=int, default=4, metavar="K", help="drafts per round (default: %(default)s)")
    verb.add_argument("--topk", type=int, default=1, metavar="K", help="branches of a node; 1 (the default) drafts a chain")
    verb.add_argument("--slots", type=int, metavar="N", help="tokens that a tree holds, the root counted: the server's num-draft-tokens")
    verb.add_argument(
        "--engine", metavar="NAME==VERSION", help="whose draft loop to follow, such as sglang==0.5.8 or vllm (default: new SGLang)"
    )
    verb.add_argument("--temperature", type=float, metavar="T", help="also tell what to expect when the target samples at T")
    verb.add_argument(
        "--settings", default="", metavar="LIST", help="more settings to try in the same pass, as STEPS:TOPK:SLOTS, such as 3,5,5:4:16"
    )
    verb.add_argument(
        "--cost", metavar="D,S", help="what a draft forward and a further slot cost, in decoding steps of the target: rates the settings"
    )
    verb.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="what to compute in (default: %(default)s)")
    verb.add_argument("--device", default="cpu", metavar="DEVICE", help="as torch names it, such as cuda (default: %(default)s)")

    verb = _verb(verbs, "probe", _probe, "ask a running SGLang or vLLM server what it is and what it accepts, on a few short prompts")
    verb.add_argument("url", metavar="URL", help="such as http://127.0.0.1:30000")
    verb.add_argument(
        "--api-key", metavar="KEY", help="default: EAGLE3DIAG_API_KEY, which a list of processes does not show; it is never repeated"
    )
    verb.add_argument("--prompt", action="append", metavar="TEXT", help="instead of the built-in ones; may be given several times")
    verb.add_argument("--max-tokens", type=int, default=64, metavar="N", help="new tokens per prompt (default: %(default)s)")
    verb.add_argument("--timeout", type=float, default=60.0, metavar="S", help="seconds for each answer (default: %(default)s)")
    verb.add_argument("--save", metavar="FILE", help="the probe as JSON, which diagnose takes as --acceptance")

    verb = _verb(
        verbs,
        "capture",
        cli_capture.run,
        "write hidden states as a dump: of a target over prompts, or of what a server feeds its draft",
        result=False,
    )
    cli_capture.add_arguments(verb)

    verb = _verb(verbs, "notebooks", cli_notebooks.run, "copy the guided notebooks, with your paths filled in", result=False)
    verb.add_argument("out", metavar="DIR")
    for name in ("draft", "target", "train", "live", "launch", "log", "acceptance"):
        verb.add_argument(f"--{name}", metavar="PATH", help=f"what the notebooks read as {name.upper()} (default: the samples)")

    cli_report.add(_verb(verbs, "report", _report, "a folder of evidence, a saved result, or two of them (before, after), as one report"))

    words = "a notebook that was run, as one safe HTML file: its prose and its results; nothing of it is run"
    cli_notebooks.add_export(_verb(verbs, "export", cli_notebooks.export, words, result=False))

    verb = _verb(verbs, "demo", _demo, "tell the first investigation, on the samples of a checkout", result=False)
    verb.add_argument("--target", metavar="PATH", help="the samples' target (default: where `make demo` builds it)")
    verb.add_argument("--samples", metavar="PATH", help="default: data_samples of the checkout")
    verb.add_argument("--html", metavar="PATH", default="out/demo.html", help="the report to write (default: %(default)s)")
    return parser


def _verb(
    verbs: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    run: Callable[[argparse.Namespace], int],
    words: str,
    *,
    result: bool = True,
) -> argparse.ArgumentParser:
    parser = verbs.add_parser(name, help=words, description=f"{words[0].upper()}{words[1:]}.", allow_abbrev=False)
    parser.set_defaults(run=run)
    parser.add_argument("--traceback", action="store_true", help="show where an error arose")
    parser.add_argument("--progress", choices=("auto", "on", "off"), default="auto", help="on stderr; auto: when it is a terminal")
    if result:
        parser.add_argument("--json", action="store_true", help="the whole result as JSON on stdout")
        parser.add_argument("--html", metavar="PATH", help="also write one self-contained HTML file")
        parser.add_argument(
            "--include-text", action="store_true", help="let --json and --html tell hosts, paths, names and texts of prompts (keys never)"
        )
        parser.add_argument(
            "--fail-on", choices=("warning", "error"), default="warning", help="exit 1 from this severity on (default: %(default)s)"
        )
        parser.add_argument("--colour", "--color", choices=("auto", "always", "never"), default="auto")
    return parser


def _add_scale(parser: argparse.ArgumentParser, what: str) -> None:
    """What dumps need that are too large for one go."""
    parser.add_argument("--sample", type=int, metavar="N", help=f"look at N {what}, drawn evenly over the files and their lengths")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the sample (default: %(default)s)")
    parser.add_argument("--resume", metavar="DIR", help="keep finished work there, and take it up again after an interruption")
    parser.add_argument("--ray", metavar="auto|ADDRESS", help="work on a Ray cluster; every node must see the paths")


def entry() -> NoReturn:
    """The console script."""
    raise SystemExit(main())
