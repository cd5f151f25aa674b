"""Faults in real engines beside their counterfactuals, and diagnosed blind: SGLang 0.5.23 and vLLM 0.32 on CPU, the ten prompts of
``data_samples``, greedy, chains of four.

    PYTHONPATH=tools/sglang_cpu:. SG_PYTHON -m benchmarks.real_engine serve --engine sglang --target DIR --out out/score/real
    PYTHONPATH=. VLLM_PYTHON -m benchmarks.real_engine serve --engine vllm --target DIR --out out/score/real
    python -m benchmarks.real_engine predict --target DIR --real out/score/real --out out/score/real.json

``serve`` runs in the engine's environment, one engine at a time, and goes on where it was stopped; each server leaves a folder with its launch
command, its counts and the live dump with its rounds. ``predict`` replays the training dump of the same prompts with the fault's
counterfactual: the two numbers are of the same texts, so that only the engine lies between them, and they are held together round by round.
Then the diagnosis is given what a user would have: the draft as served, both dumps, the command and the counts.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from eagle3diag.checkpoints import Draft, Target, open_draft
from eagle3diag.dumps import HiddenStates

SAMPLES = Path("data_samples")
NEW_TOKENS = 48


def ids(*layers: int) -> Callable[[Draft], Draft]:
    """Ids where engines read them: SGLang takes them for layer outputs, one less than the boundary, vLLM for boundaries."""
    return lambda d: d.replace(config={"eagle_config": {"eagle_aux_hidden_state_layer_ids": list(layers), "use_aux_hidden_state": True}})


def config(**fields: Any) -> Callable[[Draft], Draft]:
    return lambda d: d.replace(config=fields)


def without(name: str) -> Callable[[Draft], Draft]:
    return lambda d: d.replace(tensors={name: None})


def renamed(draft: Draft) -> Draft:
    return draft.replace(rename=lambda name: name.replace("midlayer.", "draft_layers.0."))


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


def absolute_map(draft: Draft) -> Draft:
    return draft.replace(tensors={"d2t": draft.tensors["d2t"] + torch.arange(len(draft.tensors["d2t"]))})


def another_map(draft: Draft) -> Draft:
    """The tokens half a vocabulary further on."""
    n = len(draft.tensors["d2t"])
    other = ((draft.tensors["d2t"] + torch.arange(n) + 20000) % 49152).sort().values
    return draft.replace(tensors={"d2t": other - torch.arange(n)})


@dataclass(frozen=True)
class Run:
    """One server of the draft that ``draft`` makes of the sample draft.

    ``recorded``: a recording of ``data_samples/live`` that is this server already. ``change``: how the name of the fault's counterfactual
    begins. ``trained``: the order of the states in the trainer's dump, where it is not the ascending one.
    """

    fault: str
    name: str
    draft: Callable[[Draft], Draft] = lambda d: d
    algorithm: str = "EAGLE3"
    recorded: str = ""
    change: str = ""
    trained: tuple[int, ...] = (0, 1, 2)
    engine: str = "sglang==0.5.23"

    def folder(self, out: Path) -> Path:
        if self.recorded:
            return SAMPLES / "live" / self.recorded
        return out / self.engine.partition("==")[0] / re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")


SGLANG = (
    Run("", "as trained", recorded="eagle3"),
    Run("FM-01", "--speculative-algorithm EAGLE", algorithm="EAGLE", recorded="eagle_flag"),
    Run("FM-05", "layer under an unknown name", renamed, recorded="dropped_names", change="decoder layer not loaded, memory zero"),
    Run("FM-29", "one boundary late", ids(2, 15, 27), recorded="wrong_layers", change="every state one boundary late"),
    Run("FM-29", "one boundary early", ids(0, 13, 25), change="every state one boundary early"),
    Run("FM-28", "boundaries 6, 11, 21", ids(5, 10, 20), change="boundaries 6, 11, 21"),
    Run("FM-11", "no d2t", without("d2t")),
    Run("FM-12", "absolute d2t", absolute_map, change="absolute"),
    Run("FM-13", "another run's d2t", another_map),
    Run("FM-06", "no head", without("lm_head.weight")),
    Run("FM-07", "draft_vocab_size null", null_vocabulary),
    Run("FM-10", "tie_word_embeddings true", config(tie_word_embeddings=True)),
    Run("FM-46", "norm_output true", config(norm_output=True), change="normed state carried on"),
    Run("FM-53", "rope_theta 10000", config(rope_theta=10000.0), change="RoPE base 10000"),
    Run("FM-33", "fc trained in another order", reordered, change="blocks in the order 15, 27, 2", trained=(2, 0, 1)),
    Run("FM-19", "query heads packed in another order", repacked),
)
VLLM = (
    Run("", "as trained"),
    Run("FM-29", "layer ids as SGLang writes them", ids(1, 14, 26), change="every state one boundary early"),
    Run("FM-05", "layer under an unknown name", renamed, change="decoder layer not loaded, memory zero"),
    Run("FM-11", "no d2t", without("d2t")),
    Run("FM-12", "absolute d2t", absolute_map, change="absolute"),
    Run("FM-06", "no head", without("lm_head.weight")),
    Run("FM-10", "tie_word_embeddings true", config(tie_word_embeddings=True)),
    Run("FM-46", "norm_output true", config(norm_output=True), change="normed state carried on"),
    Run("FM-47", "norm_before_residual true", config(norm_before_residual=True), change="residual after the norm"),
    Run("FM-53", "rope_theta 10000", config(rope_theta=10000.0), change="RoPE base 10000"),
)


def _in_vllm(run: Run) -> Run:
    """The same of the sample draft with its ids as vLLM takes them."""
    return replace(run, engine="vllm==0.32.0", draft=lambda d: run.draft(ids(2, 15, 27)(d)))


RUNS = (*SGLANG, *map(_in_vllm, VLLM))


def serve(args: argparse.Namespace) -> None:
    for run in RUNS:
        folder = run.folder(args.out)
        if not run.engine.startswith(args.engine) or folder.exists():
            continue
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            draft = run.draft(open_draft(SAMPLES / "draft")).save(Path(scratch) / "draft")
            try:
                (_sglang if args.engine == "sglang" else _vllm)(run, args.target, draft, folder)
            except ChildProcessError as error:  # a server that does not start is a result
                folder.mkdir()
                (folder / "acceptance.json").write_text(json.dumps({"ended": _last_words(str(error))}) + "\n")
        print(run.engine, run.name, json.loads((folder / "acceptance.json").read_text()).get("accept_length"), flush=True)


def _sglang(run: Run, target: Path, draft: Path, folder: Path) -> None:
    from record import Recording, record
    from serve import Chain

    record(Recording(str(target), str(draft), SAMPLES / "prompts.jsonl", Chain(run.algorithm), max_new=NEW_TOKENS), folder)


def _vllm(run: Run, target: Path, draft: Path, folder: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.real_vllm", "--target", str(target), "--draft", str(draft), "--out", str(folder)]
    done = subprocess.run(
        [*command, "--max-new", str(NEW_TOKENS)], env={"OMP_NUM_THREADS": "1", **os.environ}, capture_output=True, text=True
    )
    if done.returncode:
        raise ChildProcessError(done.stdout + done.stderr)


def _last_words(text: str) -> str:
    said = re.findall(r"\b\w*(?:Error|Exception): .+", text) or text.splitlines() or [""]
    return str(said[-1])[:200]


def predict(args: argparse.Namespace) -> None:
    """One row a run that was served, see :func:`_row`."""
    rows: list[dict[str, Any]] = []
    for run in RUNS:
        folder = run.folder(args.real)
        if (folder / "acceptance.json").exists():
            rows.append(_row(run, folder, args.target, rows))
            print(rows[-1], flush=True)
    args.out.write_text(json.dumps(rows, indent=1) + "\n")


def _row(run: Run, folder: Path, base: Path, before: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Accept length of the engine and of the counterfactual on the same prompts, rounds that are alike, and what a diagnosis says.

    ``compared`` rounds of the server, drafted from rows whose tokens both sides share; ``alike``: those in which the counterfactual accepts as
    many drafts; ``alike_as_trained``: those in which the healthy replay does.
    """
    from eagle3diag.checkpoints import open_target
    from eagle3diag.compare.served import with_rounds_of
    from eagle3diag.dumps import open_dump

    target, train = open_target(base), open_dump(SAMPLES / "train")
    found = json.loads((folder / "acceptance.json").read_text())
    live = open_dump(folder / "live") if (folder / "live").exists() else None
    served = train if live is None else with_rounds_of(live, train)
    healthy, broken = _play(run, target, served, ""), _play(run, target, served, run.fault)
    length = found.get("accept_length")
    as_trained = next((r["engine"] for r in before if r["server"] == run.engine and not r["fault"]), length)
    row = {
        "fault": run.fault,
        "name": run.name,
        "server": run.engine,
        "engine": length,
        "rounds": found.get("rounds"),
        "ended": found.get("ended"),
        "cost": None if length is None else as_trained - length,
        "replay": broken.accept_length,
        "interval": broken.accept_length_interval,
        "change": ", ".join(broken.changes),
        "compared": broken.served_rounds,
        "alike": broken.served_alike,
        "alike_as_trained": healthy.served_alike,
    }
    return {**row, **_blind(run, target, train, live, folder, row)}


def _play(run: Run, target: Target, train: HiddenStates, fault: str) -> Any:
    """The healthy draft with the fault's change; on the file as served where only that offers one (another map, a head to be shared)."""
    from eagle3diag.capture.reference import capture_reference
    from eagle3diag.case import Case, Given
    from eagle3diag.faults import catalogue
    from eagle3diag.faults.fed import by_ids, states_of
    from eagle3diag.replay import Change

    reference = capture_reference(target, train) if fault in ("FM-28", "FM-29") else None
    sample = open_draft(SAMPLES / "draft")
    for draft in (sample, run.draft(sample)):
        case = Case(Given(draft=draft, target=target, train=train, reference=reference, engine=run.engine))
        if not fault:
            return case.play()
        if fault == "FM-28" and reference is not None:  # which boundaries is only known from a live dump
            return case.play(Change(fault, run.change, features=states_of(by_ids(reference), (6, 11, 21))))
        changes = [c for entry in catalogue() if entry.id == fault for c in entry.changes(case) if c.name.startswith(run.change)]
        if changes:
            return case.play(changes[0])
    raise LookupError(f"no counterfactual of {fault} begins with {run.change!r}")


def _blind(
    run: Run, target: Target, train: HiddenStates, live: HiddenStates | None, folder: Path, row: Mapping[str, Any]
) -> dict[str, Any]:
    """What a diagnosis says first, with its share; whether it is right, as the score counts it."""
    from benchmarks.diagnosis import said
    from benchmarks.scoring import Outcome
    from eagle3diag import diagnose
    from eagle3diag.findings import Severity

    own = train.map_features(lambda _, f: torch.cat([f.chunk(3, 1)[i] for i in run.trained], 1))
    own = replace(own, boundaries=tuple(train.boundaries[i] for i in run.trained))
    evidence: dict[str, Any] = {"draft": run.draft(open_draft(SAMPLES / "draft")), "target": target, "train": own, "live": live}
    launch = folder / "launch.txt"
    if live is None:
        evidence["engine"] = run.engine
    result = diagnose(
        **evidence,
        launch=launch if launch.exists() else None,
        acceptance=folder / "acceptance.json" if row["engine"] else None,
    )
    told = {
        "said": said(result)[:3],
        "open": [(s.fault, round(s.weight, 4)) for s in result.suspects],
        "found": sorted({r.finding.fault for r in result.ranked if r.finding.severity > Severity.NOTE}),
        "as_trained": round(result.as_trained, 4),
        "verdict": result.verdict[:300],
    }
    outcome = Outcome({**row, **told})
    first = "as trained" if outcome.quiet else next(iter(outcome.names), "")
    return {**told, "first": first, "share": result.as_trained if outcome.quiet else outcome.share, "right": outcome.first}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    serving = verbs.add_parser("serve")
    serving.add_argument("--engine", choices=["sglang", "vllm"], required=True)
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
