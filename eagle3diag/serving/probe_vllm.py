"""The probe of a vLLM server: it counts drafts for all requests together, so what its counters grew by is what was accepted."""

from __future__ import annotations

import time
from dataclasses import replace

from eagle3diag.errors import UnusableServer
from eagle3diag.serving.acceptance import Acceptance
from eagle3diag.serving.answers import PROMPTS, Answer, Probe, Prompts, allowed, distinct, distinct_of, limits, metrics, refused, whole
from eagle3diag.serving.http import Reply, Server
from eagle3diag.serving.metrics import Counts

SETTLE_S = 5.0
"""vLLM adds to its counters after the answer has left: how long to wait for them to hold what was written."""


def server_version(server: Server) -> str | None:
    """vLLM's version; None where the server shows none."""
    body = allowed(server, server.get("/version"), "/version").json()
    version = body.get("version") if isinstance(body, dict) else None
    return version if isinstance(version, str) else None


def probe_vllm(server: Server, version: str, prompts: Prompts | None, max_tokens: int) -> Probe:
    """Send the prompts to a vLLM server of this version, one by one, and take what its counters grew by."""
    models = allowed(server, server.get("/v1/models"), "/v1/models").json()
    entries = models.get("data") if isinstance(models, dict) else None
    listed = entries if isinstance(entries, list) else []
    model = next((e["id"] for e in listed if isinstance(e, dict) and isinstance(e.get("id"), str)), None)
    if model is None:
        raise UnusableServer("/v1/models names no model", where=server.url, hint="is it still loading?")
    before = metrics(server)
    if before is None or before.engine != "vllm":
        raise UnusableServer("/metrics has no counters of vLLM", where=server.url, hint="start it without --disable-log-stats")
    answers = []
    for prompt in prompts if prompts is not None else PROMPTS:
        body = {"model": model, "prompt": prompt if isinstance(prompt, str) else list(prompt), "max_tokens": max_tokens, "temperature": 0}
        started = time.perf_counter()
        reply = allowed(server, server.post("/v1/completions", body), "/v1/completions")
        answers.append(_answer(server, reply, time.perf_counter() - started))
    grown = _settled(server, before, sum(a.tokens for a in answers))
    strangers = None if grown.requests is None else max(0, grown.requests - len(answers))
    untold = [*limits(prompts, False), "vLLM does not show its launch options: pass them to diagnose with --launch or --log"]
    if strangers or (before.running or 0) > 0:
        untold.append("others used the server meanwhile: the counters include their rounds too")
    seen = Acceptance.from_metrics(grown, version)
    acceptance = replace(seen, tokens=sum(a.tokens for a in answers), distinct=distinct_of(answers))
    if seen.rounds is None:  # no counters of drafts at all: no draft is configured
        acceptance = replace(acceptance, rounds=0, accepted=0, drafted=0)
    return Probe(server.url, "vllm", version, model, None, acceptance, tuple(answers), "metrics", strangers, tuple(untold))


def _answer(server: Server, reply: Reply, seconds: float) -> Answer:
    body = reply.json()
    usage = body.get("usage") if isinstance(body, dict) else None
    choices = body.get("choices") if isinstance(body, dict) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    if reply.status != 200 or not isinstance(usage, dict) or not isinstance(first, dict):
        raise refused(server, reply, "/v1/completions")
    tokens = whole(usage.get("completion_tokens")) or 0
    share = distinct(first.get("token_ids"), first.get("text"))
    return Answer(whole(usage.get("prompt_tokens")) or 0, tokens, None, None, share, round(seconds, 3))


def _settled(server: Server, before: Counts, tokens: int) -> Counts:
    """What the counters grew by, once they hold at least the tokens that were written."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        after = metrics(server)
        if after is None:
            raise UnusableServer("/metrics went away during the probe", where=server.url)
        grown = after.since(before)
        if (grown.generated or 0) >= tokens or time.monotonic() > deadline:
            return grown
        time.sleep(0.2)
