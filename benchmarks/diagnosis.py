"""Score the diagnosis: every fault injected into real material, diagnosed blind; first, in the first three, missed; false alarms.

    python -m benchmarks.diagnosis --target DIR [--seeds 5] [--healthy 100] [--pairs 20] [--out docs/diagnosis_score.md]

Evidence is cut three ways: everything; no live dump; checkpoint, launch command and log only. In the last two a fault of what is fed
cannot be seen: there the diagnosis is right when it names the fault among what it cannot tell apart.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import eagle3diag.case
from benchmarks.injection.faults import HEALTHY, INJECTIONS, Broken, Injection, both, pairs
from benchmarks.injection.world import LAUNCH, World, open_world
from eagle3diag import diagnose
from eagle3diag.diagnose import Diagnosis
from eagle3diag.diagnose.explain import HARMLESS
from eagle3diag.findings import Severity
from eagle3diag.serving import Acceptance

EVIDENCE = ("everything", "no live dump", "files and log")


@dataclass(frozen=True)
class Outcome:
    """What one diagnosis said: faults above a note and suspects, likeliest first, with their shares."""

    injected: tuple[str, ...]
    name: str
    evidence: str
    said: tuple[str, ...]
    shares: tuple[float, ...]
    undetermined: bool
    cost: float
    verdict: str

    @property
    def first(self) -> bool:
        return bool(self.said) and self.said[0] in self.injected

    @property
    def contained(self) -> bool:
        """First; left open between faults of which it is one; or harmless, and nothing was blamed."""
        open_between = self.undetermined and set(self.injected) <= set(self.said)
        return self.first or open_between or (self.cost < HARMLESS and not self.said)

    def within(self, n: int) -> bool:
        return set(self.injected) <= set(self.said[: n + len(self.injected) - 1])


def examine(world: World, broken: Broken, injected: tuple[str, ...], name: str, evidence: str, seed: int) -> Outcome:
    dumped, served = world.draw(seed)
    seen = world.serve(served, broken.net, broken.features)
    given: dict[str, Any] = {
        "draft": broken.draft,
        "launch": LAUNCH.format(algorithm=broken.algorithm),
        "acceptance": seen,
        "engine": f"sglang=={broken.engine}",
    }
    if evidence != "files and log":
        given |= {"target": world.target, "train": world.train(dumped)}
    if evidence == "everything":
        given |= {"live": world.live(dumped, broken.features, seed), "reference": world.states.select(dumped)}
    result = diagnose(**given)
    said = _said(result)
    undetermined = bool(result.suspects) and not any(r.finding.severity > Severity.NOTE and r.weight > 0.5 for r in result.ranked)
    return Outcome(
        injected,
        name,
        evidence,
        tuple(f for f, _ in said),
        tuple(w for _, w in said),
        undetermined,
        _cost(world, seen, served),
        result.verdict,
    )


def _said(result: Diagnosis) -> list[tuple[str, float]]:
    """Faults above a note, then suspects, by share; a fault that is named twice counts once."""
    named: dict[str, float] = defaultdict(float)
    for row in result.ranked:
        if row.finding.severity > Severity.NOTE:
            named[row.finding.fault] += row.weight
    for suspect in result.suspects:
        named[suspect.fault] += suspect.weight
    return sorted(named.items(), key=lambda item: -item[1])


def _cost(world: World, seen: Acceptance, served: list[int]) -> float:
    healthy = _healthy_length(world, tuple(served))
    return healthy - (seen.length or 1.0)


@cache
def _lengths() -> dict[tuple[int, ...], float]:
    return {}


def _healthy_length(world: World, served: tuple[int, ...]) -> float:
    from benchmarks.injection.world import as_fed

    known = _lengths()
    if served not in known:
        known[served] = world.serve(served, world.net, as_fed).length or 1.0
    return known[served]


def matrix(world: World, seeds: range) -> Iterator[Outcome]:
    for injection in INJECTIONS:
        for seed in seeds:
            broken = injection.make(world, random.Random(seed))
            for evidence in EVIDENCE:
                yield examine(world, broken, (injection.fault,), injection.name, evidence, seed)


def series(world: World, count: int) -> Iterator[Outcome]:
    draw = random.Random(99)
    for seed, (one, two) in enumerate(pairs(draw, count), 500):
        broken = both(one.make(world, random.Random(seed)), two.make(world, random.Random(seed)))
        yield examine(world, broken, (one.fault, two.fault), f"{one.name} and {two.name}", "everything", seed)


def alarms(world: World, count: int) -> Iterator[Outcome]:
    for n in range(count):
        injection: Injection = HEALTHY[n % len(HEALTHY)]
        broken = injection.make(world, random.Random(n))
        yield examine(world, broken, (), injection.name, EVIDENCE[n // len(HEALTHY) % len(EVIDENCE)], 1000 + n)


def table(outcomes: list[Outcome]) -> str:
    groups: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for o in outcomes:
        groups[(o.injected[0], o.name)].append(o)
    lines = [
        "| fault | injected as | costs | everything: first / first 3 | no live dump: first or named | files and log: first or named |",
        "|" + "---|" * 6,
    ]
    for (fault, name), group in sorted(groups.items()):
        by = {e: [o for o in group if o.evidence == e] for e in EVIDENCE}
        whole = by["everything"]
        cost = sum(o.cost for o in whole) / len(whole)
        cells = [f"{sum(o.first for o in whole)} / {sum(o.within(3) for o in whole)} of {len(whole)}"]
        cells += [f"{sum(o.contained for o in by[e])} of {len(by[e])}" for e in EVIDENCE[1:]]
        lines.append(f"| {fault} | {name} | {cost:.2f} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def share(outcomes: list[Outcome], right: str) -> str:
    hits = sum(bool(getattr(o, right)) for o in outcomes)
    return f"{hits} of {len(outcomes)} ({hits / len(outcomes):.0%})" if outcomes else "none run"


def calibration(outcomes: list[Outcome]) -> str:
    sure = [o for o in outcomes if o.shares and o.shares[0] >= 0.9]
    return share(sure, "first")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path, default=Path("data_samples/draft"))
    parser.add_argument("--prompts", type=Path, required=True, help="JSON lines with prompt_ids and the target's greedy output_ids")
    parser.add_argument("--cache", type=Path, default=Path("out/diagnosis_states"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0, help="calibrate on some seeds, score on others")
    parser.add_argument("--healthy", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    start = time.time()
    world = open_world(args.draft, args.target, args.prompts, args.cache)
    eagle3diag.case.weights = cache(eagle3diag.case.weights)  # the same weights again and again: measured once per draft
    singles = list(matrix(world, range(args.first_seed, args.first_seed + args.seeds)))
    twos = list(series(world, args.pairs))
    quiet = list(alarms(world, args.healthy))
    raised = [o for o in quiet if o.said]
    files = [o for o in singles if o.evidence == "files and log"]
    whole = [o for o in singles if o.evidence == "everything"]
    costly = [o for o in whole if o.cost >= 0.1]
    words = [
        table(singles),
        "",
        f"- everything given, faults that cost something: first {share(costly, 'first')}; first, harmless ones too: {share(whole, 'first')}",
        f"- everything given, in the first three: {sum(o.within(3) for o in whole)} of {len(whole)}",
        f"- files and log only, first or among what is left open: {share(files, 'contained')}",
        f"- pairs, both named: {sum(o.within(5) for o in twos)} of {len(twos)}",
        f"- healthy and legal oddities: {len(raised)} alarms in {len(quiet)} runs",
        f"- said with a share of 90 % or more, and right: {calibration(singles)}",
    ]
    text = "\n".join(words)
    print(text)
    missed = [o for o in whole if not o.first] + [o for o in singles if o.evidence != EVIDENCE[0] and not o.contained]
    for o in missed + [o for o in twos if not o.within(5)] + raised:
        shares = dict(zip(o.said, (round(s, 2) for s in o.shares), strict=True))
        print(f"  not as it should be: {o.injected} {o.name} | {o.evidence} | {shares} | cost {o.cost:.2f} | {o.verdict[:120]}")
    print(f"{time.time() - start:.0f} s")
    if args.out:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
