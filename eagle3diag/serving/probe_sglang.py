"""The probe of an SGLang server: its arguments, and its own counts of every request."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from eagle3diag.errors import BadArgument, UnusableServer
from eagle3diag.serving.acceptance import Acceptance
from eagle3diag.serving.answers import (
    PROMPTS,
    TOKEN_PROMPTS,
    Answer,
    Probe,
    Prompts,
    allowed,
    distinct,
    distinct_of,
    limits,
    metrics,
    refused,
    text,
    whole,
)
from eagle3diag.serving.http import Reply, Server
from eagle3diag.serving.launch import from_arguments, parse_launch

_ACCEPTED = ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num")  # 0.5.12 on, 0.5.11, 0.5.5.post3-0.5.10
_HISTOGRAM = ("spec_correct_drafts_histogram", "spec_accept_histogram")  # 0.5.12 on, 0.5.9 on


def server_info(server: Server) -> Mapping[str, Any] | None:
    """SGLang's arguments and state; ``/server_info`` since 0.5.5 or so, ``/get_server_info`` before."""
    for path in ("/server_info", "/get_server_info"):
        reply = allowed(server, server.get(path), path)
        body = reply.json() if reply.status == 200 else None
        if isinstance(body, dict) and "model_path" in body and ("internal_states" in body or "version" in body):
            return body
        if reply.status >= 500:
            raise UnusableServer(
                f"{path} fails with {reply.status}", where=server.url, hint="look at the server's log; is it still starting?"
            )
    return None


def probe_sglang(server: Server, info: Mapping[str, Any], prompts: Prompts | None, max_tokens: int) -> Probe:
    """Send the prompts to an SGLang server, one by one, and add up what it says of each."""
    launch = from_arguments(
        "sglang", {k: v for k, v in info.items() if isinstance(k, str) and k != "internal_states"}, text(info, "version"), resolved=True
    )
    launch = replace(launch, arguments={k: v for k, v in launch.arguments.items() if k != "launch_command"}, environment=_typed(info))
    no_tokenizer = info.get("skip_tokenizer_init") is True
    before = metrics(server)
    answers, histogram = [], [0] * 65
    for prompt in prompts if prompts is not None else TOKEN_PROMPTS if no_tokenizer else PROMPTS:
        body: dict[str, Any] = {"sampling_params": {"temperature": 0, "max_new_tokens": max_tokens}}
        body["text" if isinstance(prompt, str) else "input_ids"] = prompt if isinstance(prompt, str) else list(prompt)
        started = time.perf_counter()
        reply = allowed(server, server.post("/generate", body), "/generate")
        answer, counts = _answer(server, reply, time.perf_counter() - started, launch.steps)
        answers.append(answer)
        for i, n in enumerate(counts):
            histogram[i] += n
    after = metrics(server)
    rounds = sum(a.rounds or 0 for a in answers)
    if not rounds and launch.algorithm:
        raise UnusableServer(
            "drafts, but its answers do not say how many rounds they took", where=server.url, hint="read its log: eagle3diag diagnose --log"
        )
    exact = sum(histogram) == rounds > 0
    accepted = [a.accepted for a in answers]
    acceptance = Acceptance(
        rounds=rounds,
        accepted=None if None in accepted else sum(n for n in accepted if n is not None),
        steps=launch.steps,
        num_draft_tokens=launch.num_draft_tokens,
        engine=launch.engine,
        engine_version=launch.version,
        tokens=sum(a.tokens for a in answers),
        distinct=distinct_of(answers),
    )
    if exact and acceptance.steps and not any(histogram[acceptance.steps + 1 :]):
        known = Acceptance.from_histogram(histogram[: acceptance.steps + 1], steps=acceptance.steps)
        acceptance = replace(acceptance, accepted=known.accepted, p=known.p, accept_length=known.accept_length)
    grown = after.since(before) if before and after else None
    counted = grown.requests if grown is not None else None
    untold = list(limits(prompts, no_tokenizer))
    if not exact and rounds:
        untold.append("this version does not count accepted drafts by position: p is not known")
    if grown is None:
        untold.append(
            "no /metrics here (--enable-metrics): other requests in the meantime would not be seen; they change load, not these counts"
        )
    return Probe(
        server.url,
        "sglang",
        launch.version,
        launch.target_path,
        launch,
        acceptance,
        tuple(answers),
        "meta_info",
        None if counted is None else max(0, counted - len(answers)),
        tuple(untold),
    )


def _answer(server: Server, reply: Reply, seconds: float, steps: int | None) -> tuple[Answer, list[int]]:
    body = reply.json()
    meta = body.get("meta_info") if isinstance(body, dict) else None
    if reply.status != 200 or not isinstance(meta, dict):
        raise refused(server, reply, "/generate")
    tokens, rounds = whole(meta.get("completion_tokens")), whole(meta.get("spec_verify_ct"))
    accepted = next((n for key in _ACCEPTED if (n := whole(meta.get(key))) is not None), None)
    if rounds is not None and accepted is None and tokens is not None:
        accepted = _accepted_before_counts(meta, tokens, rounds, steps)
    histogram = next((h for key in _HISTOGRAM if isinstance(h := meta.get(key), list)), [])
    counts = [n for n in map(whole, histogram[:65]) if n is not None]
    ids = body.get("output_ids")
    text = body.get("text")
    return Answer(whole(meta.get("prompt_tokens")) or 0, tokens or 0, rounds or 0, accepted, distinct(ids, text), round(seconds, 3)), counts


def _accepted_before_counts(meta: Mapping[str, Any], tokens: int, rounds: int, steps: int | None) -> int:
    """Up to 0.5.5 only rounds are given (0.5.4: and the strict rate): a round writes what it accepts and one more, the prefill writes one.

    The last round may have been cut at ``max_tokens``, so this is short by a few drafts at most.
    """
    rate = meta.get("spec_accept_rate")
    if isinstance(rate, float) and steps and 0 < rate <= 1:
        return round(rate * rounds * steps)
    return max(0, tokens - 1 - rounds)


def _typed(info: Mapping[str, Any]) -> Mapping[str, str]:
    """Variables that stood before the command, where the server repeats what was typed."""
    typed = info.get("launch_command")
    try:
        return parse_launch(typed).environment if isinstance(typed, str) else {}
    except BadArgument:
        return {}
