"""Logs of every format in every wrapping, their trends, and the lines that name a fault."""

from __future__ import annotations

import gzip
import json
import math
import random
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

import pytest
from builders import LIGHT, write_draft
from hypothesis import given
from hypothesis import strategies as st

from eagle3diag.case import Case, Given
from eagle3diag.checkpoints import open_draft
from eagle3diag.diagnose import diagnose
from eagle3diag.errors import UnreadableFile
from eagle3diag.faults import detect
from eagle3diag.faults.log import captured, judge_log
from eagle3diag.findings import Severity
from eagle3diag.serving import LogSeries, Window, log, pieces, read_log
from eagle3diag.serving.trends import by_load, drift, mean_of

ARGS = (
    "[2026-11-29 10:00:00] server_args={'model_path': '/m/target', 'speculative_algorithm': 'EAGLE3', 'api_key': 's3cret-key', "
    "'speculative_num_steps': 4, 'speculative_eagle_topk': 1, 'speculative_num_draft_tokens': 5, 'quantization': None}\n"
)
VLLM_START = (
    "(EngineCore pid=77) INFO 11-29 15:32:17 [core.py:134] Initializing a V1 LLM engine (v0.32.0) with config: model='/m/target', "
    "speculative_config=SpeculativeConfig(method='eagle3', model='/m/draft', num_spec_tokens=3), tokenizer='/m/target', "
    "dtype=torch.bfloat16, max_seq_len=256, tensor_parallel_size=1, quantization=None, enforce_eager=True\n"
)


def decode(length: float, rate: float | None = None, *, at: int = 0, running: int = 1, tokens: int = 100, prefix: str = "") -> str:
    """A decode line of SGLang 0.5.9 on; ``at`` in seconds after ten o'clock."""
    clock = f"2026-11-29 {10 + at // 3600:02d}:{at // 60 % 60:02d}:{at % 60:02d}"
    rated = f", accept rate: {(length - 1) / 4 if rate is None else rate:.2f}"
    return (
        f"[{clock}{prefix}] Decode batch, #running-req: {running}, #token: {tokens}, token usage: 0.01, accept len: {length:.2f}{rated}, "
        "cuda graph: True, gen throughput (token/s): 41.96, #queue-req: 0\n"
    )


def spec(length: float, accepted: int, drafted: int, p: str, running: int = 2) -> str:
    return (
        f"(APIServer pid=9) INFO 11-29 15:33:00 [loggers.py:257] Engine 000: Avg prompt throughput: 1.0 tokens/s, Running: {running} reqs, Waiting: 0 reqs\n"
        f"(APIServer pid=9) INFO 11-29 15:33:00 [metrics.py:120] SpecDecoding metrics: Mean acceptance length: {length:.2f}, Accepted throughput: "
        f"1.00 tokens/s, Drafted throughput: 3.00 tokens/s, Accepted: {accepted} tokens, Drafted: {drafted} tokens, Per-position acceptance rate: "
        f"{p}, Avg Draft acceptance rate: {100 * accepted / max(drafted, 1):.1f}%\n"
    )


PLAIN = ARGS + "".join(decode(1.5 + i / 10, at=10 * i, running=1 + i % 3, prefix=" TP0") for i in range(8))

WRAPPED: dict[str, Any] = {
    "as it is": lambda t: t,
    "CRLF": lambda t: t.replace("\n", "\r\n"),
    "coloured": lambda t: t.replace("accept len", "\x1b[32maccept len").replace("[2026", "\x1b[0;36m[2026\x1b[0m".replace("\x1b[0m", "")),
    "ranks": lambda t: t.replace(" TP0]", " DP1 TP0 EP0 PP0]"),
    "docker": lambda t: "".join(
        json.dumps({"log": line + "\n", "stream": "stderr", "time": "2026-11-29T10:00:00Z"}) + "\n" for line in t.splitlines()
    ),
    "kubernetes": lambda t: "".join(f"2026-11-29T10:00:00.123456789Z stderr F {line}\n" for line in t.splitlines()),
    "journald": lambda t: "".join(f"Nov 29 10:00:00 host sglang[123]: {line}\n" for line in t.splitlines()),
    "compose": lambda t: "".join(f"server-1  | {line}\n" for line in t.splitlines()),
    "mixed with others": lambda t: "\n".join(
        f'{line}\nINFO:     127.0.0.1:1 - "POST /generate HTTP/1.1" 200 OK\n\n{"x" * 300}' for line in t.splitlines()
    ),
    "hybrid": lambda t: t.replace(
        "#token: 100, token usage: 0.01", "#full token: 100, full token usage: 0.01, #swa token: 9, swa token usage: 0.1"
    ),
    "0.5.4": lambda t: t.replace("Decode batch,", "Decode batch [1234],").replace("#queue-req: 0", "#queue-req: 0, "),
    "prefill and decode apart": lambda t: t.replace(
        ", cuda graph", ", pre-allocated usage: 0.10, #prealloc-req: 1, #transfer-req: 2, cuda graph"
    ),
    "capped": lambda t: t.replace(", cuda graph", ", cap len: 4.00, block accept len: 9.90, npu graph"),
}


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED.keys())
def test_every_wrapping_gives_the_same_windows(wrap: Any, tmp_path: Path) -> None:
    """Lengths, rates, load, context and arguments, from text, from a file and from gzip."""
    plain, text = read_log(PLAIN), wrap(PLAIN)
    (tmp_path / "l").write_bytes(text.encode())
    (tmp_path / "z").write_bytes(gzip.compress(text.encode()))
    for seen in (read_log(text), read_log(tmp_path / "l"), read_log(tmp_path / "z")):
        assert [replace(w, time=None) for w in seen.windows] == [replace(w, time=None) for w in plain.windows]
        assert seen.launch == plain.launch and seen.acceptance == plain.acceptance
        assert (seen.n_windows, seen.starts, seen.rate_kind) == (8, 1, "strict")
        assert all(w.time is not None for w in seen.windows)
    assert plain.windows[3] == Window(1.8, 0.2, plain.windows[0].time + 30, 1, 100)  # type: ignore[operator]
    assert plain.launch is not None and plain.launch.arguments["api_key"] == "(hidden)" and "s3cret" not in repr(plain)


def test_only_the_last_server_of_a_log_is_read() -> None:
    """The seed case: the same file holds the run with EAGLE and the run with EAGLE3."""
    first = ARGS.replace("EAGLE3", "EAGLE") + decode(1.0) * 50
    seen = read_log(first + ARGS + decode(2.5) * 10)
    assert (seen.starts, seen.n_windows) == (2, 10)
    assert seen.launch is not None and seen.launch.algorithm == "EAGLE3"
    assert seen.acceptance is not None and seen.acceptance.length == pytest.approx(2.5)
    again = read_log(ARGS + ARGS + decode(2.5))  # two ranks of one start, which print the same
    assert (again.starts, again.n_windows) == (1, 1)


FLAG = ARGS.replace("EAGLE3", "EAGLE")
CRASHED = "Traceback (most recent call last):\ntorch.OutOfMemoryError: CUDA out of memory.\n"


def test_a_start_that_crashed_before_any_window_leaves_nothing_behind() -> None:
    """Its arguments, and what it said of the draft, are not those of the server that ran; nodes of one server are one start."""
    for first, then, algorithm in ((FLAG, ARGS, "EAGLE3"), (ARGS, FLAG, "EAGLE"), (VLLM_START, ARGS, "EAGLE3")):
        seen = read_log(first + "NaN in the logits\n" + CRASHED + then + decode(2.5) * 3)
        assert seen.launch is not None and (seen.launch.algorithm, seen.starts, seen.n_windows) == (algorithm, 2, 3)
        assert seen.engine_version is None and not seen.notes and seen.later is None
    nodes = [ARGS.replace("'quantization'", f"'node_rank': {i}, 'random_seed': {77 + i}, 'quantization'") for i in range(2)]
    assert read_log("".join(nodes) + decode(2.5)).starts == 1


def test_windows_are_not_those_of_a_start_that_drafts_nothing() -> None:
    """As an embedding server beside the one that is meant prints its arguments; without a window the last start is what the log shows."""
    plain = ARGS.replace("'EAGLE3'", "None")
    for first in ("", decode(1.0) * 2):
        seen = read_log(first + ARGS + plain + decode(2.5))
        assert seen.launch is not None and (seen.launch.algorithm, seen.n_windows) == ("EAGLE3", 1)
    ended = read_log(ARGS + CRASHED + plain + plain)
    assert ended.launch is not None and (ended.launch.algorithm, ended.starts, ended.n_windows) == (None, 2, 0)
    again = read_log(ARGS + CRASHED + plain + FLAG + decode(1.0))
    assert again.launch is not None and (again.launch.algorithm, again.starts) == ("EAGLE", 3)


@pytest.mark.parametrize("ends", [CRASHED, "", FLAG.replace("'EAGLE'", "'NEXTN'") + "NaN in the logits\n" + CRASHED])
def test_a_later_start_without_a_window_does_not_hide_what_was_measured(ends: str) -> None:
    """The windows and arguments before it stay, and it is said; as soon as it writes a window it is what is read."""
    text = ARGS + decode(2.5) * 3 + FLAG + ends
    seen = read_log(text)
    assert seen.launch is not None and seen.launch.algorithm == "EAGLE3" and seen.n_windows == 3
    assert seen.acceptance is not None and seen.acceptance.length == pytest.approx(2.5) and seen.later is not None
    notes = [f for f in detect(Case(Given(log=text))) if f.title.startswith("a later start")]
    assert [(f.fault, f.severity) for f in notes] == [("C0", Severity.NOTE)]
    assert [(e.name, e.value) for e in notes[0].evidence[:1]] == [("speculative_algorithm", "EAGLE, before it EAGLE3")] or "NEXTN" in ends
    assert ["NaN in the logits" in str(e.value) for e in notes[0].evidence[1:]] == [True] * ("NaN" in ends)
    ran = read_log(text + decode(1.0))
    assert ran.later is None and ran.n_windows == 1 and ran.acceptance is not None and ran.acceptance.length == 1.0


PREFIXED: dict[str, Any] = {
    "compose": ("sgl-a-1  | {}", "sgl-b-10 | {}", "sgl-a-1", "sgl-b-10"),
    "compose with times": ("sgl-a-1  | 2026-11-29T10:00:00.1Z {}", "sgl-b-1  | 2026-11-29T10:00:00.1Z {}", "sgl-a-1", "sgl-b-1"),
    "coloured": ("\x1b[36msgl-a-1  | \x1b[0m{}", "\x1b[33msgl-b-1  | \x1b[0m{}", "sgl-a-1", "sgl-b-1"),
    "kubectl": ("[pod/sgl-a-5d/server] {}", "[pod/sgl-b-7f/server] {}", "pod/sgl-a-5d/server", "pod/sgl-b-7f/server"),
    "stern": ("sgl-a-5d server {}", "sgl-b-7f server {}", "sgl-a-5d server", "sgl-b-7f server"),
    "journald": ("Nov 29 10:00:00 node1 sglang[12]: {}", "Nov 29 10:00:00 node2 sglang[345]: {}", "node1 sglang", "node2 sglang"),
}


def interleaved(one: str, other: str, forms: tuple[str, ...]) -> str:
    pairs = zip_longest(one.splitlines(), other.splitlines())
    return "".join(form.format(line) + "\n" for pair in pairs for form, line in zip(forms, pair, strict=False) if line is not None)


@pytest.mark.parametrize("forms", PREFIXED.values(), ids=PREFIXED.keys())
def test_servers_that_differ_in_one_log_are_told_apart(forms: tuple[str, ...]) -> None:
    """By the names that stand before their lines: each with its accept length, and no mean of both. Also of vLLM."""
    good, bad = (args + "".join(decode(length + i % 3 / 10) for i in range(6)) for args, length in ((ARGS, 2.4), (FLAG, 1.0)))
    other = VLLM_START.replace("draft", "other") + spec(1.0, 0, 300, "0.000, 0.000, 0.000")
    for pair in ((good, bad), (VLLM_START + spec(2.0, 100, 300, "0.600, 0.300, 0.100"), other)):
        text = interleaved(*pair, forms)
        seen = read_log(text)
        assert list(seen.servers) == list(forms[2:]) and not seen.windows and seen.acceptance is seen.launch is None
        for alone, apart in zip(pair, seen.servers.values(), strict=True):
            assert apart == replace(read_log(alone), windows=apart.windows, notes=apart.notes)
        found = [f for f in detect(Case(Given(log=text))) if f.fault == "M10"]
        assert len(found) == 1 and found[0].severity is Severity.WARNING
        assert [e.name.removeprefix("accept length of ") for e in found[0].evidence] == list(forms[2:])
        lacking = [line for line in diagnose(log=text).missing if line.startswith("one number")]
        assert len(lacking) == 1 and "2 servers" in lacking[0]


@pytest.mark.parametrize("forms", PREFIXED.values(), ids=PREFIXED.keys())
def test_names_before_lines_make_no_servers_of_one(forms: tuple[str, ...]) -> None:
    """Replicas within the noise, a router or a node that writes no window, and a restart under another process id."""
    wander = [ARGS + "".join(decode(2.4 + random.Random(100 * seed + i).gauss(0, 0.2)) for i in range(40)) for seed in range(2)]
    replicas = read_log(interleaved(*wander, forms))
    assert not replicas.servers and replicas.acceptance is not None and replicas.acceptance.windows == 40
    router = interleaved(wander[0], "INFO 11-29 10:00:00 routed\n" * 99 + "[2026-11-29 10:00:00] NaN in the logits\n", forms)
    seen = read_log(router)
    assert (seen.n_windows, not seen.servers, [note.kind for note in seen.notes]) == (40, True, ["numbers"])
    table = "Name | Value\nlength | 3\n[watchdog] fine\n"
    assert read_log(table + ARGS + table + decode(2.0) + table + decode(2.2)).n_windows == 2


def test_a_window_weighs_as_many_requests_as_ran() -> None:
    """One request at 4.00 and sixty-three at 1.00 are not 2.50."""
    text = ARGS + (decode(4.0, running=1) * 20 + decode(1.0, running=63) * 20)
    seen = read_log(text).acceptance
    assert seen is not None and seen.length == pytest.approx(
        (19.5 * 4 + 0.5 * 4 + 32 * 1 + 19 * 63) / (19.5 + 0.5 + 32 + 19 * 63), abs=0.03
    )


@pytest.mark.parametrize(
    ("rate", "kind"), [(lambda a: a / 5, "biased"), (lambda a: (a - 1) / 4, "strict"), (lambda a: a / 5 + 0.004, "biased")]
)
def test_the_rate_is_told_by_arithmetic(rate: Any, kind: str) -> None:
    """In a chain, over many windows, with rounding."""
    text = ARGS + "".join(decode(a, rate(a)) for a in (1.0, 1.3, 2.2, 4.9))
    assert read_log(text).rate_kind == kind


def test_a_tree_that_counts_by_steps_is_told_apart() -> None:
    """0.5.4 divided by steps + 1, which differs from the slots in a tree."""
    args = ARGS.replace("'speculative_num_draft_tokens': 5", "'speculative_num_draft_tokens': 16")
    for kind, divisor in (("biased by steps", 5), ("biased", 16)):
        assert read_log(args + decode(2.0, 2.0 / divisor) * 3).rate_kind == kind


def test_vllm_counts_and_arguments() -> None:
    """Rounds from counts, the load from the line before, the draft from the first line, the version."""
    seen = read_log(VLLM_START + spec(2.0, 100, 300, "0.600, 0.300, 0.100") + spec(1.0, 0, 900, "0.000, 0.000, 0.000", running=9))
    assert seen.acceptance is not None and seen.launch is not None
    assert (seen.acceptance.rounds, seen.acceptance.accepted, seen.acceptance.steps, seen.acceptance.length) == (400, 100, 3, 1.25)
    assert (seen.launch.algorithm, seen.launch.draft_path, seen.launch.target_path, seen.launch.steps) == (
        "eagle3",
        "/m/draft",
        "/m/target",
        3,
    )
    assert seen.engine_version == "0.32.0" and [w.running for w in seen.windows] == [2, 9] and seen.launch.has("enforce-eager")


def test_vllm_v0_emitted_tokens_are_what_counts() -> None:
    """[1, 0, 1, 0] counted as two accepted: the emitted tokens tell that one got through."""
    text = (
        "INFO 05-01 10:00:00 [metrics.py:455] Speculative metrics: Draft acceptance rate: 0.500, System efficiency: 0.400, Number of speculative tokens: 4, "
        "Number of accepted tokens: 200, Number of draft tokens: 400, Number of emitted tokens: 200.\n"
    )
    seen = read_log(text).acceptance
    assert seen is not None and (seen.rounds, seen.accepted, seen.length) == (100, 100, 2.0)


def test_rounds_that_were_cut_short_are_told_by_the_accept_length() -> None:
    """259 drafts of 87 rounds at three a round: not 86.33 rounds of three."""
    seen = read_log(VLLM_START + spec(2.92, 167, 259, "0.805, 0.632, 0.483")).acceptance
    assert seen is not None and seen.rounds == 87


@pytest.mark.parametrize("head", [b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\x00", b"PK\x03\x04", "a".encode("utf-16"), b"BZh91AY"])
def test_what_is_packed_otherwise_is_said_to_be(head: bytes, tmp_path: Path) -> None:
    """Instead of a log without windows."""
    (tmp_path / "log").write_bytes(head + b"\0" * 50)
    with pytest.raises(UnreadableFile, match=r"zstd|xz|zip|UTF-16|bzip2"):
        read_log(tmp_path / "log")


def test_pieces_do_not_change_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut anywhere, also inside a character: the same series as in one piece."""
    text = PLAIN.replace("/m/target", "/m/Größe") + VLLM_START[:40] + "\n" + decode(3.0) * 40
    (tmp_path / "log").write_text(text, encoding="utf-8")
    whole = read_log(text)
    for size in (64, 999, 4096):
        monkeypatch.setattr(pieces, "CHUNK", size)
        assert read_log(tmp_path / "log") == whole


def test_windows_are_spread_evenly_whatever_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kept ones are every stride-th from the first; means are over all."""
    monkeypatch.setattr(log, "KEPT_WINDOWS", 8)
    seen = read_log(ARGS + "".join(decode(1 + (i % 300) / 100, at=i) for i in range(1000)))
    times = [w.time - (seen.windows[0].time or 0) for w in seen.windows if w.time is not None]
    strides = {b - a for a, b in pairwise(times)}
    assert 8 <= len(seen.windows) < 16 and len(strides) == 1 and seen.n_windows == 1000


KNOWN = [ARGS, VLLM_START, decode(2.0), spec(2.0, 10, 30, "0.5"), "server_args=", "LLM engine (v", "\x1b[", '{"log":', "\n"]


@LIGHT
@given(st.lists(st.sampled_from(KNOWN), max_size=12), st.text(max_size=30), st.integers(0, 400))
def test_no_log_breaks_reader_or_judges(parts: list[str], noise: str, cut: int) -> None:
    """Any order of known lines, cut anywhere, with anything between."""
    text = noise.join(parts)
    seen = read_log("\n" + text[:cut] + noise + text[cut:])
    list(judge_log(seen))
    with suppress(UnreadableFile):  # nothing in it is a server's
        detect(Case(Given(log="\n" + text)))
    assert seen.acceptance is None or (seen.acceptance.length is not None and math.isfinite(seen.acceptance.length))


# --- trends ---------------------------------------------------------------------------------------------------------------------------


def series(*groups: tuple[int, float, dict[str, Any]], noise: float = 0.15, seed: int = 0) -> LogSeries:
    """Windows of given means with noise, in order, an hour each group."""
    draw = random.Random(seed)
    windows = [
        Window(max(1.0, draw.gauss(mean, noise)), time=3600.0 * g + 3600 * i / n, **more)
        for g, (n, mean, more) in enumerate(groups)
        for i in range(n)
    ]
    return LogSeries("sglang", "0.5.23", None, tuple(windows), len(windows), 1, (), "strict", None)


def named(seen: LogSeries) -> list[str]:
    return [f.fault for f in judge_log(seen) if f.severity > Severity.NOTE]


def test_a_log_that_decays_is_named() -> None:
    """M8, with both tenths and the hours; steady and short logs are silent, and so is one that rises."""
    assert named(series((200, 2.5, {}), (200, 1.05, {}))) == ["FM-62"]
    assert (
        named(series((200, 2.5, {}), (200, 2.45, {})))
        == named(series((10, 2.5, {}), (10, 1.0, {})))
        == named(series((200, 1.2, {}), (200, 2.5, {})))
        == []
    )


def test_decay_is_looked_for_at_one_load() -> None:
    """A quiet night and a busy day are no decay, whichever comes first in the log; a decay under mixed load is one."""
    assert named(series((200, 2.5, {"running": 1}), (200, 1.5, {"running": 16}))) == ["FM-58"]
    assert named(series((200, 1.5, {"running": 16}), (200, 2.5, {"running": 1}))) == ["FM-58"]
    assert named(series(*((1, 2.5 - i / 300, {"running": 1 << i % 4}) for i in range(300)))) == ["FM-62"]


def test_a_loss_with_context_is_named() -> None:
    """M6, as in FM-55: 2.30 at 2k, 1.69 at 8k, 1.09 at 16k; a loss that noise explains is not."""
    contexts = ((1200, 2.30), (2400, 2.25), (4800, 1.9), (9600, 1.4))
    groups = [(60, mean, {"running": 4, "tokens": 4 * context}) for context, mean in contexts]
    shuffled = series(*groups)
    assert "FM-55" in named(replace(shuffled, windows=tuple(random.Random(1).sample(shuffled.windows, 240))))
    flat = series(*[(60, 2.3, more) for _, _, more in groups])
    assert named(flat) == []


def test_a_loss_with_load_is_named() -> None:
    """M7: alone against eight and more."""
    mixed = series((80, 2.5, {"running": 1}), (80, 1.9, {"running": 16}))
    mixed = replace(mixed, windows=tuple(random.Random(1).sample(mixed.windows, 160)))
    assert named(mixed) == ["FM-58"]
    assert [(g.low, g.lengths.n) for g in by_load(mixed.windows)] == [(1.0, 80), (16.0, 80)]
    same = series((80, 2.5, {"running": 1}), (80, 2.45, {"running": 16}))
    assert named(same) == []


def test_healthy_noise_is_silent() -> None:
    """Two hundred logs without any trend, slowly wandering as prompts change: at most one in a hundred is suspected."""
    wrong = 0
    for seed in range(200):
        draw, at, windows = random.Random(seed), 0.0, []
        for i in range(300):
            at = 0.8 * at + draw.gauss(0, 0.15)
            running = 1 if draw.random() < 0.5 else 12
            windows.append(Window(max(1.0, 2.3 + at), time=60.0 * i, running=running, tokens=running * int(2 ** draw.uniform(7, 12))))
        wrong += bool(named(LogSeries("sglang", None, None, tuple(windows), 300, 1, (), "strict", None)))
    assert wrong <= 2


def test_the_interval_of_a_mean_holds_under_correlation() -> None:
    """95 % of the intervals of an autoregression cover its mean; without the correction it would be under 70 %."""
    covered = 0
    for seed in range(300):
        draw, at, values = random.Random(seed), 0.0, []
        for _ in range(200):
            at = 0.6 * at + draw.gauss(0, 1)
            values.append(at)
        mean = mean_of(values)
        covered += abs(mean.mean) <= mean.half
    assert covered / 300 > 0.91
    assert mean_of([]).n == 0 and drift(()) is None


# --- lines that name a fault ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "fault", "severity"),
    [
        ("ValueError: LlamaX does not implement set_eagle3_layers_to_capture", "FM-02", 30),
        ("RuntimeError: Model does not support EAGLE3 interface but aux_hidden_state_outputs was requested", "FM-02", 30),
        ("[2026-11-29 10:00:00 TP3] Parameter model.midlayer.mlp.foo not found in params_dict", "K1", 20),
        ("[2026-11-29 10:00:00] Parameter model.vision.foo not found in params_dict", "K1", 10),
        ("Eagle3 MLA: skipping unexpected weight layers.1.mlp.x", "K1", 20),
        ("Detected errors during sampling! NaN in the logits.", "FM-43", 30),
        ("Worker_TP0 Detected EAGLE model with embed_tokens identical to the target model. Sharing\nWorker_TP1 Detected EAGLE model with "
         "distinct embed_tokens weights. Keeping separate", "FM-80", 20),
    ],
)  # fmt: skip
def test_lines_that_name_a_fault(line: str, fault: str, severity: int) -> None:
    """With the line as it stands, and the ranks that printed it."""
    seen = read_log(PLAIN + line + "\n")
    said = [f for f in judge_log(seen) if f.fault == fault]
    assert [int(f.severity) for f in said] == [severity]
    assert any(str(e.value) in line for e in said[0].evidence)
    assert ("TP3" in str(said[0].evidence)) == ("TP3" in line)


def test_layers_that_vllm_names_are_held_against_the_drafts(tmp_path: Path) -> None:
    """One boundary early (SGLang's nested ids, taken as they are), another set, the default where the log is silent, and the right ones."""
    draft = write_draft(tmp_path / "draft")  # boundaries 2, 3, 4 as output ids 1, 2, 3
    windows = spec(1.3, 30, 300, "0.200, 0.080, 0.020")

    def faults(line: str) -> list[tuple[str, int]]:
        case = Case(Given(draft=str(draft), log=VLLM_START + line + windows, engine="sglang==0.5.23"))
        return [(f.fault, int(f.severity)) for f in detect(case) if f.fault in ("FM-28", "FM-29")]

    assert faults("Using auxiliary layers from speculative config: (1, 2, 3)\n") == [("FM-29", 20)]
    assert faults("Using Eagle3 auxiliary layers from model: (2, 3, 9)\n") == [("FM-28", 30)]
    assert faults("Using auxiliary layers from speculative config: (2, 3, 4)\n") == []
    assert captured(read_log("\nUsing Eagle3 auxiliary layers from config: [7]\n")) == (7,)

    path = tmp_path / "server.log"
    path.write_text(VLLM_START + "Using Eagle3 auxiliary layers from model: (2, 3, 9)\n" + windows)
    right = open_draft(draft).replace(config={"eagle_config": None, "eagle_aux_hidden_state_layer_ids": [2, 3, 4]})
    for config, asked in (
        (right, False),
        (open_draft(draft), True),
    ):  # ids that the config has at that place already are those of another copy
        (found,) = (f for f in detect(Case(Given(draft=config, log=str(path)))) if f.fault == "FM-28" and "vLLM captures" in f.title)
        assert ("at the top level" in found.fix) == asked == ("another" not in found.because)


def test_what_the_log_shows_ran_goes_before_the_command(tmp_path: Path) -> None:
    """The command says EAGLE3 and the server resolved EAGLE: a script of one's own, or another command. And the reverse is no fault."""
    draft = str(write_draft(tmp_path / "draft"))
    for logged, typed, expected in (("EAGLE", "EAGLE3", ["FM-01"]), ("EAGLE3", "EAGLE", [])):
        text = ARGS.replace("EAGLE3", logged) + decode(1.0) * 9
        command = f"python -m sglang.launch_server --model-path T --speculative-algorithm {typed} --speculative-draft-model-path D"
        found = detect(Case(Given(draft=draft, log=text, launch=command, engine="sglang==0.5.23")))
        assert [f.fault for f in found if f.fault == "FM-01"] == expected


def test_a_log_of_another_version_is_noted() -> None:
    """The named version prints a strict rate, this log a biased one."""
    biased = ARGS + "".join(decode(a, a / 5) for a in (1.2, 2.0, 3.0))
    notes = [
        f
        for f in detect(
            Case(Given(log=biased, engine=None, launch="docker run sglang:v0.5.23 python -m sglang.launch_server --model-path T"))
        )
    ]
    assert "C0" in [f.fault for f in notes if "log is not from" in f.title]


def test_a_dead_log_is_not_called_well() -> None:
    """With nothing but a log at 1.00 the verdict is that nothing is accepted."""
    result = diagnose(log=ARGS + decode(1.0) * 200)
    assert not result.ok and "nothing is accepted" in result.verdict
    assert diagnose(log=ARGS + decode(2.5) * 200).ok
