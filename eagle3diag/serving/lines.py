"""Single lines of a server's log: a window of acceptance, the resolved arguments, a version."""

from __future__ import annotations

import calendar
import re
from dataclasses import dataclass

from eagle3diag.serving.launch import Launch, from_arguments

_NUMBER = r"(\d{1,6}(?:\.\d{1,9})?)"
#: What follows ``accept len: `` in SGLang's log, a rate or not.
LENGTH = re.compile(rf"{_NUMBER}(?:, accept rate: {_NUMBER})?".encode())
_RATE = re.compile(rf"accept rate: {_NUMBER}")
_RUNNING = re.compile(r"#running-req: (\d{1,7})")
_TOKENS = re.compile(r"#(?:full )?token: (\d{1,12})")
_SGLANG_LENGTH = re.compile(rf"accept len: {_NUMBER}")
# vLLM prints labels in an order that differs between versions, so each is looked for by itself.
_VLLM = {
    "length": re.compile(rf"Mean acceptance length: {_NUMBER}"),
    "accepted": re.compile(r"(?:Accepted|Number of accepted tokens): (\d{1,12})"),
    "drafted": re.compile(r"(?:Drafted|Number of draft tokens): (\d{1,12})"),
    "emitted": re.compile(r"Number of emitted tokens: (\d{1,12})"),
    "steps": re.compile(r"Number of speculative tokens: (\d{1,4})\b"),
    "rate": re.compile(rf"Draft acceptance rate: {_NUMBER}(%?)"),
    "positions": re.compile(r"Per-position acceptance rate: ((?:[01]\.\d{1,6}(?:, )?){1,64})"),
}
VLLM_RUNNING = re.compile(rb"Running: (\d{1,7}) reqs")
_STAMP = re.compile(r"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)|\b(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)\b", re.ASCII)
_RANK = re.compile(r"(?<![A-Za-z0-9])((?:DP|PP|TP|EP)\d{1,4}(?: (?:DP|PP|TP|EP)\d{1,4})*)\b")
# server_args is printed as a dictionary since 0.5.x, and as ServerArgs(name=value, ...) before.
_VALUE = r"(?:'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"|(\[[^\]]*\]|[^,(){}\s]+))"
_ARGUMENT = re.compile(rf"(?:'(\w+)': |\b(\w+)=){_VALUE}")
_VERSION = re.compile(
    r"\b(sglang|vllm)[ =/v]{0,6}(?:server )?version[ =:]{0,3}v?(\d+\.\d+[\w.]*)|\b(sglang|vllm)==(\d+\.\d+[\w.]*)", re.IGNORECASE
)
_VLLM_START = re.compile(r"LLM engine \(v(\d+\.\d+[\w.+]*)\)(?: with config: (.*))?", re.DOTALL)
_VLLM_SPECULATIVE = re.compile(r"speculative_config=SpeculativeConfig\(([^()]{0,4000})\)")
_VLLM_ARGUMENTS = {
    "model", "tokenizer", "skip_tokenizer_init", "dtype", "quantization", "tensor_parallel_size", "pipeline_parallel_size",
    "enforce_eager", "kv_cache_dtype", "enable_prefix_caching", "max_seq_len", "served_model_name", "device_config",
}  # fmt: skip


@dataclass(frozen=True)
class Window:
    """One window of a log.

    ``time``: seconds since 1970 by the log's own clock, whatever its zone; ``running``: requests running; ``tokens``: tokens of context
    held by them; ``accept_rate``: as printed, a share; ``rounds``, ``accepted``: where the engine prints counts (vLLM).
    """

    accept_length: float
    accept_rate: float | None = None
    time: float | None = None
    running: int | None = None
    tokens: int | None = None
    rounds: float | None = None
    accepted: int | None = None
    p: tuple[float, ...] = ()

    @property
    def context(self) -> float | None:
        """Tokens of context a running request has, on average."""
        return self.tokens / self.running if self.tokens is not None and self.running else None


def sglang_window(line: str) -> Window | None:
    """SGLang's ``Decode batch`` line, 0.4 to 0.5.23, plain or hybrid, with whatever stands before and after."""
    length = _SGLANG_LENGTH.search(line)
    if length is None:
        return None
    rate, running, tokens = _RATE.search(line), _RUNNING.search(line), _TOKENS.search(line)
    return Window(
        float(length[1]),
        float(rate[1]) if rate else None,
        stamp(line),
        int(running[1]) if running else None,
        int(tokens[1]) if tokens else None,
    )


def vllm_window(line: str, running: int | None) -> Window | None:
    """vLLM's ``SpecDecoding metrics`` (V1, 0.9 on) or ``Speculative metrics`` (V0): counts of one interval.

    Source: ``v1/spec_decode/metrics.py``. V0 counts accepted tokens after a wrong one too, so there the emitted ones are what counts.
    """
    found = {name: pattern.search(line) for name, pattern in _VLLM.items()}
    length, accepted, drafted, emitted, steps, rate, positions = found.values()
    share = float(rate[1]) / (100 if rate[2] else 1) if rate else None
    if emitted and drafted and steps and int(steps[1]) and int(drafted[1]):
        rounds = int(drafted[1]) / int(steps[1])
        through = max(0, int(emitted[1]) - round(rounds))
        return Window(1 + through / rounds, share, stamp(line), running, rounds=rounds, accepted=through)
    if length is None:
        return None
    p = tuple(float(x) for x in positions[1].rstrip(", ").split(", ")) if positions else ()
    hits = int(accepted[1]) if accepted else None
    rounds = _rounds(hits, int(drafted[1]), float(length[1]), len(p)) if drafted and hits is not None and p else 0
    return Window(
        float(length[1]), share, stamp(line), running, rounds=rounds or None, accepted=hits if rounds else None, p=p if rounds else ()
    )


def _rounds(accepted: int, drafted: int, length: float, positions: int) -> float:
    """Rounds of an interval: drafts over drafts a round, unless rounds were cut short and the accept length (two decimals) says otherwise."""
    whole = drafted / positions
    if accepted and whole and abs(1 + accepted / whole - length) > 0.006 and length > 1:
        return accepted / (length - 1)
    return whole


def stamp(line: str) -> float | None:
    """Seconds since 1970 of the first time in the line; vLLM prints no year, and 1970 is taken. None for an impossible one."""
    match = _STAMP.search(line)
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(x) for x in (match.groups()[:6] if match[1] else ("1970", *match.groups()[6:])))
    if not (1970 <= year < 3000 and 1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second < 61):
        return None
    return float(calendar.timegm((year, month, day, hour, minute, second)))


def rank(line: str) -> str:
    """The ranks that SGLang and vLLM print before a line (``DP0 TP1``); empty without."""
    match = _RANK.search(line[:200])
    return match[1] if match else ""


def version(line: str) -> tuple[str, str] | None:
    """``(engine, version)`` where a line names them."""
    if found := _VERSION.search(line):
        return (found[1] or found[3]).lower(), found[2] or found[4]
    if found := _VLLM_START.search(line):
        return "vllm", found[1]
    return None


def sglang_arguments(line: str) -> Launch:
    """The arguments as SGLang resolved them, from its ``server_args=`` line."""
    return from_arguments("sglang", _pairs(line.split("server_args=", 1)[1]), None, resolved=True)


def vllm_arguments(line: str) -> Launch | None:
    """What vLLM's first line says of its configuration; the draft's is ``SpeculativeConfig(method=..., model=..., num_spec_tokens=...)``."""
    match = _VLLM_START.search(line)
    if match is None:
        return None
    config = match[2] or ""
    found = _VLLM_SPECULATIVE.search(config)
    pairs = {k: v for k, v in _pairs(config[: found.start()] + config[found.end() :] if found else config).items() if k in _VLLM_ARGUMENTS}
    arguments: dict[str, object] = {"max_model_len" if k == "max_seq_len" else k: v for k, v in pairs.items()}
    if found:
        draft = _pairs(found[1])
        arguments["speculative_config"] = {"num_speculative_tokens" if k == "num_spec_tokens" else k: v for k, v in draft.items()}
    return from_arguments("vllm", arguments, match[1], resolved=True)


def _pairs(text: str) -> dict[str, str]:
    """``name=value`` or ``'name': value``; the first of a name counts, ``None`` is left out."""
    found: dict[str, str] = {}
    for match in _ARGUMENT.finditer(text):
        value = next(group for group in match.groups()[2:] if group is not None)
        if value != "None":
            found.setdefault(match[1] or match[2], value)
    return found
