"""The probe against real servers on CPU, healthy and faulty: its counts are the engine's own (make test-engines)."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from eagle3diag.checkpoints import open_draft
from eagle3diag.errors import UnusableServer
from eagle3diag.serving import parse_launch, read_log
from eagle3diag.serving.metrics import Counts, read_metrics
from eagle3diag.serving.probe import PROMPTS, Probe, probe

pytestmark = pytest.mark.engines

REPOSITORY = Path(__file__).resolve().parents[2]
TARGET = os.environ.get("EAGLE3DIAG_TARGET", "")
DRAFT = Path(os.environ.get("EAGLE3DIAG_DRAFT", REPOSITORY / "data_samples/draft"))
#: Python of an environment with each engine; SGLang's may be the one that runs the tests.
SGLANG = os.environ.get("EAGLE3DIAG_SGLANG") or (sys.executable if find_spec("sglang") else "")
VLLM = os.environ.get("EAGLE3DIAG_VLLM", "")
KEY = "s3cret-key"
START_S = float(os.environ.get("EAGLE3DIAG_START_S", "300"))
TOKENS = int(os.environ.get("EAGLE3DIAG_TOKENS", "24"))

if not TARGET or not DRAFT.exists():
    pytest.skip("needs EAGLE3DIAG_TARGET and data_samples/draft", allow_module_level=True)

ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1", "HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1",
}  # fmt: skip


@contextmanager
def server(words: list[str], log: Path, path: str = "") -> Iterator[str]:
    """A server in its own process group, up and answering /health; its log goes to ``log``."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    search = os.pathsep.join(filter(None, [path, os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": search}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*words, "--host", "127.0.0.1", "--port", str(port)], stdout=out, stderr=out, env=environment, start_new_session=True
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait(url, process, log)
        yield url
    finally:
        for sign in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, sign)
                process.wait(20)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=60):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(1)
    pytest.fail("the server did not start:\n" + log.read_text(errors="replace")[-3000:])


def sglang(log: Path, draft: Path = DRAFT, algorithm: str = "EAGLE3") -> Iterator[str]:
    if not SGLANG:
        pytest.skip("needs sglang, or EAGLE3DIAG_SGLANG naming the Python of an environment that has it")
    command = (
        f"{SGLANG} -m sglang.launch_server --model-path {TARGET} --device cpu --dtype bfloat16 --context-length 512 --max-total-tokens 4096 "
        "--max-running-requests 4 --mem-fraction-static 0.9 --random-seed 0 --disable-radix-cache --disable-cuda-graph --enable-metrics "
        f"--disable-overlap-schedule --decode-log-interval 4 --watchdog-timeout 3600 --api-key {KEY} --speculative-algorithm {algorithm} "
        f"--speculative-draft-model-path {draft} --speculative-num-steps 4 --speculative-eagle-topk 1 --speculative-num-draft-tokens 5"
    )
    with server(command.split(), log, str(REPOSITORY / "tools/sglang_cpu/shims")) as url:
        yield url


def vllm(log: Path, draft: Path = DRAFT, method: str = "eagle3") -> Iterator[str]:
    if not VLLM:
        pytest.skip("needs EAGLE3DIAG_VLLM naming the Python of an environment with vllm-cpu")
    words = [
        VLLM,
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        TARGET,
        "--dtype",
        "bfloat16",
        "--enforce-eager",
        "--max-model-len",
        "256",
    ]
    words += ["--max-num-seqs", "4", "--no-enable-prefix-caching", "--api-key", KEY, "--speculative-config"]
    words.append(f'{{"method": "{method}", "model": "{draft}", "num_speculative_tokens": 4}}')
    with server(words, log) as url:
        yield url


def _counters(url: str) -> Counts:
    with urllib.request.urlopen(f"{url}/metrics/", timeout=60) as page:
        counts = read_metrics(page.read().decode())
    assert counts is not None
    return counts


def _probe(url: str, *, short: bool = True) -> tuple[Probe, Counts]:
    """A probe, and what the engine's own counters grew by around it, read independently."""
    before = _counters(url)
    seen = probe(url, api_key=KEY, prompts=PROMPTS[:2] if short else None, max_tokens=TOKENS, timeout=START_S)
    deadline = time.monotonic() + 20
    while (grown := _counters(url).since(before)).generated != seen.acceptance.tokens and time.monotonic() < deadline:
        time.sleep(0.5)
    return seen, grown


def _holds(seen: Probe, grown: Counts) -> None:
    """Rounds and tokens are the engine's, and so is the arithmetic: a round writes what it accepts and one more, the prefill one."""
    assert (seen.acceptance.rounds, seen.acceptance.tokens, len(seen.answers)) == (grown.rounds, grown.generated, grown.requests)
    assert seen.strangers == 0 and seen.acceptance.accepted is not None and seen.acceptance.rounds
    written = seen.acceptance.accepted + seen.acceptance.rounds + len(seen.answers)
    assert 0 <= written - (seen.acceptance.tokens or 0) <= 4 * len(seen.answers)  # the last round may be cut at max_tokens
    assert KEY not in str(seen) + repr(seen.to_dict())


def test_sglang_healthy(tmp_path: Path) -> None:
    """Version, arguments, counts per request; without the key a clear error. The log of the same server gives the same accept length."""
    log = tmp_path / "server.log"
    for url in sglang(log):
        with pytest.raises(UnusableServer, match="API key"):
            probe(url)
        seen, grown = _probe(url, short=False)
        _holds(seen, grown)
        assert (seen.engine, seen.source, seen.acceptance.steps, seen.acceptance.num_draft_tokens) == ("sglang", "meta_info", 4, 5)
        assert seen.launch is not None and (seen.launch.algorithm, seen.launch.draft_path) == ("EAGLE3", str(DRAFT))
        assert seen.acceptance.length is not None and seen.acceptance.length > 1.15
        assert [f.fault for f in seen.findings if f.severity > 10] == []
    series = read_log(log)
    assert series.launch is not None and series.launch.steps == 4 and series.rate_kind == "strict" and series.n_windows > 3
    assert series.acceptance is not None and series.acceptance.length == pytest.approx(seen.acceptance.length, abs=0.25)


def test_sglang_under_the_eagle_flag(tmp_path: Path) -> None:
    """Next to nothing is accepted, and the flag is in the arguments that the server tells."""
    for url in sglang(tmp_path / "server.log", algorithm="EAGLE"):
        seen, grown = _probe(url)
        _holds(seen, grown)
        assert seen.launch is not None and seen.launch.algorithm == "EAGLE"
        assert seen.acceptance.length is not None and seen.acceptance.length < 1.15


def test_sglang_with_names_it_drops(tmp_path: Path) -> None:
    """The server is healthy and says nothing; the counts fall."""
    draft = open_draft(DRAFT)
    renamed = draft.replace(rename=lambda name: name.replace("midlayer.", "draft_layers.0.")).save(tmp_path / "renamed")
    for url in sglang(tmp_path / "server.log", draft=renamed):
        seen, grown = _probe(url)
        _holds(seen, grown)
        assert seen.acceptance.length is not None and seen.acceptance.length < 1.4


def test_vllm_healthy(tmp_path: Path) -> None:
    """Counters before and after, p included; the log of the same server gives the same counts and arguments."""
    log = tmp_path / "server.log"
    for url in vllm(log):
        with pytest.raises(UnusableServer, match="API key"):
            probe(url)
        seen, grown = _probe(url, short=False)
        _holds(seen, grown)
        assert (seen.engine, seen.source, seen.acceptance.steps) == ("vllm", "metrics", 4)
        assert seen.acceptance.rounds is not None and seen.acceptance.drafted == 4 * seen.acceptance.rounds
        assert seen.acceptance.p == tuple(n / seen.acceptance.rounds for n in grown.positions)
        assert seen.acceptance.length is not None and seen.acceptance.length > 1.15
        time.sleep(11)  # the next line of the log is due within ten seconds
    series = read_log(log)
    assert series.launch is not None and (series.launch.algorithm, series.launch.steps) == ("eagle3", 4)
    assert (
        series.engine_version is not None and seen.engine_version is not None and seen.engine_version.startswith(series.engine_version[:4])
    )
    assert series.acceptance is not None and series.acceptance.accepted == seen.acceptance.accepted
    assert any(re.search(r"layers from .*\(\d+", note.text) for note in series.notes if note.kind == "aux")
    assert [note.kind for note in series.notes if "embed_tokens" in note.text] == ["sharing"]


def test_vllm_under_the_eagle_method(tmp_path: Path) -> None:
    """Either the start is refused, or nothing is accepted: in no case does it look well."""
    log = tmp_path / "server.log"
    try:
        for url in vllm(log, method="eagle"):
            seen, grown = _probe(url)
            _holds(seen, grown)
            assert seen.acceptance.length is not None and seen.acceptance.length < 1.15
    except pytest.fail.Exception:
        assert "Error" in log.read_text(errors="replace")
    assert parse_launch(f'vllm serve T --speculative-config \'{{"method": "eagle", "model": "{DRAFT}"}}\'').algorithm == "eagle"
