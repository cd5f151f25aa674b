"""What one dump shows alone: broken or repeated rows, one buffer twice, last states that are read in another way than the dump says."""

from __future__ import annotations

import math
from collections.abc import Callable

from eagle3diag.compare import DumpCheck, Reading
from eagle3diag.faults.origins import SAME_BUFFER
from eagle3diag.findings import Evidence, Finding, Severity

CLEARLY = 0.2
"""Agreement by which another reading must be better than the declared one: the right reading of SmolLM2's own greedy answers agrees with 0.97
of the tokens and more, the wrong norm with 0.05 to 0.4, another shift with 0.1 at most."""

PREDICTS = 0.1
"""Agreement under which the last states do not belong to these tokens: text that the target did not write is still predicted in a third to a
half of the places, a state of another token in a twentieth."""

ENOUGH = 50
"""Tokens that an agreement is taken from."""


def broken(c: DumpCheck) -> Finding | None:
    """H2: rows that are zero, not finite, or written twice."""
    zero, odd, twice = (sum(getattr(p, n) for p in c.parts) for n in ("zero_rows", "nonfinite_rows", "duplicate_rows"))
    if not zero and not odd and not twice:
        return None
    whole = bool(c.parts) and all(p.zero_rows == p.tokens for p in c.parts if p.part != "final")
    words = "all states are zero" if whole else "states hold rows that are zero, not finite, or written twice"
    return Finding(
        "H2",
        Severity.ERROR,
        words,
        "Extraction from hybrid targets gave zeros in some versions of vLLM (vllm#46301); an overflow gives infinities; padding gives zeros; "
        "a buffer read too early gives the row before.",
        tuple(
            Evidence(f"{p.part}{f' block {p.block}' if p.part == 'features' else ''}: zero / not finite / repeated rows",
                     f"{p.zero_rows} / {p.nonfinite_rows} / {p.duplicate_rows}", f"0 of {p.tokens}", "dump")
            for p in c.parts
            if p.zero_rows or p.nonfinite_rows or p.duplicate_rows
        ),
        "Write the dump again; nothing can be trained on or compared with these rows.",
        "check_dump() must count none.",
    )  # fmt: skip


def one_buffer(c: DumpCheck) -> Finding | None:
    """FM-36: blocks that are the same tensor."""
    same = [a for a in c.alike if a.live < SAME_BUFFER]
    if not same:
        return None
    return Finding(
        "FM-36",
        Severity.ERROR,
        f"blocks {', '.join(f'{a.one} and {a.other}' for a in same[:3])} are the same tensor",
        "References were kept where copies were needed, and a later layer wrote into the buffer. SGLang's tensor dump does this on CPU.",
        tuple(Evidence(f"blocks {a.one} and {a.other}: relative difference", a.live, "above 0.1", "dump") for a in same),
        "Clone the state where it is captured.",
        "check_dump() must find different blocks.",
    )


def misread(c: DumpCheck) -> Finding | None:
    """H8, H6: the last state is normed where the dump says it is not, or the reverse; or the ids are shifted."""
    best, declared = _best(c), c.declared
    if best is None or declared is None or best.tokens < ENOUGH or best.agreement - declared.agreement < CLEARLY:
        return None
    evidence = (
        Evidence(f"{best.part} {best.form} gives token {best.shift:+d}: agreement", best.agreement, None, "target's head"),
        Evidence(f"{declared.part} {declared.form} gives token {declared.shift:+d}: agreement", declared.agreement, None, "target's head"),
    )
    if best.shift != declared.shift:
        return Finding(
            "H6",
            Severity.ERROR,
            f"the states predict the token at {best.shift:+d}, not the next one: ids and states are shifted by {1 - best.shift:+d}",
            "the input_ids of this dump belong to other rows than its states.",
            evidence,
            "Store unshifted ids, or tell the trainer the shift.",
            "check_dump() must find its best agreement at +1.",
        )
    raw = best.form == "after the norm"
    return Finding(
        "H8",
        Severity.ERROR,
        f"the last state is {'not normed, but taken for normed' if raw else 'normed already, but taken for raw'}",
        "Through the target's head only one reading gives the recorded tokens. A trainer that reads it the other way learns from a wrong "
        "teacher: its loss stays high, its accuracy may look fine.",
        evidence,
        "Store it under the other meaning (hidden_states_prenorm for Model-Optimizer), or apply the norm once.",
        "check_dump() must find the declared reading best.",
    )


def strangers(c: DumpCheck) -> Finding | None:
    """FM-39: records whose states predict the tokens of another record."""
    swapped = [r for r in c.by_record if r.tokens >= 8 and r.other_agreement - r.agreement > CLEARLY and r.other_agreement > 0.5]
    if not swapped:
        return None
    return Finding(
        "FM-39",
        Severity.ERROR,
        f"the states of {len(swapped)} records are those of other requests",
        "Rows of a batch were cut at the wrong places (speculators#279: more than one request in a batch).",
        tuple(
            Evidence(f"{r.record}: predicts {r.other}", r.other_agreement, f"{r.agreement:.2f} of its own tokens", "target's head")
            for r in swapped[:5]
        ),
        "Write the dump again with one request at a time, or with a version that cuts the rows by their lengths.",
        "check_dump() must find every record to predict its own tokens.",
    )


def ranks_differ(c: DumpCheck) -> Finding | None:
    """H10: another tensor-parallel rank was fed other rows. The states are whole on every rank, so not one bit may differ."""
    off = [r for r in c.ranks if r.differing]
    if not off:
        return None
    return Finding(
        "H10",
        Severity.ERROR,
        f"{', '.join(r.name for r in off)} {'holds' if len(off) == 1 else 'hold'} other states than this rank",
        "Every rank of the target's tensor parallelism has the whole residual stream. States that differ were read before the all-reduce "
        "(partial sums, FM-37), or the ranks cut or padded the rows in different ways (FM-39).",
        tuple(Evidence(f"{r.name}: tokens whose states differ", r.differing, f"0 of {r.tokens}", "dumps of two ranks") for r in off),
        "Read the stream after the all-reduce: upgrade (SGLang 0.5.14 has it), or turn the fused all-reduce off.",
        "Record again with --ranks all: check_dump() must count none.",
    )


def unpredicted(c: DumpCheck) -> Finding | None:
    """No reading of the last states gives the recorded tokens."""
    best = _best(c)
    if best is None or best.tokens < ENOUGH or best.agreement >= PREDICTS or strangers(c) is not None:
        return None
    return Finding(
        "D0",
        Severity.WARNING,
        "the last states do not predict the recorded tokens, however they are read",
        "They belong to other tokens or to another target (another revision, a quantised or rotated one), or are not last states at all.",
        (
            Evidence(
                f"best reading ({best.part} {best.form}, token {best.shift:+d}): agreement",
                best.agreement,
                f"at least {PREDICTS}",
                "target's head",
            ),
        ),
        "Check which target and which tokens the dump was made with.",
        "check_dump() with the right target.",
    )


def _best(c: DumpCheck) -> Reading | None:
    sound = [r for r in c.readings if not math.isnan(r.agreement)]
    return max(sound, key=lambda r: r.agreement, default=None)


JUDGES: tuple[Callable[[DumpCheck], Finding | None], ...] = (
    broken, one_buffer, ranks_differ, misread, strangers, unpredicted,
)  # fmt: skip
