"""Faults in a real engine beside their counterfactuals: SGLang 0.5.23 on CPU, the ten prompts of ``data_samples``, greedy, chains of four.

    PYTHONPATH=tools/sglang_cpu/shims:tools/sglang_cpu:. SG_PYTHON -m benchmarks.real_engine serve --target DIR --out out/score/real.jsonl
    python -m benchmarks.real_engine predict --target DIR --real out/score/real.jsonl --out out/score/real.json

``serve`` runs in the engine's environment, one engine at a time, and goes on where it was stopped. ``predict`` replays the training dump of
the same prompts with the fault's counterfactual: the two numbers are of the same texts, so that only the engine lies between them.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from eagle3diag.checkpoints import Draft, open_draft

SAMPLES = Path("data_samples")


def ids(*layers: int) -> dict[str, Any]:
    """Output ids, as SGLang reads them: one less than the boundary."""
    return {"eagle_config": {"eagle_aux_hidden_state_layer_ids": list(layers), "use_aux_hidden_state": True}}


def reordered(draft: Draft) -> Draft:
    """Trained on the third state, the first, the second: the columns of fc lie in that order, and engines feed ascending ones."""
    one, two, three = draft.tensors["fc.weight"].chunk(3, 1)
    return draft.replace(tensors={"fc.weight": torch.cat([three, one, two], 1).contiguous()})


def repacked(draft: Draft) -> Draft:
    """Nine query heads in three groups, written transposed."""
    w = draft.tensors["midlayer.self_attn.q_proj.weight"]
    turned = w.view(3, 3, -1, w.shape[1]).transpose(0, 1).reshape(w.shape).contiguous()
    return draft.replace(tensors={"midlayer.self_attn.q_proj.weight": turned})


def null_vocabulary(draft: Draft) -> Draft:
    return Draft.from_tensors(draft.tensors, {**draft.config.raw, "draft_vocab_size": None}, path=draft.path)


def another_map(draft: Draft) -> Draft:
    """The tokens half a vocabulary further on."""
    n = len(draft.tensors["d2t"])
    other = ((draft.tensors["d2t"] + torch.arange(n) + 20000) % 49152).sort().values
    return draft.replace(tensors={"d2t": other - torch.arange(n)})


@dataclass(frozen=True)
class Run:
    """One server; ``recorded``: a recording of ``data_samples/live`` that is this server already. ``counterfactual``: its fault, and the
    beginning of the name of its change; empty: the healthy replay."""

    fault: str
    name: str
    draft: Callable[[Draft], Draft] = lambda d: d
    algorithm: str = "EAGLE3"
    recorded: str = ""
    counterfactual: tuple[str, str] = ("", "")


RUNS = (
    Run("", "as trained", recorded="eagle3"),
    Run("FM-01", "--speculative-algorithm EAGLE", algorithm="EAGLE", recorded="eagle_flag", counterfactual=("FM-01", "")),
    Run("FM-05", "layer under an unknown name", recorded="dropped_names", counterfactual=("FM-05", "decoder layer not loaded, memory zero")),
    Run("FM-29", "one boundary late", recorded="wrong_layers", counterfactual=("FM-29", "every state one boundary late")),
    Run("FM-11", "no d2t", lambda d: d.replace(tensors={"d2t": None}), counterfactual=("FM-11", "")),
    Run("FM-53", "rope_theta 10000", lambda d: d.replace(config={"rope_theta": 10000.0}), counterfactual=("FM-53", "RoPE base 10000")),
    Run("FM-29", "one boundary early", lambda d: d.replace(config=ids(0, 13, 25)), counterfactual=("FM-29", "every state one boundary early")),
    Run("FM-28", "boundaries 6, 11, 21", lambda d: d.replace(config=ids(5, 10, 20)), counterfactual=("FM-28", "6, 11, 21")),
    Run("FM-06", "no head", lambda d: d.replace(tensors={"lm_head.weight": None}), counterfactual=("FM-06", "")),
    Run("FM-07", "draft_vocab_size null", null_vocabulary, counterfactual=("FM-07", "")),
    Run("FM-12", "absolute d2t", lambda d: d.replace(tensors={"d2t": d.tensors["d2t"] + torch.arange(8192)}), counterfactual=("FM-12", "absolute")),
    Run("FM-13", "another run's d2t", another_map, counterfactual=("FM-13", "")),
    Run("FM-33", "fc trained in another order", reordered, counterfactual=("FM-33", "27, 2, 15")),
    Run("FM-19", "query heads packed in another order", repacked, counterfactual=("FM-19", "")),
    Run("FM-10", "tie_word_embeddings true", lambda d: d.replace(config={"tie_word_embeddings": True}), counterfactual=("FM-10", "")),
)  # fmt: skip


def serve(args: argparse.Namespace) -> None:
    import serve as engine

    os.environ.update({n: os.environ.get(n, v) for n, v in engine.ENVIRONMENT.items()})
    done = {json.loads(line)["name"] for line in args.out.read_text().splitlines()} if args.out.exists() else set()
    prompts = engine.read_prompts(SAMPLES / "prompts.jsonl", 10)
    for run in RUNS:
        if run.name in done or run.recorded:
            continue
        with tempfile.TemporaryDirectory() as scratch, args.out.open("a") as out:
            folder = run.draft(open_draft(SAMPLES / "draft")).save(Path(scratch) / "draft")
            chain = engine.Chain(run.algorithm)
            try:
                result = engine.run(engine.engine_options(str(args.target), str(folder), chain), prompts, 48)
                found: Mapping[str, Any] = engine.acceptance(result, chain)
            except Exception as error:  # a server that does not start is a result
                found = {"ended": f"{type(error).__name__}: {error}"[:200]}
            out.write(json.dumps({"fault": run.fault, "name": run.name, **found}) + "\n")


def predict(args: argparse.Namespace) -> None:
    """Accept length of the engine, of the counterfactual on the same prompts, with the replay's interval."""
    real = {row["name"]: row for row in map(json.loads, args.real.read_text().splitlines())} if args.real.exists() else {}
    rows = []
    for run in RUNS:
        path = SAMPLES / "live" / run.recorded / "acceptance.json"
        found = json.loads(path.read_text()) if run.recorded else real.get(run.name)
        if found is None:
            continue
        row = {
            "fault": run.fault,
            "name": run.name,
            "engine": found.get("accept_length"),
            "rounds": found.get("rounds"),
            "ended": found.get("ended"),
        }
        replay = _counterfactual(run, args.target)
        rows.append({**row, "replay": replay.accept_length, "interval": replay.accept_length_interval, "change": ", ".join(replay.changes)})
        print(rows[-1], flush=True)
    args.out.write_text(json.dumps(rows, indent=1) + "\n")


def _counterfactual(run: Run, target: Path) -> Any:
    from eagle3diag.capture.reference import capture_reference
    from eagle3diag.case import Case, Given
    from eagle3diag.checkpoints import open_target
    from eagle3diag.dumps import open_dump
    from eagle3diag.faults import catalogue
    from eagle3diag.faults.fed import by_ids, states_of
    from eagle3diag.replay import Change

    fault, name = run.counterfactual
    train, base = open_dump(SAMPLES / "train"), open_target(target)
    mended = fault in ("FM-33", "FM-19", "FM-28")  # these are played on the healthy file: the broken one is its own replay
    draft = open_draft(SAMPLES / "draft") if mended else run.draft(open_draft(SAMPLES / "draft"))
    draft = open_draft(SAMPLES / "draft") if run.recorded else draft
    if fault == "FM-53":
        draft = open_draft(SAMPLES / "draft")
    reference = capture_reference(base, train) if fault in ("FM-28", "FM-29") else None
    case = Case(Given(draft=draft, target=base, train=train, reference=reference, engine="sglang==0.5.23"))
    if not fault:
        return case.play()
    if fault == "FM-28":
        return case.play(Change(fault, "boundaries 6, 11, 21", features=states_of(by_ids(reference), (6, 11, 21))))
    entry = next(f for f in catalogue() if f.id == fault)
    change = next(c for c in entry.changes(case) if name in c.name)
    return case.play(change)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    serving = verbs.add_parser("serve")
    serving.add_argument("--target", type=Path, required=True)
    serving.add_argument("--out", type=Path, required=True)
    serving.set_defaults(act=serve)
    predicting = verbs.add_parser("predict")
    predicting.add_argument("--target", type=Path, required=True)
    predicting.add_argument("--real", type=Path, required=True)
    predicting.add_argument("--out", type=Path, required=True)
    predicting.set_defaults(act=predict)
    args = parser.parse_args()
    args.act(args)


if __name__ == "__main__":
    main()
