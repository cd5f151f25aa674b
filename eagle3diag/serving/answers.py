"""What every probe shares: its prompts, its result, and how answers of a server are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from eagle3diag.errors import UnusableServer
from eagle3diag.findings import Result
from eagle3diag.serving.acceptance import Acceptance
from eagle3diag.serving.http import Reply, Server
from eagle3diag.serving.launch import Launch
from eagle3diag.serving.metrics import Counts, read_metrics

Prompts: TypeAlias = "Sequence[str | Sequence[int]]"

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


def allowed(server: Server, reply: Reply, path: str) -> Reply:
    """The reply, unless it asks for a key."""
    if reply.status in (401, 403):
        given = "the API key is not accepted" if server.has_key else "asks for an API key"
        raise UnusableServer(f"{path}: {given} ({reply.status})", where=server.url, hint="pass api_key (--api-key, or EAGLE3DIAG_API_KEY)")
    return reply


def refused(server: Server, reply: Reply, path: str) -> UnusableServer:
    """The error for a reply to a prompt that is no answer to it."""
    hint = "is it a generation model? send one prompt by hand"
    return UnusableServer(f"{path} answers {reply.status}" + said(reply.json()), where=server.url, hint=hint)


def metrics(server: Server) -> Counts | None:
    """The server's counters; None where it shows none."""
    reply = server.get("/metrics")
    return read_metrics(reply.text) if reply.status == 200 else None


def distinct_of(answers: Sequence[Answer]) -> float | None:
    """Share of different tokens, over all answers of which it is known."""
    shares = [(a.distinct, a.tokens) for a in answers if a.distinct is not None and a.tokens]
    return sum(share * n for share, n in shares) / sum(n for _, n in shares) if shares else None


def distinct(ids: Any, text: Any) -> float | None:
    """Share of different tokens in one answer, by ids, else by words (one long word counts by characters)."""
    items: Sequence[Any] | None = ids if isinstance(ids, list) and ids else None
    if items is None and isinstance(text, str) and text.strip():
        items = text.split() if len(text.split()) >= 8 else text.strip()
    return len(set(map(str, items))) / len(items) if items else None


def limits(prompts: Sequence[str | Sequence[int]] | None, no_tokenizer: bool) -> Sequence[str]:
    """What the built-in prompts leave open."""
    if prompts is not None:
        return ()
    if no_tokenizer:
        return ("the server has no tokenizer, so arbitrary token ids were sent: acceptance on real prompts may be quite different",)
    return ("the prompts were sent without the chat template: chat traffic may accept more or less (FM-66)",)


def said(body: Any) -> str:
    """The server's own words for what is wrong, cut."""
    for holder in (body, body.get("error") if isinstance(body, dict) else None):
        message = holder.get("message") if isinstance(holder, dict) else holder if isinstance(holder, str) else None
        if isinstance(message, str):
            return f": {' '.join(message.split())[:200]}"
    return ""


def whole(value: Any) -> int | None:
    """A count from a server's answer; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53 else None


def text(info: Mapping[str, Any], name: str) -> str | None:
    """A field that is a string; None for anything else."""
    value = info.get(name)
    return value if isinstance(value, str) else None
