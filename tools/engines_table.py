"""Writes docs/engines.md from the facts in ``eagle3diag/engines``: trainers x engines x versions, targets, fields and known bugs.

    python tools/engines_table.py

A cell is marked run where ``tests/engines/test_loaders.py`` runs a version of its stretch, read where it was read in the source only.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools/loaders")]
import versions  # noqa: E402  (the folder of the tools is not a package)

from eagle3diag.audit import Audit, audit  # noqa: E402
from eagle3diag.checkpoints import Draft, Target  # noqa: E402
from eagle3diag.convert import convert  # noqa: E402
from eagle3diag.engines import ENGINES  # noqa: E402
from eagle3diag.engines.draftclass import DraftClass  # noqa: E402
from eagle3diag.engines.layers import NESTED, TOP  # noqa: E402
from eagle3diag.engines.sglang_targets import FAMILIES  # noqa: E402
from eagle3diag.findings import Severity  # noqa: E402

#: Stretches between changes of loaders, and the versions in each at which any rule changes: a cell tells where its words do.
STRETCHES = {
    "sglang": {
        "0.4.5-0.4.8": ("0.4.5", "0.4.8"),
        "0.4.9-0.5.11": ("0.4.9", "0.5.2", "0.5.4", "0.5.5", "0.5.8", "0.5.9", "0.5.10", "0.5.11"),
        "0.5.12-0.5.16": ("0.5.12", "0.5.13", "0.5.16"),
        "0.5.17-0.5.23": ("0.5.17", "0.5.20", "0.5.22", "0.5.23"),
    },
    "vllm": {
        "0.9-0.11.0": ("0.9.0", "0.9.1", "0.10.0", "0.10.2", "0.11.0"),
        "0.11.1-0.21": ("0.11.1", "0.12.0", "0.16.0", "0.17.0", "0.18.0", "0.19.0", "0.20.0", "0.21.0"),
        "0.22-0.28": ("0.22.0", "0.24.0", "0.25.0", "0.28.0"),
        "0.29-0.33": ("0.29.0", "0.30.0", "0.32.0", "0.33.0"),
    },
    "tensorrt-llm": {"one reading": ("",)},
}
H, INNER, V, VD, BLOCKS = 8, 12, 32, 16, 32
#: Boundaries that are no engine's default for a target of 32 blocks.
TRAINED = (6, 18, 30)
SHAPES = {
    "self_attn.q_proj": (8, 16), "self_attn.k_proj": (8, 16), "self_attn.v_proj": (8, 16), "self_attn.o_proj": (8, 8),
    "mlp.gate_proj": (INNER, H), "mlp.up_proj": (INNER, H), "mlp.down_proj": (H, INNER), "input_layernorm": (H,), "hidden_norm": (H,),
    "post_attention_layernorm": (H,),
}  # fmt: skip
LATENT = {"q_lora_rank": 4, "kv_lora_rank": 4, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "v_head_dim": 4}
LATENT_SHAPES = {
    "q_a_proj": (4, 16), "q_a_layernorm": (4,), "q_b_proj": (12, 4), "kv_a_proj_with_mqa": (6, 16), "kv_a_layernorm": (4,),
    "kv_b_proj": (16, 4), "o_proj": (H, 8),
}  # fmt: skip
FLAT = {
    "model_type": "llama", "hidden_size": H, "intermediate_size": INNER, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 4,
    "num_hidden_layers": 1, "vocab_size": V, "draft_vocab_size": VD, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
    "max_position_embeddings": 64, "hidden_act": "silu",
}  # fmt: skip


@dataclass(frozen=True)
class Trainer:
    """How a trainer names its layer and its class, the key that it writes ids under (None: it writes none), and which they are; the class and
    the type of the target that it trains for."""

    name: str
    layer: str
    architecture: str
    key: str | None
    output_ids: bool = True
    embedding: bool = False
    changes: dict[str, Any] = field(default_factory=dict)
    target: tuple[str, str] = ("LlamaForCausalLM", "llama")

    def audit(self, engine: str) -> Audit:
        """Of what it saves, under its target of 32 blocks."""
        architecture, model_type = self.target
        config = {"architectures": [architecture], "model_type": model_type, "num_hidden_layers": BLOCKS, "hidden_size": H, "vocab_size": V}
        return audit(self.draft(), engine=engine, target=Target("target", config, {}))

    def draft(self) -> Draft:
        names = {f"{self.layer}{name}.weight": shape for name, shape in SHAPES.items()}
        if self.changes.get("q_lora_rank"):
            names = {n: s for n, s in names.items() if "self_attn" not in n}
            names |= {f"{self.layer}self_attn.{name}.weight": shape for name, shape in LATENT_SHAPES.items()}
        names |= {"fc.weight": (H, 3 * H), "norm.weight": (H,), "lm_head.weight": (VD, H)}
        names |= {"embed_tokens.weight": (V, H)} if self.embedding else {}
        tensors = {name: torch.ones(shape) for name, shape in names.items()}
        ids = torch.arange(VD) + (torch.arange(VD) >= VD // 2) * VD // 2
        tensors |= {"d2t": ids - torch.arange(VD), "t2d": torch.isin(torch.arange(V), ids)}
        config: dict[str, Any] = {"architectures": [self.architecture], **FLAT, **self.changes}
        if self.name.startswith("speculators"):
            config = {
                "architectures": [self.architecture], "speculators_model_type": "eagle3", "speculators_config": {},
                "draft_vocab_size": VD, "norm_before_residual": True, "transformer_layer_config": FLAT,
            }  # fmt: skip
        ids = [b - 1 if self.output_ids else b for b in TRAINED]
        if self.key == NESTED:
            config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": ids}
        elif self.key:
            config[self.key] = ids
        return Draft.from_tensors(tensors, config, path=self.name)


DENSE = "LlamaForCausalLMEagle3"
TRAINERS = (
    Trainer("EAGLE (SafeAILab)", "midlayer.", DENSE, None),
    Trainer("SpecForge", "midlayer.", DENSE, NESTED),
    Trainer("Model-Optimizer", "layers.0.", DENSE, NESTED),
    Trainer("AngelSlim", "midlayer.", "Eagle3LlamaForCausalLM", "aux_hidden_states_layer_ids", embedding=True),
    Trainer("speculators (0.5 and newer)", "layers.0.", "Eagle3DraftModel", TOP, output_ids=False, embedding=True),
    Trainer("TorchSpec", "midlayer.", DENSE, NESTED, embedding=True),
    Trainer("NeMo Automodel", "model.layers.0.", "LlamaEagle3DraftModel", NESTED, embedding=True),
    Trainer(
        "MLA drafts for Kimi", "layers.0.", "Eagle3DeepseekV2ForCausalLM", NESTED, output_ids=False,
        changes=LATENT | {"model_type": "kimi_k2"}, target=("DeepseekV3ForCausalLM", "deepseek_v3"),
    ),
)  # fmt: skip


def names_cell(result: Audit) -> str:
    """What becomes of the trainer's names, in a few words."""
    if result.refused:
        return "no draft is built"
    if result.outcome("raises"):
        return "start-up ends"
    if result.missing_layer:
        return "**layer lost**"
    made_up = [load.canonical for load in result.outcome("missing")]
    return f"load; {', '.join(made_up)} made up" if made_up else "load"


def layers_cell(result: Audit) -> str:
    """What is captured of boundaries that are no default, in a few words."""
    capture = result.captures[0]
    if result.refused:
        return "-"
    if capture.supported is False:
        return "target refused"
    for words, shift in (("as trained", 0), ("**one early**", -1), ("**one late**", 1)):
        if capture.boundaries == tuple(b + shift for b in TRAINED):
            return words
    return "**default instead**" if result.aux_boundaries else "default"


def cell(audits: list[tuple[str, Audit]], words: Callable[[Audit], str]) -> str:
    """The words of a stretch, with the versions at which they change, and whether any version of it is run."""
    parts: list[tuple[str, str]] = []
    for version, result in audits:
        if not parts or words(result) != parts[-1][1]:
            parts.append((version, words(result)))
    said = "; ".join(f"{text} since {version}" if i else text for i, (version, text) in enumerate(parts))
    run = [v for v, result in audits if v in versions.run().get(result.engine, ())]
    return f"{said} ({'run' if run else 'read'})"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    cells = list(head)
    yield f"| {' | '.join(cells)} |"
    yield f"|{'---|' * len(cells)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def trainers() -> Iterator[str]:
    columns = [(engine, label, found) for engine, stretches in STRETCHES.items() for label, found in stretches.items()]
    head = ["", *(f"{engine} {label}" for engine, label, _ in columns)]
    audits = {
        (t.name, engine, label): [(v, t.audit(f"{engine}=={v}" if v else engine)) for v in found]
        for t in TRAINERS for engine, label, found in columns
    }  # fmt: skip
    yield "## Names: what becomes of a trainer's checkpoint\n"
    yield "As it was saved, under the class that its config names. Silent where nothing else is said.\n"
    yield from table(head, ([t.name, *(cell(audits[t.name, e, label], names_cell) for e, label, _ in columns)] for t in TRAINERS))
    yield "## Layers: what a config that is no default gets\n"
    yield (
        f"A target of {BLOCKS} blocks, Llama's or, for MLA drafts, DeepSeek's; a draft trained on boundaries {', '.join(map(str, TRAINED))}. "
        "EAGLE writes no ids.\n"
    )
    yield from table(head, ([t.name, *(cell(audits[t.name, e, label], layers_cell) for e, label, _ in columns)] for t in TRAINERS))
    yield "vLLM has two runners that read different keys; the one that runs by default is shown (V1 before 0.29, then V2, which needs Triton).\n"
    yield "## Converted: what `eagle3diag convert --to` that version makes of it\n"
    yield (
        "Every trainer's checkpoint is converted for every version that is run, and the real loader must put every tensor of the copy into a "
        "parameter and leave none unfilled. Faults that no copy can mend are named.\n"
    )
    yield from table(head[:-1], ([t.name, *(converted_cell(t, e, found) for e, _, found in columns[:-1])] for t in TRAINERS))


def converted_cell(trainer: Trainer, engine: str, found: tuple[str, ...]) -> str:
    """The copy's own findings, in a few words; ids that nobody wrote down are no fault of the copy."""
    with tempfile.TemporaryDirectory() as folder:
        copies = [(v, convert(trainer.draft(), Path(folder) / v, f"{engine}=={v}").audit) for v in found]
    return cell([(v, made) for v, made in copies if made is not None], left_over)


def left_over(made: Audit) -> str:
    if made.refused:
        return "no draft is built"
    faults = [f for f in made.findings if f.severity > Severity.NOTE]
    return ", ".join(dict.fromkeys(f.fault for f in faults)) or "whole"


def targets() -> Iterator[str]:
    yield "## Targets of SGLang: what is done to configured ids\n"
    yield "Ids are outputs of blocks, a boundary is what enters the next one: hence the one that is added. Not so everywhere.\n"
    rows = []
    for family in FAMILIES:
        first = min(family.classes.values(), key=lambda v: tuple(map(int, v.split("."))))
        rules = (
            "; ".join(f"{row.value} (since {row.version})" for row in family.offsets if row.version.numbers != (0, 4, 9)) or "one is added"
        )
        rows.append(
            [f"`{family.module}`", first, rules, f"since {family.last_block}" if family.last_block else "never", str(len(family.classes))]
        )
    yield from table(["model file", "captures since", "configured ids", "output of the last block", "classes"], rows)


def classes() -> Iterator[str]:
    yield "## Draft classes: what a parameter holds that nothing fills\n"
    rows = []
    for engine in ENGINES.values():
        for draft_class in engine.classes:
            rows.append([engine.name, f"`{draft_class.name}`", *(_holds(draft_class, kind) for kind in ("memory", "random", "zeros"))])
    yield from table(["engine", "class", "whatever memory held", "a random start", "zeros"], rows)
    yield "Norms hold ones. Nothing reports what is missing, in any engine.\n"
    yield "## Fields that change the forward pass and have no tensor\n"
    yield from table(
        ["engine", "class", "field", "honoured", "source"],
        (
            [e.name, f"`{c.name}`", f"`{f.name}`", "never" if f.versions is None else str(f.versions), f.source]
            for e in ENGINES.values() for c in e.classes for f in c.fields
        ),
    )  # fmt: skip


def _holds(draft_class: DraftClass, kind: str) -> str:
    """Short names of the parameters that start as ``kind``; biases are one name."""
    rows = [row for row in draft_class.rows if row.holds == kind]
    names = {
        name for row in rows for name in ([part for part, _ in row.parts] or [row.canonical.removesuffix(".weight").rsplit(".", 1)[-1]])
    }
    plain = {"biases" if name == "bias" else name for name in names}
    return ", ".join(sorted(plain)) or "-"


def bugs() -> Iterator[str]:
    yield "## Known faults of engine versions\n"
    rows = ([b.fault, e.name, str(b.versions), b.shows, b.title, b.source] for e in ENGINES.values() for b in e.bugs)
    yield from table(["fault", "engine", "versions", "shows with", "what happens", "source"], rows)


def page() -> str:
    """The whole page."""
    run = "; ".join(f"{engine} {', '.join(found)}" for engine, found in versions.run().items())
    intro = [
        "# What engines do with a draft\n",
        "Written by `tools/engines_table.py` from the facts in `eagle3diag/engines`; a test keeps the two in step. A cell holds for every version of its "
        "column, or says since which.\n",
        "**run**: `make test-engines` loads a set of good and bad checkpoints through the engine's own code in one version at least of that column and demands "
        f"that `eagle3diag.audit` predicted what happened to every tensor ({run}). **read**: read in those versions' source only.\n",
    ]
    return "\n".join([*intro, *trainers(), *targets(), *classes(), *bugs()]).rstrip() + "\n"


if __name__ == "__main__":
    (ROOT / "docs/engines.md").write_text(page(), encoding="utf-8")
