"""The probe against servers of every temper: what it reports, how it fails, and that a key stays in."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import threading
import time
import traceback
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from builders import LIGHT
from fake_server import SGLANG_INFO, Fake, meta, reply, serving, sglang, vllm, vllm_page
from hypothesis import given
from hypothesis import strategies as st

import eagle3diag
from eagle3diag import cli
from eagle3diag.errors import BadArgument, InputError, UnusableServer
from eagle3diag.serving import Acceptance, http, probe, probe_vllm, read_acceptance
from eagle3diag.serving.http import Server

KEY = "s3cret-key"
PROMPTS = ["Once upon a time", [1, 2, 3]]


# --- what it reports ----------------------------------------------------------------------------------------------------------------


def test_sglang_counts_its_own_requests(tmp_path: Path) -> None:
    """Rounds, accepted drafts and p are the sums of the engine's histograms; no text of prompts or answers is in the result."""
    with serving(sglang([6, 2, 1, 0, 1])) as fake:
        seen = eagle3diag.probe(fake.url, prompts=PROMPTS, max_tokens=8, timeout=5)
    assert (seen.engine, seen.engine_version, seen.model, seen.source) == ("sglang", "0.5.23", "/m/target", "meta_info")
    assert (seen.acceptance.rounds, seen.acceptance.accepted, seen.acceptance.steps, seen.acceptance.num_draft_tokens) == (20, 16, 4, 5)
    assert seen.acceptance.length == 1.8 and seen.acceptance.p == (0.4, 0.2, 0.1, 0.1)
    assert [a.rounds for a in seen.answers] == [10, 10] and seen.strangers is None
    bodies = [json.loads(body) for path, _, body in fake.asked if path == "/generate"]
    assert bodies[0]["text"] == PROMPTS[0] and bodies[1]["input_ids"] == [1, 2, 3]
    assert all(b["sampling_params"] == {"temperature": 0, "max_new_tokens": 8} for b in bodies)
    assert "Once upon" not in json.dumps(seen.to_dict()) and "quick brown" not in str(seen)
    assert read_acceptance(seen.save(tmp_path / "probe.json")) == seen.acceptance
    assert "1.80" in str(seen) and (seen.to_html(tmp_path / "probe.html")).stat().st_size > 1000


@pytest.mark.parametrize(
    ("changes", "accepted"),
    [
        ({"spec_num_correct_drafts": None, "spec_accepted_drafts": 7}, 7),  # 0.5.11
        ({"spec_num_correct_drafts": None, "spec_accept_token_num": 7}, 7),  # 0.5.5.post3 to 0.5.10
        ({"spec_num_correct_drafts": None, "spec_accept_rate": 0.25}, 10),  # 0.5.4: strict, over rounds x steps
        ({"spec_num_correct_drafts": None, "completion_tokens": 19}, 8),  # before: what was written beyond one a round and the prefill's
    ],
)
def test_older_sglang_versions_count_by_other_names(changes: dict[str, Any], accepted: int) -> None:
    """Without a histogram there is no p, and the result says so."""
    with serving(sglang(spec_correct_drafts_histogram=None, **changes)) as fake:
        seen = probe.probe(fake.url, prompts=["x"], timeout=5)
    assert (seen.acceptance.rounds, seen.acceptance.accepted, seen.acceptance.p) == (10, accepted, ())
    assert any("p is not known" in limit for limit in seen.limits)


def test_an_old_server_info_is_found_under_its_old_name() -> None:
    """``/get_server_info`` up to 0.5.4."""
    fake = sglang()
    fake.answers["/get_server_info"] = fake.answers.pop("/server_info")
    with serving(fake):
        assert probe.probe(fake.url, prompts=["x"], timeout=5).acceptance.rounds == 10


def test_a_server_without_tokenizer_is_sent_ids() -> None:
    """And the result says that they are no language."""
    with serving(sglang(info={"skip_tokenizer_init": True})) as fake:
        seen = probe.probe(fake.url, timeout=5)
    assert all("input_ids" in json.loads(body) for path, _, body in fake.asked if path == "/generate")
    assert any("arbitrary" in limit for limit in seen.limits)


@pytest.mark.parametrize("late", [0, 2])
def test_vllm_is_counted_by_what_its_counters_grew_by(late: int) -> None:
    """Also when the counters lag behind the answers."""
    with serving(vllm(late=late)) as fake:
        seen = probe.probe(fake.url + "/v1/", prompts=PROMPTS, timeout=5)
    assert (seen.engine, seen.engine_version, seen.source, seen.strangers) == ("vllm", "0.32.0", "metrics", 0)
    assert (seen.acceptance.rounds, seen.acceptance.accepted, seen.acceptance.drafted, seen.acceptance.steps) == (20, 20, 60, 3)
    assert seen.acceptance.p == (0.6, 0.3, 0.1) and seen.acceptance.tokens == 42
    assert seen.ok


def test_others_on_the_server_are_seen() -> None:
    """Their rounds are in vLLM's counters, so it is a finding."""
    with serving(vllm(strangers=3)) as fake:
        seen = probe.probe(fake.url, prompts=["x"], timeout=5)
    assert seen.strangers == 3 and [f.fault for f in seen.findings if f.severity > 10] == ["FM-74"]


def test_a_server_without_a_draft_is_an_error_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """0 of 0 is not a low rate: in both engines."""
    monkeypatch.setattr(probe_vllm, "SETTLE_S", 0.1)
    fake = vllm()
    fake.answers["/metrics"] = reply('vllm:generation_tokens_total{engine="0"} 999\n')
    for server in (fake, sglang(info={k: None for k in SGLANG_INFO if k.startswith("spec")}, spec_verify_ct=0)):
        with serving(server):
            seen = probe.probe(server.url, prompts=["x"], timeout=10)
        assert [f.fault for f in seen.findings if f.severity == 30] == ["FM-03"]


@pytest.mark.parametrize("version", ["unknown", "", "0.5.23.dev7+gabc", "v9", "\x1b[31m"])
def test_a_version_of_any_form_is_reported_and_judged(version: str) -> None:
    """A build of one's own: the rules of a known version are used, or of the one it starts with."""
    with serving(sglang([400, 0, 0, 0, 0], info={"version": version})) as fake:
        seen = probe.probe(fake.url, prompts=["x"], timeout=5)
    assert seen.engine_version == version and "M1" in [f.fault for f in seen.findings] and str(seen)


def test_all_accepted_with_one_repeated_token_is_no_success() -> None:
    """The signature of NaN logits: every draft accepted, every token the same."""
    fake = sglang()
    fake.answers["/generate"] = reply({"output_ids": [0] * 51, "meta_info": meta([0, 0, 0, 0, 10])})
    with serving(fake):
        seen = probe.probe(fake.url, prompts=["x"], timeout=5)
    assert seen.acceptance.length == 5.0 and not seen.ok
    assert [f.fault for f in seen.findings if f.severity == 30] == ["FM-43"]


def test_nothing_accepted_is_a_warning_once_there_are_rounds_enough() -> None:
    """And the flag named on the server is the first suspect."""
    for rounds, severity in ((20, 10), (400, 20)):
        with serving(sglang([rounds, 0, 0, 0, 0])) as fake:
            found = probe.probe(fake.url, prompts=["x"], timeout=5).findings
        assert [(f.fault, int(f.severity)) for f in found if f.fault == "M1"] == [("M1", severity)]
    with serving(sglang([400, 0, 0, 0, 0], info={"speculative_algorithm": "EAGLE", "speculative_draft_model_path": "x/EAGLE3-y"})) as fake:
        assert probe.probe(fake.url, prompts=["x"], timeout=5).findings[0].fault == "FM-01"


# --- the key ------------------------------------------------------------------------------------------------------------------------


def test_the_key_is_sent_and_shown_nowhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not in results, files, pages or the terminal, although this server repeats it in its arguments, its launch command and its body."""
    fake = sglang()
    fake.answers["/generate"] = reply({"text": f"your key is {KEY}", "meta_info": meta([6, 2, 1, 0, 1], note=KEY)})
    with serving(fake):
        code = cli.main(
            ["probe", fake.url, "--api-key", KEY, "--prompt", "x", "--save", str(tmp_path / "p.json"), "--html", str(tmp_path / "p.html")]
        )
        seen = probe.probe(fake.url, api_key=KEY, prompts=["x"], timeout=5)
    out = capsys.readouterr()
    everything = out.out + out.err + str(seen) + repr(seen) + json.dumps(seen.to_dict())
    everything += (tmp_path / "p.json").read_text() + (tmp_path / "p.html").read_text()
    assert code == 0 and KEY not in everything
    assert {given for _, given, _ in fake.asked} == {f"Bearer {KEY}"}
    assert seen.launch is not None and seen.launch.arguments["api_key"] == "(hidden)"


def test_a_key_that_json_spells_otherwise_is_hidden_too() -> None:
    """As escapes, in names and in nested values; and in where a redirect points."""
    key = 'a"b\\c-key'
    spelt = "".join(f"\\u{ord(c):04x}" for c in key)
    info = json.dumps({**SGLANG_INFO, "model_path": "KEY", "KEY": {"x": ["KEY"]}, "version": "KEY", "launch_command": "KEY"}).replace(
        "KEY", spelt
    )
    fake = sglang()
    fake.answers["/server_info"] = reply(info)
    with serving(fake):
        seen = probe.probe(fake.url, api_key=key, prompts=["x"], timeout=5)
        assert key not in repr(seen) and json.dumps(key)[1:-1] not in json.dumps(seen.to_dict()) and seen.model == "(hidden)"
        fake.answers["/server_info"] = reply("", 302, Location=f"http://{KEY}.example/")
        with pytest.raises(UnusableServer) as error:
            probe.probe(fake.url, api_key=KEY, prompts=["x"], timeout=5)
    assert KEY not in str(error.value)


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("path", ["/server_info", "/generate"])
def test_a_refused_key_is_a_clear_error_that_does_not_hold_it(status: int, path: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With and without a key; also with --traceback."""
    fake = sglang()
    fake.answers[path] = reply({"error": f"Unauthorized {KEY}"}, status)
    with serving(fake):
        with pytest.raises(UnusableServer, match="asks for an API key"):
            probe.probe(fake.url, prompts=["x"], timeout=5)
        with pytest.raises(UnusableServer, match="not accepted") as error:
            probe.probe(fake.url, api_key=KEY, prompts=["x"], timeout=5)
        assert cli.main(["probe", fake.url, "--api-key", KEY, "--prompt", "x", "--traceback"]) == cli.BAD_INPUT
    out = capsys.readouterr()
    assert KEY not in out.out + out.err + "".join(traceback.format_exception(error.value)) and "api_key" in out.err


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("http://me:s3cret-key@host/", None), ("http://host/?api_key=s3cret-key", None), ("http://host/#s3cret-key", None),
        ("ftp://host/s3cret-key", None), ("http://host", "s3cret-key\r\nX: y"), ("http://host", "s3cret-key "), ("http://host", ""),
        ("http://s3cret-key:99999999/", None), ("http://", None), ("", None), ("http://ho st/s3cret-key", None), ("http://[::1", None),
    ],
)  # fmt: skip
def test_a_url_or_key_that_cannot_be_used_is_refused_without_being_repeated(url: str, key: str | None) -> None:
    """Before anything is sent."""
    with pytest.raises(BadArgument) as error:
        probe.probe(url, api_key=key)
    assert "s3cret" not in "".join(traceback.format_exception(error.value)).replace("probe.probe(url, api_key=key)", "")


def test_the_key_is_not_part_of_a_server_that_is_printed() -> None:
    """Nor of its comparison."""
    assert KEY not in repr(Server.at("http://h", api_key=KEY)) and Server.at("http://h", api_key=KEY) == Server.at("http://h")


# --- hostile servers ----------------------------------------------------------------------------------------------------------------


def test_redirects_to_other_hosts_are_not_followed() -> None:
    """The key never leaves for another host; the same path with a slash on the same host is followed once."""
    with serving(Fake({})) as other:
        fake = sglang()
        fake.answers["/server_info"] = reply("", 307, Location=f"{other.url}/server_info")
        with serving(fake), pytest.raises(UnusableServer, match="redirects to"):
            probe.probe(fake.url, api_key=KEY, prompts=["x"], timeout=5)
        assert other.asked == []
    fake = vllm()
    fake.answers["/metrics/"] = fake.answers["/metrics"]
    with serving(fake):
        fake.answers["/metrics"] = reply("", 307, Location=f"{fake.url}/metrics/")
        assert probe.probe(fake.url, prompts=["x"], timeout=5).acceptance.rounds == 10
        fake.answers["/metrics/"] = reply("", 307, Location="/metrics")
        with pytest.raises(UnusableServer, match="redirects"):
            probe.probe(fake.url, prompts=["x"], timeout=5)


def test_nobody_listens() -> None:
    """A refused connection and an unknown host are said as such."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(UnusableServer, match="refused"):
        probe.probe(f"127.0.0.1:{port}", timeout=5)
    with pytest.raises(UnusableServer, match=r"not known|no HTTP answer"):
        probe.probe("http://no-such-host.invalid", timeout=5)


def _dripping(handler: BaseHTTPRequestHandler) -> None:
    """One byte at a time, each well within a timeout of its own."""
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b" ")
        time.sleep(0.05)


def _endless(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b" " * 65536)


def _silent(handler: BaseHTTPRequestHandler) -> None:
    time.sleep(3)


def _dripping_headers(handler: BaseHTTPRequestHandler) -> None:
    while True:
        handler.wfile.write(b"H")
        time.sleep(0.05)


def _cut(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "100")
    handler.end_headers()
    handler.wfile.write(b'{"model_path": 1')
    handler.close_connection = True


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (_dripping, "within 0.6 s"), (_silent, "within 0.6 s"), (_dripping_headers, "within 0.6 s|no HTTP|closed"), (_endless, "MiB|within 0.6 s"),
        (_cut, "was closed before"), (lambda h: h.wfile.write(b"\x00\xffgarbage\r\n\r\n"), "no HTTP answer"),
    ],
    ids=["drips", "silent", "drips its header", "endless", "cut off", "garbage"],
)  # fmt: skip
def test_a_server_that_does_not_end_is_left(
    answer: Callable[[BaseHTTPRequestHandler], None], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One deadline for the whole answer, whatever arrives meanwhile, and a bound on its size."""
    monkeypatch.setattr(http, "LARGEST_BODY", 1 << 20)
    with serving(Fake({"/server_info": answer})) as fake:
        started = time.monotonic()
        with pytest.raises(UnusableServer, match=words):
            probe.probe(fake.url, timeout=0.6)
    assert time.monotonic() - started < 5


def test_no_thread_is_left_behind() -> None:
    """The cut of each request ends with it."""
    with serving(sglang()) as fake:
        probe.probe(fake.url, prompts=["x"], timeout=300)
    for timer in [t for t in threading.enumerate() if isinstance(t, threading.Timer)]:
        timer.join(10)  # cancelled, it needs a moment of the processor to end
        assert not timer.is_alive()


def test_something_else_than_an_inference_server_is_said_to_be() -> None:
    """A web page, a JSON API, an error."""
    for answers in (
        {},
        {"/server_info": reply("<html>")},
        {"/server_info": reply([1]), "/version": reply("1.0")},
        {"/version": reply({"v": 1})},
    ):
        with serving(Fake(answers)) as fake, pytest.raises(UnusableServer, match="neither as SGLang"):
            probe.probe(fake.url, timeout=5)
    with serving(Fake({"/server_info": reply("no", 503)})) as fake, pytest.raises(UnusableServer, match="503"):
        probe.probe(fake.url, timeout=5)


def test_tls_failures_are_clear(tmp_path: Path) -> None:
    """https to a server of plain http, and a certificate that nobody vouches for."""
    with serving(sglang()) as fake, pytest.raises(UnusableServer, match=r"TLS|no HTTP answer"):
        probe.probe(fake.url.replace("http:", "https:"), timeout=5)
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=127.0.0.1", "-days", "2", "-keyout", str(tmp_path / "k"), "-out",
         str(tmp_path / "c")], capture_output=True, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip("needs openssl to make a certificate")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "c", tmp_path / "k")
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def once() -> None:
            connection, _ = listening.accept()
            try:
                context.wrap_socket(connection, server_side=True).close()
            except OSError:
                connection.close()

        thread = threading.Thread(target=once, daemon=True)
        thread.start()
        with pytest.raises(UnusableServer, match="certificate is not trusted"):
            probe.probe(f"https://127.0.0.1:{listening.getsockname()[1]}", timeout=5)
        thread.join(5)


@pytest.mark.parametrize(
    ("path", "answer", "words"),
    [
        ("/generate", reply({"error": {"message": "context too long"}}, 400), "400: context too long"),
        ("/generate", reply([]), "200"),
        ("/generate", reply({"text": "x", "meta_info": {"completion_tokens": 4}}), "how many rounds"),
        ("/generate", reply("", 500), "500"),
    ],
)
def test_answers_that_say_nothing_of_drafts_are_clear_errors(path: str, answer: Any, words: str) -> None:
    """Each names the path and what was found there."""
    fake = sglang()
    fake.answers[path] = answer
    with serving(fake), pytest.raises(UnusableServer, match=words):
        probe.probe(fake.url, prompts=["x"], timeout=5)


def test_a_vllm_that_hides_its_counters_or_models_is_a_clear_error() -> None:
    """--disable-log-stats, and a server that is still loading."""
    for path, words in (("/metrics", "no counters"), ("/v1/models", "no model")):
        fake = vllm()
        fake.answers[path] = reply({})
        with serving(fake), pytest.raises(UnusableServer, match=words):
            probe.probe(fake.url, prompts=["x"], timeout=5)


@pytest.mark.parametrize("bad", [[], "text", [""], [[]], [[1, -2]], [["a"]], [3]])
def test_prompts_of_another_kind_are_refused(bad: Any) -> None:
    """Before the server is asked."""
    with pytest.raises(BadArgument):
        probe.probe("http://127.0.0.1:1", prompts=bad)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**70) | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)


@LIGHT
@given(
    info=st.dictionaries(st.sampled_from(sorted(SGLANG_INFO)), JSON),
    counts=st.dictionaries(st.sampled_from(sorted(meta([1]))), JSON),
    other=JSON,
)
def test_whatever_a_server_says_is_an_answer_or_a_clear_error(info: dict[str, Any], counts: dict[str, Any], other: Any) -> None:
    """Any JSON in any field: never a traceback. (The transport is replaced, so that hundreds of cases run in a second.)"""
    bodies = {
        "/server_info": {**SGLANG_INFO, **info},
        "/generate": {"text": other, "output_ids": other, "meta_info": {**meta([3, 1]), **counts}},
    }
    _answers(bodies, "")
    bodies = {
        "/version": {"version": "0.32.0"},
        "/v1/models": {"data": [{"id": "m"}, other]},
        "/v1/completions": {"choices": [other], "usage": other},
    }
    _answers(bodies, vllm_page(10, [3, 2], 1, 30))
    _answers({"/server_info": other, "/version": other}, "")


def _answers(bodies: dict[str, Any], page: str) -> None:
    def once(self: Server, method: str, path: str, body: bytes | None) -> http.Reply:
        if path == "/metrics" and page:
            return http.Reply(200, page)
        return http.Reply(200, json.dumps(bodies[path])) if path in bodies else http.Reply(404, "")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Server, "_once", once)
        patch.setattr(probe_vllm, "SETTLE_S", 0.0)
        try:
            seen = probe.probe("http://h", prompts=["x"])
        except InputError:
            return
    assert isinstance(seen.acceptance, Acceptance)
    json.dumps(seen.to_dict(), allow_nan=False)
    str(seen)
