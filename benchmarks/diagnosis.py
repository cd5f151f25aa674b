"""Score the diagnosis: every fault injected into real material, diagnosed blind; first, in the first three, missed; false alarms.

    python -m benchmarks.diagnosis run --target DIR --cache DIR --drafts sample=DIR ... --seeds 1 3 --out out/score/cases.jsonl
    python -m benchmarks.diagnosis table --cases out/score/cases.jsonl --out docs/score.md

``run`` writes one JSON line a case and goes on where it was stopped; ``table`` makes the page from whatever has run. Odd seeds are for
developing, even seeds for scoring: only these are in the table.
"""

from __future__ import annotations

import argparse
import json
import random
import time
import traceback
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.injection import cheap
from benchmarks.injection.faults import HEALTHY, Broken, Injection, both, of, pairs
from benchmarks.injection.unlisted import CAUSES
from benchmarks.injection.world import DUMPED, LAUNCH, SERVED, STEPS, World, open_world
from benchmarks.scoring import page
from eagle3diag import diagnose
from eagle3diag.case import Case, Given
from eagle3diag.diagnose import Diagnosis
from eagle3diag.faults import catalogue
from eagle3diag.findings import Severity

EVIDENCE = ("everything", "no rounds", "no live dump", "files and log")


def examine(world: World, broken: Broken, key: str, evidence: str, seed: int) -> dict[str, Any]:
    """One case, diagnosed blind: what was said, with shares, and what the injection really costs."""
    start = time.process_time()
    fed = broken.after or broken.fed
    seen = None
    if broken.held is not None:
        same = broken.held is world.net and broken.steps == STEPS and fed is broken.fed and "dumps" not in key
        seen = world.healthy(seed) if same else world.once(("served", key, seed), lambda: world.serve(seed, broken.held, fed, broken.steps))
    launch = LAUNCH.format(
        algorithm=broken.algorithm, slots=broken.slots, steps=broken.steps, flags=broken.flags, environment=broken.environment
    )
    engine = broken.engine if "==" in broken.engine else f"sglang=={broken.engine}"
    if engine.startswith("vllm"):
        launch = (
            f'vllm serve target --speculative-config \'{{"method": "eagle3", "model": "draft", "num_speculative_tokens": {broken.steps}}}\''
        )
    given: dict[str, Any] = {"draft": broken.draft, "launch": launch, "acceptance": seen, "engine": engine}
    if evidence != "files and log":
        given |= {"target": world.target, "train": world.train(seed)}
    if evidence in ("everything", "no rounds"):
        recorded = "as trained" if "dumps" not in key else key
        live = world.live(seed, recorded, broken.fed)
        if evidence == "everything" and broken.held is not None:
            live = world.recorded(live, seed, broken.held, broken.after, broken.steps)
        given |= {"live": live, "reference": world.reference(seed)}
    built = time.process_time()
    result = diagnose(**given)
    return {
        "said": said(result),
        "open": [(s.fault, round(s.weight, 4)) for s in result.suspects],
        "found": sorted({r.finding.fault for r in result.ranked if r.finding.severity > Severity.NOTE}),
        "as_trained": round(result.as_trained, 4),
        "none": round(result.none_of_these, 4),
        "prompts": [world.dumped, world.served],
        "observed": None if seen is None else round(seen.length or 1.0, 4),
        "cost": None if seen is None else round((world.healthy(seed).length or 1.0) - (seen.length or 1.0), 4),
        "expected": None if result.replay is None else round(result.replay.accept_length, 4),
        "verdict": result.verdict[:300],
        "seconds": [round(built - start, 2), round(time.process_time() - built, 2)],
        "replays": len(result.counterfactuals) + len(result.series),
    }


def said(result: Diagnosis) -> list[tuple[str, float]]:
    """What is named above a note, findings and suspects, by share; a fault that is named twice counts once."""
    named: dict[str, float] = {}
    for row in result.ranked:
        if row.finding.severity > Severity.NOTE:
            named[row.finding.fault] = named.get(row.finding.fault, 0.0) + row.weight
    for suspect in result.suspects:
        named[suspect.fault] = named.get(suspect.fault, 0.0) + suspect.weight
    return [(f, round(w, 4)) for f, w in sorted(named.items(), key=lambda item: -round(item[1], 9))]


Asked = tuple[dict[str, Any], Any]  # its keys, and how the deployment is made


def singles(world: World, seed: int) -> Iterator[Asked]:
    for injection in of(world):
        for evidence in EVIDENCE:
            if evidence != "no rounds" or injection.seen == "number":  # what files or dumps show, they show without them
                yield _keys(world, injection, evidence, seed), injection


def alarms(world: World, seed: int) -> Iterator[Asked]:
    for injection in of(world, HEALTHY):
        for evidence in EVIDENCE:
            yield _keys(world, injection, evidence, seed), injection


def unlisted(world: World, seed: int, count: int = 3) -> Iterator[Asked]:
    """As many as make one case in twenty, the share that the diagnosis keeps for them."""
    for cause in random.Random(f"{world.name} {seed}").sample(CAUSES, count):
        for evidence in EVIDENCE:
            yield _keys(world, cause, evidence, seed), cause


def series(world: World, seed: int, count: int = 10) -> Iterator[Asked]:
    for one, two in pairs(world, random.Random(seed), count):
        keys = {**_keys(world, one, EVIDENCE[0], seed), "fault": f"{one.fault}+{two.fault}", "name": f"{one.name} and {two.name}"}
        yield keys, (one, two)


def _keys(world: World, injection: Injection, evidence: str, seed: int) -> dict[str, Any]:
    keys = {"draft": world.name, "fault": injection.fault, "name": injection.name, "evidence": evidence, "seed": seed}
    return {**keys, "seen": injection.seen}


def make(world: World, what: Any, seed: int) -> Broken:
    """The same deployment whatever ran before: its chance is its own."""
    if isinstance(what, tuple):
        one, two = what
        return both(make(world, one, seed), make(world, two, seed))
    return what.make(world, random.Random(seed * 1000 + zlib.crc32(what.name.encode()) % 997))  # type: ignore[no-any-return]


def run(args: argparse.Namespace) -> None:
    torch.set_num_threads(args.threads)
    cheap.share()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    done = {tuple(json.loads(line)["key"]) for line in args.out.read_text().splitlines()} if args.out.exists() else set()
    with args.out.open("a") as out:
        for seed in args.seeds:
            for entry in args.drafts:
                name, _, folder = entry.partition("=")
                world = open_world(name, Path(folder), args.target, args.prompts, args.cache)
                world = replace(world, dumped=args.dumped, served=args.served)
                cases = [*singles(world, seed), *unlisted(world, seed), *series(world, seed), *alarms(world, seed)]
                cases.sort(key=lambda c: zlib.crc32(repr(c[0]).encode()))  # so that a part that ran is a fair sample
                for keys, what in cases[: args.limit]:
                    key = tuple(str(keys[k]) for k in ("draft", "fault", "name", "evidence", "seed"))
                    if (
                        key in done
                        or (args.only and keys["fault"] not in args.only)
                        or (args.evidence and keys["evidence"] not in args.evidence)
                        or (args.seen and keys["seen"] not in args.seen)
                    ):
                        continue
                    two = isinstance(what, tuple)
                    kind = "dumps" if two or keys["seen"] == "dumps" else keys["seen"]
                    kind = "dumps" if keys["fault"] in ("FM-01", "FM-40") else kind
                    try:
                        broken = make(world, what, seed)
                        if broken.held is None and keys["seen"] == "dumps" and keys["evidence"] != EVIDENCE[0]:
                            continue  # the server ends at start, and nothing that is given is about it
                        named = f"{kind} {keys['fault']} {keys['name']}"
                        made = examine(world, broken, named, keys["evidence"], seed)
                    except Exception as error:  # a crash is a result too, and must not end the run
                        made = {"crash": f"{type(error).__name__}: {error}"[:300], "trace": traceback.format_exc()[-800:]}
                    out.write(json.dumps({"key": key, **keys, **made}) + "\n")
                    out.flush()


def speed(args: argparse.Namespace) -> None:
    """CPU seconds of a whole diagnosis, nothing shared, and of every counterfactual against the healthy replay of the same dump."""
    torch.set_num_threads(1)
    samples = Path("data_samples")
    shown = samples / "live" / "eagle_flag"
    files = {"draft": samples / "draft", "launch": shown / "launch.txt", "log": shown / "server.log"}
    given = {**files, "target": args.target, "train": samples / "train", "live": shown / "live"}
    out = {"static": _seconds(lambda: diagnose(**files)), "everything": _seconds(lambda: diagnose(**given))}
    case = Case(Given(draft=samples / "draft", target=args.target, train=samples / "train", engine="sglang==0.5.23"))
    healthy = min(_seconds(lambda: case.play()) for _ in range(3))
    changes = [change for fault in catalogue() for change in fault.changes(case)]
    ratios = {f"{c.fault}: {c.name}": min(_seconds(lambda c=c: case.play(c)) for _ in range(2)) / healthy for c in changes}  # type: ignore[misc]
    args.out.write_text(json.dumps({**out, "healthy": healthy, "ratios": ratios}, indent=1) + "\n")


def _seconds(act: Callable[[], Any]) -> float:
    start = time.process_time()
    act()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    runs = verbs.add_parser("run")
    runs.add_argument("--target", type=Path, required=True)
    runs.add_argument("--drafts", nargs="+", default=["sample=data_samples/draft"], help="name=FOLDER")
    runs.add_argument(
        "--prompts", type=Path, help="JSON lines with prompt_ids and the target's greedy output_ids; only where there is no cache"
    )
    runs.add_argument("--cache", type=Path, default=Path("out/score/states"))
    runs.add_argument("--seeds", type=int, nargs="+", default=[2, 4])
    runs.add_argument("--dumped", type=int, default=DUMPED, help="prompts of the dumps")
    runs.add_argument("--served", type=int, default=SERVED, help="prompts of the server, others than those")
    runs.add_argument("--seen", nargs="+", help="only faults that these show: files, dumps, number")
    runs.add_argument("--limit", type=int, help="so many cases of each draft and seed, a fair sample of all")
    runs.add_argument("--only", nargs="+", help="faults")
    runs.add_argument("--evidence", nargs="+", help="levels")
    runs.add_argument("--threads", type=int, default=1)
    runs.add_argument("--out", type=Path, default=Path("out/score/cases.jsonl"))
    runs.set_defaults(act=run)
    tables = verbs.add_parser("table")
    tables.add_argument("--cases", type=Path, nargs="+", default=[Path("out/score/cases.jsonl")])
    tables.add_argument("--speed", type=Path, help="what the verb speed wrote")
    tables.add_argument("--real", type=Path, help="JSON of accept lengths of real engines beside the predictions")
    tables.add_argument("--seeds", choices=["even", "odd", "all"], default="even")
    tables.add_argument("--out", type=Path)
    tables.set_defaults(act=lambda a: page(a.cases, a.real, a.speed, a.out, a.seeds))
    speeds = verbs.add_parser("speed")
    speeds.add_argument("--target", type=Path, required=True)
    speeds.add_argument("--out", type=Path, default=Path("out/score/speed.json"))
    speeds.set_defaults(act=speed)
    args = parser.parse_args()
    args.act(args)


if __name__ == "__main__":
    main()
