"""The judges of comparisons on records that their thresholds were never set on: another engine (vLLM on CPU), other prompts.

    PYTHONPATH=. python benchmarks/compare_fresh.py --target DIR --live DIR

``--live`` is what ``tools/samples/vllm_states.py`` wrote. Prints how far the two real engines are apart, and, for every fault that two dumps
can show, whether it was named first and alone; for the legal twins, whether they were silent. Exit status 1 when one was not.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import torch

from benchmarks.injection.states import AUX, DOUBTFUL, INJECTED, LEGAL, PLACES, at, dump, sequences
from eagle3diag.checkpoints import open_target
from eagle3diag.compare import Comparison, compare
from eagle3diag.compare.gain import final_norm_gain
from eagle3diag.dumps import TargetIdentity, open_dump
from eagle3diag.faults.rows import rounding_steps
from eagle3diag.findings import Severity


def spreads(result: Comparison) -> None:
    """One row a block: what healthy looks like."""
    print("| boundary | standardised cosine, median / 1st % | relative error | roundings to bf16 a block |\n|---|---|---|---|")
    for b in result.blocks:
        print(
            f"| {b.boundary} | {b.standardised.median:.4f} / {b.standardised.p1:.4f} | {b.relative_error:.3f} | {rounding_steps(b):.3g} |"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("--live", required=True)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--records", type=int, default=6)
    parser.add_argument("--only", default="", help="cases whose name matches this")
    args = parser.parse_args()
    target = open_target(args.target)
    identity = TargetIdentity(target.name, target.config_hash, "bfloat16", target.n_layers, target.hidden_size)
    made = sequences(Path(args.target), list(open_dump(args.live, target=target)[args.skip : args.skip + args.records]))
    gain = final_norm_gain(target)

    def side(name: str, rows: list[torch.Tensor], boundaries: tuple[int, ...] = AUX) -> object:
        named = [{"name": s.name, "input_ids": s.ids, "features": f} for s, f in zip(made, rows, strict=True)]
        return dump(identity, named, name, boundaries)

    def states(boundaries: tuple[int, ...]) -> list[torch.Tensor]:
        return [torch.cat([s.states[b] for b in boundaries], -1) for s in made]

    whole = [{"name": s.name, "input_ids": s.ids, "states": s.states, "final": s.final} for s in made]
    reference = dump(identity, whole, "reference", ())
    train = side("train", states(AUX))
    cases = [(name, train, [change(s, gain) for s in made], [fault], [fault]) for name, (change, fault) in INJECTED.items()]
    cases = [(n, t, fed, want, ["FM-28"] if n in DOUBTFUL else alone) for n, t, fed, want, alone in cases]
    cases += [(name, train, [change(s, gain) for s in made], [], []) for name, change in LEGAL.items()]
    cases += [(n, side("train", states(t), t), [at(fed)(s, gain) for s in made], w, alone) for n, (t, fed, w, alone) in PLACES.items()]
    cases = [case for case in cases if re.search(args.only, case[0])]
    tokens = sum(len(s.ids) for s in made)
    print(f"{len(made)} records, {tokens} tokens\n")
    spreads(compare(train, side("live", [s.fed for s in made], ())))  # type: ignore[arg-type]
    hits = {True: 0, False: 0}
    for name, trained, fed, wanted, alone in cases:
        for known in (True, False):
            live = side("live", fed, ())
            result = compare(trained, live, reference=reference if known else None, target=target if known else None)  # type: ignore[arg-type]
            found = [f.fault for f in result.findings if f.severity > Severity.NOTE]
            right = found == (wanted if known else alone)
            hits[known] += right
            if not right:
                print(f"{name} ({'with' if known else 'without'} a reference): found {found}, expected {wanted if known else alone}")
    print(f"\nright: {hits[True]} of {len(cases)} with a reference, {hits[False]} of {len(cases)} from two dumps alone")
    return int(sum(hits.values()) < 2 * len(cases))


if __name__ == "__main__":
    sys.exit(main())
