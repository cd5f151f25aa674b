"""The static check of a draft, as one result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from eagle3diag.audit.checks import MapCheck, ShapeCheck, map_check, padded, shape_checks
from eagle3diag.audit.facts import Facts, gather
from eagle3diag.audit.loads import TensorLoad, Unserved, simulate
from eagle3diag.checkpoints import Draft, DraftSource, Target, TargetSource, open_draft, open_target
from eagle3diag.checkpoints.names import PACKED
from eagle3diag.engines import DEFAULT_ENGINE, known_version, rules_of, split_engine
from eagle3diag.engines.layers import Capture
from eagle3diag.errors import MismatchedInputs
from eagle3diag.findings import Result


@dataclass(frozen=True)
class Audit(Result):
    """What the running draft would consist of, and what does not fit.

    Attributes
    ----------
    draft_class: the engine's class that is built. refused: why the engine would not start with this config, one sentence each.
    unserved: fields of the config that this version does not honour.
    needs_target_width: fc's width in units of the target's hidden size: the number of aux states it was trained on.
    aux_boundaries: what the config says it was trained on. captures: what the engine will feed it, the runner that runs by default first.
    default_boundaries: what the engine takes where nothing is configured; None without a target.
    """

    draft: str
    engine: str
    engine_version: str
    engine_known: bool
    loads: tuple[TensorLoad, ...]
    shapes: tuple[ShapeCheck, ...]
    vocabulary: MapCheck | None
    vocab_size: int
    draft_vocab_size: int
    hidden_size: int
    target_hidden_size: int
    needs_target_width: float
    aux_boundaries: tuple[int, ...] | None
    default_boundaries: tuple[int, ...] | None
    tie_word_embeddings: bool
    norm_before_residual: bool
    assumed: tuple[str, ...]
    facts: Facts
    draft_class: str = ""
    refused: tuple[str, ...] = ()
    unserved: tuple[Unserved, ...] = ()
    captures: tuple[Capture, ...] = ()

    def outcome(self, outcome: str) -> tuple[TensorLoad, ...]:
        """All loads of one outcome."""
        return tuple(load for load in self.loads if load.outcome == outcome)

    @property
    def missing_layer(self) -> tuple[str, ...]:
        """Weights of the decoder layer that no tensor fills; biases that a class makes up, and weights that are there as packed codes, are
        other matters."""
        lost = (load.name for load in self.outcome("missing") if load.name.startswith("layers.") and load.name.endswith(".weight"))
        return tuple(name for name in lost if name not in self.packed)

    @property
    def packed(self) -> frozenset[str]:
        """The weights, by canonical name, in whose place the file holds a quantisation's packed codes."""
        return frozenset(PACKED.sub(".weight", name) for name in self.facts.tensors if PACKED.search(name))


def audit(
    draft: DraftSource,
    *,
    engine: str = DEFAULT_ENGINE,
    target: TargetSource | None = None,
) -> Audit:
    """Predict, tensor by tensor, what ``engine`` would load, and check shapes and vocabulary map.

    Only headers and the two small maps are read. The rules and their sources are in :mod:`eagle3diag.engines`.

    Raises
    ------
    BadArgument: no facts about that engine. MismatchedInputs: ``target`` is not the one the draft fits (hidden size, vocabulary).
    """
    opened = open_draft(draft)
    name, wanted = split_engine(engine)
    version, known = known_version(name, wanted)
    config = opened.config
    base = None if target is None else open_target(target)
    if base is not None:
        _check_target(opened, base)
    shapes = {canonical: opened.tensors.info(stored).shape for canonical, stored in opened.canonical().items()}
    fc = shapes.get("fc.weight", (0, 0))
    rules = rules_of(name)
    simulation = simulate(opened, version, rules)
    return Audit(
        draft=opened.name,
        engine=rules.name,
        engine_version=str(version),
        engine_known=known,
        draft_class=simulation.draft_class,
        refused=simulation.refused,
        unserved=simulation.unserved,
        loads=simulation.loads,
        shapes=shape_checks(opened, shapes),
        vocabulary=map_check(opened),
        vocab_size=config.vocab_size,
        draft_vocab_size=config.draft_vocab_size,
        hidden_size=config.hidden_size,
        target_hidden_size=config.target_hidden_size,
        needs_target_width=fc[-1] / config.target_hidden_size if fc and config.target_hidden_size else float("nan"),
        aux_boundaries=config.aux_boundaries,
        captures=rules.captured(config.raw, version, base),
        default_boundaries=None if base is None else rules.default(base.n_layers),
        tie_word_embeddings=config.tie_word_embeddings,
        norm_before_residual=config.norm_before_residual,
        assumed=(*config.assumed, *_not_simulated(config.raw)),
        facts=gather(opened, base),
    )


def _not_simulated(raw: Mapping[str, object]) -> tuple[str, ...]:
    """What the load simulation leaves out."""
    if raw.get("quantization_config") is None:
        return ()
    return ("quantization_config: scales and packed weights of quantised layers are skipped, not simulated",)


def _check_target(draft: Draft, target: Target) -> None:
    """Padding apart, which is a finding."""
    for what, ours, theirs in (
        ("hidden size", draft.config.target_hidden_size, target.hidden_size),
        ("vocabulary", draft.config.vocab_size, target.vocab_size),
    ):
        if ours and ours != theirs and not (what == "vocabulary" and padded(ours, theirs)):
            raise MismatchedInputs(
                f"the draft was made for a target of {what} {ours}, this one has {theirs}",
                where=f"{draft.name} and {target.name}",
                hint="give the target that the draft was trained for",
            )
