"""Ask a running SGLang or vLLM server what it is, send it a few short prompts, and return what was accepted for exactly those."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from eagle3diag.errors import BadArgument, UnusableServer
from eagle3diag.findings import Finding, Result
from eagle3diag.serving.acceptance import Acceptance
from eagle3diag.serving.http import Reply, Server
from eagle3diag.serving.launch import Launch, from_arguments, parse_launch
from eagle3diag.serving.metrics import Counts, read_metrics

#: Short, plain, and of different kinds: a story, an explanation, a list, code, a dialogue, a letter. Sent as they are, without a template.
PROMPTS = (
    "Once upon a time, in a small village at the foot of a mountain, there lived",
    "The water cycle describes how water moves through nature. First,",
    "Here is a recipe for vegetable soup.\n\nIngredients:\n-",
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n",
    "Anna: Have you been to the new museum yet?\nBen:",
    "Dear Mr. Miller,\n\nthank you for your letter of last week. We are glad to",
    "The three most important inventions of the nineteenth century were",
    "To set up a tent, start by choosing a flat piece of ground. Then",
)  # fmt: skip
#: For a server without a tokenizer: ids that any vocabulary has. What is written then is not language, and acceptance on it says little.
TOKEN_PROMPTS = tuple(tuple(1000 + (37 * i * i + 211 * k) % 4000 for i in range(16)) for k in range(8))

SETTLE_S = 5.0
"""vLLM adds to its counters after the answer has left: how long to wait for them to hold what was written."""

_ACCEPTED = ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num")  # SGLang 0.5.12 on, 0.5.11, 0.5.5.post3-0.5.10
_HISTOGRAM = ("spec_correct_drafts_histogram", "spec_accept_histogram")  # 0.5.12 on, 0.5.9 on


@dataclass(frozen=True)
class Answer:
    """One request, without its text. ``rounds``, ``accepted``: as the engine counted them for this request, where it does."""

    prompt_tokens: int
    tokens: int
    rounds: int | None
    accepted: int | None
    distinct: float | None
    seconds: float


@dataclass(frozen=True)
class Probe(Result):
    """What a running server is, and what was accepted for the prompts that were sent to it.

    ``source``: ``meta_info`` (SGLang's own counts of each request) or ``metrics`` (what its counters grew by meanwhile). ``strangers``:
    requests of others that ended meanwhile; None where that cannot be seen. ``limits``: what this probe could not tell, in words.
    """

    url: str
    engine: str
    engine_version: str | None
    model: str | None
    launch: Launch | None
    acceptance: Acceptance
    answers: tuple[Answer, ...]
    source: str
    strangers: int | None
    limits: tuple[str, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        from eagle3diag.faults import judge

        return judge(self)


def probe(
    url: str,
    *,
    api_key: str | None = None,
    prompts: Sequence[str | Sequence[int]] | None = None,
    max_tokens: int = 64,
    timeout: float = 60.0,
) -> Probe:
    """Probe the server at ``url``: one request at a time, greedily, ``max_tokens`` each.

    Parameters
    ----------
    url: ``http://host:port``. Redirects to other hosts are not followed, proxies of the environment are not used.
    api_key: sent as a bearer token to this host only; it is in no result, message or log.
    prompts: texts or lists of token ids; default: eight short built-in texts, sent without a chat template.
    timeout: seconds for each single answer, from the first byte sent to the last received.

    Raises
    ------
    UnusableServer: not reachable, too late, too large, refusing, no SGLang or vLLM, or one that does not say what it accepted.
    BadArgument: no such URL, key, prompts or numbers.
    """
    if not 1 <= max_tokens <= 4096:
        raise BadArgument(f"max_tokens {max_tokens} is not within 1 to 4096", where="probe")
    server = Server.at(url, api_key=api_key, timeout=timeout)
    asked = _checked(prompts)
    info = _sglang_info(server)
    if info is not None:
        return _probe_sglang(server, info, asked, max_tokens)
    version = _vllm_version(server)
    if version is not None:
        return _probe_vllm(server, version, asked, max_tokens)
    raise UnusableServer(
        "answers, but neither as SGLang (/server_info) nor as vLLM (/version)",
        where=server.url,
        hint="give the URL of the inference server itself",
    )


def _checked(prompts: Sequence[str | Sequence[int]] | None) -> Sequence[str | Sequence[int]] | None:
    if prompts is None:
        return None
    if isinstance(prompts, str) or not prompts:
        raise BadArgument("prompts must be a list with at least one", where="probe", hint='such as ["Once upon a time"]')
    for prompt in prompts:
        ids = isinstance(prompt, Sequence) and not isinstance(prompt, str) and all(_whole(i) is not None for i in prompt)
        if not prompt or not (isinstance(prompt, str) or ids):
            raise BadArgument("a prompt must be a text or a list of token ids, and not empty", where="probe")
    return prompts


def _allowed(server: Server, reply: Reply, path: str) -> Reply:
    if reply.status in (401, 403):
        given = "the API key is not accepted" if server.has_key else "asks for an API key"
        raise UnusableServer(f"{path}: {given} ({reply.status})", where=server.url, hint="pass api_key (--api-key, or EAGLE3DIAG_API_KEY)")
    return reply


# --- SGLang -------------------------------------------------------------------------------------------------------------------------


def _sglang_info(server: Server) -> Mapping[str, Any] | None:
    """SGLang's arguments and state; ``/server_info`` since 0.5.5 or so, ``/get_server_info`` before."""
    for path in ("/server_info", "/get_server_info"):
        reply = _allowed(server, server.get(path), path)
        body = reply.json() if reply.status == 200 else None
        if isinstance(body, dict) and "model_path" in body and ("internal_states" in body or "version" in body):
            return body
        if reply.status >= 500:
            raise UnusableServer(
                f"{path} fails with {reply.status}", where=server.url, hint="look at the server's log; is it still starting?"
            )
    return None


def _probe_sglang(server: Server, info: Mapping[str, Any], prompts: Sequence[str | Sequence[int]] | None, max_tokens: int) -> Probe:
    launch = from_arguments(
        "sglang", {k: v for k, v in info.items() if isinstance(k, str) and k != "internal_states"}, _text(info, "version"), resolved=True
    )
    launch = replace(launch, arguments={k: v for k, v in launch.arguments.items() if k != "launch_command"}, environment=_typed(info))
    no_tokenizer = info.get("skip_tokenizer_init") is True
    before = _metrics(server)
    answers, histogram = [], [0] * 65
    for prompt in prompts if prompts is not None else TOKEN_PROMPTS if no_tokenizer else PROMPTS:
        body: dict[str, Any] = {"sampling_params": {"temperature": 0, "max_new_tokens": max_tokens}}
        body["text" if isinstance(prompt, str) else "input_ids"] = prompt if isinstance(prompt, str) else list(prompt)
        started = time.perf_counter()
        reply = _allowed(server, server.post("/generate", body), "/generate")
        answer, counts = _sglang_answer(server, reply, time.perf_counter() - started, launch.steps)
        answers.append(answer)
        for i, n in enumerate(counts):
            histogram[i] += n
    after = _metrics(server)
    rounds = sum(a.rounds or 0 for a in answers)
    if not rounds and launch.algorithm:
        raise UnusableServer(
            "drafts, but its answers do not say how many rounds it took", where=server.url, hint="read its log: eagle3diag diagnose --log"
        )
    exact = sum(histogram) == rounds > 0
    acceptance = _sum(answers, launch)
    if exact and acceptance.steps and not any(histogram[acceptance.steps + 1 :]):
        known = Acceptance.from_histogram(histogram[: acceptance.steps + 1], steps=acceptance.steps)
        acceptance = replace(acceptance, accepted=known.accepted, p=known.p, accept_length=known.accept_length)
    grown = after.since(before) if before and after else None
    counted = grown.requests if grown is not None else None
    limits = list(_limits(prompts, no_tokenizer))
    if not exact and rounds:
        limits.append("this version does not count accepted drafts by position: p is not known")
    if grown is None:
        limits.append(
            "no /metrics here (--enable-metrics): requests of others meanwhile would not be seen; they change load, not these counts"
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
        tuple(limits),
    )


def _sglang_answer(server: Server, reply: Reply, seconds: float, steps: int | None) -> tuple[Answer, list[int]]:
    body = reply.json()
    meta = body.get("meta_info") if isinstance(body, dict) else None
    if reply.status != 200 or not isinstance(meta, dict):
        raise UnusableServer(
            f"/generate answers {reply.status}" + _said(body), where=server.url, hint="is it a generation model? send one prompt by hand"
        )
    tokens, rounds = _whole(meta.get("completion_tokens")), _whole(meta.get("spec_verify_ct"))
    accepted = next((n for key in _ACCEPTED if (n := _whole(meta.get(key))) is not None), None)
    if rounds is not None and accepted is None and tokens is not None:
        accepted = _accepted_before_counts(meta, tokens, rounds, steps)
    histogram = next((h for key in _HISTOGRAM if isinstance(h := meta.get(key), list)), [])
    counts = [n for n in map(_whole, histogram[:65]) if n is not None]
    ids = body.get("output_ids")
    text = body.get("text")
    return Answer(
        _whole(meta.get("prompt_tokens")) or 0, tokens or 0, rounds or 0, accepted, _distinct(ids, text), round(seconds, 3)
    ), counts


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


# --- vLLM ---------------------------------------------------------------------------------------------------------------------------


def _vllm_version(server: Server) -> str | None:
    body = _allowed(server, server.get("/version"), "/version").json()
    version = body.get("version") if isinstance(body, dict) else None
    return version if isinstance(version, str) else None


def _probe_vllm(server: Server, version: str, prompts: Sequence[str | Sequence[int]] | None, max_tokens: int) -> Probe:
    models = _allowed(server, server.get("/v1/models"), "/v1/models").json()
    entries = models.get("data") if isinstance(models, dict) else None
    model = (
        next((e["id"] for e in entries or () if isinstance(e, dict) and isinstance(e.get("id"), str)), None)
        if isinstance(entries, list)
        else None
    )
    if model is None:
        raise UnusableServer("/v1/models names no model", where=server.url, hint="is it still loading?")
    before = _metrics(server)
    if before is None or before.engine != "vllm":
        raise UnusableServer("/metrics has no counters of vLLM", where=server.url, hint="start it without --disable-log-stats")
    answers = []
    for prompt in prompts if prompts is not None else PROMPTS:
        body = {"model": model, "prompt": prompt if isinstance(prompt, str) else list(prompt), "max_tokens": max_tokens, "temperature": 0}
        started = time.perf_counter()
        reply = _allowed(server, server.post("/v1/completions", body), "/v1/completions")
        answers.append(_vllm_answer(server, reply, time.perf_counter() - started))
    grown = _settled(server, before, sum(a.tokens for a in answers))
    strangers = None if grown.requests is None else max(0, grown.requests - len(answers))
    limits = [*_limits(prompts, False), "vLLM does not show its launch options: pass them to diagnose with --launch or --log"]
    if strangers or (before.running or 0) > 0:
        limits.append("others used the server meanwhile: the counters hold their rounds too")
    acceptance = replace(_sum(answers, None), rounds=None, accepted=None)
    seen = Acceptance.from_metrics(grown, version)
    acceptance = replace(seen, tokens=acceptance.tokens, distinct=acceptance.distinct)
    if seen.rounds is None:  # no counters of drafts at all: no draft is configured
        acceptance = replace(acceptance, rounds=0, accepted=0, drafted=0)
    return Probe(server.url, "vllm", version, model, None, acceptance, tuple(answers), "metrics", strangers, tuple(limits))


def _vllm_answer(server: Server, reply: Reply, seconds: float) -> Answer:
    body = reply.json()
    usage = body.get("usage") if isinstance(body, dict) else None
    choices = body.get("choices") if isinstance(body, dict) else None
    if (
        reply.status != 200
        or not isinstance(usage, dict)
        or not isinstance(choices, list)
        or not choices
        or not isinstance(choices[0], dict)
    ):
        raise UnusableServer(
            f"/v1/completions answers {reply.status}" + _said(body),
            where=server.url,
            hint="is it a generation model? send one prompt by hand",
        )
    tokens = _whole(usage.get("completion_tokens")) or 0
    distinct = _distinct(choices[0].get("token_ids"), choices[0].get("text"))
    return Answer(_whole(usage.get("prompt_tokens")) or 0, tokens, None, None, distinct, round(seconds, 3))


def _settled(server: Server, before: Counts, tokens: int) -> Counts:
    """What the counters grew by, once they hold at least the tokens that were written."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        after = _metrics(server)
        if after is None:
            raise UnusableServer("/metrics went away during the probe", where=server.url)
        grown = after.since(before)
        if (grown.generated or 0) >= tokens or time.monotonic() > deadline:
            return grown
        time.sleep(0.2)


# --- both ---------------------------------------------------------------------------------------------------------------------------


def _metrics(server: Server) -> Counts | None:
    reply = server.get("/metrics")
    return read_metrics(reply.text) if reply.status == 200 else None


def _sum(answers: Sequence[Answer], launch: Launch | None) -> Acceptance:
    shares = [(a.distinct, a.tokens) for a in answers if a.distinct is not None and a.tokens]
    accepted = [a.accepted for a in answers]
    return Acceptance(
        rounds=sum(a.rounds or 0 for a in answers),
        accepted=None if None in accepted else sum(n for n in accepted if n is not None),
        steps=launch.steps if launch else None,
        slots=launch.slots if launch else None,
        engine=launch.engine if launch else None,
        engine_version=launch.version if launch else None,
        tokens=sum(a.tokens for a in answers),
        distinct=sum(share * n for share, n in shares) / sum(n for _, n in shares) if shares else None,
    )


def _distinct(ids: Any, text: Any) -> float | None:
    """Share of different tokens in one answer, by ids, else by words (one long word counts by characters)."""
    items: Sequence[Any] | None = ids if isinstance(ids, list) and ids else None
    if items is None and isinstance(text, str) and text.strip():
        items = text.split() if len(text.split()) >= 8 else text.strip()
    return len(set(map(str, items))) / len(items) if items else None


def _limits(prompts: Sequence[str | Sequence[int]] | None, no_tokenizer: bool) -> Sequence[str]:
    if prompts is not None:
        return ()
    if no_tokenizer:
        return ("the server has no tokenizer, so arbitrary token ids were sent: acceptance on real prompts may be quite different",)
    return ("the prompts were sent without the chat template: chat traffic may accept more or less (FM-66)",)


def _said(body: Any) -> str:
    """The server's own words for what is wrong, cut."""
    for holder in (body, body.get("error") if isinstance(body, dict) else None):
        message = holder.get("message") if isinstance(holder, dict) else holder if isinstance(holder, str) else None
        if isinstance(message, str):
            return f": {' '.join(message.split())[:200]}"
    return ""


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53 else None


def _text(info: Mapping[str, Any], name: str) -> str | None:
    value = info.get(name)
    return value if isinstance(value, str) else None
