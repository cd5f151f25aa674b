"""The page of the score, from the cases that have run: bars, the matrix, what cannot be told apart, real engines, what was missed."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.injection.unlisted import UNLISTED
from benchmarks.injection.world import DUMPED, SERVED
from eagle3diag.faults import in_words
from eagle3diag.faults.replayed import HARMLESS, REFUTED
from eagle3diag.intervals import exact

EVERYTHING, NO_ROUNDS, NO_LIVE, FILES = "everything", "no rounds", "no live dump", "files and log"
NONE, AS_TRAINED = "none of these", "as trained"

BINS = (0.3, 0.5, 0.7, 0.85, 0.95, 0.99, 1.01)
"""Shares between which diagnoses are counted together, to see whether they are right as often as they say; the fourth are those given with 90 %."""

TESTS = {"FM-39": ("H2",), "FM-43": ("H2",), "FM-30": ("H1",), "FM-40": ("H1",), "FM-22": ("K2", "K3")}
"""Findings that are named after a test and say the fault in their words: zero rows and rows of NaN, a state too few, a cut or empty tensor."""


@dataclass(frozen=True)
class Group:
    """Faults that no evidence of a kind tells apart, and why."""

    faults: tuple[str, ...]
    where: str
    why: str
    one: bool = False
    """Counted as one fault: whatever evidence there is, it is the same."""


GROUPS = (
    Group(("FM-06", "FM-08", "FM-16"), "files, a whole vocabulary", "The engine allocates a head that nothing fills. Why it did so (a config that "
          "promises one, a map that nobody needs, a size that differs by padding) are three readings of the same two fields.", one=True),
    Group(("FM-30", "FM-40"), "dumps", "One state too few reaches fc. That the hook never fires or that the layer lies on another stage looks the "
          "same there; `--pp-size` in the command tells.", one=True),
    Group(("FM-11", "FM-14"), "a number alone", "Draft ids are read as target ids, because the map is not in the file or is not looked for. The file tells."),
    Group(("H6", "FM-48"), "a number alone", "The draft is fed the state of a neighbouring token. With a live dump: if it shows in the dump it "
          "happened before the recorder, else behind it."),
    Group(("FM-41", "FM-42"), "dumps", "The right states with an error that grows with depth: eight bits, or another kernel. Only the size of "
          "the error differs.", one=True),
    Group(("FM-31", "FM-41"), "dumps, where the draft reads no early state", "A drift that is strong by the first state that is read looks like a "
          "state that is no boundary: near one, and not it. A dump of every boundary of the server would tell."),
    Group(("FM-52", "FM-59", "FM-48"), "a number alone", "Attention or states of another request: where hardly a draft is right any more, the "
          "counts by position are the same."),
    Group(("FM-49", "FM-53", "FM-56", "FM-50"), "a number alone", "Each costs less on short texts than two sets of prompts differ by. The "
          "server's rounds tell."),
)  # fmt: skip


def same_as(fault: str) -> set[str]:
    """What counts as the name of a fault: itself, the test that says it, and faults that are one with it."""
    return {fault, *TESTS.get(fault, ()), *(f for g in GROUPS if g.one and fault in g.faults for f in g.faults)}


@dataclass(frozen=True)
class Outcome:
    """One case as it ran. ``said``: everything named above a note, and suspects, with shares; ``found``: by direct evidence."""

    row: dict[str, Any]

    @property
    def faults(self) -> tuple[str, ...]:
        return tuple(f for f in str(self.row["fault"]).split("+") if f)

    @property
    def listed(self) -> bool:
        """A fault of the catalogue, alone."""
        return len(self.faults) == 1 and self.faults != (UNLISTED,)

    @property
    def names(self) -> list[str]:
        return [f for f, _ in self.row["said"] if not _symptom(f)]

    @property
    def share(self) -> float:
        return max((w for f, w in self.row["said"] if not _symptom(f)), default=0.0)

    @property
    def quiet(self) -> bool:
        """Nothing is blamed: no direct evidence of anything, and "as trained" is the likelier half."""
        return not [f for f in self.row["found"] if not _symptom(f)] and self.row["as_trained"] >= 0.5

    @property
    def alarm(self) -> bool:
        """Says that something is wrong. It does not where "as trained" has a share from which the verdict is that it cannot be told."""
        return bool([f for f in self.row["found"] if not _symptom(f)]) or self.row["as_trained"] < REFUTED

    @property
    def cost(self) -> float | None:
        cost: float | None = self.row["cost"]
        return cost

    @property
    def harmless(self) -> bool:
        return self.cost is not None and self.cost < HARMLESS

    @property
    def likeliest(self) -> str:
        """What has the largest share: a fault that is named, "none of these" or "as trained"."""
        shares = [*((w, f) for f, w in self.row["said"] if not _symptom(f)), (self.row["none"], NONE), (self.row["as_trained"], AS_TRAINED)]
        return str(max(shares)[1])

    def _is(self, name: str) -> bool:
        return any(name in same_as(f) for f in self.faults)

    def within(self, n: int) -> bool:
        """Named among the first ``n``. A harmless fault is right when it is found, or nothing is blamed."""
        if self.quiet:
            return self.harmless
        return any(self._is(name) for name in self.names[:n]) or (self.harmless and any(self._is(f) for f in self.row["found"]))

    @property
    def first(self) -> bool:
        return self.within(1)

    @property
    def open(self) -> bool:
        """First; or left open between faults of which it is one, or not ruled out, while nothing else is blamed."""
        blamed = [f for f in self.row["found"] if not _symptom(f) and not self._is(f)]
        return self.first or (not blamed and any(self._is(f) for f, _ in self.row["open"]))

    @property
    def both(self) -> bool:
        return all(any(name in same_as(f) for name in self.names) for f in self.faults)


def _symptom(fault: str) -> bool:
    return fault.startswith("M")


def share(outcomes: Iterable[Outcome], right: Callable[[Outcome], bool]) -> str:
    listed = list(outcomes)
    if not listed:
        return "none run"
    hits = sum(map(right, listed))
    low, high = exact(hits, len(listed))
    return f"{hits} of {len(listed)}, {hits / len(listed):.0%} ({low:.0%} to {high:.0%})"


def _evidence(outcomes: Iterable[Outcome], kind: str) -> list[Outcome]:
    return [o for o in outcomes if o.row["evidence"] == kind]


def bars(outcomes: list[Outcome]) -> str:
    single = [o for o in outcomes if o.listed]
    strange = [o for o in outcomes if o.faults == (UNLISTED,) and not o.harmless]
    full, files = _evidence(single, EVERYTHING), _evidence(single, FILES)
    number = [o for o in full if o.row["seen"] == "number"]
    shown = [o for o in full if o.row["seen"] != "number"]
    plain = [o for o in _evidence(single, NO_ROUNDS) if not o.harmless]
    quiet = [o for o in outcomes if not o.faults]
    blamed = [o for o in outcomes if len(o.faults) < 2 and not o.quiet]
    rows = (
        ("everything given: first", "90 %", share(full, lambda o: o.first)),
        ("... faults that files or dumps show", "", share(shown, lambda o: o.first)),
        ("... faults that only the number shows", "", share(number, lambda o: o.first)),
        ("... of these, costing 0.10 or more", "", share([o for o in number if not o.harmless], lambda o: o.first)),
        ("... the same from a recorder that keeps no rounds", "", share(plain, lambda o: o.first)),
        ("everything given: in the first three", "98 %", share(full, lambda o: o.within(3))),
        ("... faults that only the number shows", "", share(number, lambda o: o.within(3))),
        ("pairs: both named", "80 %", share([o for o in outcomes if len(o.faults) == 2], lambda o: o.both)),
        ("files and log: first, or left open with it among what is open", "95 %", share(files, lambda o: o.open)),
        ("... of these first", "", share(files, lambda o: o.first)),
        ("no live dump: first, or left open with it among what is open", "", share(_evidence(single, NO_LIVE), lambda o: o.open)),
        (
            'a cause in no list, costing 0.10 or more, everything given: "none of these" first',
            "",
            share(_evidence(strange, EVERYTHING), _none),
        ),
        ("... with any evidence: a fault is said with 85 % or more", "", share(strange, lambda o: o.share >= BINS[3])),
        ("false alarms on healthy drafts and legal oddities", "0 of 500", share(quiet, lambda o: o.alarm)),
        ("... of the others: cannot be told", "", share([o for o in quiet if not o.alarm], lambda o: not o.quiet)),
        ("said with a share of 90 %, give or take 5, and right", "85 to 95 %", share(_said(blamed, *BINS[3:5]), _right)),
        ("... with more than that", "", share(_said(blamed, BINS[4], 1.01), _right)),
    )
    lines = ["| what | bar | reached (95 % interval) |", "|---|---|---|", *(f"| {a} | {b} | {c} |" for a, b, c in rows)]
    left = [len(o.row["open"]) for o in files if not o.first and o.open]
    if left:
        lines += ["", f"Where files and log leave it open, they do so between {median(left):.0f} faults (median; {max(left)} at most)."]
    return "\n".join(lines)


def calibration(outcomes: list[Outcome]) -> str:
    """Of what is blamed with a share, how often it is right: by share."""
    blamed = [o for o in outcomes if len(o.faults) < 2 and not o.quiet]
    lines = ["| share of what is said first | said on average | right |", "|---|---|---|"]
    for low, high in pairwise(BINS):
        part = _said(blamed, low, high)
        if part:
            lines.append(f"| {low:.0%} to {min(high, 1):.0%} | {mean(o.share for o in part):.1%} | {share(part, _right)} |")
    return "\n".join(lines)


def _said(outcomes: list[Outcome], low: float, high: float) -> list[Outcome]:
    return [o for o in outcomes if low <= o.share < high]


def _none(outcome: Outcome) -> bool:
    return outcome.likeliest == NONE


def _right(outcome: Outcome) -> bool:
    return bool(outcome.faults) and outcome.first


def matrix(outcomes: list[Outcome]) -> str:
    words = in_words()
    groups: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for o in outcomes:
        if o.listed:
            groups[(o.faults[0], o.row["name"])].append(o)
    drafts = sorted({o.row["draft"] for o in outcomes}, key=lambda d: ("sample", "two layers", "latent").index(d))
    costs = " | ".join(f"costs: {d}" for d in drafts)
    lines = [
        f"| fault | injected as | {costs} | everything: first / first 3 | no rounds: first | no live dump: first or open "
        "| files and log: first or open |",
        "|" + "---|" * (6 + len(drafts)),
    ]
    for (fault, name), group in sorted(groups.items()):
        cells = []
        for d in drafts:
            seen = [o.cost for o in _evidence(group, EVERYTHING) if o.row["draft"] == d and o.cost is not None]
            ends = any(o.row["draft"] == d and o.cost is None for o in group)
            cells.append(f"{mean(seen):.2f}" if seen else "ends at start" if ends else "")
        full = _evidence(group, EVERYTHING)
        cells.append(f"{sum(o.first for o in full)} / {sum(o.within(3) for o in full)} of {len(full)}")
        bare = _evidence(group, NO_ROUNDS)
        cells.append(f"{sum(o.first for o in bare)} of {len(bare)}" if bare else "")
        cells += [f"{sum(o.open for o in part)} of {len(part)}" for part in (_evidence(group, NO_LIVE), _evidence(group, FILES))]
        title = words.get(fault, {}).get("title", "")
        link = f"[{fault}](faults/{fault}.md) {title}" if title else fault
        lines.append(f"| {link} | {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def unlisted(outcomes: list[Outcome]) -> str:
    """Of each cause in no list: what it costs, and what is likeliest by the evidence given."""
    rows: dict[str, list[Outcome]] = defaultdict(list)
    for o in outcomes:
        if o.faults == (UNLISTED,):
            rows[o.row["name"]].append(o)
    kinds = (EVERYTHING, NO_ROUNDS, NO_LIVE, FILES)
    lines = [f"| cause | costs | {' | '.join(kinds)} |", "|" + "---|" * (2 + len(kinds))]
    for name, group in sorted(rows.items()):
        said = (Counter(o.likeliest for o in _evidence(group, kind)).most_common() for kind in kinds)
        costs = [o.cost for o in group if o.cost is not None]
        cells = [f"{min(costs):.2f} to {max(costs):.2f}", *(", ".join(f"{what} {n}" for what, n in counts) for counts in said)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) if rows else "None run."


def groups() -> str:
    lines = ["| faults | by | why | counted as one |", "|---|---|---|---|"]
    return "\n".join([*lines, *(f"| {', '.join(g.faults)} | {g.where} | {g.why} | {'yes' if g.one else 'no'} |" for g in GROUPS)])


def engines(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| fault | server | accept length, engine | predicted on the same prompts (95 %) | rounds alike | as trained | said first, share | right |",
        "|" + "---|" * 8,
    ]
    for r in rows:
        real = f"{r['engine']:.2f} ({r['rounds']} rounds)" if r["engine"] else f"does not start: {r['ended']:.80}"
        low, high = r["interval"]
        alike, healthy = (f"{r[k]} of {r['compared']}" if r["compared"] else "" for k in ("alike", "alike_as_trained"))
        first = f"{r['first'] or 'nothing'}, {r['share']:.0%}" if r["share"] >= 0.005 else f"{r['first']}, found"
        lines.append(
            f"| {r['fault'] or 'none'} | {r['server'].replace('==', ' ')}: {r['name']} | {real} | {r['replay']:.2f} ({low:.2f} to {high:.2f}) "
            f"| {alike} | {healthy} | {first} | {'yes' if r['right'] else 'no'} |"
        )
    return "\n".join(lines)


def missed(outcomes: list[Outcome]) -> str:
    """Which faults were not named first with everything given, nor left open with files and log, and what was said instead."""
    instead: dict[tuple[str, str], list[str]] = defaultdict(list)
    for o in outcomes:
        wrong = not o.first if o.row["evidence"] == EVERYTHING else not o.open if o.row["evidence"] == FILES else False
        if o.listed and wrong:
            what = "nothing" if o.quiet or not o.names else o.names[0]
            cost = "" if o.cost is None else f", costs {o.cost:.2f}"
            instead[(o.faults[0], o.row["name"])].append(f"{what} ({o.row['draft']}, {o.row['evidence']}{cost})")
    if not instead:
        return "None."
    lines = ["| fault | injected as | said first instead |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {f} | {n} | {', '.join(sorted(what))} |" for (f, n), what in sorted(instead.items()))])


def alarms(outcomes: list[Outcome]) -> str:
    raised = [o for o in outcomes if not o.faults and o.alarm]
    if not raised:
        return "None."
    return "\n".join(
        f"- {o.row['draft']}, {o.row['name']}, {o.row['evidence']}, seed {o.row['seed']}: {', '.join(o.names[:3])}" for o in raised
    )


def _speed(told: dict[str, Any]) -> str:
    ratios = sorted(told["ratios"].items(), key=lambda item: item[1])
    slow = ", ".join(f"{name} {ratio:.2f}" for name, ratio in reversed(ratios) if ratio > 1.2) or "none"
    return (
        f"The sample case by itself, CPU seconds of one core: files and log {told['static']:.1f}, everything with dumps and replays "
        f"{told['everything']:.1f}. A healthy replay takes {told['healthy']:.2f}; the {len(ratios)} counterfactuals take "
        f"{median(r for _, r in ratios):.2f} of that (median). Above 1.2: {slow}."
    )


HEAD = """# The score

Written by `make score` (`benchmarks/diagnosis.py`): every fault that a static file or a replay can show is put into real material, and the
diagnosis is asked blind. The injecting side shares no code with the counterfactuals that are to find it: broken files are written, fed rows
are put together from dumps of every boundary, and the server is a small engine of its own (`benchmarks/injection/engine.py`) that walks the
target's answers.

**Drafts.** The sample draft; one of two layers that reads two states, and norms them before fc; one of latent
attention (MLA). The second and third are grown out of the sample draft by a short training (`benchmarks/injection/drafts.py`).

**Evidence.** *Everything*: checkpoint, target, both dumps of {dumped} prompts, the live one with the server's rounds as our recorders keep them, a
reference of all boundaries, the command, and counts of {served} other prompts. *No rounds*: the same from a recorder that does not keep them.
*No live dump*: the same without live dump and reference. *Files and log*: checkpoint, command and counts.

**Right** is a fault that is named first. A harmless one (less than {harmless} accept length lost on that pair) is right when it is reported as
found, or when nothing is blamed: it explains nothing. With files and log alone, and without a live dump, "left open" is right where the fault is
among what is listed as open and nothing else is blamed. An *alarm* is a finding above a note, or a verdict that something is lost.

**Causes in no list** (`benchmarks/injection/unlisted.py`): what a server could do to a draft and no fault of the catalogue names. The diagnosis keeps
5 % for such, so one case in twenty is drawn from them. A fault that is blamed for one is wrong, and counts so below.

**Seeds.** Thresholds and priors are looked at on odd seeds; this table is of even seeds ({seeds}), {count} cases. Even seeds up to 76 were looked at
when this page was of earlier releases, and are not used any more.

## Bars
"""


def page(cases: list[Path], real: Path | None, speed: Path | None, out: Path | None, seeds: str) -> None:
    """Write the page of these cases to ``out``, or print it. ``seeds``: which of them count."""
    rows = [json.loads(line) for path in cases if path.exists() for line in path.read_text().splitlines()]
    rows = list({tuple(r["key"]): r for r in rows if "key" in r}.values()) or rows  # a case that ran twice counts once
    rows = [r for r in rows if seeds == "all" or (r["seed"] % 2 == 0) == (seeds == "even")]
    outcomes = [Outcome(r) for r in rows if "crash" not in r]
    ran = ", ".join(map(str, sorted({r["seed"] for r in rows}))) or "none yet"
    seconds = sorted(r["seconds"][1] for r in rows if "seconds" in r)
    parts = [
        HEAD.format(served=SERVED, dumped=DUMPED, harmless=f"{HARMLESS:.2f}", seeds=ran, count=len(rows)) + "\n" + bars(outcomes),
        "## Right as often as it says\n\n" + calibration(outcomes),
        "## The matrix\n\n" + matrix(outcomes),
        "## Causes in no list\n\nWhat is likeliest, in how many cases.\n\n" + unlisted(outcomes),
        "## What cannot be told apart\n\n" + groups(),
        "## Not named\n\n" + missed(outcomes),
        "## False alarms\n\n" + alarms(outcomes),
    ]
    if real is not None and real.exists():
        parts.append("## Real engines\n\nSGLang 0.5.23 and vLLM 0.32 on CPU, ten prompts of 48 tokens, greedy, chains of four; the counterfactual is "
                     "replayed on the training dump of the same prompts.\n\n" + engines(json.loads(real.read_text())))  # fmt: skip
    if seconds:
        crashed = len(rows) - len(outcomes)
        lines = [_speed(json.loads(speed.read_text()))] if speed is not None and speed.exists() else []
        parts.append(f"## Speed\n\nIn the cases above one diagnosis takes {median(seconds):.1f} s of one core (median; {seconds[-1]:.0f} s at "
                     "most), measurements that "
                     f"cases share counted once. {crashed} of {len(rows)} cases ended in an exception." + "".join(f"\n\n{line}" for line in lines))  # fmt: skip
    text = "\n\n".join(parts) + "\n"
    if out is None:
        print(text)
    else:
        out.write_text(text)
