"""``eagle3diag capture``: a target in Transformers over prompts from a file, or the launch command of a server that is to record itself."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, cast

from eagle3diag.errors import BadArgument, InputError, MissingDependency, UnreadableFile
from eagle3diag.files import read_text
from eagle3diag.progress import track

_WORDS = """\
of a target over prompts, in this process:
  eagle3diag capture --target TARGET --prompts prompts.jsonl --boundaries 2,15,27 --max-new 48 --out train/
of what a server feeds its draft (prints the command to start it with; --run starts it):
  eagle3diag capture sglang --out live/ -- python -m sglang.launch_server --model-path TARGET ...
  eagle3diag capture vllm --out live/ -- vllm serve TARGET ...
"""


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """The options of the verb, for both of its uses."""
    verb.epilog, verb.formatter_class = _WORDS, argparse.RawDescriptionHelpFormatter
    verb.add_argument(
        "engine",
        metavar="ENGINE",
        nargs="?",
        choices=("transformers", "sglang", "vllm"),
        default="transformers",
        help="transformers, sglang or vllm (default: %(default)s)",
    )
    verb.add_argument("--out", required=True, metavar="DUMP", help="the dump to write: a new folder")
    verb.add_argument("--boundaries", metavar="B,B,B", help="such as 2,15,27, or all (default: the three that drafts usually read)")
    verb.add_argument("--limit", type=int, metavar="N", help="only the first N prompts or requests")
    own = verb.add_argument_group("in this process")
    own.add_argument("--target", metavar="PATH", help="the target's checkpoint")
    words = (
        'JSON lines with "text" (as it is, no chat template), "messages" or "conversations" (through it), or "prompt_ids" and "output_ids"'
    )
    own.add_argument("--prompts", metavar="FILE", help=words)
    own.add_argument("--side", choices=("train", "live", "reference"), default="train", help="what the dump is for (default: %(default)s)")
    own.add_argument("--max-new", type=int, default=0, metavar="N", help="let the target answer, up to N tokens each (greedy)")
    server = verb.add_argument_group("of a server", "what it feeds its draft, and other boundaries; its launch command follows --")
    server.add_argument("--run", action="store_true", dest="start", help="run the command; otherwise it is printed")
    server.add_argument("--every", type=int, default=1, metavar="N", help="record one in N requests")
    server.add_argument("--max-gb", type=float, default=4.0, metavar="GB", help="close the dump at this size (default: %(default)s)")
    server.add_argument(
        "--ids", choices=("keep", "hash", "drop"), default="keep", help="prompts are private: hash the token ids, or drop them"
    )
    server.add_argument("--salt", default="", help="for --ids hash: the same salt on both sides lets the two dumps be aligned")
    server.add_argument("--ranks", choices=("first", "all"), default="first", help="whether ranks after the first record too")
    server.add_argument("--no-final", action="store_true", help="leave out the target's final state")


def split(words: list[str]) -> tuple[list[str], list[str]]:
    """Our own words, and those after ``--``: the command of a server, of which argparse must not take a part for itself."""
    if words[:1] != ["capture"] or "--" not in words:
        return words, []
    at = words.index("--")
    return words[:at], words[at + 1 :]


def run(args: argparse.Namespace) -> int:
    """The one or the other; returns the exit code."""
    return _in_process(args) if args.engine == "transformers" else _server(args)


def _server(args: argparse.Namespace) -> int:
    """Print or run the launch command with the recorder in it; the exit code of what was run."""
    from eagle3diag.capture.launching import recording_command
    from eagle3diag.dumps import open_dump

    options: dict[str, Any] = {"limit": args.limit, "every": args.every, "max_bytes": int(args.max_gb * 1e9), "ids": args.ids}
    options |= {"salt": args.salt, "ranks": args.ranks, "final": not args.no_final, "boundaries": _boundaries(args.boundaries) or ()}
    command = recording_command(args.engine, args.command, args.out, **options)
    for sentence in (*command.added, "the server's environment needs eagle3diag: pip install --no-deps eagle3diag"):
        print(f"# {sentence}", file=sys.stderr)
    if not args.start:
        print(command)
        return 0
    try:
        code = subprocess.run(command.words, env={**os.environ, **command.environment}, check=False).returncode
    except KeyboardInterrupt:  # the usual way to stop a server; it has had the same signal
        code = 0
    except OSError as error:
        raise BadArgument(f"cannot be run: {error.strerror or error}", where=command.words[0], hint="check the command") from error
    print(f"# {open_dump(args.out)!r} in {args.out}", file=sys.stderr)
    return code


def _in_process(args: argparse.Namespace) -> int:
    """Capture over every line of ``--prompts``; returns 0. Raises ``InputError`` before anything heavy is loaded."""
    missing = [f"--{name}" for name in ("target", "prompts") if getattr(args, name) is None]
    if missing or args.command:
        what = f"{' and '.join(missing)} missing" if missing else "a command is given, but no engine is named"
        raise BadArgument(what, where="capture", hint="see eagle3diag capture --help for its two uses")
    wanted = _boundaries(args.boundaries)
    lines = list(_lines(Path(args.prompts)))[: args.limit]
    if not lines:
        raise UnreadableFile("holds no prompt", where=args.prompts, hint='one JSON object a line, such as {"text": "..."}')
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging as hf_logging
    except ImportError as error:
        raise MissingDependency("capture runs the target in Transformers", hint="pip install 'eagle3diag[hf]'") from error
    from eagle3diag.capture import capture
    from eagle3diag.capture.structure import find_decoder
    from eagle3diag.dumps import DumpWriter

    if not Path(args.target, "config.json").is_file():  # a name would be looked up on a hub, and the dump would not say which files it got
        raise UnreadableFile("not a folder with a config.json", where=args.target, hint="give the folder of a checkpoint on disk")
    hf_logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # what it says of caches and loading is not about the dump
    hf_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        model = AutoModelForCausalLM.from_pretrained(args.target, dtype="auto", local_files_only=True)
        tokenizer = (
            AutoTokenizer.from_pretrained(args.target, local_files_only=True) if any("prompt_ids" not in line for line in lines) else None
        )
    except (OSError, ValueError, KeyError) as error:
        raise UnreadableFile(f"Transformers cannot load it: {error}", where=args.target) from error
    boundaries = range(len(find_decoder(model).blocks) + 1) if wanted == "all" else wanted
    rows = cast(int, model.get_input_embeddings().num_embeddings)
    asked = [_ids(line, tokenizer, rows, where=f"{args.prompts}: prompt {n}") for n, line in enumerate(lines, 1)]
    with ExitStack() as open_writer, torch.inference_mode():
        writer: DumpWriter | None = None
        silent = 0
        for n, (prompt, answer) in enumerate(track(asked, "prompts")):
            with capture(model, boundaries, side=args.side) as tape:  # one tape per prompt: it is written and let go at once
                row = torch.tensor([[*prompt, *answer]], device=model.device)
                if args.max_new and not answer:
                    model.generate(row, attention_mask=torch.ones_like(row), do_sample=False, max_new_tokens=args.max_new)
                else:
                    model(input_ids=row, use_cache=False)
            dump, record = tape.dump, tape.dump[0]
            if writer is None:
                made = DumpWriter(args.out, args.side, dump.target, dump.engine, dump.engine_version, tape.boundaries)
                writer = open_writer.enter_context(made)
            states = {b: record.state(b) for b in tape.boundaries}
            name, length = f"prompt-{n:05}", min(len(prompt), len(record.input_ids))
            silent += bool(args.max_new) and not answer and len(record.input_ids) <= length + 1  # the last token is never fed
            writer.add(name=name, input_ids=record.input_ids, states=states, final=record.final, prompt_length=length)
    if silent:
        why = 'a chat model may want its template: give "messages" in place of "text"'
        print(f"# {silent} of {len(asked)} prompts got no answer; {why}", file=sys.stderr)
    print(f"wrote {len(asked)} sequences at boundaries {', '.join(map(str, tape.boundaries))} to {args.out}")
    return 0


def _boundaries(text: str | None) -> tuple[int, ...] | Literal["all"] | None:
    if text is None or text == "all":
        return "all" if text else None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise BadArgument(
            f"--boundaries {text!r}", where="capture", hint="whole numbers with commas between, such as 2,15,27; or all"
        ) from None


_KEYS = ("prompt_ids", "text", "prompt", "messages", "conversations")
"""What a line may hold, the first wins: ids, a text as it is under either name, a chat as OpenAI's API or as ShareGPT has it."""

_ROLES = {"human": "user", "gpt": "assistant"}  # ShareGPT's names


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSON lines file; each problem names its line."""
    for n, line in enumerate(read_text(path).splitlines(), 1):
        if not line.strip():
            continue
        where, hint = f"{path}:{n}", f"one JSON object a line with one of {', '.join(_KEYS)}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UnreadableFile(f"not JSON: {error}", where=where, hint=hint) from error
        if not isinstance(value, dict) or not any(key in value for key in _KEYS):
            raise UnreadableFile('neither "prompt_ids" nor "text" nor "messages" is there', where=where, hint=hint)
        yield value


def _ids(line: dict[str, Any], tokenizer: Any, rows: int, *, where: str) -> tuple[list[int], list[int]]:
    """Prompt and answer (may be empty) of one line: ids as they are, the text without any chat template, a chat with the target's."""
    key = next(key for key in _KEYS if key in line)
    prompt: Any = None
    answer: Any = []
    if key == "prompt_ids":
        prompt, answer = line[key], line.get("output_ids", [])
    elif isinstance(line[key], str):
        prompt = tokenizer(line[key])["input_ids"]
    elif key in ("messages", "conversations"):
        prompt, answer = _chat(line[key], tokenizer, where)
    if not prompt or not _whole(prompt, rows) or not _whole(answer, rows):
        what = f"token ids must be lists of whole numbers below {rows}, text a string; the prompt may not be empty"
        raise InputError(what, where=where, hint="give ids of the target's own tokenizer")
    return prompt, answer


def _chat(turns: Any, tokenizer: Any, where: str) -> tuple[list[int], list[int]]:
    """The chat up to the target's last turn as prompt, and that turn, if it is the last, as the answer."""
    try:
        chat = [
            {"role": _ROLES.get(t.get("role", t.get("from")), t.get("role", t.get("from"))), "content": t.get("content", t.get("value"))}
            for t in turns
        ]
        known = bool(chat) and all(isinstance(t["role"], str) and isinstance(t["content"], str) for t in chat)
        asked = chat[:-1] if known and chat[-1]["role"] == "assistant" else chat
        texts = [tokenizer.apply_chat_template(c, tokenize=False, add_generation_prompt=c is asked) for c in (asked, chat)] if known else []
    except Exception as error:  # a template is a program of the target's, and ends as it likes
        raise InputError(f"not a chat that the target's template takes: {error}"[:300], where=where, hint=_CHAT) from error
    if not texts or not asked:
        raise InputError("not a chat: no turns, or a turn without role and content", where=where, hint=_CHAT)
    prompt, whole = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts)
    return prompt, [] if asked is chat else whole[len(prompt) :] if whole[: len(prompt)] == prompt else []


_CHAT = 'give "messages": [{"role": "user", "content": "..."}, ...]'


def _whole(ids: Any, rows: int) -> bool:
    return isinstance(ids, list) and all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i < rows for i in ids)
