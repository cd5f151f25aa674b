"""What a draft has of its target: copies found by layer, starts told from strangers, and directions held against chance."""

from __future__ import annotations

import pytest
import torch
from starts import draft, low_rank, seeded, start
from torch import Tensor

from eagle3diag.checkpoints import Draft, Target
from eagle3diag.faults.trained import judge_weights, verdicts
from eagle3diag.findings import Severity
from eagle3diag.weights import WeightReport, weights

H, V, LAYERS = 96, 400, 5


def target(prefix: str = "model.") -> Target:
    """A small target of five blocks whose matrices are trained, with a tied head."""
    g = seeded(80)
    shapes = {"self_attn.q_proj": (H, H), "self_attn.o_proj": (H, H), "mlp.gate_proj": (256, H), "mlp.down_proj": (H, 256)}
    tensors: dict[str, Tensor] = {f"{prefix}embed_tokens.weight": low_rank(torch.randn(V, H, generator=g) * 0.05, 6, 2.0, g)}
    for i in range(LAYERS):
        tensors |= {f"{prefix}layers.{i}.{name}.weight": low_rank(start("normal_0.02", s, g), 3, 0.3, g) for name, s in shapes.items()}
        tensors[f"{prefix}layers.{i}.input_layernorm.weight"] = 1 + 0.3 * torch.randn(H, generator=g)
    tensors[f"{prefix}norm.weight"] = 2 + 0.3 * torch.randn(H, generator=g)
    config = {"hidden_size": H, "num_hidden_layers": LAYERS, "vocab_size": V, "tie_word_embeddings": True}
    return Target("a-target", config, {n: t.bfloat16() for n, t in tensors.items()})


def measured(**changes: Tensor) -> WeightReport:
    tensors = draft(seeded(81)) | {name.replace("__", ".") + ".weight": t for name, t in changes.items()}
    return weights(tensors, target=target())


class TestOrigins:
    @pytest.mark.parametrize("layer", [0, 3])
    def test_a_copied_projection_is_found_with_its_layer(self, layer: int) -> None:
        """Entry by entry the target's: the verdict names the layer, and the finding is a warning."""
        report = measured(layers__0__mlp__gate_proj=target().tensors[f"model.layers.{layer}.mlp.gate_proj.weight"])
        o = report.origin("layers.0.mlp.gate_proj.weight")
        assert o is not None and (o.layer, o.relative_change, o.equal, o.candidates) == (layer, 0.0, 1.0, LAYERS)
        words = {t.name: v.words for t, v in verdicts(report)}
        assert words["layers.0.mlp.gate_proj.weight"] == f"copied from the target's layer {layer}"
        found = [f for f in judge_weights(report) if f.severity is Severity.WARNING]
        assert [f.fault for f in found] == ["K4"] and "Copied from the target" in found[0].title

    def test_the_half_that_was_copied_is_named(self) -> None:
        """q_proj is twice as wide as the target's: the half that holds the copy is found."""
        q = target().tensors["model.layers.2.self_attn.q_proj.weight"]
        o = measured(layers__0__self_attn__q_proj=torch.cat([start("normal_0.02", (H, H), seeded(82)), q.float()], 1)).origin(
            "layers.0.self_attn.q_proj.weight"
        )
        assert o is not None and (o.layer, o.part, o.relative_change) == (2, "columns H:", 0.0)

    def test_a_start_from_the_target_that_moved_is_said_to_be_that(self) -> None:
        """20 % of change on the target's layer 1: trained from it, by 20 %; no finding above a note."""
        g = seeded(83)
        w = target().tensors["model.layers.1.mlp.down_proj.weight"].float()
        report = measured(layers__0__mlp__down_proj=w + 0.2 * w.std() * torch.randn(w.shape, generator=g))
        v = dict((t.name, v) for t, v in verdicts(report))["layers.0.mlp.down_proj.weight"]
        assert v.words.startswith("the target's layer 1, moved by 2") and v.update == pytest.approx(0.2, abs=0.02)
        assert all(f.severity is Severity.NOTE for f in judge_weights(report))

    def test_strangers_are_told_from_copies(self) -> None:
        """A draft of its own resembles no layer: cosines near nothing, and no verdict of a copy."""
        report = measured()
        assert all(abs(o.cosine) < 0.1 for o in report.origins if "norm" not in o.tensor)
        assert all(v.origin is None for t, v in verdicts(report) if len(t.shape) == 2)

    def test_a_head_is_compared_through_the_map(self) -> None:
        """lm_head rows that are the target's rows of the tokens in d2t: copied; in another order: strangers."""
        base = target()
        ids = torch.arange(0, V, 2)
        config = {
            "architectures": ["LlamaForCausalLMEagle3"], "hidden_size": H, "intermediate_size": 256, "num_attention_heads": 4, "head_dim": 24,
            "num_key_value_heads": 4, "vocab_size": V, "draft_vocab_size": len(ids), "rms_norm_eps": 1e-5, "num_hidden_layers": 1,
        }  # fmt: skip
        tensors = draft(seeded(84)) | {"d2t": ids - torch.arange(len(ids)), "lm_head.weight": base.head()[ids]}
        o = weights(Draft.from_tensors(tensors, config), target=base).origin("lm_head.weight")
        assert o is not None and o.source == "the head" and o.relative_change == 0
        tensors["lm_head.weight"] = base.head()[ids.flip(0)]
        other = weights(Draft.from_tensors(tensors, config), target=base).origin("lm_head.weight")
        assert other is not None and other.cosine < 0.5


class TestOverlaps:
    def test_random_directions_overlap_by_chance(self) -> None:
        """Over 12 fresh output projections the overlap with the target's head is what chance says, within its error."""
        found = []
        for seed in range(12):
            report = measured(layers__0__self_attn__o_proj=start("normal_0.02", (H, H), seeded(900 + seed)))
            found.append(next(o for o in report.overlaps if o.tensor.endswith("o_proj.weight")))
        z = torch.tensor([(o.overlap - o.by_chance) / o.chance_error for o in found])
        assert abs(float(z.mean())) < 1.2 and 0.4 < float(z.std()) < 2

    def test_what_writes_in_the_heads_directions_stands_out(self) -> None:
        """An output projection that writes along the vocabulary's leading directions overlaps far beyond chance."""
        head = target().head().float()
        directions = torch.linalg.svd(head, full_matrices=False)[2][:6].T
        g = seeded(85)
        w = start("normal_0.02", (H, H), g) + 0.5 * directions @ torch.randn(6, H, generator=g)
        o = next(o for o in measured(layers__0__self_attn__o_proj=w).overlaps if o.tensor.endswith("o_proj.weight"))
        assert (o.side, o.source) == ("writes", "the head") and o.overlap > o.by_chance + 10 * o.chance_error
