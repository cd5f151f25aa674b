"""The draft replayed offline in plain torch: the accept length to expect, without a server."""

from __future__ import annotations

from collections.abc import Iterable

from eagle3diag.checkpoints import DraftSource, Target, TargetSource, open_draft, open_target
from eagle3diag.dumps import HiddenStates, open_dump
from eagle3diag.dumps.records import DumpSource
from eagle3diag.errors import BadArgument, MismatchedInputs, MissingPart
from eagle3diag.replay.batch import Sampling
from eagle3diag.replay.build import build
from eagle3diag.replay.change import Change
from eagle3diag.replay.drafting import draft_everywhere
from eagle3diag.replay.loop import Loop, loop_of
from eagle3diag.replay.measure import run
from eagle3diag.replay.net import Net
from eagle3diag.replay.result import RecordReplay, Replay
from eagle3diag.replay.sampling import Sampled
from eagle3diag.replay.settings import Cost, Setting, SettingReplay

__all__ = [
    "Change", "Cost", "Loop", "Net", "RecordReplay", "Replay", "Sampled", "Setting", "SettingReplay",
    "build", "check_target", "draft_everywhere", "loop_of", "replay", "run",
]  # fmt: skip


def replay(
    draft: DraftSource,
    dump: DumpSource,
    *,
    target: TargetSource | None = None,
    steps: int = 4,
    topk: int = 1,
    num_draft_tokens: int | None = None,
    engine: str | None = None,
    temperature: float | None = None,
    settings: Iterable[Setting | str] = (),
    cost: Cost | None = None,
    changes: Iterable[Change] = (),
    dtype: str = "float32",
    device: str = "cpu",
) -> Replay:
    """Replay the draft on a dump: what it would have drafted from every position, accepted where it is the recorded text.

    The recorded text has to be the target's own greedy answer. ``target`` lends its embedding (and its head, where the draft has none).

    Parameters
    ----------
    steps, topk, num_draft_tokens: as the server is started with. ``topk`` 1 drafts a chain; more draft SGLang's tree.
    engine: such as ``"sglang==0.5.8"`` or ``"vllm"``: whose loop to follow; the newest SGLang's when left out.
    temperature: also tell what to expect when the target samples at it. The text should have been sampled so, and the dump needs final states.
    settings: more (steps, topk, num_draft_tokens) to try in the same pass, also written ``"5:4:16"``; ``cost`` rates them, see :attr:`Replay.best`.
    dtype: ``"float32"``, or ``"bfloat16"`` to round as servers do. device: as torch names it.

    Raises
    ------
    BadArgument: steps, topk and num_draft_tokens that do not go together, an unknown engine, or a draft of a kind that the replay does not know.
    MismatchedInputs: dump, draft and target do not belong together. MissingPart: something needed is not there.
    """
    opened, states = open_draft(draft), open_dump(dump)
    base = None if target is None else open_target(target)
    if base is not None:
        check_target(states, base)
    sampling = None
    if temperature is not None:
        if not temperature > 0:
            raise BadArgument(f"temperature is {temperature}, expected above 0", hint="a greedy target needs none: leave it out")
        if base is None:
            raise MissingPart("the target's distribution needs the target", where="temperature", hint="pass target=FOLDER (--target)")
        sampling = Sampling(base.head(), temperature)
    tried = [Setting.parse(s) if isinstance(s, str) else s for s in settings]
    return run(
        build(opened, base, engine=engine, dtype=dtype, device=device),
        states,
        steps=steps,
        topk=topk,
        num_draft_tokens=num_draft_tokens,
        changes=tuple(changes),
        draft=opened.name,
        loop=loop_of(engine, max([topk, *(s.topk for s in tried)])),
        engine=engine,
        settings=tried,
        cost=cost,
        sampling=sampling,
    )


def check_target(dump: HiddenStates, target: Target) -> None:
    """Raise :class:`~eagle3diag.errors.MismatchedInputs` when the dump says it was made with a target of other sizes."""
    for what, theirs, ours in (
        ("hidden size", dump.target.hidden_size, target.hidden_size),
        ("number of blocks", dump.target.n_layers, target.n_layers),
    ):
        if theirs and theirs != ours:
            raise MismatchedInputs(
                f"the dump was made with {dump.target.name}, of {what} {theirs}; this target has {ours}",
                where=f"{dump.side} dump and {target.name}",
                hint="give the target that the dump was made with",
            )
