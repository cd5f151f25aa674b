"""The report over a whole draft: names, blocks, what is computed when, and what travels as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from starts import draft, seeded

from eagle3diag.checkpoints import open_draft
from eagle3diag.errors import BadArgument, MissingPart
from eagle3diag.findings import plain
from eagle3diag.weights import measure, weights
from eagle3diag.weights.values import krylov


class TestReport:
    def test_a_mapping_is_measured_and_whole_numbers_are_skipped(self) -> None:
        """Every floating tensor once, by name; integer tensors are named as skipped; the report is plain JSON."""
        tensors = draft(seeded(29))
        report = weights(tensors)
        assert [t.name for t in report.tensors] == sorted(n for n in tensors if n != "d2t") and report.skipped == ("d2t",)
        assert report.total_parameters == sum(t.numel() for n, t in tensors.items() if n != "d2t")
        json.dumps(plain(report), allow_nan=False)
        fc = report.tensor("fc.weight")
        assert len(fc.blocks) == 3 and fc.blocks[0].frobenius == pytest.approx(float(tensors["fc.weight"][:, :96].float().norm()), rel=1e-5)
        top = float(torch.linalg.matrix_norm(tensors["fc.weight"][:, 96:192].float(), ord=2))
        assert fc.blocks[1].stable_rank == pytest.approx(fc.blocks[1].frobenius ** 2 / top**2, rel=1e-4)

    def test_auto_decides_by_cost_and_says_what_it_did(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Above the budget a projection gets its top, an embedding nothing; asked for in full both get everything."""
        monkeypatch.setattr(sys.modules["eagle3diag.weights.tensor"], "EXACT_FLOPS", 1e5)
        w = torch.randn(64, 192, generator=seeded(11))
        head, embedding = measure("lm_head.weight", w), measure("embed_tokens.weight", w)
        assert head.spectrum is not None and not head.spectrum.exact
        assert embedding.spectrum is None and "full" in embedding.note
        full = measure("embed_tokens.weight", w, spectra="full")
        assert full.spectrum is not None and full.spectrum.exact
        assert measure("lm_head.weight", w, spectra="none").spectrum is None

    def test_wrong_arguments_are_told_so(self) -> None:
        """An unknown spectra mode and an unknown tensor name raise our exceptions with the allowed ones."""
        with pytest.raises(BadArgument, match="maybe"):
            weights({}, spectra="maybe")  # type: ignore[arg-type]
        with pytest.raises(MissingPart):
            weights({"norm.weight": torch.ones(3)}).tensor("fc.weight")

    def test_measuring_twice_gives_the_same_report(self) -> None:
        """No hidden randomness, the Krylov start included."""
        tensors = draft(seeded(31))
        assert weights(tensors) == weights(tensors)
        w = tensors["fc.weight"]
        assert torch.equal(krylov(w).values.values, krylov(w).values.values)

    def test_a_checkpoint_on_disk_is_measured_under_canonical_names(self, tmp_path: Path) -> None:
        """SafeAILab names become canonical, the file's names are kept, the blocks follow the config, and the range is the config's."""
        tensors = {n.replace("layers.0.", "midlayer."): t.contiguous() for n, t in draft(seeded(32)).items()}
        tensors |= {"fc.weight": torch.randn(96, 192, generator=seeded(33)) * 0.006, "t2d": torch.ones(400, dtype=torch.bool)}
        config = {
            "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 96, "target_hidden_size": 96,
            "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 24, "num_hidden_layers": 1,
            "vocab_size": 400, "draft_vocab_size": 400, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "max_position_embeddings": 512,
            "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16", "initializer_range": 0.006,
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2], "use_aux_hidden_state": True},
        }  # fmt: skip
        folder = tmp_path / "a-draft"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        save_file(tensors, folder / "model.safetensors")
        report = weights(folder)
        assert report.draft == "a-draft" and set(report.skipped) == {"d2t", "t2d"}
        assert report.tensor("layers.0.self_attn.q_proj.weight").checkpoint_name == "midlayer.self_attn.q_proj.weight"
        fc = report.tensor("fc.weight")
        assert len(fc.blocks) == 2 and fc.nearest_null == "normal_0.006"
        assert report == weights(open_draft(folder))
