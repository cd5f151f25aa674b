"""The first investigation on the shipped samples: from an accept length of one to a working draft, every number computed here and now."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eagle3diag.checkpoints import Draft, open_draft, open_target
from eagle3diag.compare import Comparison, compare
from eagle3diag.diagnose import Diagnosis, diagnose
from eagle3diag.dumps import open_dump
from eagle3diag.errors import BadArgument
from eagle3diag.replay import Replay, replay
from eagle3diag.serving import Acceptance, read_acceptance
from eagle3diag.weights import WeightReport, weights

WIDTH = 80


@dataclass(frozen=True)
class Samples:
    """Where the samples lie. ``server(name)`` is one recording of the real SGLang engine."""

    root: Path
    target: Path

    def server(self, name: str) -> Path:
        return self.root / "live" / name

    def case(self, name: str, draft: Draft, progress: Callable[[str], None], *, live: bool = True) -> Diagnosis:
        """The diagnosis of one server with this draft, from all that was recorded of it; ``live=False`` leaves its dump and command out."""
        server = self.server(name)
        fed: dict[str, Any] = {"live": server / "live", "launch": server / "launch.txt"} if live else {}
        return diagnose(
            draft=draft,
            target=self.target,
            train=self.root / "train",
            log=server / "server.log",
            acceptance=server / "acceptance.json",
            progress=progress,
            **fed,
        )

    def observed(self, name: str) -> Acceptance:
        return read_acceptance(self.server(name) / "acceptance.json")


def run(target: str | None = None, samples: str | None = None, html: str = "out/demo.html") -> Diagnosis:
    """Tell the case; None means the checkout's samples, and the target that ``make demo`` builds in the user's cache.

    Raises
    ------
    BadArgument: samples or target are not there.
    """
    root = Path(samples) if samples else Path(__file__).resolve().parent.parent / "data_samples"
    base = Path(target) if target else cached_target()
    if not (root / "draft").is_dir():
        raise BadArgument("there are no samples here", where=root, hint="run the demo from a checkout, or give --samples")
    if not base.is_dir():
        raise BadArgument("the samples' target is not there", where=base, hint="`make demo` builds it; or give --target")
    return tell(Samples(root, base), Path(html))


def tell(samples: Samples, html: Path) -> Diagnosis:
    """Retell the case in five steps on stdout, write the report, and return the diagnosis of the first server."""
    start = time.monotonic()

    def progress(words: str) -> None:
        print(f"  [{time.monotonic() - start:5.1f} s] {words}", file=sys.stderr, flush=True)

    draft = open_draft(samples.root / "draft")
    lost = draft.replace(rename=lambda name: name.replace("midlayer.", "draft_layers.0."))
    _say(
        "An EAGLE-3 draft for SmolLM2-135M-Instruct, served by SGLang. Training went well, the server is healthy, its answers are right, "
        "and hardly a drafted token is accepted. What follows is computed now from what the real engine logged and from what it fed the draft."
    )
    trail = [
        _names(samples, lost, progress),
        _flag(samples, draft, progress),
        _statistics(weights(draft)),
        _widths(samples, progress),
        _healthy(samples, draft, progress),
    ]
    progress("the whole case as one report: both faults at once")
    whole = samples.case("eagle_flag", lost, progress)
    report = replace(whole, trail=tuple(trail))
    report.to_html(html)
    _head("The verdict on the first server, which had both faults")
    print(_verdict(report))
    print(f"\n  The report: {html} ({html.stat().st_size / 1e6:.1f} MB, one file, opens offline)")
    progress("done")
    return report


def _names(samples: Samples, lost: Draft, progress: Callable[[str], None]) -> str:
    _head("1  The engine drops names")
    result = samples.case("dropped_names", lost, progress, live=False)
    seen, finding = samples.observed("dropped_names"), result.findings[0]
    _say(f"Served accept length {seen.length:.2f}. " + _rates(seen))
    _say(f"{finding.fault}: {finding.title}.")
    predicted = result.ranked[0].predicted
    if predicted is not None and result.replay is not None:
        _say(
            f"Replayed with the layer lost: {predicted.accept_length:.2f}. As it was trained: {result.replay.accept_length:.2f}. "
            "So the names are one cause. Rename them, in a copy, and serve again."
        )
    return f"names: {finding.fault}, served {seen.length:.2f}; the layer's tensors were dropped and it kept whatever memory held"


def _flag(samples: Samples, draft: Draft, progress: Callable[[str], None]) -> str:
    _head("2  Keys renamed, still nothing is accepted")
    seen = samples.observed("eagle_flag")
    result = samples.case("eagle_flag", draft, progress)
    finding = result.findings[0]
    calls = (open_dump(samples.server("eagle_flag") / "live").counters or {}).get("fc_calls", 0)
    _say(f"Served accept length {seen.length:.2f}. " + _rates(seen))
    _say(f"{finding.fault}: {finding.title}. fc ran {calls} times while {seen.rounds} rounds were served.")
    predicted = result.ranked[0].predicted
    if predicted is not None:
        _say(f"Replayed with this one thing broken: {predicted.accept_length:.2f}.")
    return f"flag: {finding.fault}, served {seen.length:.2f} with every name loaded; one state was captured and fc skipped"


def _statistics(report: WeightReport) -> str:
    _head("3  fc looks like noise. Does it?")
    fc = report.tensor("fc.weight")
    fresh = fc.null("uniform_fan_in")
    ratio = fresh.std_ratio if fresh is not None and fresh.std_ratio is not None else float("nan")
    assert fc.spectrum is not None
    _say(
        f"fc.weight {list(fc.shape)}: mean {fc.mean:.6f}, std {fc.std:.6f}, abs mean {fc.abs_mean:.6f}. A fresh matrix of this shape has "
        f"std {fc.std / ratio:.6f}: the ratio is {ratio:.3f}, and a mean near zero is what every projection has. From such numbers the first "
        "investigator concluded that nothing had been learned."
    )
    _say(
        f"The spectrum says otherwise: {fc.spectrum.outside} singular values stand above the noise edge at {fc.spectrum.tracy_widom_high:.3f}, "
        f"the largest is {fc.spectrum.singular_values[0]:.3f}, and together they hold {fc.spectrum.outside_energy:.0%} of the energy. It is trained."
    )
    return f"fc statistics: std {ratio:.3f} of a fresh matrix, yet {fc.spectrum.outside} singular values above the noise edge: trained, a false alarm"


def _widths(samples: Samples, progress: Callable[[str], None]) -> str:
    _head("4  What is fc fed?  compare(train, live)")
    progress("comparing the training dump with what the EAGLE server fed")
    result: Comparison = compare(samples.root / "train", samples.server("eagle_flag") / "live")
    _say(
        f"Trained on {result.train.width} = {result.train.width_in_h:g} x {result.hidden_size}, fed {result.live.width}. "
        "The draft's embedding is just as wide, so the guard before fc lets the state pass by."
    )
    best = max(result.single, key=lambda b: b.standardised.median)
    what = "the target's final normed state" if best.boundary == -1 else f"boundary {best.boundary}"
    _say(f"What came instead is {what}: cosine {best.standardised.median:.3f}.")
    return f"compare: {result.live.width} wide was fed where {result.train.width} was trained"


def _healthy(samples: Samples, draft: Draft, progress: Callable[[str], None]) -> str:
    _head("5  The right flag: EAGLE3")
    seen = samples.observed("eagle3")
    target = open_target(samples.target)
    progress("replaying the draft on the training dump, and on what the EAGLE3 server fed")
    before: Replay = replay(draft, samples.root / "train", target=target)
    after: Replay = replay(draft, samples.server("eagle3") / "live", target=target)
    low, high = before.accept_length_interval
    _say(
        f"Served accept length {seen.length:.2f} over {seen.rounds} rounds. The replay had predicted {before.accept_length:.2f} "
        f"(95 % {low:.2f} to {high:.2f}) from the training dump, with no server; on what this server fed it gives {after.accept_length:.2f}."
    )
    _say("p by position: served " + _ps(seen.p) + ", replayed " + _ps(before.p) + ".")
    return f"right flag: served {seen.length:.2f}, the replay had predicted {before.accept_length:.2f}"


def _rates(seen: Acceptance) -> str:
    return (
        f"This version prints the accept rate {seen.rate:.2f}; SGLang 0.5.5.post3 to 0.5.10 would have printed {seen.biased_rate:.2f}, "
        f"where {1 / (seen.num_draft_tokens or 5):.2f} (1 of {seen.num_draft_tokens} slots) already means that nothing is accepted."
    )


def _verdict(report: Diagnosis) -> str:
    lines = []
    for ranked in report.ranked:
        if ranked.finding.severity.label == "note":
            continue
        lines.append(
            textwrap.fill(f"{ranked.finding.fault}  {ranked.finding.title}", WIDTH, initial_indent="  ✖ ", subsequent_indent="    ")
        )
        if ranked.predicted is not None:
            lines.append(f"    replayed with this fault alone: accept length {ranked.predicted.accept_length:.2f}")
        lines.append(textwrap.fill(f"fix: {ranked.finding.fix}", WIDTH, initial_indent="    ", subsequent_indent="         "))
    return "\n".join(lines)


def _ps(p: tuple[float, ...]) -> str:
    return " / ".join(f"{x:.2f}" for x in p)


def _head(words: str) -> None:
    print(f"\n{words}\n{'─' * min(len(words), WIDTH)}", flush=True)


def _say(words: str) -> None:
    print(textwrap.fill(words, WIDTH, initial_indent="  ", subsequent_indent="  "), flush=True)


def cached_target() -> Path:
    """Where ``make demo`` builds the samples' target."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "eagle3diag" / "SmolLM2-135M-Instruct"
