"""What a server says: acceptance in one definition, launch commands, logs."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3diag.errors import BadArgument, UnreadableFile
from eagle3diag.serving import Acceptance, parse_launch, read_acceptance, read_launch, read_log, strict_from_biased
from eagle3diag.serving.log import KEPT_WINDOWS
from eagle3diag.serving.pieces import LONGEST_LINE

# --- acceptance ---------------------------------------------------------------------------------------------------------------------


def _rounds(histogram: list[int]) -> list[int]:
    """Accepted drafts of every single round: the slow reference that a histogram sums up."""
    return [accepted for accepted, count in enumerate(histogram) for _ in range(count)]


@given(st.lists(st.integers(0, 30), min_size=2, max_size=6).filter(any))
def test_a_histogram_gives_what_its_single_rounds_give(histogram: list[int]) -> None:
    """Rounds, accepted drafts, accept length, rate and p agree with counting round by round, and AL = 1 + sum(p)."""
    steps, rounds = len(histogram) - 1, _rounds(histogram)
    seen = Acceptance.from_histogram(histogram, steps=steps)
    assert (seen.rounds, seen.accepted) == (len(rounds), sum(rounds))
    assert seen.length == pytest.approx(sum(1 + a for a in rounds) / len(rounds))
    assert seen.rate == pytest.approx(sum(rounds) / (steps * len(rounds)))
    for i, share in enumerate(seen.p):
        assert share == pytest.approx(sum(a > i for a in rounds) / len(rounds))
    assert seen.length == pytest.approx(1 + sum(seen.p))
    assert math.prod(seen.c) == pytest.approx(seen.p[len(seen.c) - 1])


def test_the_seed_case_accepted_nothing() -> None:
    """A printed rate of 0.20 with five slots is a strict rate of zero, and 0.21 is barely more (failure_modes 1.1)."""
    assert strict_from_biased(0.20, 5) == 0.0
    assert strict_from_biased(0.21, 5) == pytest.approx(0.0125)
    assert Acceptance(accept_length=1.0, steps=4, num_draft_tokens=5).biased_rate == pytest.approx(0.20)


@pytest.mark.parametrize("length", [1.0, 1.05, 1.7, 3.2, 5.0])
def test_biased_and_strict_rates_convert_into_each_other(length: float) -> None:
    """Going from the length to the biased rate and back gives the strict rate of a chain."""
    seen = Acceptance(accept_length=length, steps=4, num_draft_tokens=5)
    assert seen.biased_rate is not None
    assert strict_from_biased(seen.biased_rate, 5) == pytest.approx(seen.rate)


@pytest.mark.parametrize(("rate", "num_draft_tokens"), [(0.0, 5), (0.1, 5), (1.2, 5), (math.nan, 5), (0.5, 1)])
def test_a_rate_that_cannot_be_biased_is_refused(rate: float, num_draft_tokens: int) -> None:
    """A strict 0.00 handed over as biased would come out negative: it is an error instead."""
    with pytest.raises(BadArgument):
        strict_from_biased(rate, num_draft_tokens)


@pytest.mark.parametrize("histogram", [[173, 48, 30, 18, 9], [40, 5, 3, 1, 1], [10, 10, 10, 10, 40]])
def test_the_interval_is_the_normal_one_of_the_single_rounds(histogram: list[int]) -> None:
    """The interval from p equals mean +- 1.96 standard errors over the rounds, listed one by one."""
    seen, rounds = Acceptance.from_histogram(histogram, steps=4), _rounds(histogram)
    mean = sum(rounds) / len(rounds)
    half = 1.959963984540054 * math.sqrt(sum((a - mean) ** 2 for a in rounds)) / len(rounds)
    assert seen.interval == pytest.approx((max(1.0, 1 + mean - half), min(5.0, 1 + mean + half)))


def test_nothing_accepted_still_has_an_upper_bound() -> None:
    """Zero of 100 rounds does not prove an accept length of exactly 1."""
    seen = Acceptance.from_histogram([100], steps=4)
    assert seen.interval is not None and seen.interval[0] == 1.0
    assert 1.0 < seen.interval[1] < 1.05
    assert Acceptance(accept_length=1.0).interval is None


def test_acceptance_is_read_from_counts_files_and_numbers(tmp_path: Path) -> None:
    """A bare length, a histogram in JSON, and counts mean what they say; an accept rate given as a length is refused."""
    file = tmp_path / "acceptance.json"
    file.write_text('{"histogram": [10, 0, 0, 0, 10], "steps": 4, "num_draft_tokens": 5, "engine": "sglang"}')
    assert read_acceptance(file).length == 3.0
    assert read_acceptance("1.05").length == 1.05
    assert read_acceptance({"rounds": 4, "accepted": 2}).length == 1.5
    for bad in ("0.2", 0.0, {"rounds": "many"}, {}, [1]):
        with pytest.raises(BadArgument):
            read_acceptance(bad)
    with pytest.raises(UnreadableFile):
        read_acceptance(tmp_path / "absent.json")


# --- launch -------------------------------------------------------------------------------------------------------------------------


def test_a_command_with_everything_around_it_is_read() -> None:
    """Environment, wrapper, line continuations, quotes, equals signs, redirection: the options come out clean."""
    seen = parse_launch(
        """# how we start it
cd /srv && CUDA_VISIBLE_DEVICES=0,1 SGLANG_X="a b" nohup python3 -m sglang.launch_server \\
  --model-path "/models/my target" -tp 8 --speculative-algorithm=EAGLE \\
  --speculative-draft-model-path '/models/draft#2' --speculative-num-steps 4 --speculative-eagle-topk 1 \\
  --speculative-num-draft-tokens 5 --cuda-graph-bs 1 2 4 --trust-remote-code > server.log 2>&1 &"""
    )
    assert (seen.engine, seen.algorithm, seen.steps, seen.topk, seen.num_draft_tokens) == ("sglang", "EAGLE", 4, 1, 5)
    assert (seen.target_path, seen.draft_path) == ("/models/my target", "/models/draft#2")
    assert seen.arguments["cuda-graph-bs"] == "1 2 4" and seen.arguments["tp"] == "8"
    assert seen.arguments["trust-remote-code"] == ""


@pytest.mark.parametrize(
    "text",
    [
        """vllm serve /m/target --speculative-config '{"method": "eagle3", "model": "/m/draft", "num_speculative_tokens": 3}'""",
        """vllm serve /m/target --speculative_config='{"method":"eagle3","model":"/m/draft","num_speculative_tokens":3}' -tp 2""",
        "vllm serve /m/target --speculative-config.method eagle3 --speculative-config.model /m/draft "
        "--speculative-config.num_speculative_tokens 3",
        "python -m vllm.entrypoints.openai.api_server --model /m/target --speculative-config "
        """"{\\"method\\": \\"eagle3\\", \\"model\\": \\"/m/draft\\", \\"num_speculative_tokens\\": 3}\"""",
    ],
)
def test_vllm_commands_give_the_same_fields(text: str) -> None:
    """JSON, its dotted form and the old module entry point."""
    seen = parse_launch(text)
    assert (seen.engine, seen.algorithm, seen.target_path, seen.draft_path, seen.steps) == ("vllm", "eagle3", "/m/target", "/m/draft", 3)


def test_the_server_is_told_by_its_name_and_not_by_a_path() -> None:
    """A vLLM server of a model in a folder called sglang is a vLLM server."""
    assert parse_launch("vllm serve /models/sglang/draft").engine == "vllm"
    assert parse_launch("sglang serve --model-path /models/vllm").engine == "sglang"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("docker run --gpus all -p 30000:30000 lmsysorg/sglang:v0.5.8-cu126 python3 -m sglang.launch_server --model-path T", "0.5.8"),
        ("docker run vllm/vllm-openai:v0.11.0 --model T", "0.11.0"),
        ("uvx --from 'sglang[all]==0.5.5.post3' sglang serve --model-path T", "0.5.5.post3"),
        ("docker run lmsysorg/sglang:latest python3 -m sglang.launch_server --model-path T", None),
    ],
)
def test_the_version_is_taken_from_the_image_or_the_pin(text: str, version: str | None) -> None:
    """And stays unknown where the tag names none."""
    assert (parse_launch(text).version, parse_launch(text).target_path) == (version, "T")
    assert parse_launch(text, version="9.9").version == "9.9"


def test_shortened_options_are_understood() -> None:
    """argparse takes --speculative-algo, and much of the documentation writes it."""
    assert parse_launch("python -m sglang.launch_server --model T --speculative-algo NEXTN").algorithm == "NEXTN"


@pytest.mark.parametrize("text", ["", "ls -l", "python -m sglang.launch_server --model-path 'T", "vllm serve T --speculative-config no"])
def test_what_is_no_launch_command_is_refused(text: str) -> None:
    """With our own exception, which says what to paste."""
    with pytest.raises(BadArgument):
        parse_launch(text)


@given(st.text(max_size=200))
def test_no_text_breaks_the_parser(text: str) -> None:
    """Whatever is pasted is parsed or refused."""
    try:
        parse_launch("python -m sglang.launch_server " + text)
    except BadArgument:
        pass


def test_a_command_is_also_read_from_a_file(tmp_path: Path) -> None:
    """And nothing in it is run."""
    marker = tmp_path / "ran"
    file = tmp_path / "launch.txt"
    file.write_text(f"python -m sglang.launch_server --model-path $(touch {marker}) `touch {marker}` --speculative-num-steps ४\n")
    assert read_launch(file).steps is None
    assert not marker.exists()


# --- logs ---------------------------------------------------------------------------------------------------------------------------

_ARGS = "server_args={'model_path': '/m/target', 'speculative_algorithm': 'EAGLE3', 'speculative_draft_model_path': '/m/draft', "
_ARGS += "'speculative_num_steps': 4, 'speculative_eagle_topk': 1, 'speculative_num_draft_tokens': 5, 'x': [1, 2], 'y': None}"
_OLD_ARGS = "server_args=ServerArgs(model_path='/m/target', speculative_algorithm='EAGLE3', speculative_draft_model_path=\"/m/draft\", "
_OLD_ARGS += "speculative_num_steps=4, speculative_eagle_topk=1, speculative_num_draft_tokens=5, y=None)"
_HEAD = "[2026-10-30 12:00:00 DP0 TP0] "


@pytest.mark.parametrize("args", [_ARGS, _OLD_ARGS])
@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("Decode batch. #running-req: 1, #token: 353, token usage: 0.00, accept len: 1.00, cuda graph: True, #queue-req: 0, ", "unknown"),
        ("Decode batch [123], #token: 3, accept len: 1.00, accept rate: 0.20, cuda graph: True, #queue-req: 0, ", "biased"),
        ("Decode batch, #full token: 3, full token usage: 0.00, #swa token: 3, accept len: 1.00, accept rate: 0.20", "biased"),
        ("Decode batch, #running-req: 1, #token: 353, accept len: 1.00, accept rate: 0.00, cuda graph: True, #queue-req: 0", "strict"),
        ("Decode batch, accept len: 1.00, accept rate: 0.00, cap len: 3.00, block accept len: 2.50, pre-allocated usage: 0.1", "strict"),
    ],
)
def test_every_variant_of_the_decode_line_is_read(line: str, kind: str, args: str) -> None:
    """SGLang 0.4 to 0.5.23 (reference: sglang.md 5): same length, and the arithmetic tells which rate was printed."""
    seen = read_log(f"{_HEAD}{args}\n{_HEAD}{line}\n")
    assert seen.acceptance is not None and seen.launch is not None
    assert (seen.engine, seen.acceptance.length, seen.acceptance.steps, seen.acceptance.num_draft_tokens) == ("sglang", 1.0, 4, 5)
    assert (seen.launch.algorithm, seen.launch.draft_path, seen.launch.topk) == ("EAGLE3", "/m/draft", 1)
    assert seen.rate_kind == kind


def test_vllm_windows_are_added_up_by_their_counts() -> None:
    """Two unequal windows: the mean is over rounds, not over lines."""
    text = (
        "INFO 11-29 15:32:17 [core.py:93] Initializing a V1 LLM engine (v0.11.0) with config\n"
        "Using auxiliary layers from speculative config: (2, 15, 27)\n"
        "SpecDecoding metrics: Mean acceptance length: 2.00, Accepted throughput: 1.0 tokens/s, Drafted throughput: 4.0 tokens/s, "
        "Accepted: 100 tokens, Drafted: 400 tokens, Per-position acceptance rate: 0.700, 0.200, 0.100, 0.000, "
        "Avg Draft acceptance rate: 25.0%\n"
        "SpecDecoding metrics: Draft acceptance rate: 0.0%, Mean acceptance length: 1.00, Accepted: 0 tokens, Drafted: 1200 tokens, "
        "Per-position acceptance rate: 0.000, 0.000, 0.000, 0.000\n"
    )
    seen = read_log(text)
    assert seen.acceptance is not None
    assert (seen.engine, seen.engine_version, seen.rate_kind) == ("vllm", "0.11.0", "strict")
    assert (seen.acceptance.rounds, seen.acceptance.accepted, seen.acceptance.steps) == (400, 100, 4)
    assert seen.acceptance.length == 1.25 and seen.acceptance.p == pytest.approx((0.175, 0.05, 0.025, 0.0))
    assert [line.accept_rate for line in seen.windows] == [0.25, 0.0]
    assert tuple(n.text for n in seen.notes if n.kind == "aux") == ("Using auxiliary layers from speculative config: (2, 15, 27)",)


def test_a_gzipped_log_is_the_same_log(tmp_path: Path) -> None:
    """Whatever its name."""
    text = f"{_ARGS}\n" + "".join(f"Decode batch, accept len: {1 + i / 10:.2f}, accept rate: 0.10\n" for i in range(10))
    (tmp_path / "plain.log").write_text(text)
    (tmp_path / "packed").write_bytes(gzip.compress(text.encode()))
    assert read_log(tmp_path / "plain.log") == read_log(tmp_path / "packed") == read_log(text)


def test_a_damaged_log_is_one_clear_error(tmp_path: Path) -> None:
    """Cut-off or corrupt compression, a folder, nothing there, an impossible name."""
    packed = gzip.compress(b"Decode batch, accept len: 1.00\n" * 1000)
    (tmp_path / "cut").write_bytes(packed[: len(packed) // 2])
    (tmp_path / "corrupt").write_bytes(packed[:12] + b"\xff" * 40 + packed[52:])
    for source in (tmp_path / "cut", tmp_path / "corrupt", tmp_path, tmp_path / "absent", "a\0b"):
        with pytest.raises(UnreadableFile):
            read_log(source)


def test_a_log_of_any_bytes_and_size_is_read_in_bounded_memory(tmp_path: Path) -> None:
    """No UTF-8, no line ends, numbers of any length, more windows than are kept."""
    file = tmp_path / "hostile.log"
    file.write_bytes(
        bytes(range(256)) * 64
        + b"accept len: " + b"9" * 5000 + b"\nserver_args={" + b"'a': " * 30000 + b"\n"
        + b"x" * (3 * LONGEST_LINE)
        + b"\n"
        + b"accept len: 2.00, accept rate: 0.25\n" * (2 * KEPT_WINDOWS + 10)
    )  # fmt: skip
    seen = read_log(file)
    assert KEPT_WINDOWS <= len(seen.windows) < 2 * KEPT_WINDOWS and seen.n_windows == 2 * KEPT_WINDOWS + 10
    assert seen.acceptance is not None and seen.acceptance.length is not None and math.isfinite(seen.acceptance.length)


@given(st.binary(max_size=500))
def test_no_line_breaks_the_reader(noise: bytes) -> None:
    """Noise around every known word."""
    text = noise.decode("utf-8", errors="replace")
    read_log(f"\n{text}accept len: {text}\nserver_args={text}\nSpecDecoding metrics: Mean acceptance length: {text}\n")
