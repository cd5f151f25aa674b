"""Responses of an SGLang server asked for ``return_hidden_states``, saved as JSON: the last state, or the aux states side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from eagle3diag.dumps.formats.base import Asked, Content, Facts, Format, assemble
from eagle3diag.dumps.places import Place
from eagle3diag.dumps.records import HiddenStates
from eagle3diag.errors import MissingPart, UnreadableFile

#: A list of pairs whose responses are lists, and as much again: any file of JSON is looked at here, however deep it nests.
_DEEPEST = 6
_ASK = "start the server with --enable-return-hidden-states and save its responses as they come"


def _responses(value: Any, depth: int = 0) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(request, response) pairs in a saved value: one response, a list, or ``{"request": ..., "response": ...}``."""
    if depth > _DEEPEST:
        return
    if isinstance(value, list):
        for item in value:
            yield from _responses(item, depth + 1)
    elif isinstance(value, dict) and "response" in value:
        request = value.get("request")
        for _, response in _responses(value["response"], depth + 1):
            yield request if isinstance(request, dict) else {}, response
    elif isinstance(value, dict) and isinstance(value.get("meta_info"), dict) and "hidden_states" in value["meta_info"]:
        yield value, value


def _read(place: Place, names: tuple[str, ...], asked: Asked) -> HiddenStates:
    width = asked.target.hidden_size if asked.target else 0

    def opened(file: str) -> list[Content]:
        made = [_content(q, r, place.label(file), width) for q, r in _responses(place.open(file))]
        if not made:
            raise UnreadableFile("holds no response with hidden_states", where=place.label(file), hint=_ASK)
        return made

    facts = Facts(
        "sglang",
        side="live",
        several=True,
        assumed=(
            "rows are the states of the prompt, then of the answer without its last token, which is never fed",
            f"rows {width} wide are the last state after the final norm, wider ones the aux states in ascending order"
            if width
            else "the states are the aux states, as a server that runs EAGLE3 returns them; without target= a lone last state looks the same",
        ),
    )
    return assemble("SGLang responses", place, names, opened, facts, replace(asked, side=asked.side or "live"))


def _content(request: dict[str, Any], response: dict[str, Any], where: str, width: int) -> Content:
    meta = response["meta_info"]
    states = _rows(meta["hidden_states"], where)
    prompt = _ids(request.get("input_ids")) or _logged(meta.get("input_token_logprobs"))
    answer = _ids(response.get("output_ids")) or _logged(meta.get("output_token_logprobs"))
    if not prompt:
        hint = 'send return_logprob with logprob_start_len 0, or save {"request": ..., "response": ...} with input_ids in the request'
        raise MissingPart("a response without the ids of its prompt cannot be aligned with anything", where=where, hint=hint)
    cached = meta.get("cached_tokens", 0)
    start = cached if type(cached) is int and 0 < cached < len(prompt) else 0
    ids = (prompt + answer)[start : start + len(states)]
    if len(ids) < len(states):
        message = f"{len(states)} rows of states for {len(prompt)} tokens of prompt and {len(answer)} of answer"
        raise UnreadableFile(message, where=where, hint="save the response with its output_ids")
    lone = {"final": states} if states.shape[1] == width else {"aux": states}
    name = meta.get("id")
    return Content(
        torch.tensor(ids),
        positions=torch.arange(start, start + len(ids)) if start else None,
        prompt_length=len(prompt),
        name=name if isinstance(name, str) else None,
        **lone,
    )


def _rows(value: Any, where: str) -> Tensor:
    """A ``[T][D]`` list per chunk of the prompt, then ``[D]``, or ``[n][D]`` for accepted drafts, per step: all rows in order."""
    rows: list[Any] = []
    for item in value if isinstance(value, list) else []:
        if isinstance(item, list):
            rows.extend(item if item and isinstance(item[0], list) else [item])
    try:
        made = torch.tensor(rows, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise UnreadableFile(f"hidden_states are not rows of numbers ({str(error)[:120]})", where=where, hint=_ASK) from None
    if made.dim() != 2 or not made.numel():
        raise UnreadableFile("hidden_states hold no rows of numbers", where=where, hint=_ASK)
    return made


def _ids(value: Any) -> list[int]:
    while isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
        value = value[0]
    return value if isinstance(value, list) and all(type(i) is int and 0 <= i < 1 << 40 for i in value) else []


def _logged(value: Any) -> list[int]:
    """Ids out of ``[logprob, id, text]`` triples."""
    triples = isinstance(value, list) and all(isinstance(t, list) and len(t) > 1 for t in value)
    return _ids([t[1] for t in value]) if triples else []


# sglang/srt/managers: meta_info["hidden_states"]; --enable-return-aux-hidden-states since 0.5.23
FORMAT = Format("SGLang responses", lambda _, v: next(_responses(v), None) is not None, _read)
