"""The recorder that SGLang loads, driven by a stand-in for its worker that pads, overwrites, moves and batches as the real one does."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from eagle3diag import faults
from eagle3diag.capture import sglang
from eagle3diag.capture.sglang import MODULES, hooks, record_draft, record_runner
from eagle3diag.case import Case, Given
from eagle3diag.dumps import MANIFEST, HiddenStates, open_dump
from eagle3diag.errors import BadArgument, MissingPart

H, SLOTS, LAYERS = 4, 5, 6


@pytest.fixture
def target_folder(tmp_path: Path) -> str:
    folder = tmp_path / "tiny-target"
    folder.mkdir()
    shape = {"model_type": "llama", "hidden_size": H, "num_hidden_layers": LAYERS, "vocab_size": 99}
    (folder / "config.json").write_text(json.dumps(shape))
    save_file({"model.embed_tokens.weight": torch.zeros(99, H)}, str(folder / "model.safetensors"))
    return str(folder)


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    for recorder in sglang._recorders.values():
        recorder.close(10)
    sglang._recorders.clear()


class _Server:
    """Runs the hooks as SGLang's eager V2 worker would: ``width`` is what the target's features are wide.

    ``truth`` is every row that reached the draft, with the final state of the same position, by request.
    """

    def __init__(self, out: Path, target: str, width: int = 2 * H, **options: Any) -> None:
        specs = hooks(str(out), target=target, **options)
        self.out, self.width = out, width
        self.truth: dict[str, list[tuple[int, Tensor, Tensor]]] = {}
        self.tokens: dict[str, list[int]] = {}
        for _ in ("target", "draft"):  # once for each, as SGLang does
            made = {spec["name"].removeprefix("eagle3diag-"): record_draft(spec["config"]) for spec in specs}
        self.hooks: dict[str, Callable[..., None]] = made
        assert MODULES.keys() <= made.keys()
        embed = SimpleNamespace(weight=torch.zeros(99, H))
        self.target = SimpleNamespace(layers_to_capture=[2, 4], embed_tokens=embed, layers=[None] * LAYERS)
        self.draft = SimpleNamespace(fc=nn.Identity(), embed_tokens=embed)
        self.recorder = sglang._recorders[str(out)]

    @property
    def dump(self) -> HiddenStates:
        assert self.recorder.settle(10)
        return open_dump(self.out)

    @property
    def manifest(self) -> dict[str, Any]:
        assert self.recorder.settle(10)
        read: dict[str, Any] = json.loads((self.out / MANIFEST).read_text())
        return read

    def batch(self, mode: str, rids: list[str], ids: list[int], positions: list[int], **fields: Any) -> Any:
        fields |= {"rids": rids, "input_ids": torch.tensor(ids), "positions": torch.tensor(positions)}
        return SimpleNamespace(forward_mode=SimpleNamespace(name=mode), **fields)

    def run_target(self, batch: Any, final: Tensor, fed: Tensor, streams: dict[int, Tensor] | None = None) -> None:
        for b, stream in (streams or {}).items():
            self.hooks[f"boundary-{b}"](None, (stream,), (stream * 0, stream) if b else stream * 0)
            stream.zero_()  # the residual stream is updated in place
        wide = self.width != H
        aux = [fed[:, i * H : (i + 1) * H] for i in range(self.width // H)]
        self.hooks["model"](self.target, (batch.input_ids, batch.positions, batch, None), (final, aux) if wide else final)

    def run_draft(self, batch: Any, fed: Tensor, **fields: Any) -> None:
        batch.spec_info = SimpleNamespace(hidden_states=fed, **fields)
        if fed.shape[-1] != H:
            self.hooks["fc"](self.draft.fc, (fed,), fed[:, :H])
            self.hooks["hidden_norm"](None, (fed[:, :H].clone(),), None)
        else:
            self.hooks["hidden_norm"](None, (fed,), None)
            fed += 1000.0  # the first layer adds to its input in place
        self.hooks["model"](self.draft, (batch.input_ids, batch.positions, batch, None), None)
        fed.fill_(-7.0)  # the buffer is used again

    def states(self, rows: int) -> tuple[Tensor, Tensor]:
        """Fed rows and final states; the same where the draft is fed the final state."""
        fed = torch.randn(rows, self.width)
        return fed, fed.clone() if self.width == H else torch.randn(rows, H)

    def prefill(self, prompts: dict[str, list[int]], bonus: int = 50, start: int = 0, draft: bool = True) -> Tensor:
        rids, flat = list(prompts), [token for prompt in prompts.values() for token in prompt]
        positions = [start + p for prompt in prompts.values() for p in range(len(prompt))]
        lengths = torch.tensor([len(prompt) for prompt in prompts.values()])
        fed, final = self.states(len(flat))
        stream = torch.randn(len(flat), H)
        rows = zip(positions, fed.clone(), final.clone(), strict=True)
        for rid, prompt in prompts.items():
            self.truth[rid] = [next(rows) for _ in prompt]
            self.tokens[rid] = [*prompt, bonus]
        streams = {int(n.removeprefix("boundary-")): stream.clone() for n in self.hooks if n.startswith("boundary-")}
        self.run_target(self.batch("EXTEND", rids, flat, positions, extend_seq_lens=lengths), final, fed, streams)
        if draft:
            shifted = [token for prompt in prompts.values() for token in [*prompt[1:], bonus]]
            self.run_draft(
                self.batch("EXTEND", rids, shifted, positions, extend_seq_lens=lengths, extend_seq_lens_cpu=lengths.tolist()), fed
            )
        return stream

    def round(self, accepted: dict[str, int]) -> None:
        """Drafting, verifying a tree whose accepted path lies anywhere, moving it to the front, and the padded extend.

        ``accepted``: tokens kept per request, the bonus included.
        """
        rids = list(accepted)
        starts = [len(self.truth[rid]) for rid in rids]
        self.run_draft(self.batch("DECODE", rids, [1] * len(rids), starts), torch.randn(len(rids), H))
        fed, final = self.states(len(rids) * SLOTS)
        self.run_target(self.batch("TARGET_VERIFY", rids, [9] * len(fed), [0] * len(fed)), final, fed)
        moved, ids, positions = fed.clone(), list[int](), list[int]()
        for index, (rid, start) in enumerate(zip(rids, starts, strict=True)):
            path = [index * SLOTS + s for s in sorted(torch.randperm(SLOTS)[: accepted[rid]].tolist())]
            said = [60 + start + j for j in range(SLOTS)]
            ids, positions = ids + said, positions + [start + j for j in range(SLOTS)]
            for j, slot in enumerate(path):
                moved[index * SLOTS + j] = fed[slot]
                self.truth[rid].append((start + j, fed[slot].clone(), final[slot].clone()))
                self.tokens[rid].append(said[j])
        batch = self.batch("DRAFT_EXTEND_V2", rids, ids, positions)
        self.run_draft(batch, moved, num_front_tokens=0, num_accept_tokens=torch.tensor(list(accepted.values())))

    def decode(self, rids: list[str]) -> None:
        """A step of a server without a draft."""
        at = [len(self.truth[rid]) for rid in rids]
        fed, final = self.states(len(rids))
        for rid, p, f, n in zip(rids, at, fed, final, strict=True):
            self.truth[rid].append((p, f.clone(), n.clone()))
        self.run_target(self.batch("DECODE", rids, [self.tokens[r][p] for r, p in zip(rids, at, strict=True)], at), final, fed)
        for rid in rids:
            self.tokens[rid].append(70 + len(self.tokens[rid]))


def _until(happened: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 10
    while not happened() and time.monotonic() < deadline:
        time.sleep(0.02)


@pytest.mark.parametrize("width", [2 * H, H])
def test_the_fed_rows_come_back_per_request(tmp_path: Path, target_folder: str, width: int) -> None:
    """Wide (EAGLE-3) and narrow (EAGLE, where the row is overwritten in place): rows, final states, ids and counters equal what was fed."""
    server = _Server(tmp_path / "live", target_folder, width, limit=3)
    server.prefill({"a": [1, 2, 3], "b": [4, 5]})
    server.round({"a": 1, "b": 4})
    server.prefill({"c": [7, 8, 9, 10]})
    server.round({"b": 2, "a": 5, "c": 1})
    server.round({"c": 3, "a": 1})  # b has ended
    server.prefill({"last": [1]})
    server.round({"last": 1})  # so have a and c
    dump = server.dump
    assert dump.complete and not dump.assumed
    assert (dump.side, dump.engine, dump.boundaries) == ("live", "sglang", (2, 4))
    assert (dump.target.name, dump.target.n_layers, dump.target.hidden_size, dump.target.dtype) == ("tiny-target", LAYERS, H, "float32")
    names = {"0000": "a", "0001": "b", "0002": "c"}
    assert {record.name for record in dump} == set(names)
    for record in dump:
        rid = names[record.name]
        assert record.positions is None and record.final is not None
        assert torch.equal(record.features, torch.stack([row for _, row, _ in server.truth[rid]]))
        assert torch.equal(record.final, torch.stack([row for *_, row in server.truth[rid]]))
        assert record.input_ids.tolist() == server.tokens[rid][: len(server.truth[rid])]
        assert record.prompt_length == {"a": 3, "b": 2, "c": 4}[rid]
    extends, wide = 3 + 4, width > H
    assert dump.counters == {
        "target_prefills": 3,
        "target_rounds": 4,
        "draft_forwards": extends + 4,
        "draft_extends": extends,
        "wide_extends": extends if wide else 0,
        "narrow_extends": 0 if wide else extends,
        "fed_width": width,
        "fc_calls": extends if wide else 0,
    } | ({"fc_input_width": width} if wide else {})


def test_a_server_without_a_draft(tmp_path: Path, target_folder: str) -> None:
    """The target's own final states, prompt and answer; nothing is said of an fc that is not there."""
    server = _Server(tmp_path / "live", target_folder, H)
    server.prefill({"a": [1, 2, 3]}, draft=False)
    server.decode(["a"])
    server.prefill({"b": [4]}, draft=False)
    server.decode(["a", "b"])
    server.recorder.close(10)
    dump = server.dump
    assert dump.complete and dump.counters == {"target_prefills": 2, "target_rounds": 2}
    for record, rid in zip(sorted(dump, key=lambda r: r.name), "ab", strict=True):
        assert record.final is not None and torch.equal(record.final, torch.stack([row for *_, row in server.truth[rid]]))
        assert record.input_ids.tolist() == server.tokens[rid][:-1] and record.part("features") is None


def test_further_boundaries_are_taken_before_they_are_overwritten(tmp_path: Path, target_folder: str) -> None:
    """``boundaries`` hooks the norm that each one enters; what those give back is stored beside what is fed."""
    specs = hooks(str(tmp_path / "x"), target=target_folder, boundaries="all")
    patterns = {spec["config"]["boundary"]: spec["target_modules"][0] for spec in specs if "boundary" in spec["config"]}
    assert patterns == {b: f"model.layers.{b}.input_layernorm" for b in range(LAYERS)} | {LAYERS: "model.norm"}
    server = _Server(tmp_path / "live", target_folder, boundaries=[0, 3])
    stream = server.prefill({"a": [1, 2, 3]})
    server.recorder.close(10)
    record = server.dump[0]
    assert record.boundaries == (0, 3) and torch.equal(record.state(0), stream) and torch.equal(record.state(3), stream)
    with pytest.raises(BadArgument, match="no target is named"):
        hooks("x", boundaries="all")


def test_only_the_first_requests_are_kept_and_an_ended_one_stays_ended(tmp_path: Path, target_folder: str) -> None:
    """Past the limit nothing is recorded; a request that was put back and computed again is not recorded twice."""
    server = _Server(tmp_path / "live", target_folder, limit=2)
    server.prefill({"a": [1, 2], "b": [3, 4], "c": [5, 6]})
    server.round({"b": 1, "c": 1})  # a is gone: put back
    server.truth.pop("a")
    server.prefill({"a": [1, 2]})
    server.round({"a": 1, "c": 1})
    assert [record.name for record in server.dump] == ["0000", "0001"] and server.dump.complete and not server.recorder.active


def test_one_request_in_so_many(tmp_path: Path, target_folder: str) -> None:
    """The choice is by the request's id, so it does not depend on the order; about so many are left."""
    server = _Server(tmp_path / "live", target_folder, every=4)
    rids = [f"request-{i}" for i in range(200)]
    server.prefill({rid: [1, 2] for rid in rids})
    server.recorder.close(10)
    assert 25 <= len(server.dump) <= 80
    chosen = sglang.Recorder(sglang.Options(str(tmp_path / "other"), every=4)).choice
    assert {chosen.name(rid) is not None for rid in rids} == {True, False}
    assert sum(chosen.name(rid) is not None for rid in reversed(rids)) == len(server.dump)


def test_a_cached_prefix_leaves_positions(tmp_path: Path, target_folder: str) -> None:
    """Rows that start behind a prefix say where they are."""
    server = _Server(tmp_path / "live", target_folder)
    server.prefill({"a": [7, 8]}, start=5)
    server.recorder.close(10)
    record = server.dump[0]
    assert record.positions is not None and record.positions.tolist() == [5, 6] and record.input_ids.tolist() == [7, 8]


def test_a_chunked_prompt_is_one_record(tmp_path: Path, target_folder: str) -> None:
    """Chunks are appended, and the prompt is as long as its last chunk says."""
    server = _Server(tmp_path / "live", target_folder)
    server.prefill({"a": [1, 2, 3]}, bonus=4)
    first = server.truth["a"]
    server.prefill({"a": [4, 5]}, start=3)
    server.recorder.close(10)
    record = server.dump[0]
    assert record.input_ids.tolist() == [1, 2, 3, 4, 5] and record.prompt_length == 5 and record.positions is None
    assert torch.equal(record.features, torch.stack([row for _, row, _ in first + server.truth["a"]]))


@pytest.mark.parametrize("ids", ["hash", "drop"])
def test_prompts_can_be_left_out(tmp_path: Path, target_folder: str, ids: str) -> None:
    """Hashed ids keep nothing but equality, and the same salt gives the same hashes; dropped ids are -1. The dump says which."""
    found = []
    for salt in ("grain-1", "grain-1", "grain-2"):
        server = _Server(tmp_path / f"live{len(found)}", target_folder, ids=ids, salt=salt)
        server.prefill({"a": [5, 6, 5]})
        server.recorder.close(10)
        assert any("token ids" in note for note in server.dump.assumed) and salt not in (server.out / MANIFEST).read_text()
        found.append(server.dump[0].input_ids.tolist())
    if ids == "drop":
        assert found == [[-1] * 3] * 3
    else:
        assert found[0] == found[1] != found[2] and found[0][0] == found[0][2] != found[0][1] and min(map(min, found)) > 99
    with pytest.raises(BadArgument, match="salt"):
        hooks("x", ids="hash")


def test_the_budget_closes_the_dump(tmp_path: Path, target_folder: str) -> None:
    """What runs then is cut off there, and said; the server's later forwards pass."""
    server = _Server(tmp_path / "live", target_folder, max_bytes=20 * 3 * H * 4)
    server.prefill({"a": list(range(12)), "b": list(range(6))})
    server.round({"a": 5, "b": 5})
    server.round({"a": 5, "b": 5})
    dump = server.dump
    assert dump.complete and "budget" in dump.assumed[0] and not server.recorder.active
    for record in dump:
        rid = {"0000": "a", "0001": "b"}[record.name]
        assert torch.equal(record.features, torch.stack([row for _, row, _ in server.truth[rid]][: record.tokens]))


def test_a_writer_that_cannot_keep_up_loses_requests_and_not_time(tmp_path: Path, target_folder: str) -> None:
    """With no room in the queue a request is left out whole and counted; the ones before it are kept."""
    server = _Server(tmp_path / "live", target_folder)
    server.prefill({"a": [1, 2, 3]})
    server.recorder.settle(10)
    assert server.recorder._spool is not None
    server.recorder._spool._limit = 0
    server.prefill({"b": [1, 2, 3]})
    server.recorder._spool._limit = 1 << 20
    server.round({"a": 2, "b": 3})
    server.recorder.close(10)
    assert [record.name for record in server.dump] == ["0000"] and (server.dump.counters or {})["dropped_requests"] == 1


def test_a_request_is_over_when_nothing_has_run_for_a_while(tmp_path: Path, target_folder: str) -> None:
    """No later round tells of its end; it is written all the same, and the reserve for a full disk stays until the dump is closed."""
    server = _Server(tmp_path / "live", target_folder, idle_seconds=0.05)
    server.prefill({"a": [1, 2]})
    server.round({"a": 2})
    _until(lambda: server.manifest["records"])
    assert len(server.dump[0].input_ids) == 4 and not server.dump.complete and (server.out / ".reserve").exists()
    server.recorder.close(10)
    assert server.dump.complete and not (server.out / ".reserve").exists()


def test_a_slow_engine_is_not_an_idle_one(tmp_path: Path, target_folder: str) -> None:
    """While a module runs, a request is not over, however long it takes; after it, it is."""

    class Slow(nn.Module):
        def forward(self) -> None:
            time.sleep(1.8)  # several looks of the thread

    server = _Server(tmp_path / "live", target_folder, idle_seconds=0.3)
    server.prefill({"a": [1, 2]})
    Slow()()
    server.round({"a": 2})
    _until(lambda: server.manifest["records"])
    assert len(server.dump[0].input_ids) == 4 and "late_rows" not in (server.dump.counters or {})


def test_rounds_that_no_hook_sees_are_told(tmp_path: Path, target_folder: str, caplog: pytest.LogCaptureFixture) -> None:
    """Replayed CUDA graphs: prefills alone. Manifest and log name the flag; with rounds, and before any wait, nothing is said."""
    server = _Server(tmp_path / "live", target_folder, idle_seconds=0.05)
    server.prefill({"a": [1, 2]})
    with caplog.at_level(logging.WARNING):
        _until(lambda: server.manifest["assumed"])
    assert "--disable-cuda-graph" in server.manifest["assumed"][0] and "--disable-cuda-graph" in caplog.text
    found = [f for f in faults.detect(Case(Given(live=server.out))) if f.fault == "C11"]
    assert len(found) == 1 and "--disable-cuda-graph" in found[0].fix
    with pytest.raises(MissingPart, match="disable-cuda-graph"):
        empty = json.loads((server.out / MANIFEST).read_text()) | {"records": []}
        (server.out / MANIFEST).write_text(json.dumps(empty))
        open_dump(server.out)
    other = _Server(tmp_path / "other", target_folder, idle_seconds=0.05)
    other.prefill({"a": [1, 2]})
    other.round({"a": 1})
    other.recorder.close(10)
    assert not other.manifest["assumed"]
    assert not any(f.fault == "C11" for f in faults.detect(Case(Given(live=other.out))))


def test_an_error_ends_the_recording_and_never_the_server(tmp_path: Path, target_folder: str) -> None:
    """What had ended is kept, the manifest says why there is no more, and later forwards pass."""
    server = _Server(tmp_path / "live", target_folder)
    server.prefill({"a": [1, 2]})
    server.prefill({"b": [1, 2]})
    server.round({"b": 1})
    server.recorder.settle(10)
    server.run_draft(server.batch("SOMETHING_NEW", ["b"], [1], [4]), torch.randn(1, 2 * H))
    server.round({"b": 1})
    dump = server.dump
    assert [record.name for record in dump] == ["0000"] and not dump.complete
    assert "SOMETHING_NEW" in dump.assumed[0] and not (server.out / ".reserve").exists()


def test_a_full_disk_ends_the_recording_and_never_the_server(
    tmp_path: Path, target_folder: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A shard that cannot be written: what was written before is kept, and log and manifest say why there is no more."""
    from eagle3diag.dumps import native

    server = _Server(tmp_path / "live", target_folder)
    server.prefill({"a": [1, 2]})
    server.prefill({"b": [1, 2]})
    server.round({"b": 1})
    assert len(server.dump) == 1
    monkeypatch.setattr(native, "save_file", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    server.prefill({"c": [1, 2]})
    server.round({"c": 1})
    dump = server.dump
    server.round({"c": 1})
    assert [record.name for record in dump] == ["0000"] and not dump.complete and "No space left" in dump.assumed[0]
    assert "No space left" in caplog.text and not server.recorder.active


def test_a_place_that_cannot_be_written_does_not_stop_the_server(tmp_path: Path, target_folder: str) -> None:
    """The folder is not empty: nothing is overwritten and nothing raised."""
    (tmp_path / "live").mkdir()
    (tmp_path / "live" / "precious").write_text("x")
    server = _Server(tmp_path / "live", target_folder)
    server.prefill({"a": [1, 2]})
    server.prefill({"b": [1, 2]})
    server.round({"b": 1})
    server.recorder.close(10)
    assert [p.name for p in (tmp_path / "live").iterdir()] == ["precious"]


def test_wrong_options_are_refused_at_start(target_folder: str) -> None:
    """SGLang calls the factory while it starts, when there is still somebody to read the error."""
    with pytest.raises(BadArgument, match="lm_head"):
        record_draft({"part": "lm_head", "out": "x", "target": target_folder})
    for wrong in (
        {"limit": 0},
        {"every": -1},
        {"ids": "rot13"},
        {"boundaries": [1, 1]},
        {"colour": "red"},
        {"max_bytes": 1.5},
        {"ranks": 2},
    ):
        with pytest.raises(BadArgument, match=next(iter(wrong))):
            hooks("x", **wrong)
    assert json.loads(json.dumps(hooks("x", limit=3, boundaries=[1, 2])))[0]["config"] == {
        "out": "x", "limit": 3, "boundaries": [1, 2], "part": "model"
    }  # fmt: skip


@pytest.mark.parametrize("ranks", ["first", "all"])
def test_ranks_write_beside_one_another(tmp_path: Path, target_folder: str, ranks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rank but the first is silent unless asked for; then it has a folder of its own."""
    for name, value in (("is_initialized", True), ("get_rank", 1), ("get_world_size", 2)):
        monkeypatch.setattr(torch.distributed, name, lambda value=value: value)
    server = _Server(tmp_path / "live", target_folder, ranks=ranks)
    server.prefill({"a": [1, 2]})
    server.recorder.close(10)
    assert not (tmp_path / "live").exists() and (tmp_path / "live.rank1").exists() == (ranks == "all")
    if ranks == "all":
        assert open_dump(tmp_path / "live.rank1").ranks == 2


class _Norm(nn.Module):
    def forward(self, x: Tensor, residual: Tensor | None = None) -> Any:
        return x if residual is None else (x, residual)


class _Runner(nn.Module):
    """A model runner's model: embedding, two blocks that hand on deltas and keep the stream outside, a final norm."""

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed_tokens, self.norm = nn.Embedding(99, H), _Norm()
            self.layers = nn.ModuleList(nn.ModuleDict({"input_layernorm": _Norm()}) for _ in range(2))
            self.streams: list[Tensor] = []

        def forward(self, ids: Tensor, positions: Tensor, batch: Any) -> Tensor:
            stream = self.embed_tokens(ids).detach()
            self.layers[0]["input_layernorm"](stream)  # type: ignore[index]
            for norm in (self.layers[1]["input_layernorm"], self.norm):  # type: ignore[index]
                self.streams.append(stream.clone())
                stream = stream * 2 + 1
                norm(stream, stream)
            return stream

    def __init__(self) -> None:
        super().__init__()
        self.model = self.Inner()

    def forward(self, batch: Any) -> Tensor:
        out: Tensor = self.model(batch.input_ids, batch.positions, batch)
        return out


def test_a_runner_held_in_this_process(tmp_path: Path) -> None:
    """The hooks are placed by the same patterns, and gone afterwards; without a target's folder the model says who it is."""
    model = _Runner()
    ids = torch.tensor([3, 4, 5])
    batch = SimpleNamespace(
        forward_mode=SimpleNamespace(name="EXTEND"), rids=["a"], input_ids=ids, positions=torch.arange(3), extend_seq_lens_cpu=[3]
    )
    with record_runner(SimpleNamespace(model=model), str(tmp_path / "live"), boundaries=[0, 1]) as recorder:
        model(batch)
    assert not any(m._forward_hooks for m in model.modules()) and not recorder.active
    dump = open_dump(tmp_path / "live")
    assert dump.complete and (dump.target.n_layers, dump.target.hidden_size, dump.target.name) == (2, H, "Inner")
    assert torch.equal(dump[0].state(0), model.model.embed_tokens(ids)) and torch.equal(dump[0].state(1), dump[0].state(0) * 2 + 1)
    assert dump[0].final is not None and torch.equal(dump[0].final, dump[0].state(1) * 2 + 1)


def test_what_runs_in_the_engine_imports_little() -> None:
    """torch, safetensors, the standard library and ourselves: nothing that an engine's environment may lack or that takes long to load."""
    code = """
import sys, torch, safetensors.torch
before = set(sys.modules)
import eagle3diag.capture.sglang, eagle3diag.capture.vllm
more = {name.split(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)
assert more == {"eagle3diag"}, more
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
