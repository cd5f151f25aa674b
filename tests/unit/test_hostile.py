"""Files and values made to hurt, at every public door: one of our errors or a result, at once, in little memory, and nothing run."""

from __future__ import annotations

import ast
import copy
import json
import math
import os
import re
import time
import tracemalloc
import unicodedata
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import reports
import torch
from builders import AUX, IDENTITY, LIGHT, V, record_tensors, small_dump, small_target, target_tensors, write_draft, write_model
from hypothesis import given
from hypothesis import strategies as st
from small import H, small_draft

import eagle3diag as e3
from eagle3diag import cli, cli_capture, cli_notebooks
from eagle3diag.checkpoints import Target, open_draft
from eagle3diag.compare import check_dump
from eagle3diag.dumps import HiddenStates, open_dump
from eagle3diag.errors import InputError, UnreadableFile
from eagle3diag.files import read_bytes
from eagle3diag.findings import write_atomically
from eagle3diag.replay.architecture import rope_of
from eagle3diag.report.axis import Axis
from eagle3diag.report.saved import load
from eagle3diag.serving import parse_launch, read_acceptance, read_launch, read_log

HOSTILE = "<img src=x onerror=a()>\x1b]0;t\x07\x1b[31m\u202egnp\u2066\x9b\x00\r'\"\\\n../../etc/passwd"

# -- every door --------------------------------------------------------------------------------------------------------------------

DOORS: dict[str, Callable[[Any], object]] = {
    "draft": e3.audit,
    "weights": e3.weights,
    "target": lambda path: e3.audit(small_draft(), target=path),
    "dump": open_dump,
    "log": read_log,
    "launch": read_launch,
    "acceptance": read_acceptance,
    "saved": load,
    "prompts": lambda path: list(cli_capture._lines(Path(path))),
}


@pytest.mark.parametrize("what", ["pipe", "endless", "link to endless", "folder", "absent", "loop", "long", "escapes"])
@pytest.mark.parametrize("door", DOORS)
def test_no_door_waits_reads_without_end_or_breaks(door: str, what: str, tmp_path: Path) -> None:
    """A pipe that nobody writes to, a device that never ends, no file at all: an InputError that can be shown on a terminal as it is."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "link").symlink_to("/dev/zero")
    own = {"endless": "/dev/zero", "link to endless": tmp_path / "link", "long": "x" * 5000, "escapes": tmp_path / "\x1b[31m\u202ea"}
    with pytest.raises(InputError) as caught:
        DOORS[door](str(own.get(what, tmp_path / what)))
    assert not acting(str(caught.value))


def acting(text: str) -> list[str]:
    """The characters that act on a screen instead of showing."""
    return [c for c in text if c != "\n" and unicodedata.category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"}]


def test_a_limit_is_not_memory(tmp_path: Path) -> None:
    """A small file under a limit of gigabytes is read in the memory of a small file."""
    (tmp_path / "manifest.json").write_text("{}")
    tracemalloc.start()
    try:
        assert read_bytes(tmp_path / "manifest.json", 4 << 30) == b"{}"
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_an_error_can_be_shown_as_it_is() -> None:
    """Names and values in it come out of files: whatever they hold, nothing acts, and no key is told."""
    words = str(UnreadableFile(f"tensor {HOSTILE} {'hf' + '_' + 'a' * 20}", where=HOSTILE, hint=HOSTILE))
    assert not acting(words) and "hf_a" not in words and "\\x1b[31m" in words


def test_what_the_system_refuses_is_no_fault_of_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A path that cannot be written: exit code 2, and no request to report it."""
    (tmp_path / "file").write_text("")
    assert cli.main(["notebooks", str(tmp_path / "file" / "deeper")]) == cli.BAD_INPUT
    assert "report it" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "value", [HOSTILE.replace("\0", ""), "'''", '")\nimport os #', "~nobody-here/x", "\\", "${x}", "{x}", "\udcff", "loop/x"]
)
def test_a_path_in_a_notebook_stays_a_string(value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a path is called, the filled cell assigns one text to one name, and no line is added or changed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    for file in cli_notebooks.copy_notebooks(tmp_path / "out", {"draft": value, "launch": value}):
        cells = json.loads(file.read_text())["cells"]
        tagged = ["".join(c["source"]) for c in cells if "paths" in c["metadata"].get("tags", ())]
        for source in tagged:
            names = {"DRAFT", "LAUNCH"}
            last = ast.parse(source).body[-2:]
            assert {ast.unparse(node.targets[0]) for node in last if isinstance(node, ast.Assign)} == names
            for node in last:
                assert isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
                (argument,) = node.value.args
                assert isinstance(argument, ast.Constant) and argument.value.endswith(os.path.normpath(value))


# -- weights -----------------------------------------------------------------------------------------------------------------------

ODD: dict[str, Callable[[], torch.Tensor]] = {
    "sparse": lambda: torch.eye(H).to_sparse(),
    "without data": lambda: torch.empty(H, device="meta"),
    "a terabyte of one number": lambda: torch.zeros(1).expand(1 << 19, 1 << 19),
}


@pytest.mark.parametrize("odd", ODD)
def test_a_pickled_tensor_that_is_not_what_it_seems(odd: str, tmp_path: Path) -> None:
    """Refused with its name before anything is allocated for it."""
    folder = write_draft(tmp_path / "d")
    torch.save({**small_draft().tensors, "norm.weight": ODD[odd]()}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(UnreadableFile, match=r"norm\.weight"):
        open_draft(folder)


def test_a_name_without_end_is_refused(tmp_path: Path) -> None:
    """Names are matched and shown many times: one of megabytes would take minutes."""
    folder = write_model(tmp_path / "d", small_draft().config.raw, {**small_draft().tensors, "y" * 1_000_000: torch.zeros(1)})
    with pytest.raises(UnreadableFile, match="1,000,000 characters"):
        open_draft(folder)


SHAPES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "half": lambda t: t[: len(t) // 2],
    "twice": lambda t: torch.cat([t, t]),
    "one more axis": lambda t: t[None],
    "one number": lambda t: t.flatten()[0],
    "nothing": lambda t: t[:0],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_replay_names_the_tensor_that_does_not_fit(shape: str) -> None:
    """Every weight of a draft in another shape: an error that names it (or d2t, whose rows are its), never one of torch."""
    draft, dump, target = small_draft(), small_dump(), small_target()
    for name, tensor in draft.tensors.items():
        if name != "t2d" and (name, shape) != ("d2t", "one more axis"):
            broken = draft.replace(tensors={name: SHAPES[shape](tensor)})
            with pytest.raises(InputError) as caught:
                e3.replay(broken, dump, target=target)
            assert name.removeprefix("midlayer.") in str(caught.value) or "d2t" in str(caught.value)


@pytest.mark.parametrize("value", [-(2**62), 2**62, 1000, -1000])
def test_a_replay_refuses_a_map_out_of_the_vocabulary(value: int) -> None:
    """Drafts that would be tokens which no table has."""
    broken = small_draft().replace(tensors={"d2t": torch.full((64,), value)})
    with pytest.raises(InputError, match="d2t"):
        e3.replay(broken, small_dump(), target=small_target())


NUMBERS = [float("nan"), float("inf"), 1e308, 10**400, 5e-324, -1, 0, 1, 2, 2**40, "x", [], None, True]


@pytest.mark.parametrize("kind", ["linear", "dynamic", "yarn", "longrope", "llama3", "nonsense"])
def test_any_number_in_a_rope_scaling_is_an_error_or_a_rotation(kind: str) -> None:
    """Each field at each extreme, the base too: angles that are finite, or an InputError."""
    fields = ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor", "attention_factor", "beta_fast", "mscale",
              "mscale_all_dim", "partial_rotary_factor")  # fmt: skip
    sound: dict[str, Any] = {"rope_type": kind, "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "short_factor": [1.0] * 4,
                             "long_factor": [1.0] * 4, "original_max_position_embeddings": 64}  # fmt: skip
    for field, value in product((*fields, "rope_theta"), NUMBERS):
        change = {"rope_scaling": sound, "rope_theta": value} if field == "rope_theta" else {"rope_scaling": {**sound, field: value}}
        try:
            frequency, factor = rope_of(small_draft().replace(config=change)).table
        except InputError:
            continue
        assert frequency.isfinite().all() and len(frequency) <= 4 and math.isfinite(factor)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.float64, torch.float16, torch.complex64])
def test_weights_of_any_dtype_are_measured(dtype: torch.dtype) -> None:
    """A draft in 8 bits or in whole numbers beside its target and its dump: a report, with what cannot be told left out."""
    draft = small_draft()
    coded = draft.replace(tensors={n: t.to(dtype) for n, t in draft.tensors.items() if t.dim() == 2 and n != "lm_head.weight"})
    if dtype is torch.complex64:
        coded = draft.replace(tensors={"midlayer.mlp.up_proj.weight": draft.tensors["midlayer.mlp.up_proj.weight"].to(dtype)})
    assert str(e3.weights(coded, target=small_target(), dump=small_dump()))


@pytest.mark.parametrize("shape", [(0, H), (V,), ()])
@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "lm_head.weight"])
def test_a_table_of_the_target_that_is_none(name: str, shape: tuple[int, ...]) -> None:
    """Empty, or of another number of axes: said with the target's path."""
    target = Target("small", small_target().config, {**target_tensors(), name: torch.zeros(shape)})
    with pytest.raises(UnreadableFile, match="expected"):
        target.head() if "head" in name else target.embedding()


@pytest.mark.parametrize("stray", ["medusa_num_heads", "dflash_config"])
def test_a_stray_field_of_another_kind_does_not_stop_a_conversion(stray: str, tmp_path: Path) -> None:
    """The tensors say that it is an EAGLE-3 draft, whatever the config was copied from."""
    assert e3.convert(small_draft().replace(config={stray: 2}), tmp_path / "out").tensors


# -- dumps -------------------------------------------------------------------------------------------------------------------------


def spoilt(part: str, change: Callable[[torch.Tensor], torch.Tensor], side: str = "train") -> HiddenStates:
    """The small dump with one kind of part changed in every record."""
    made = []
    for i in range(3):
        record = record_tensors(i, 40)
        states = {b: change(s) if part in ("states", f"boundary.{b}") else s for b, s in record["states"].items()}
        final = change(record["final"]) if part == "final" else record["final"]
        made.append({**record, "states": states, "final": final})
    return HiddenStates.from_tensors(made, side=side, target=IDENTITY, boundaries=AUX)


SPOILT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "nan": lambda s: torch.full_like(s, float("nan")),
    "infinite": lambda s: torch.full_like(s, float("inf")),
    "zero": torch.zeros_like,
    "all equal": torch.ones_like,
    "huge": lambda s: torch.full_like(s, 3e38),
    "denormal": lambda s: torch.full_like(s.float(), 1e-40),
    "one nan": lambda s: s.clone().index_put_((torch.tensor(5), torch.tensor(0)), torch.tensor(float("nan"), dtype=s.dtype)),
    "float8": lambda s: s.to(torch.float8_e4m3fn),
}


@pytest.mark.parametrize("how", SPOILT)
@pytest.mark.parametrize("part", ["states", "boundary.2", "final"])
def test_spoilt_states_are_measured_on_either_side(part: str, how: str) -> None:
    """Train or live, all or one boundary: every verb gives its result, and every rendering of it."""
    bad, bad_live = spoilt(part, SPOILT[how]), spoilt(part, SPOILT[how], "live")
    good, good_live = spoilt("", lambda s: s), spoilt("", lambda s: s, "live")
    target = small_target()
    for result in (
        e3.compare(bad, good_live, reference=good, target=target),
        e3.compare(good, bad_live, reference=bad),
        check_dump(bad),
        e3.replay(small_draft(), bad, target=target),
        e3.weights(small_draft(), dump=bad),
    ):
        assert str(result) and result.to_json()


@pytest.mark.parametrize("width", [0, None])
def test_states_without_a_width_are_refused(width: int | None) -> None:
    """No channel at all, or no axis for them."""
    with pytest.raises(InputError, match="width"):
        spoilt("final", lambda s: s[:, :0] if width == 0 else s[:, 0])


def test_folders_without_end_are_refused(tmp_path: Path) -> None:
    """Thousands of folders in each other, which no path can name."""
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(300):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    with pytest.raises(UnreadableFile, match="deep"):
        open_dump(tmp_path)


@pytest.mark.parametrize("ids", [[V], [10**30], [-1], [True], [], "1", {"a": 1}, [1.0]])
def test_ids_that_the_target_does_not_have(ids: Any) -> None:
    """A prompt that another tokenizer wrote, or nobody."""
    with pytest.raises(InputError, match="below 128"):
        cli_capture._ids({"prompt_ids": ids}, None, V, where="prompts.jsonl")


# -- saved results -----------------------------------------------------------------------------------------------------------------

EXTREMES = [None, [], {}, "", HOSTILE, -1, 0, 10**9, 10**400, 1e308, -1e308, 5e-324, "nan", "inf", True, "FM-99"]
SAVED = [json.loads(r.to_json()) for r in (reports.comparison(), reports.acceptance(), reports.checked(), reports.diagnosis())]


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value; of a long list the first two."""
    yield at
    for key in value if isinstance(value, dict) else range(min(2, len(value))) if isinstance(value, list) else ():
        yield from places(value[key], (*at, key))


PLACES = [(i, at) for i, saved in enumerate(SAVED) for at in places(saved) if at and at[0] not in ("kind", "findings", "ok", "removed")]


@LIGHT
@given(where=st.sampled_from(PLACES), value=st.sampled_from([*EXTREMES, "shorter", "longer"]))
def test_any_value_in_a_saved_result_is_refused_or_shown(where: tuple[int, tuple[Any, ...]], value: Any, tmp_path: Path) -> None:
    """Whatever stands wherever, of the right type or not: our error, or a result that is drawn without anything that acts."""
    index, at = where
    changed = copy.deepcopy(SAVED[index])
    holder = changed
    for key in at[:-1]:
        holder = holder[key]
    old = holder[at[-1]]
    lists = {"shorter": lambda: old[:-1], "longer": lambda: old + old[-1:]}
    holder[at[-1]] = lists[value]() if isinstance(old, list) and isinstance(value, str) and value in lists else value
    path = tmp_path / "r.json"
    path.write_text(json.dumps(changed))
    try:
        shown = str(load(path))
    except UnreadableFile:
        return
    assert not acting(re.sub(r"\x1b\[[0-9;]*m", "", shown))


@pytest.mark.parametrize("log", [False, True])
def test_an_axis_draws_any_two_numbers(log: bool) -> None:
    """From the smallest to the largest float, and two that no float tells apart: few ticks, and every value within."""
    numbers = [-1e308, -1.0, -5e-324, 0.0, 5e-324, 1e-300, 1.0, 1 + 1e-16, 1e20, 1e20 + 1e4, 1e308]
    for low, high in product(numbers, numbers):
        if low <= high:
            axis = Axis(low, high, 0, 100, log=log)
            assert len(axis.ticks()) < 400 and all(-1 <= axis.at(n) <= 101 for n in numbers)


def test_a_report_to_a_pipe_leaves_the_pipe(tmp_path: Path) -> None:
    """What is not a regular file is written to, never renamed over: a device would be one no more."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_atomically(tmp_path / "pipe", "words")
    assert os.read(reader, 10) == b"words" and (tmp_path / "pipe").is_fifo()
    os.close(reader)


# -- fields ------------------------------------------------------------------------------------------------------------------------

JSON_KINDS = [None, "", HOSTILE, [], [1], {}, {"a": 1}, -1, 10**30, 1.5, True]


@pytest.mark.parametrize("field", ["model_type", "speculators_model_type", "transformer_layer_config", "eagle_config", "quantization_config",
                                   "architectures", "intermediate_size_mlp", "layer_types", "attention_bias", "draft_vocab_size"])  # fmt: skip
@pytest.mark.parametrize("engine", ["sglang==0.5.23", "vllm==0.30.0"])
def test_an_audit_takes_any_kind_of_value_in_a_field_that_engines_read(field: str, engine: str) -> None:
    """Engine rules look at raw fields: an InputError that names the config, or findings."""
    for value in JSON_KINDS:
        try:
            assert str(e3.audit(small_draft().replace(config={field: value}), engine=engine))
        except InputError as error:
            assert error.where


@pytest.mark.parametrize("field", ["model_type", "text_config", "rope_scaling", "quantization_config", "eos_token_id", "architectures"])
def test_a_target_takes_any_kind_of_value_in_a_field(field: str) -> None:
    """The same for what is read of a target, in an audit and in a comparison."""
    for value in JSON_KINDS:
        try:
            target = Target("small", {**small_target().config, field: value}, target_tensors())
            assert str(e3.audit(small_draft(), target=target)) and str(e3.compare(small_dump(), small_dump(side="live"), target=target))
        except InputError as error:
            assert error.where


def test_counts_take_any_kind_of_value_in_a_field() -> None:
    """Counts that a server was said to give: refused, or whole."""
    sound = {"rounds": 10, "accepted": 5, "steps": 3, "p": [0.3, 0.1, 0.1], "engine": "sglang", "engine_version": "0.5.23"}
    for field, value in product(sound, [*JSON_KINDS, 1e308, float("nan"), [float("nan")], [10**30], [1.5], [-0.5]]):
        try:
            found = read_acceptance({**sound, field: value})
            assert (found.engine is None or isinstance(found.engine, str)) and all(0 <= share <= 1 for share in found.p)
        except InputError as error:
            assert error.hint


@pytest.mark.parametrize("piece", ["sglang", "'a'", "\\a", "-- a ", "(", "'\"'", "- a\n", "=", "{"])
def test_a_launch_command_of_a_megabyte_takes_no_time(piece: str) -> None:
    """One word or many, quoted or not: read or refused in a time that grows as the text does."""
    start = time.process_time()
    try:
        parse_launch("vllm serve m --x " + piece * (1_000_000 // len(piece)))
    except InputError:
        pass
    assert time.process_time() - start < 5


def test_a_heat_map_of_infinite_values_is_json() -> None:
    """The range of its colours too: JSON has no infinity."""
    from eagle3diag.report import plots
    from eagle3diag.report.form import Heat

    heat = Heat("h", "", "", "", "", ("a", "b"), ("c",), ((math.inf, 1.0),), low=-math.inf, high=math.inf)
    assert json.dumps(plots._heat(heat), allow_nan=False)
