"""Judge what fc's weights expect to be fed, by the trace that their training inputs left: FM-33 (order), FM-20 (norm), FM-29 (shift)."""

from __future__ import annotations

from collections.abc import Iterator

from eagle3diag.findings import Evidence, Finding, Severity
from eagle3diag.weights import FcReading, Feeding, WeightReport

SURE = 4.0
"""Standard errors over the sequences by which one way of feeding fc must beat another. On the sample draft's training dump the trained order
leads every other by 17 and more; the dump as it is leads "each state normed" by 3.9 in fc and by 8.8 behind it."""

TRACE = 5.0
"""Standard errors of a fresh matrix's gain above which fc is said to remember its inputs. The sample draft's 1.71 is 105 of them above 1."""

TIE = 1e-6
"""Differences below this are rounding: a norm over all states together, for instance, cannot be seen behind the draft's own norm."""


def expects(report: WeightReport) -> Iterator[Finding]:
    """What the dump says of fc: a better order or norm, or that it fits as it is and what cannot be told apart."""
    r = report.reading
    if r is None:
        return
    base = r.as_dumped
    if max(h.gain for h in r.hypotheses) < 1 + TRACE * r.chance_error:
        yield Finding(
            "K4",
            Severity.NOTE,
            "fc shows no trace of these features",
            "Real features pass it with no more energy than unrelated ones would: it is fresh, was trained on other features, or the dump is not "
            "of its target. Order and norm cannot be told from it.",
            (Evidence("gain of fc for the dump", base.gain, f"1 ± {r.chance_error:.2g} by chance", r.dump),),
            check="weights(draft) says whether fc is fresh; compare(train, live) whether the dump is what it should be.",
        )
        return
    better = [h for h in r.hypotheses[1:] if _beats(h)]
    best = max(better, key=lambda h: h.gain, default=None)
    if best is not None:
        yield _expected(r, best)
    else:
        yield _as_it_is(r)


def _z(drop: float | None, error: float | None) -> float | None:
    """Standard errors by which the dump as it is leads; None when the two cannot be told apart at all."""
    if drop is None or error is None or abs(drop) < TIE:
        return None
    return drop / max(error, 1e-12)


def _beats(h: Feeding) -> bool:
    """Better in fc by SURE, and not worse behind it."""
    front, behind = _z(h.gain_drop, h.gain_drop_error), _z(h.behind_drop, h.behind_drop_error)
    return front is not None and front < -SURE and (behind is None or behind < SURE)


def _loses(h: Feeding) -> bool:
    """Worse by SURE in fc or behind it."""
    return any(z is not None and z > SURE for z in (_z(h.gain_drop, h.gain_drop_error), _z(h.behind_drop, h.behind_drop_error)))


def _expected(r: FcReading, best: Feeding) -> Finding:
    ordered = best.name.startswith("order")
    fault = "FM-33" if ordered else "FM-29" if best.name.startswith("boundaries") else "FM-20"
    title = (
        f"fc expects the states of this dump in another order: {best.name.removeprefix('order ')}"
        if ordered
        else f"fc expects its states in another form than this dump's: {best.name}"
    )
    return Finding(
        fault,
        Severity.WARNING,
        title,
        "Training leaves a trace of its inputs in fc: real features pass it with more energy than unrelated ones, and only in the place and form "
        "in which training saw them. Fed that way, these weights respond more strongly than to the dump as it is.",
        tuple(_numbers(r, best)),
        "Feed the states in that form, or find out whether the dump or the trainer is wrong."
        if not ordered
        else "Concatenate the states in this order in the engine's config, or train on the order that the engine has.",
        "weights(draft, dump=...) names the dump as it is; then replay both.",
    )


def _as_it_is(r: FcReading) -> Finding:
    lost = [h for h in r.hypotheses[1:] if _loses(h)]
    open_ones = [h.name for h in r.hypotheses[1:] if h not in lost]
    because = (
        f"Of {len(r.hypotheses) - 1} other ways of feeding fc, {len(lost)} fit these weights worse by more than {SURE:g} standard errors."
    )
    if open_ones:
        because += f" Not distinguishable from the dump as it is: {', '.join(open_ones)}."
    nearest = min(lost, key=lambda h: h.gain_drop, default=None)
    return Finding(
        "K4",
        Severity.NOTE,
        "fc expects the states as this dump holds them",
        because,
        tuple(_numbers(r, nearest))
        if nearest is not None
        else (Evidence("gain of fc for the dump", r.as_dumped.gain, "1 by chance", r.dump),),
    )


def _numbers(r: FcReading, other: Feeding) -> Iterator[Evidence]:
    base = r.as_dumped
    yield Evidence("gain of fc, dump as it is", base.gain, "1 by chance", r.dump)
    yield Evidence(f"gain of fc, {other.name}", other.gain, None, r.dump)
    yield Evidence(
        "difference in standard errors", _z(other.gain_drop, other.gain_drop_error) or 0.0, f"beyond {SURE:g} to be told", r.dump
    )
    if other.behind is not None and base.behind is not None:
        yield Evidence("gain of q, k and v after it, dump as it is", base.behind, "1 by chance", r.dump)
        yield Evidence(f"gain of q, k and v after it, {other.name}", other.behind, None, r.dump)
