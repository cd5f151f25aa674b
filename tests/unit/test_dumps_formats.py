"""Dumps of other tools: each recognised by what is in its files, read into the same records, and honest about what it had to assume."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import write_dump
from safetensors.torch import load_file, save_file
from torch import Tensor

from eagle3diag.compare import check_dump
from eagle3diag.dumps import DumpWriter, HiddenStates, TargetIdentity, open_dump
from eagle3diag.dumps.formats import FORMATS
from eagle3diag.errors import BadArgument, MissingPart, UnreadableFile

H, BLOCKS, V, COUNT = 6, 20, 50, 3
TARGET = TargetIdentity("toy", "0" * 16, "bfloat16", BLOCKS, H)
FIXTURES = Path(__file__).resolve().parent.parent / "fixtures" / "dumps"


@dataclass(frozen=True)
class Truth:
    """One sequence as it was computed: ids, mask, three states, the last one before and after the norm."""

    ids: Tensor
    mask: Tensor
    states: tuple[Tensor, ...]
    last: Tensor
    final: Tensor

    @property
    def wide(self) -> Tensor:
        return torch.cat(self.states, -1)


def truth(i: int) -> Truth:
    g = torch.Generator().manual_seed(i)
    t = 5 + i
    rows = [torch.randn(t, H, generator=g).bfloat16() for _ in range(5)]
    return Truth(torch.randint(1, V, (t,), generator=g), (torch.arange(t) > 2).long(), tuple(rows[:3]), rows[3], rows[4])


def save(value: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(value, path)


def safe(value: dict[str, Tensor], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({n: t.contiguous() for n, t in value.items()}, path)


# -- the layouts, as the tools' sources write them ---------------------------------------------------------------------------------


def specforge(d: Path, i: int, r: Truth) -> None:
    value = {"input_ids": r.ids, "loss_mask": r.mask, "hidden_state": r.final[None], "aux_hidden_state": r.wide[None]}
    save(value, d / f"rows_{i // 2 * 2000}-{i // 2 * 2000 + 2000}" / f"data_{i}.ckpt")
    if i == 0:
        save({"d2t": torch.zeros(4), "t2d": torch.ones(9)}, d / "vocab_mapping" / "vocab_mapping.pt")


def specforge_gz(d: Path, i: int, r: Truth) -> None:
    held = io.BytesIO()
    torch.save({"input_ids": r.ids, "loss_mask": r.mask, "hidden_state": r.final[None], "aux_hidden_state": r.wide[None]}, held)
    (d / f"data_{i}.ckpt.gz").write_bytes(gzip.compress(held.getvalue()))


def eagle(d: Path, i: int, r: Truth) -> None:
    save({"input_ids": r.ids, "loss_mask": r.mask, "hidden_state": r.final[None]}, d / str(i) / f"data_{i}.ckpt")


def bald_eagle(d: Path, i: int, r: Truth) -> None:
    save({"input_ids": r.ids, "loss_mask": r.mask, "hidden_state": torch.stack(r.states)}, d / f"data_{i}.ckpt")


def research(d: Path, i: int, r: Truth) -> None:
    save({"input_ids": r.ids, "loss_mask": r.mask, "hidden_state": r.wide, "target": r.final}, d / f"data_{i}.ckpt")


def speculators_v1(d: Path, i: int, r: Truth) -> None:
    save({"input_ids": r.ids, "loss_mask": r.mask, "hidden_states": [*r.states, r.last]}, d / f"data_{i}.pt")


def speculators_v1_config(d: Path, i: int, r: Truth) -> None:
    speculators_v1(d, i, r)
    (d / "data_config.json").write_text(json.dumps({"version": "2.0", "hidden_states": {"layer_ids": [3, 7, 11, 19]}}))


def speculators_v2(d: Path, i: int, r: Truth) -> None:
    safe({"hidden_states": torch.stack([*r.states, r.last], 1), "token_ids": r.ids}, d / "hidden_states" / f"hs_{i}.safetensors")
    (d / "dataset_info.json").write_text("{}")


def vllm_three(d: Path, i: int, r: Truth) -> None:
    safe({"hidden_states": torch.stack(r.states, 1), "token_ids": r.ids}, d / f"cmpl-{i:032x}-0.safetensors")
    (d / f"cmpl-{i:032x}-0.safetensors.lock").touch()


def modelopt(d: Path, i: int, r: Truth) -> None:
    value = {"input_ids": r.ids, "hidden_states": r.final, "aux_hidden_states": r.wide, "conversation_id": f"conv-{i}"}
    save(value | {"loss_mask": r.mask}, d / f"conv-{i}.pt")


def modelopt_raw(d: Path, i: int, r: Truth) -> None:
    value = {
        "input_ids": r.ids,
        "hidden_states": r.last,
        "aux_hidden_states": r.wide,
        "conversation_id": f"c{i}",
        "hidden_states_prenorm": True,
    }
    save(value, d / f"c{i}.pt")


def angelslim(d: Path, i: int, r: Truth) -> None:
    value = {"input_ids": r.ids[None], "loss_mask": r.mask[None], "hidden_states": r.wide[None], "target_hiddens": r.final[None]}
    save(value, d / f"rank_{i % 2}" / "rows_0-5000" / f"data_{i}.ckpt")
    save({"d2t": torch.zeros(4)}, d / "vocab_mapping.pt")


def torchspec(d: Path, i: int, r: Truth) -> None:
    """Two sequences in a batch, the second one padded on the left; only the first is record ``i``."""

    def pad(x: Tensor) -> Tensor:
        return torch.stack([x, torch.cat([torch.zeros_like(x[:2]), x[:-2]])])

    mask = torch.ones(2, len(r.ids), dtype=torch.long)
    mask[1, :2] = 0
    batch = {"input_ids": pad(r.ids), "attention_mask": mask, "loss_mask": pad(r.mask), "hidden_states": pad(r.wide)}
    batch["last_hidden_states"] = pad(r.final)
    save({"batch": batch, "plosses": [torch.tensor(1.0)], "acces": [], "gradients": {}, "total_loss": torch.tensor(2.0)}, d / f"{i},0,0.pt")


def tensorrt(d: Path, i: int, r: Truth) -> None:
    """All three requests in one file, as a write interval of twenty leaves them."""
    rows = [truth(k) for k in range(COUNT)]
    listed = [{"id": 7 + k, "input_ids": r.ids, "hidden_state": r.final, "aux_hidden_states": r.wide} for k, r in enumerate(rows)]
    save(listed, d / "eagle3_20.pt")


def tensorrt_last(d: Path, i: int, r: Truth) -> None:
    wide = torch.cat([r.wide, r.last], -1)
    save([{"id": i, "input_ids": r.ids, "hidden_state": r.final, "aux_hidden_states": wide}], d / f"x_{i}.pt")


def automodel(d: Path, i: int, r: Truth) -> None:
    """Shards of two, padded on the right to eight, ids and mask shifted left by one."""
    if i:
        return
    rows, width = [truth(k) for k in range(COUNT)], 8

    def right(x: Tensor) -> Tensor:
        return torch.cat([x, torch.zeros(width - len(x), *x.shape[1:], dtype=x.dtype)])

    for shard, part in enumerate((rows[:2], rows[2:])):
        made = {
            "input_ids": torch.stack([right(r.ids[1:]) for r in part]),
            "loss_mask": torch.stack([right(r.mask[1:]) for r in part]),
            "attention_mask": torch.stack([right(torch.ones_like(r.ids)) for r in part]),
            "aux_hidden_states": torch.stack([right(r.wide) for r in part]),
            "position_mask": torch.ones(len(part), width, 1, dtype=torch.bool),
        }
        safe(made, d / f"shard-{shard:06d}.safetensors")
    safe({"weight": torch.zeros(4, H)}, d / "target_embeddings.safetensors")
    manifest = {"format_version": 2, "num_samples": 3, "shard_size": 2, "aux_hidden_dim": 3 * H, "aux_layer_ids": [1, 9, 16]}
    (d / "manifest.json").write_text(json.dumps(manifest))


@dataclass(frozen=True)
class Layout:
    """A tool's way to write, what its records must then hold, and the boundaries of a target of twenty blocks."""

    write: Callable[[Path, int, Truth], None]
    engine: str
    boundaries: tuple[int, ...] = (2, 10, 17)
    features: bool = True
    final: bool = True
    last: bool = False
    mask: bool = True
    names: tuple[str, ...] = ("data_0", "data_1", "data_2")
    records: Callable[[int], int] = field(default=lambda i: i)  # which record of the dump is truth(i)
    skipped: int = 0  # rows at the beginning that the format does not store


LAYOUTS = {
    "SpecForge": Layout(specforge, "specforge"),
    "SpecForge, gzipped": Layout(specforge_gz, "specforge"),
    "EAGLE": Layout(eagle, "eagle", features=False, boundaries=()),
    "BaldEagle fused": Layout(bald_eagle, "eagle", final=False),
    "speculators research": Layout(research, "speculators", boundaries=(3, 11, 18)),
    "speculators 0.3": Layout(speculators_v1, "speculators", boundaries=(3, 11, 18), final=False, last=True),
    "speculators 0.3 with its config": Layout(speculators_v1_config, "speculators", boundaries=(4, 8, 12), final=False, last=True),
    "speculators 0.9": Layout(
        speculators_v2, "vllm", final=False, last=True, mask=False, names=("hs_0", "hs_1", "hs_2")
    ),
    "vLLM": Layout(vllm_three, "vllm", final=False, mask=False, names=tuple(f"cmpl-{i:032x}-0" for i in range(3))),
    "Model-Optimizer": Layout(modelopt, "modelopt", names=("conv-0", "conv-1", "conv-2")),
    "Model-Optimizer, un-normed": Layout(modelopt_raw, "modelopt", final=False, last=True, mask=False, names=("c0", "c1", "c2")),
    "AngelSlim": Layout(angelslim, "angelslim", names=("data_0", "data_2", "data_1"), records=lambda i: (0, 2, 1)[i]),
    "TorchSpec": Layout(torchspec, "torchspec", names=tuple(f"{i},0,0.{k}" for i in range(3) for k in range(2)), records=lambda i: 2 * i),
    "TensorRT-LLM": Layout(tensorrt, "tensorrt_llm", mask=False, names=("7", "8", "9")),
    "TensorRT-LLM with the last block": Layout(tensorrt_last, "tensorrt_llm", mask=False, last=True, names=("0", "1", "2")),
    "NeMo Automodel": Layout(automodel, "automodel", final=False, names=("shard-000000.0", "shard-000000.1", "shard-000001.0"), skipped=1),
}  # fmt: skip


def written(layout: Layout, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for i in range(COUNT):
        layout.write(folder, i, truth(i))
    return folder


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_is_recognised_and_read_bit_for_bit(name: str, tmp_path: Path) -> None:
    """Ids, mask, each boundary, features, and the last state as what it is; the default boundaries follow from the target's size."""
    layout = LAYOUTS[name]
    found = open_dump(written(layout, tmp_path / "d"), target=TARGET)
    assert (found.engine, found.side, found.boundaries) == (layout.engine, "train", layout.boundaries)
    assert found.names == layout.names and found.target.n_layers == BLOCKS and found.target.dtype == "bfloat16"
    for i in range(COUNT):
        expected, record, skip = truth(i), found[layout.records(i)], layout.skipped
        assert torch.equal(record.input_ids, expected.ids[skip:])
        assert (record.loss_mask is not None) == layout.mask
        if record.loss_mask is not None:
            assert torch.equal(record.loss_mask, expected.mask[skip:])
        for b, state in zip(layout.boundaries, expected.states, strict=False):
            assert torch.equal(record.state(b), state[skip:])
        if layout.features:
            assert torch.equal(record.features, expected.wide[skip:])
        else:
            assert record.part("features") is None
        for has, got, wanted in ((layout.final, record.final, expected.final), (layout.last, record.last, expected.last)):
            assert (got is not None) == has
            assert got is None or torch.equal(got, wanted[skip:])
        if layout.last:
            assert torch.equal(record.state(BLOCKS), expected.last)
        assert set(record.boundaries) == {*layout.boundaries, *((BLOCKS,) if layout.last else ())}
    if layout.skipped:
        assert found[0].positions is not None and found[0].positions[0] == 1


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_is_assumed_is_said(name: str, tmp_path: Path) -> None:
    """Each reader says which format it took the files for, whether ids are shifted or states normed, and what it left out."""
    found = open_dump(written(LAYOUTS[name], tmp_path / "d"))
    assert found.assumed[0].startswith("read as ") and len(found.assumed) >= 3
    if not found.boundaries and LAYOUTS[name].features:
        assert any("pass boundaries=" in line for line in found.assumed)
    if name in ("SpecForge", "AngelSlim", "NeMo Automodel", "speculators 0.9"):
        assert any("not among the records" in line for line in found.assumed)
    norm = any("norm" in line for line in found.assumed)
    assert norm or name in ("NeMo Automodel",)


@pytest.mark.parametrize("name", LAYOUTS)
def test_names_of_files_do_not_matter(name: str, tmp_path: Path) -> None:
    """The same bytes under other names and endings are the same format: content decides. (Automodel's manifest is what is looked for.)"""
    if name == "NeMo Automodel":
        pytest.skip("a cache of several files is known by its manifest")
    folder = written(LAYOUTS[name], tmp_path / "d")
    (tmp_path / "e").mkdir()
    states = [p for p in sorted(folder.rglob("*")) if p.is_file() and p.suffix not in (".json", ".lock") and "vocab" not in p.name]
    for k, path in enumerate(states):
        shutil.copy(path, tmp_path / "e" / f"sample{k}.bin")
    found, expected = open_dump(tmp_path / "e", target=TARGET), open_dump(folder, target=TARGET)
    assert found.assumed[0] == expected.assumed[0] and found.engine == expected.engine and len(found) == len(expected)


def test_the_boundaries_that_the_caller_names_win(tmp_path: Path) -> None:
    """Other layers than the default, in another order; too many for the width is an error that says so; the last of four may be one."""
    folder = written(LAYOUTS["SpecForge"], tmp_path / "d")
    found = open_dump(folder, boundaries=(9, 1, 5), side="reference")
    assert found.boundaries == (9, 1, 5) and found.side == "reference" and found.target.hidden_size == H
    assert torch.equal(found[0].state(1), truth(0).states[1]) and torch.equal(found[0].features, truth(0).wide)
    with pytest.raises(BadArgument, match="4 boundaries do not divide"):
        open_dump(folder, boundaries=(1, 2, 3, 4))
    with pytest.raises(BadArgument, match="not a multiple of the target's hidden size 7"):
        open_dump(folder, target=TargetIdentity("other", "", "", BLOCKS, 7))
    four = open_dump(written(LAYOUTS["speculators 0.9"], tmp_path / "v"), boundaries=(2, 10, 17, 20))
    assert torch.equal(four[1].state(20), truth(1).last) and four[1].last is None and four[1].features.shape == (6, 4 * H)
    for wrong in ((), (1, 1), (-1, 2), ("2",)):
        with pytest.raises(BadArgument):
            open_dump(folder, boundaries=wrong)  # type: ignore[arg-type]
    with pytest.raises(BadArgument, match="side"):
        open_dump(folder, side="serve")


def test_our_own_dump_is_recognised_first_and_takes_the_arguments_too(tmp_path: Path) -> None:
    """A native dump, by folder and by manifest, with another side and order."""
    folder = write_dump(tmp_path / "d")
    found = open_dump(folder, side="live", boundaries=(4, 2))
    assert (found.side, found.boundaries) == ("live", (4, 2)) and found[0].features.shape[1] == 64
    assert torch.equal(found[0].features[:, :32], open_dump(folder)[0].state(4))
    assert open_dump(found, side="train").side == "train" and open_dump(found).side == "live"


# -- files of the real tools -------------------------------------------------------------------------------------------------------


@pytest.fixture
def real(tmp_path: Path) -> Path:
    for name in ("passes", "dumper"):
        with zipfile.ZipFile(FIXTURES / f"{name}.zip") as archive:
            archive.extractall(tmp_path / name)
    return tmp_path


def agrees(found: HiddenStates, boundaries: tuple[int, ...], final: bool) -> None:
    """Records of SGLang 0.5.23 against Transformers, both float32, on two prompts and three fed tokens of their answers."""
    expected = load_file(FIXTURES / "truth.safetensors")
    assert len(found) == 2 and found.engine == "sglang" and found.side == "live"
    for i, record in enumerate(found):
        n = record.tokens
        assert n == (8, 10)[i] and torch.equal(record.input_ids, expected[f"{i}/ids"][:n])
        for b in boundaries:
            torch.testing.assert_close(record.state(b), expected[f"{i}/{b}"][:n], atol=5e-5, rtol=1e-5)
        assert (record.final is not None) == final
        if record.final is not None:
            torch.testing.assert_close(record.final, expected[f"{i}/final"][:n], atol=5e-5, rtol=1e-5)


def test_the_real_dumper(real: Path) -> None:
    """Non-intrusive mode: every boundary from the residuals, two requests told apart by their ids, prefill and decode joined."""
    found = open_dump(real / "dumper", boundaries=(2, 4, 5))
    agrees(found, tuple(range(9)), final=True)
    assert torch.equal(found[1].features, torch.cat([found[1].state(b) for b in (2, 4, 5)], -1)) and found.target.n_layers == 8
    with pytest.raises(MissingPart, match="boundary 9 was not written"):
        open_dump(real / "dumper", boundaries=(2, 9))


def test_the_older_style_of_the_dumper(real: Path, tmp_path: Path) -> None:
    """``forward_pass_id`` in the name and a bare tensor inside, up to 0.5.7: requests are then told apart by positions and lengths."""
    (tmp_path / "old").mkdir()
    for path in (real / "dumper").rglob("*.pt"):
        tags = dict(p.split("=", 1) for p in path.stem.split("___"))
        if tags["name"] != "rids":
            name = f"forward_pass_id={tags['step']}___rank=0___name={tags['name']}___dump_index={tags['dump_index']}.pt"
            torch.save(torch.load(path, weights_only=True)["value"], tmp_path / "old" / name)
    agrees(open_dump(tmp_path / "old"), tuple(range(9)), final=True)


def test_the_real_tensor_dump(real: Path) -> None:
    """Ids, final states and the last residual agree. On CPU the other residuals do not: the tool keeps references there, which later layers
    write into, so all boundaries of a pass are the last one. The reader shows what is in the file."""
    found = open_dump(real / "passes")
    agrees(found, (8,), final=True)
    assert torch.equal(found[0].state(2), found[0].state(7))


def test_the_layout_of_the_tensor_dump(tmp_path: Path) -> None:
    """With copies, as on a GPU: every boundary. A draft's passes and other ranks stand beside and are left out; verification rows that the
    next round replaces do not stay."""
    expected = load_file(FIXTURES / "truth.safetensors")

    def fed(rows: list[tuple[int, int]], lengths: list[int], file: str, ids: list[int] | None = None) -> None:
        value: dict[str, Any] = {"model.embed_tokens": torch.stack([expected[f"{i}/0"][t] for i, t in rows])}
        for b in range(8):
            residual = torch.stack([expected[f"{i}/{b}"][t] for i, t in rows])
            value[f"model.layers.{b}.input_layernorm"] = [residual * 0, residual] if b else residual * 0
        value["model.norm"] = [torch.stack([expected[f"{i}/{n}"][t] for i, t in rows]) for n in ("final", 8)]
        value["model.forward_batch_info.input_ids"] = torch.tensor(ids or [int(expected[f"{i}/ids"][t]) for i, t in rows])
        value["model.forward_batch_info.positions"] = torch.tensor([t for _, t in rows])
        value["model.forward_batch_info.seq_lens"] = torch.tensor(lengths)
        save(value, tmp_path / file)

    rank = "target/TP0_PP0_Rank0_pid1"
    fed([(0, t) for t in range(5)] + [(1, t) for t in range(4)], [5, 4], f"{rank}/Pass00000.pt")  # the second prompt in two chunks
    fed([(1, t) for t in range(4, 7)], [7], f"{rank}/Pass00001.pt")
    # three rows each: the first request's third was a draft that is not accepted, and is fed again, right this time
    fed([(0, 5), (0, 6), (0, 7), (1, 7), (1, 8), (1, 9)], [5, 7], f"{rank}/Pass00002.pt", [33, 15, 63, 21, 26, 2])
    fed([(0, 7), (1, 10)], [8, 11], f"{rank}/Pass00003.pt")
    save({"logits_processor": torch.zeros(2, 4)}, tmp_path / rank / "Pass00004.pt")
    save(torch.load(tmp_path / rank / "Pass00000.pt", weights_only=True), tmp_path / "target/TP1_PP0_Rank1_pid2/Pass00000.pt")
    draft = {"model.embed_tokens": torch.ones(2, 16), "model.forward_batch_info.input_ids": torch.tensor([1, 2])}
    draft |= {"model.forward_batch_info.positions": torch.tensor([0, 1]), "model.forward_batch_info.seq_lens": torch.tensor([2])}
    save(draft, tmp_path / "draft/TP0_PP0_Rank0_pid1/Pass00000.pt")
    found = open_dump(tmp_path)
    assert found.ranks == 2 and [r.tokens for r in found] == [8, 11]
    for i, record in enumerate(found):
        assert torch.equal(record.input_ids, expected[f"{i}/ids"][: record.tokens])
        for b in range(9):
            assert torch.equal(record.state(b), expected[f"{i}/{b}"][: record.tokens])


@pytest.mark.parametrize("file", ["responses.json", "aux.json"])
def test_real_responses(file: str, tmp_path: Path) -> None:
    """The last state when the target says so by its width, aux states otherwise; ids from the log-probabilities or beside the response."""
    wide = file == "aux.json"
    shutil.copy(FIXTURES / file, tmp_path)
    found = open_dump(tmp_path, target=TargetIdentity("t", "", "", 8, 16), boundaries=(2, 4, 5) if wide else None)
    agrees(found, (2, 4, 5) if wide else (), final=not wide)
    assert [r.prompt_length for r in found] == [5, 7]
    lines = [json.dumps(r) for r in json.loads((FIXTURES / file).read_text())]
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "saved.jsonl").write_text("\n".join(lines) + "\n")
    assert len(open_dump(tmp_path / "lines" / "saved.jsonl")) == 2


def test_responses_after_a_cached_prefix(tmp_path: Path) -> None:
    """Cached tokens have no rows: the record begins behind them. Without ids of the prompt nothing can be aligned."""
    states = [[[float(t)] * 4 for t in range(3, 6)], [[6.0] * 4, [7.0] * 4], [8.0] * 4]
    response = {"output_ids": [1, 2, 3, 4], "meta_info": {"hidden_states": states, "cached_tokens": 3, "id": "x"}}
    pair = {"request": {"input_ids": [10, 11, 12, 13, 14, 15]}, "response": response}
    (tmp_path / "a.json").write_text(json.dumps(pair))
    record = open_dump(tmp_path)[0]
    assert record.positions is not None and record.positions.tolist() == [3, 4, 5, 6, 7, 8]
    assert record.input_ids.tolist() == [13, 14, 15, 1, 2, 3] and record.features[:, 0].tolist() == [3, 4, 5, 6, 7, 8]
    (tmp_path / "a.json").write_text(json.dumps(response))
    with pytest.raises(MissingPart, match="without the ids of its prompt"):
        open_dump(tmp_path)


def test_the_real_fp8_file_of_hs_connectors(tmp_path: Path) -> None:
    """Scaled back as the trainer does, bit for bit; boundaries and last state within the rounding of fp8."""
    shutil.copy(FIXTURES / "hs_0.safetensors", tmp_path)
    record = open_dump(tmp_path, target=TargetIdentity("t", "", "", 8, 16))[0]
    restored = load_file(FIXTURES / "hs_0.restored.safetensors")["hidden_states"]
    assert torch.equal(record.features, restored[:, :3].flatten(1))
    assert record.last is not None and torch.equal(record.last, restored[:, 3])
    expected = load_file(FIXTURES / "truth.safetensors")
    torch.testing.assert_close(record.last.float(), expected["0/8"], atol=0.4, rtol=0.08)


def test_the_real_file_of_specforge(tmp_path: Path) -> None:
    """What SpecForge's own feature store writes, bit for bit."""
    shutil.copy(FIXTURES / "specforge.ckpt", tmp_path / "data_0.ckpt")
    found = open_dump(tmp_path, boundaries=(2, 4, 5))
    expected, record = load_file(FIXTURES / "truth.safetensors"), found[0]
    assert found.engine == "specforge" and torch.equal(record.input_ids, expected["0/ids"])
    assert record.final is not None and torch.equal(record.final, expected["0/final"])
    assert all(torch.equal(record.state(b), expected[f"0/{b}"]) for b in (2, 4, 5))
    assert record.loss_mask is not None and record.loss_mask.tolist() == [0] * 5 + [1] * (record.tokens - 5)


#: Folder in the fixtures, aux boundaries, whether the last state is normed, un-normed or absent, the first row stored, the mask.
TRAINERS = {
    "speculators": ((2, 4, 5), "last", 0, False),
    "speculators04": ((3, 5, 6), "last", 0, True),
    "automodel": ((2, 4, 5), None, 1, True),
    "angelslim": ((2, 4, 5), "final", 0, True),
}


@pytest.mark.parametrize("name", TRAINERS)
def test_the_real_files_of_trainers(name: str, tmp_path: Path) -> None:
    """The folder as the trainer's own code left it, with all that lies beside the states: each state is Transformers' at the boundary that
    the reader says, which a wrong offset would miss by far."""
    boundaries, kind, skip, masked = TRAINERS[name]
    with zipfile.ZipFile(FIXTURES / f"{name}.zip") as archive:
        archive.extractall(tmp_path)
    hidden = 64 if name.startswith("speculators") else 16
    found = open_dump(tmp_path, target=TargetIdentity("t", "", "", 8, hidden))
    expected = load_file(FIXTURES / ("vllm.truth.safetensors" if hidden == 64 else "truth.safetensors"))
    assert len(found) == 2 and found.boundaries == boundaries and found.engine == ("vllm" if name == "speculators" else name.rstrip("04"))
    for i, record in enumerate(found):
        rows = slice(skip, skip + record.tokens)
        assert torch.equal(record.input_ids, expected[f"{i}/ids"][rows])
        for b in (*boundaries, *((8,) if kind == "last" else ())):
            torch.testing.assert_close(record.state(b), expected[f"{i}/{b}"][rows], atol=1e-3, rtol=1e-3)
            assert (record.state(b) - expected[f"{i}/{b - 1}"][rows]).abs().max() > 0.1
        assert [which for which in ("last", "final") if getattr(record, which) is not None] == ([kind] if kind else [])
        if kind:
            torch.testing.assert_close(
                getattr(record, kind), expected[f"{i}/{8 if kind == 'last' else 'final'}"][rows], atol=1e-3, rtol=1e-3
            )
        assert (record.loss_mask is not None) == masked
        if record.loss_mask is not None:
            since = 3 if hidden == 64 else 5
            assert record.loss_mask.tolist() == [int(t >= since) for t in range(rows.start, rows.stop)]
    assert check_dump(found).ok


def test_the_real_files_of_vllm(tmp_path: Path) -> None:
    """``extract_hidden_states`` over prompt and answer: every boundary and the last block's state are those of Transformers; checked alone,
    the dump is sound."""
    with zipfile.ZipFile(FIXTURES / "vllm.zip") as archive:
        archive.extractall(tmp_path)
    found = open_dump(tmp_path, target=TargetIdentity("t", "", "", 8, 64), boundaries=(2, 4, 5))
    expected = load_file(FIXTURES / "vllm.truth.safetensors")
    assert found.engine == "vllm" and len(found) == 2
    for i, record in enumerate(found):
        assert torch.equal(record.input_ids, expected[f"{i}/ids"])
        for b in (2, 4, 5, 8):
            torch.testing.assert_close(record.state(b), expected[f"{i}/{b}"], atol=1e-3, rtol=1e-3)
        assert record.last is not None and record.final is None
    assert check_dump(found).ok


# -- a mapping by the caller -------------------------------------------------------------------------------------------------------


def test_a_mapping_reads_anything(tmp_path: Path) -> None:
    """One file a record, one file with all, nested names, single states, a padded batch; torch, safetensors and npz alike."""
    rows = [truth(i) for i in range(COUNT)]
    for i, r in enumerate(rows):
        save({"x": {"tokens": r.ids}, "h": r.wide, "l": r.final}, tmp_path / "many" / f"{i}.pt")
    found = open_dump(
        tmp_path / "many", mapping={"input_ids": "x.tokens", "features": "h", "final": "l"}, boundaries=(2, 10, 17), side="live"
    )
    assert found.side == "live" and [torch.equal(a.features, b.wide) for a, b in zip(found, rows, strict=True)] == [True] * 3
    assert torch.equal(found[2].state(10), rows[2].states[1])

    safe(
        {f"s{i}.{n}": t for i, r in enumerate(rows) for n, t in (("ids", r.ids), ("a", r.states[0]), ("b", r.states[1]))},
        tmp_path / "all.safetensors",
    )
    found = open_dump(tmp_path / "all.safetensors", mapping={"input_ids": "*.ids", "states": {17: "*.b", 2: "*.a"}})
    assert found.names == ("s0", "s1", "s2") and found.boundaries == (17, 2)
    assert torch.equal(found[1].features, torch.cat([rows[1].states[1], rows[1].states[0]], -1))

    ids, mask = torch.zeros(2, 6, dtype=torch.long), torch.zeros(2, 6, dtype=torch.long)
    wide = torch.zeros(2, 6, 3 * H)
    for k in range(2):
        n = len(rows[k].ids)
        ids[k, :n], mask[k, :n], wide[k, :n] = rows[k].ids, 1, rows[k].wide.float()
    np.savez(tmp_path / "batch.npz", ids=ids.numpy(), m=mask.numpy(), f=wide.numpy())
    found = open_dump(tmp_path / "batch.npz", mapping={"input_ids": "ids", "features": "f", "attention_mask": "m"})
    assert [r.tokens for r in found] == [5, 6] and torch.equal(found[0].features, rows[0].wide.float())


@pytest.mark.parametrize(
    ("mapping", "error", "word"),
    [
        ({"features": "h"}, BadArgument, "no input_ids"),
        ({"input_ids": "ids", "hidden": "h"}, BadArgument, "no part 'hidden'"),
        ({"input_ids": 3}, BadArgument, "is 3"),
        ({"input_ids": "ids", "states": "h"}, BadArgument, "states"),
        ({"input_ids": "nothing"}, MissingPart, "no file holds 'nothing'"),
        ({"input_ids": "ids", "features": "nothing"}, MissingPart, "no tensor 'nothing'"),
        ({"input_ids": "h"}, UnreadableFile, "input_ids"),
        ({"input_ids": "ids", "features": "ids"}, UnreadableFile, "features"),
    ],
)
def test_a_mapping_that_does_not_fit_is_named(mapping: dict[str, Any], error: type[Exception], word: str, tmp_path: Path) -> None:
    """What was asked for, and what the file holds."""
    save({"ids": truth(0).ids, "h": truth(0).wide}, tmp_path / "a.pt")
    with pytest.raises(error, match=word):
        open_dump(tmp_path, mapping=mapping)


def test_a_foreign_dump_can_be_written_as_ours(tmp_path: Path) -> None:
    """Every part, the un-normed last state too, survives."""
    found = open_dump(written(LAYOUTS["speculators 0.9"], tmp_path / "d"), boundaries=(2, 10, 17))
    with DumpWriter(tmp_path / "e", side=found.side, target=found.target, engine=found.engine, boundaries=found.boundaries) as writer:
        for r in found:
            writer.add(name=r.name, input_ids=r.input_ids, states={b: r.state(b) for b in r.boundaries}, last=r.last)
    again = open_dump(tmp_path / "e")
    assert all(torch.equal(a.features, b.features) and torch.equal(a.last, b.last) for a, b in zip(found, again, strict=True))  # type: ignore[arg-type]


# -- folders -----------------------------------------------------------------------------------------------------------------------


def test_a_folder_opens_without_opening_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three files of a thousand are opened: the first, and those whose records are read. A damaged one is found when it is read."""
    for i in range(1000):
        (tmp_path / f"hs_{i}.safetensors").write_bytes(b"never read" if i != 7 else b"")
    for i in (0, 500):
        safe(
            {"hidden_states": torch.stack([*truth(1).states, truth(1).last], 1), "token_ids": truth(1).ids},
            tmp_path / f"hs_{i}.safetensors",
        )
    found = open_dump(tmp_path)
    assert len(found) == 1000 and found.names[999] == "hs_999" and "1000 records" in repr(found)
    assert torch.equal(found[500].input_ids, truth(1).ids) and found.select(["hs_500"])[0].tokens == 6
    with pytest.raises(UnreadableFile, match="is empty"):
        found[7]
    with pytest.raises(UnreadableFile) as caught:
        found[8]
    assert "hs_8.safetensors" in str(caught.value.where)


def test_a_stray_file_is_named_when_it_is_reached(tmp_path: Path) -> None:
    """A checkpoint among the samples, of the same ending: the error says which file and what to do."""
    written(LAYOUTS["SpecForge"], tmp_path)
    save({"fc.weight": torch.zeros(2, 2)}, tmp_path / "model.ckpt")
    found = open_dump(tmp_path)
    with pytest.raises(UnreadableFile, match="as the first one is") as caught:
        [r.tokens for r in found]
    assert "model.ckpt" in str(caught.value.where)


def test_an_unknown_folder_says_what_it_holds(tmp_path: Path) -> None:
    """The first file's tensors are listed, and the way to read them is the hint."""
    save({"tokens": truth(0).ids, "h": truth(0).wide}, tmp_path / "a.pt")
    with pytest.raises(UnreadableFile, match=r"tokens\[5\], h\[5, 18\]") as caught:
        open_dump(tmp_path)
    assert "mapping=" in str(caught.value.hint)


def test_no_two_readers_claim_one_file(tmp_path: Path) -> None:
    """The table of readers has no order that matters: each layout is claimed by exactly one."""
    from eagle3diag.dumps.places import Place

    for k, layout in enumerate(LAYOUTS.values()):
        place = Place(written(layout, tmp_path / str(k)))
        value = {n: place.open(n) for n in place.names}
        claims = {f.name for n, v in value.items() for f in FORMATS if f.fits(n, v)}
        assert len(claims) == 1, claims
