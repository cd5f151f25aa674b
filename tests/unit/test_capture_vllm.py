"""The recorder that vLLM loads, driven by stand-ins for its V1 and V2 model runners that pad, batch and reuse buffers as they do."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from eagle3diag.capture import vllm
from eagle3diag.capture.options import Options
from eagle3diag.capture.vllm import VARIABLE, Recorder, WorkerExtension, plugin
from eagle3diag.dumps import HiddenStates, open_dump
from eagle3diag.errors import BadArgument

H, AUX, LAYERS, DRAFTS = 4, (1, 2), 3, 2


class _Layer(nn.Module):
    def forward(self, positions: Tensor, hidden_states: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        stream = hidden_states if residual is None else hidden_states + residual
        return stream * 0.5 + 1.0, stream.clone()


class _Target(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(99, H)
        self.layers = nn.ModuleList(_Layer() for _ in range(LAYERS))
        self.aux_hidden_state_layers = AUX

    def forward(self, ids: Tensor, positions: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        hidden, residual, streams = self.embed_tokens(ids).detach() + positions[:, None], None, []
        streams.append(hidden.clone())
        for layer in self.layers:
            hidden, residual = layer(positions, hidden, residual)
            streams.append(hidden + residual)
        return streams[-1] / 7, [streams[b] for b in AUX], streams


class _Draft(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.ModuleDict({"fc": nn.Linear(len(AUX) * H, H)})

    def combine_hidden_states(self, rows: Tensor) -> Tensor:
        out: Tensor = self.model["fc"](rows)
        return out


class _Speculator:
    def __init__(self, draft: _Draft) -> None:
        self.model = draft

    def propose(
        self,
        input_batch: Any,
        attn_metadata: Any,
        slot_mappings: Any,
        last_hidden_states: Tensor,
        aux_hidden_states: list[Tensor],
        num_sampled: Tensor,
        num_rejected: Tensor,
        dummy_run: bool = False,
    ) -> None:
        self.model.combine_hidden_states(torch.cat(aux_hidden_states, -1))


class _Proposer:
    def __init__(self, draft: _Draft) -> None:
        self.model = draft

    def propose(
        self,
        num_speculative_tokens: int,
        target_token_ids: Tensor,
        target_positions: Tensor,
        target_hidden_states: Tensor,
        common_attn_metadata: Any,
        num_rejected_tokens_gpu: Tensor | None = None,
    ) -> str:
        self.model.combine_hidden_states(target_hidden_states)
        return "drafts"


class _Runner:
    """Schedules ``steps``: per step, by request, the tokens fed, their first position, and how many of them turn out rejected."""

    def __init__(self) -> None:
        self.model, self.draft = _Target(), _Draft()
        self.model_config = SimpleNamespace(
            get_hidden_size=lambda: H, model="org/tiny", hf_config={}, hf_text_config=SimpleNamespace(num_hidden_layers=LAYERS), dtype=torch.float32
        )  # fmt: skip
        self.cache_config = SimpleNamespace(enable_prefix_caching=False)
        self.truth: dict[str, list[Tensor]] = {}
        self.streams: dict[str, list[list[Tensor]]] = {}
        self.fed: dict[str, tuple[list[int], int, int]] = {}

    def get_model(self) -> _Target:
        return self.model

    def step(self, fed: dict[str, tuple[list[int], int, int]], new: tuple[str, ...] = (), finished: tuple[str, ...] = ()) -> None:
        scheduled = SimpleNamespace(
            total_num_scheduled_tokens=sum(len(ids) for ids, *_ in fed.values()),
            scheduled_new_reqs=[SimpleNamespace(req_id=rid, prompt_token_ids=fed[rid][0]) for rid in new],
            finished_req_ids=set(finished),
            scheduled_spec_decode_tokens={rid: given[1:] for rid, (given, *_) in fed.items() if rid not in new and len(given) > 1},
        )
        self.fed = fed
        self.execute_model(scheduled)

    def execute_model(self, scheduler_output: Any) -> None:
        if not self.fed:
            return
        ids = torch.tensor([i for given, *_ in self.fed.values() for i in given])
        positions = torch.tensor([start + j for given, start, _ in self.fed.values() for j in range(len(given))])
        final, aux, streams = self.model(ids, positions)
        starts = [0]
        for rid, (given, _, rejected) in self.fed.items():
            rows = slice(starts[-1], starts[-1] + len(given) - rejected)
            self.truth.setdefault(rid, []).append(torch.cat([a[rows] for a in aux], -1))
            self.streams.setdefault(rid, []).append([s[rows] for s in (*streams, final)])
            starts.append(starts[-1] + len(given))
        pad = torch.full((3, H), 9.0)  # a static buffer is longer than the batch
        buffers = [torch.cat([t, pad]) for t in (final, *aux)]
        self.let_draft(scheduler_output, buffers, ids, positions, torch.tensor(starts))
        for buffer in buffers:
            buffer.zero_()  # and used again

    def let_draft(self, scheduler_output: Any, states: list[Tensor], ids: Tensor, positions: Tensor, starts: Tensor) -> None:
        raise NotImplementedError


class _First(_Runner):
    """V1: the runner hands its proposer what it has prepared."""

    def __init__(self) -> None:
        super().__init__()
        self.drafter = _Proposer(self.draft)
        self.input_batch = SimpleNamespace(req_ids=[])

    def let_draft(self, scheduler_output: Any, states: list[Tensor], ids: Tensor, positions: Tensor, starts: Tensor) -> None:
        self.input_batch.req_ids[:] = list(self.fed)
        self.propose_draft_token_ids(scheduler_output, states[0], states[1:], ids, positions, starts)

    def propose_draft_token_ids(
        self, scheduler_output: Any, hidden_states: Tensor, aux: list[Tensor], ids: Tensor, positions: Tensor, starts: Tensor
    ) -> None:
        rejected = [r for *_, r in self.fed.values()]
        fed = torch.cat([a[: len(ids)] for a in aux], -1)
        said = self.drafter.propose(
            num_speculative_tokens=DRAFTS,
            target_token_ids=ids,
            target_positions=positions,
            target_hidden_states=fed,
            common_attn_metadata=SimpleNamespace(query_start_loc_cpu=starts),
            num_rejected_tokens_gpu=torch.tensor(rejected) if any(rejected) else None,
        )
        assert said == "drafts"
        fed.zero_()


class _Second(_Runner):
    """V2: a speculator that is given the batch, and fuses by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.speculator = _Speculator(self.draft)

    def let_draft(self, scheduler_output: Any, states: list[Tensor], ids: Tensor, positions: Tensor, starts: Tensor) -> None:
        rejected = torch.tensor([r for *_, r in self.fed.values()])
        batch = SimpleNamespace(
            req_ids=list(self.fed),
            num_tokens=len(ids),
            input_ids=torch.cat([ids, ids]),
            positions=torch.cat([positions, positions]),
            query_start_loc_np=starts.numpy(),
        )
        for dummy in (True, False):
            self.speculator.propose(batch, None, None, states[0], states[1:], rejected * 0, rejected, dummy_run=dummy)


def conversation(runner: Any) -> dict[str, list[int]]:
    """Two requests, one of which ends while the other runs on, with drafts accepted and rejected; the tokens fed that stay."""
    runner.step({"b": ([5, 6, 7], 0, 0), "a": ([8], 0, 0)}, new=("a", "b"))
    runner.step({"b": ([10, 11, 12], 3, 1), "a": ([20, 21, 22], 1, 2)})
    runner.step({"b": ([13, 14, 15], 5, 0)}, finished=("a",))
    runner.step({"c": ([1, 2], 0, 0)}, new=("c",), finished=("b",))
    runner.step({}, finished=("c",))
    return {"a": [8, 20], "b": [5, 6, 7, 10, 11, 13, 14, 15], "c": [1, 2]}


def check(dump: HiddenStates, runner: Any, tokens: dict[str, list[int]], boundaries: tuple[int, ...] = ()) -> None:
    assert dump.complete and not dump.assumed and (dump.engine, dump.side, dump.boundaries) == ("vllm", "live", AUX)
    assert (dump.target.name, dump.target.n_layers, dump.target.hidden_size, dump.target.dtype) == ("tiny", LAYERS, H, "float32")
    assert {r.name for r in dump} == {"0000", "0001", "0002"}
    for record in dump:
        rid = "abc"[int(record.name)]
        assert record.input_ids.tolist() == tokens[rid] and record.positions is None
        assert record.prompt_length == {"a": 1, "b": 3, "c": 2}[rid]
        assert torch.equal(record.features, torch.cat(runner.truth[rid]))
        assert record.final is not None and torch.equal(record.final, torch.cat([s[-1] for s in runner.streams[rid]]))
        assert record.boundaries == boundaries
        for b in boundaries:
            assert torch.equal(record.state(b), torch.cat([s[b] for s in runner.streams[rid]]))


@pytest.mark.parametrize("boundaries", [(), (0, 2, 3)])
def test_rows_come_back_per_request(tmp_path: Path, boundaries: tuple[int, ...]) -> None:
    """What the drafter received, without the rows of rejected tokens; further boundaries are residual streams; the runner is left as found."""
    torch.manual_seed(0)
    runner = _First()
    worker: Any = type("Worker", (WorkerExtension,), {"model_runner": runner})()
    config = {"out": str(tmp_path / "live"), "boundaries": list(boundaries), "limit": 3}
    assert worker.eagle3diag_start(json.loads(json.dumps(config))) == str(tmp_path / "live")
    tokens = conversation(runner)
    counters = worker.eagle3diag_stop()
    check(open_dump(tmp_path / "live"), runner, tokens, boundaries)
    assert counters == {"draft_extends": 4, "wide_extends": 4, "narrow_extends": 0, "fc_calls": 4, "fed_width": 8, "fc_input_width": 8}
    assert not any(name in vars(runner) for name in ("execute_model", "propose_draft_token_ids")) and "propose" not in vars(runner.drafter)
    hooked = [m for m in (*runner.model.modules(), *runner.drafter.model.modules()) if m._forward_hooks or m._forward_pre_hooks]
    assert not hooked


def test_the_second_generation_of_runners(tmp_path: Path) -> None:
    """The speculator's own arguments are read; its dummy runs are no rows."""
    torch.manual_seed(0)
    runner = _Second()
    recorder = Recorder(Options(str(tmp_path / "live"), limit=3))
    recorder.attach(runner)
    tokens = conversation(runner)
    recorder.close(10)
    check(open_dump(tmp_path / "live"), runner, tokens)
    assert recorder.counters["draft_extends"] == 4


def test_layers_that_call_no_hook_are_told(tmp_path: Path) -> None:
    """Compiled layers: what is fed is recorded all the same, and the note names the flag."""
    runner = _First()
    recorder = Recorder(Options(str(tmp_path / "live"), boundaries=(2,)))
    recorder.attach(runner)
    runner.model.layers[1]._forward_hooks.clear()
    conversation(runner)
    recorder.close(10)
    dump = open_dump(tmp_path / "live")
    assert len(dump) == 3 and "--enforce-eager" in dump.assumed[0] and torch.equal(dump[0].features, torch.cat(runner.truth["a"]))


@pytest.mark.parametrize("problem", ["no draft", "no such boundary", "an odd call"])
def test_a_recorder_that_cannot_goes_quiet(tmp_path: Path, problem: str, caplog: pytest.LogCaptureFixture) -> None:
    """The server runs on, and its log says why nothing is recorded."""
    runner = _First()
    recorder = Recorder(Options(str(tmp_path / "live"), boundaries=(9,) if problem == "no such boundary" else ()))
    if problem == "no draft":
        recorder.attach(SimpleNamespace(drafter=None))
    else:
        recorder.attach(runner)
    if problem == "an odd call":
        runner.model_config.get_hidden_size = lambda: 1 / 0
    conversation(runner)
    recorder.close(10)
    word = {"no draft": "--speculative-config", "no such boundary": "do not exist", "an odd call": "ZeroDivisionError"}[problem]
    assert not recorder.active and word in caplog.text + "".join(str(r.args) for r in caplog.records)


def test_the_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its variable it does nothing; with it every worker records once it is ready; options without sense are refused at start."""

    class WorkerWrapperBase:
        worker = SimpleNamespace(model_runner=_First())

        def initialize_from_config(self, configs: list[int]) -> int:
            return sum(configs)

    module = ModuleType("vllm.v1.worker.worker_base")
    module.WorkerWrapperBase = WorkerWrapperBase  # type: ignore[attr-defined]
    for name in ("vllm", "vllm.v1", "vllm.v1.worker"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    before = WorkerWrapperBase.initialize_from_config
    monkeypatch.delenv(VARIABLE, raising=False)
    plugin()
    assert WorkerWrapperBase.initialize_from_config is before
    for wrong in ("{", "[]", '{"colour": 1}', '{"limit": 1}'):
        monkeypatch.setenv(VARIABLE, wrong)
        with pytest.raises(BadArgument):
            plugin()
    monkeypatch.setenv(VARIABLE, json.dumps({"out": str(tmp_path / "live"), "limit": 3}))
    made = list[Recorder]()
    monkeypatch.setattr(vllm, "Recorder", lambda options: made.append(Recorder(options)) or made[0])
    plugin()
    runner = WorkerWrapperBase.worker.model_runner
    assert WorkerWrapperBase().initialize_from_config([1, 2]) == 3
    tokens = conversation(runner)
    assert made[0].settle(10)
    check(open_dump(tmp_path / "live"), runner, tokens)
