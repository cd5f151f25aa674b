"""The recorder that SGLang loads, driven by a stand-in for its worker that pads, overwrites and batches as the real one does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from eagle3diag.capture import sglang
from eagle3diag.capture.sglang import MODULES, hooks, record_draft
from eagle3diag.dumps import open_dump
from eagle3diag.errors import BadArgument

H, SLOTS = 4, 5


@pytest.fixture
def target_folder(tmp_path: Path) -> str:
    folder = tmp_path / "tiny-target"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": H, "num_hidden_layers": 6, "vocab_size": 99}))
    save_file({"model.embed_tokens.weight": torch.zeros(99, H)}, str(folder / "model.safetensors"))
    return str(folder)


class _Server:
    """Runs the hooks as SGLang's eager V2 worker would: ``width`` is what the target's features are wide."""

    def __init__(self, out: Path, target: str, width: int, limit: int | None = None) -> None:
        sglang._recorders.clear()
        specs = hooks(str(out), target=target, limit=limit)
        self.width, self.truth = width, dict[str, list[tuple[int, Tensor]]]()
        self.tokens: dict[str, list[int]] = {}
        made = {spec["config"]["part"]: record_draft(spec["config"]) for spec in specs}  # once for the target ...
        self.hooks: dict[str, Callable[..., None]] = {
            spec["config"]["part"]: record_draft(spec["config"]) for spec in specs
        }  # ... and draft
        assert made.keys() == self.hooks.keys() == MODULES.keys()
        embed = SimpleNamespace(weight=torch.zeros(99, H))
        self.target = SimpleNamespace(layers_to_capture=[2, 4], embed_tokens=embed)
        self.draft = SimpleNamespace(fc=nn.Identity(), embed_tokens=embed)

    def _forward(self, mode: str, rids: list[str], ids: list[int], positions: list[int], fed: Tensor, **fields: Any) -> None:
        batch = SimpleNamespace(
            forward_mode=SimpleNamespace(name=mode),
            rids=rids,
            extend_seq_lens=torch.tensor(fields.pop("lengths", [])),
            spec_info=SimpleNamespace(hidden_states=fed, num_front_tokens=0, **fields),
        )
        if fed.shape[-1] != H:
            self.hooks["fc"](self.draft.fc, (fed,), fed[:, :H])
            self.hooks["hidden_norm"](None, (fed[:, :H].clone(),), None)
        else:
            self.hooks["hidden_norm"](None, (fed,), None)
            fed += 1000.0  # the first layer adds to its input in place
        self.hooks["model"](self.draft, (torch.tensor(ids), torch.tensor(positions), batch, None), None)

    def prefill(self, prompts: dict[str, list[int]], bonus: int = 50) -> None:
        rids, flat = list(prompts), [token for prompt in prompts.values() for token in prompt]
        positions = [p for prompt in prompts.values() for p in range(len(prompt))]
        lengths = [len(prompt) for prompt in prompts.values()]
        batch = SimpleNamespace(forward_mode=SimpleNamespace(name="EXTEND"), rids=rids, extend_seq_lens=torch.tensor(lengths))
        self.hooks["model"](self.target, (torch.tensor(flat), torch.tensor(positions), batch, None), None)
        fed = torch.randn(len(flat), self.width)
        shifted = [token for prompt in prompts.values() for token in [*prompt[1:], bonus]]
        rows = iter(fed)
        for rid, prompt in prompts.items():
            self.truth[rid] = [(position, next(rows).clone()) for position in range(len(prompt))]
            self.tokens[rid] = [*prompt, bonus]
        self._forward("EXTEND", rids, shifted, positions, fed, lengths=lengths)

    def round(self, accepted: dict[str, int]) -> None:
        """Drafting, then the padded extend; ``accepted``: tokens kept per request, the bonus included."""
        rids = list(accepted)
        starts = [len(self.truth[rid]) for rid in rids]
        self._forward("DECODE", rids, [1] * len(rids), starts, torch.randn(len(rids), H))
        fed = torch.randn(len(rids) * SLOTS, self.width)
        ids, positions = [], []
        for index, (rid, start) in enumerate(zip(rids, starts, strict=True)):
            said = [60 + start + j for j in range(SLOTS)]
            ids, positions = ids + said, positions + [start + j for j in range(SLOTS)]
            for j in range(accepted[rid]):
                self.truth[rid].append((start + j, fed[index * SLOTS + j].clone()))
                self.tokens[rid].append(said[j])
        self._forward("DRAFT_EXTEND_V2", rids, ids, positions, fed, num_accept_tokens=torch.tensor(list(accepted.values())))


@pytest.mark.parametrize("width", [2 * H, H])
def test_the_fed_rows_come_back_per_request(tmp_path: Path, target_folder: str, width: int) -> None:
    """Wide (EAGLE-3) and narrow (EAGLE, where the row is overwritten in place): rows, ids and counters equal what was fed."""
    server = _Server(tmp_path / "live", target_folder, width, limit=3)
    server.prefill({"a": [1, 2, 3], "b": [4, 5]})
    server.round({"a": 1, "b": 4})
    server.prefill({"c": [7, 8, 9, 10]})
    server.round({"b": 2, "a": 5, "c": 1})
    server.round({"c": 3, "a": 1})  # b has ended
    server.prefill({"last": [1]})
    server.round({"last": 1})  # so have a and c
    dump = open_dump(tmp_path / "live")
    assert dump.complete and not dump.assumed
    assert (dump.side, dump.engine, dump.boundaries, dump.target.name, dump.target.n_layers) == ("live", "sglang", (2, 4), "tiny-target", 6)
    names = {"0000": "a", "0001": "b", "0002": "c"}
    assert {record.name for record in dump} == set(names)
    for record in dump:
        rid = names[record.name]
        assert record.positions is None
        torch.testing.assert_close(record.features, torch.stack([row for _, row in server.truth[rid]]), rtol=0, atol=0)
        assert record.input_ids.tolist() == server.tokens[rid][: len(server.truth[rid])]
        assert record.prompt_length == {"a": 3, "b": 2, "c": 4}[rid]
    extends = 3 + 4
    assert dump.counters == {
        "draft_forwards": extends + 4,
        "draft_extends": extends,
        "wide_extends": extends if width > H else 0,
        "narrow_extends": extends if width == H else 0,
        "fc_calls": extends if width > H else 0,
    }


def test_only_the_first_requests_are_kept_and_an_ended_one_stays_ended(tmp_path: Path, target_folder: str) -> None:
    """Past the limit nothing is recorded; a request that was put back and computed again is not recorded twice."""
    server = _Server(tmp_path / "live", target_folder, 2 * H, limit=2)
    server.prefill({"a": [1, 2], "b": [3, 4], "c": [5, 6]})
    server.round({"b": 1, "c": 1})  # a is gone: put back
    server.truth.pop("a")
    server.prefill({"a": [1, 2]})
    server.round({"a": 1, "c": 1})
    dump = open_dump(tmp_path / "live")
    assert [record.name for record in dump] == ["0000", "0001"] and dump.complete


def test_a_cached_prefix_leaves_positions(tmp_path: Path, target_folder: str) -> None:
    """Rows that start behind a prefix say where they are."""
    server = _Server(tmp_path / "live", target_folder, 2 * H, limit=1)
    fed = torch.randn(2, 2 * H)
    batch = SimpleNamespace(forward_mode=SimpleNamespace(name="EXTEND"), rids=["a"], extend_seq_lens=torch.tensor([2]))
    server.hooks["model"](server.target, (torch.tensor([7, 8]), torch.tensor([5, 6]), batch), None)
    server._forward("EXTEND", ["a"], [8, 9], [5, 6], fed, lengths=[2])
    server.prefill({"b": [1]})
    server.round({"b": 1})
    record = open_dump(tmp_path / "live")[0]
    assert record.positions is not None and record.positions.tolist() == [5, 6] and record.input_ids.tolist() == [7, 8]


def test_an_error_ends_the_recording_and_never_the_server(tmp_path: Path, target_folder: str) -> None:
    """What had ended is kept, the manifest says why there is no more, and later forwards pass."""
    server = _Server(tmp_path / "live", target_folder, 2 * H)
    server.prefill({"a": [1, 2]})
    server.prefill({"b": [1, 2]})
    server.round({"b": 1})
    server._forward("SOMETHING_NEW", ["b"], [1], [4], torch.randn(1, 2 * H))
    server.round({"b": 1})
    dump = open_dump(tmp_path / "live")
    assert [record.name for record in dump] == ["0000"] and not dump.complete
    assert "SOMETHING_NEW" in dump.assumed[0]


def test_a_place_that_cannot_be_written_does_not_stop_the_server(tmp_path: Path, target_folder: str) -> None:
    """The folder is not empty: nothing is overwritten and nothing raised."""
    (tmp_path / "live").mkdir()
    (tmp_path / "live" / "precious").write_text("x")
    server = _Server(tmp_path / "live", target_folder, 2 * H)
    server.prefill({"a": [1, 2]})
    server.prefill({"b": [1, 2]})
    server.round({"b": 1})
    assert [p.name for p in (tmp_path / "live").iterdir()] == ["precious"]


def test_a_wrong_part_is_refused_at_start(target_folder: str) -> None:
    """SGLang calls the factory while it starts, when there is still somebody to read the error."""
    with pytest.raises(BadArgument):
        record_draft({"part": "lm_head", "out": "x", "target": target_folder})
