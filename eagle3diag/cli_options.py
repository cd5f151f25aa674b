"""The verbs of the command line and their options, in words; a wrong word is answered with the one that was probably meant."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from eagle3diag import __version__, cli_capture, cli_fault, cli_notebooks, cli_report
from eagle3diag.errors import BadArgument

Run = Callable[[argparse.Namespace], int]

_EPILOG = """\
exit codes:
  0  nothing at or above --fail-on was found
  1  something was
  2  the input cannot be used (the message says what, where, and what to do)
  3  eagle3diag itself failed

where to begin:
  eagle3diag demo          the first investigation, told step by step
  eagle3diag audit DRAFT   the checkpoint alone, in seconds
  eagle3diag diagnose --draft DRAFT --launch serve.sh --log server.log
                           which fault explains the accept length of a server
"""

_NAMES = {"check_dump": "check", "check-dump": "check", "load": "report", "before_after": "report", "before-after": "report"}
"""Public functions whose verb is called otherwise."""

SIDES = ("train", "live", "reference")
_SAID = re.compile(rf"(?:({'|'.join(SIDES)}):)?([^:=]+)=(.+)")


def read(words: list[str], runs: Mapping[str, Run]) -> argparse.Namespace:
    """The options of one command, with ``run``. Ends the program as argparse does for --help, --version and words that cannot be used."""
    parser = build(runs)
    if not words:
        parser.print_help(sys.stderr)
        raise SystemExit(2)
    args, unknown = parser.parse_known_args(words)
    if unknown:
        args.parser.refuse(unknown)
    return args


def names(words: str, side: str | None = None) -> dict[str, str]:
    """``input_ids=tokens,features=h`` as the mapping that :func:`eagle3diag.open_dump` takes, for the dump of one ``side``, or for the one dump
    there is. What is said of a side, as ``live:features=fed``, holds for its dump only, and goes before what is said of all.

    >>> names("input_ids=tokens, features=batch.h")
    {'input_ids': 'tokens', 'features': 'batch.h'}
    >>> names("input_ids=tokens,features=h,live:features=fed", "live")
    {'input_ids': 'tokens', 'features': 'fed'}
    """
    said = [_SAID.fullmatch(word.strip()) for word in words.split(",") if word.strip()]
    if not said or not all(said):
        hint = f"write --names input_ids=NAME,features=NAME, as in the files; of one side only: {SIDES[0]}:input_ids=NAME"
        raise BadArgument(f"--names {words!r:.80} cannot be read", hint=hint)
    found: dict[str | None, dict[str, str]] = {}
    for of, part, name in (match.groups() for match in said if match):
        found.setdefault(of, {})[part] = name
    if side is None and (of := next(filter(None, found), None)):
        raise BadArgument(f"--names says {of}:, and there is one dump only", hint=f"leave {of}: out")
    return found.get(None, {}) | found.get(side, {})


class Parser(argparse.ArgumentParser):
    """argparse, with a short message in place of the whole usage."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.evidence: tuple[str, ...] = ()

    def error(self, message: str) -> NoReturn:
        """One line, and where to read on."""
        self.exit(2, f"{self.prog}: {message}\n  -> {self.prog} --help\n")

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Words that no option takes: what was probably meant."""
        word = unknown[0]
        known = [option for action in self._actions for option in action.option_strings]
        if word.startswith("-"):
            near = difflib.get_close_matches(word.partition("=")[0], known, 1)
            hint = f"did you mean {near[0]}?" if near else f"{self.prog} --help lists the options"
            self.exit(2, f"{self.prog}: there is no option {word}\n  -> {hint}\n")
        hint = f"say what it is: {self.prog} {self.evidence[0]} {word}" if self.evidence else f"{self.prog} --help says what it takes"
        self.exit(2, f"{self.prog}: {word} is one word too many\n  -> {hint}\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """A verb that is not one: the nearest, where argparse lists them all."""
        if isinstance(action, argparse._SubParsersAction) and value not in (verbs := list(action.choices)):
            near = [_NAMES[value]] if value in _NAMES else difflib.get_close_matches(value, verbs, 1)
            hint = f"did you mean {self.prog} {near[0]}?" if near else f"there are {', '.join(verbs)}"
            self.exit(2, f"{self.prog}: there is no verb {value!r:.80}\n  -> {hint}\n")
        super()._check_value(action, value)


def build(runs: Mapping[str, Run]) -> Parser:
    """The parser of all verbs; ``runs`` gives the function of each."""
    parser = Parser(
        prog="eagle3diag",
        description="Finds out why an EAGLE-3 draft is not accepted.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"eagle3diag {__version__}")
    verbs = parser.add_subparsers(metavar="VERB", required=True, parser_class=Parser)

    def verb(name: str, words: str, example: str) -> Parser:
        made: Parser = verbs.add_parser(
            name,
            help=words,
            description=f"{words[0].upper()}{words[1:]}.",
            epilog=f"example:\n  {example}" if example else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        made.set_defaults(run=runs[name], parser=made)
        return made

    one = verb(
        "diagnose",
        "run what the evidence allows and rank the faults that explain it",
        "eagle3diag diagnose --draft draft/ --target target/ --launch serve.sh --log server.log",
    )
    one.add_argument("--draft", metavar="PATH", help="the draft's checkpoint")
    one.add_argument("--target", metavar="PATH", help="the target's checkpoint")
    one.add_argument("--train", metavar="DUMP", help="hidden states from training")
    one.add_argument("--live", metavar="DUMP", help="hidden states captured in the engine")
    one.add_argument("--reference", metavar="DUMP", help="hidden states at every boundary of the target")
    one.add_argument("--launch", metavar="COMMAND", help="the server's launch command, as one argument; it is read, never run")
    one.add_argument("--log", metavar="FILE", help="the server's log, plain or gzip")
    one.add_argument(
        "--acceptance",
        metavar="AL",
        help="the accept length that the server shows (1.00: nothing accepted), or a file: counts as JSON, a saved probe, a page of /metrics",
    )
    one.add_argument("--engine", metavar="NAME==VERSION", help="default: as the log, the live dump or the launch command say")
    one.add_argument(
        "--assume-fixed",
        action="append",
        default=[],
        metavar="FM-NN",
        help="judge without this fault, which has been fixed since; repeatable",
    )

    _names(one, sides=True)
    one.evidence = ("--draft", "--target", "--train", "--live", "--launch", "--log")

    one = verb(
        "compare", "compare what the draft is fed live with what it was trained on", "eagle3diag compare train/ live/ --html compare.html"
    )
    one.add_argument("train", metavar="TRAIN", help="dump from training")
    one.add_argument("live", metavar="LIVE", help="dump from the engine")
    one.add_argument("--reference", metavar="DUMP", help="hidden states at every boundary, to name the layer that live delivers")
    one.add_argument("--target", metavar="PATH", help="the target's checkpoint, for the test whether the last state is already normed")
    _scale(one, "live records")
    _names(one, sides=True)

    one = verb(
        "audit",
        "what an engine's loader does with the checkpoint: names, shapes, config, vocabulary map",
        "eagle3diag audit draft/ --engine vllm==0.32.0 --target target/",
    )
    _draft(one)
    one.add_argument("--engine", metavar="NAME==VERSION", help="default: the newest SGLang whose rules are known")
    one.add_argument("--target", metavar="PATH", help="the target's checkpoint")

    one = verb(
        "convert",
        "write a repaired copy of a draft for an engine version; never in place",
        "eagle3diag convert draft/ fixed/ --to sglang==0.5.8",
    )
    _draft(one)
    one.add_argument("out", metavar="OUT", help="a new folder")
    one.add_argument(
        "--to", metavar="NAME==VERSION", help="sglang==V, vllm==V or speculators (default: the newest SGLang whose rules are known)"
    )

    one = verb("weights", "spectra, norms and distance to initialisation of every tensor", "eagle3diag weights draft/ --target target/")
    _draft(one)
    one.add_argument(
        "--spectra", choices=("auto", "full", "none"), default="auto", help="which singular values to compute (default: %(default)s)"
    )
    one.add_argument("--target", metavar="PATH", help="the target's checkpoint: find what was copied from it")
    one.add_argument("--dump", metavar="DUMP", help="a training dump: what fc reads of its states, and which order and norm it expects")
    one.add_argument("--against", metavar="DRAFT", action="append", help="another checkpoint of this draft: what changed (repeat for more)")

    _names(one)

    one = verb("replay", "the accept length to expect, without a server", "eagle3diag replay draft/ train/ --target target/ --steps 4")
    _draft(one)
    one.add_argument("dump", metavar="DUMP", help="hidden states to draft from, with the target's own answers")
    one.add_argument("--target", metavar="PATH", help="the target's checkpoint: embedding and head, when the draft borrows them")
    one.add_argument("--steps", type=int, default=4, metavar="K", help="drafts per round (default: %(default)s)")
    one.add_argument("--topk", type=int, default=1, metavar="K", help="branches of a node; 1 (the default) drafts a chain")
    one.add_argument("--slots", type=int, metavar="N", help="num_draft_tokens: tokens that a tree holds, the root counted")
    one.add_argument(
        "--engine", metavar="NAME==VERSION", help="whose draft loop to follow, such as sglang==0.5.8 or vllm (default: new SGLang)"
    )
    one.add_argument("--temperature", type=float, metavar="T", help="also tell what to expect when the target samples at T")
    one.add_argument(
        "--settings", default="", metavar="LIST", help="more settings to try in the same pass, as STEPS:TOPK:SLOTS, such as 3,5,5:4:16"
    )
    one.add_argument(
        "--cost", metavar="D,S", help="what a draft forward and a further slot cost, in decoding steps of the target: rates the settings"
    )
    one.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="what to compute in (default: %(default)s)")
    _device(one)
    _names(one)

    one = verb(
        "check", "whether one dump is sound by itself: rows, norms, which state is which", "eagle3diag check train/ --target target/"
    )
    one.add_argument("dump", metavar="DUMP", help="hidden states, of either side")
    one.add_argument("--target", metavar="PATH", help="the target's checkpoint: tells a normed state from a raw one, and shifted ids")
    _scale(one, "records")
    _names(one)

    one = verb(
        "probe",
        "ask a running SGLang or vLLM server what it is and what it accepts, on a few short prompts",
        "eagle3diag probe http://127.0.0.1:30000 --save probe.json",
    )
    one.add_argument("url", metavar="URL", help="such as http://127.0.0.1:30000")
    one.add_argument(
        "--api-key", metavar="KEY", help="default: EAGLE3DIAG_API_KEY, which a list of processes does not show; it is never repeated"
    )
    one.add_argument("--prompt", action="append", metavar="TEXT", help="instead of the built-in ones; may be given several times")
    one.add_argument("--max-tokens", type=int, default=64, metavar="N", help="new tokens per prompt (default: %(default)s)")
    one.add_argument("--timeout", type=float, default=60.0, metavar="S", help="seconds for each answer (default: %(default)s)")
    one.add_argument("--save", metavar="FILE", help="the probe as JSON, which diagnose takes as --acceptance")

    one = verb("capture", "write hidden states as a dump: of a target over prompts, or of what a server feeds its draft", "")
    cli_capture.add_arguments(one)

    one = verb(
        "notebooks", "copy the guided notebooks, with your paths filled in", "eagle3diag notebooks mine/ --draft draft/ --target target/"
    )
    one.add_argument("out", metavar="DIR", help="a folder to write them to")
    for name in ("draft", "target", "train", "live", "launch", "log", "acceptance"):
        one.add_argument(f"--{name}", metavar="PATH", help=f"what the notebooks read as {name.upper()} (default: the samples)")

    cli_fault.add(verb("fault", "what a fault of the catalogue is, in words", "eagle3diag fault FM-05"))

    cli_report.add(
        verb(
            "report",
            "a folder of evidence, a saved result, or two of them (before, after), as one report",
            "eagle3diag report before.json after.json --html fixed.html",
        )
    )

    words = "write a notebook that was run as one safe HTML file: its prose and its results; nothing of it is run"
    cli_notebooks.add_export(verb("export", words, "eagle3diag export investigation.ipynb --html for_others.html"))

    one = verb("demo", "tell the first investigation, on the samples of a checkout", "eagle3diag demo --target target/")
    one.add_argument("--target", metavar="PATH", help="the samples' target (default: where `make demo` builds it)")
    one.add_argument("--samples", metavar="PATH", help="default: data_samples of the checkout")
    one.add_argument("--html", metavar="PATH", default="out/demo.html", help="the report to write (default: %(default)s)")
    for name, made in verbs.choices.items():
        _common(made, result=name not in ("capture", "fault", "notebooks", "export", "demo"))
        made.usage = _usage(made)
    return parser


def _usage(parser: argparse.ArgumentParser) -> str:
    """What must be given, and that there is more; the list below says the rest."""
    taken = [a for a in parser._actions if not a.option_strings]
    must = [f"{a.option_strings[0]} {a.metavar}" for a in parser._actions if a.option_strings and a.required]
    words = [f"[{a.metavar}]" if a.nargs == "?" else str(a.metavar) for a in taken]
    return " ".join([parser.prog, *words, *must, "[options]"])


def _common(parser: argparse.ArgumentParser, *, result: bool) -> None:
    """What every verb takes, behind its own options."""
    group = parser.add_argument_group("output")
    if result:
        group.add_argument("--json", action="store_true", help="the whole result as JSON on stdout")
        group.add_argument("--html", metavar="PATH", help="also write one self-contained HTML file")
        group.add_argument(
            "--include-text", action="store_true", help="let --json and --html tell hosts, paths, names and texts of prompts (keys never)"
        )
        group.add_argument(
            "--fail-on", choices=("warning", "error"), default="warning", help="exit 1 from this severity on (default: %(default)s)"
        )
        group.add_argument("--colour", "--color", choices=("auto", "always", "never"), default="auto")
    group.add_argument("--progress", choices=("auto", "on", "off"), default="auto", help="on stderr; auto: when it is a terminal")
    group.add_argument("--traceback", action="store_true", help="show where an error arose")


def _scale(parser: argparse.ArgumentParser, what: str) -> None:
    """What dumps need that are too large for one go."""
    parser.add_argument("--sample", type=int, metavar="N", help=f"look at N {what}, drawn evenly over the files and their lengths")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the sample (default: %(default)s)")
    parser.add_argument("--resume", metavar="DIR", help="keep finished work there, and take it up again after an interruption")
    parser.add_argument("--ray", metavar="auto|ADDRESS", help="work on a Ray cluster; every node must see the paths")
    _device(parser)


def _device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cpu", metavar="DEVICE", help="as torch names it, such as cuda (default: %(default)s)")


def _draft(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("draft", metavar="DRAFT", help="the draft's checkpoint: a folder with config.json and weights")


def _names(parser: argparse.ArgumentParser, *, sides: bool = False) -> None:
    parser.add_argument(
        "--names",
        metavar="PART=NAME,...",
        help="of dumps in no known format: which tensor is which, such as input_ids=tokens,features=h"
        + ("; of one side only: live:features=fed" if sides else ""),
    )
