"""``eagle3diag capture``: run a target in Transformers over prompts from a file and write what its blocks put out."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

from eagle3diag.errors import BadArgument, InputError, MissingDependency, UnreadableFile
from eagle3diag.progress import track


def run(args: argparse.Namespace) -> int:
    """Capture over every line of ``--prompts``; returns 0. Raises ``InputError`` before anything heavy is loaded."""
    wanted = _boundaries(args.boundaries)
    lines = list(_lines(Path(args.prompts)))[: args.limit]
    if not lines:
        raise UnreadableFile("holds no prompt", where=args.prompts, hint='one JSON object a line, such as {"text": "..."}')
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise MissingDependency("capture runs the target in Transformers", hint="pip install 'eagle3diag[hf]'") from error
    from eagle3diag.capture import capture
    from eagle3diag.capture.structure import find_decoder
    from eagle3diag.dumps import DumpWriter

    if not Path(args.target, "config.json").is_file():  # a name would be looked up on a hub, and the dump would not say which files it got
        raise UnreadableFile("not a folder with a config.json", where=args.target, hint="give the folder of a checkpoint on disk")
    try:
        model = AutoModelForCausalLM.from_pretrained(args.target, dtype="auto", local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(args.target, local_files_only=True) if any("text" in line for line in lines) else None
    except (OSError, ValueError, KeyError) as error:
        raise UnreadableFile(f"Transformers cannot load it: {error}", where=args.target) from error
    boundaries = range(len(find_decoder(model).blocks) + 1) if wanted == "all" else wanted
    asked = [_ids(line, tokenizer, where=f"{args.prompts}: prompt {n}") for n, line in enumerate(lines, 1)]
    with ExitStack() as open_writer, torch.inference_mode():
        writer: DumpWriter | None = None
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
            writer.add(name=name, input_ids=record.input_ids, states=states, final=record.final, prompt_length=length)
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


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSON lines file; each problem names its line."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UnreadableFile(f"not UTF-8: {error.reason} at byte {error.start}", where=path) from error
    except OSError as error:
        raise UnreadableFile(error.strerror or str(error), where=path, hint="check the path") from error
    for n, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        where, hint = f"{path}:{n}", 'one JSON object a line with "prompt_ids" or "text"'
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UnreadableFile(f"not JSON: {error}", where=where, hint=hint) from error
        if not isinstance(value, dict) or not ("prompt_ids" in value or "text" in value):
            raise UnreadableFile('neither "prompt_ids" nor "text" is there', where=where, hint=hint)
        yield value


def _ids(line: dict[str, Any], tokenizer: Any, *, where: str) -> tuple[list[int], list[int]]:
    """Prompt and answer (may be empty) of one line: ids as they are, or the text without any chat template."""
    if "prompt_ids" in line:
        prompt, answer = line["prompt_ids"], line.get("output_ids", [])
    else:
        prompt, answer = tokenizer(line["text"])["input_ids"] if isinstance(line["text"], str) else None, []
    if not prompt or not _whole(prompt) or not _whole(answer):
        raise InputError("token ids must be lists of whole numbers, text a string; the prompt may not be empty", where=where)
    return prompt, answer


def _whole(ids: Any) -> bool:
    return isinstance(ids, list) and all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids)
