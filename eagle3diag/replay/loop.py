"""How a server drives a draft: positions, and which keys a row finds. What is not the default is an old engine's way, or a fault."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from eagle3diag.engines import at, known_version, split_engine
from eagle3diag.engines.sglang import POSITION_OFFSET
from eagle3diag.errors import BadArgument


@dataclass(frozen=True)
class Loop:
    """One way to drive a draft.

    Attributes
    ----------
    position_offset: added to the RoPE position of draft steps after the first (1 in SGLang before 0.5.12).
    branch_keys: in a tree, what a row finds of its own round: the ``column`` of its slot, whoever its parent was (SGLang, issue 7523), or
        its ``ancestors`` (the EAGLE paper's code). Chains know no difference.
    prefix: what a row finds of earlier rows: its ``own`` record's; of the prompt none (``answer``), or its second ``half``; or ``another``
        record's.
    keep_draft_keys: keys that the draft made for accepted tokens stay, instead of being made anew from the target's states.
    """

    position_offset: int = 0
    branch_keys: Literal["column", "ancestors"] = "column"
    prefix: Literal["own", "answer", "half", "another"] = "own"
    keep_draft_keys: bool = False


NEWEST = Loop()
"""Of SGLang since 0.5.12, and of vLLM."""


def loop_of(engine: str | None, topk: int = 1) -> Loop:
    """The loop of ``"sglang==0.5.8"`` or ``"vllm"``; of the newest SGLang when nothing is named.

    Raises
    ------
    BadArgument: an engine whose loop is not known, or a tree where the engine drafts chains only.
    """
    name, version = split_engine(engine or "sglang")
    if name == "vllm":  # v1/spec_decode/llm_base_proposer.py; trees (speculative_token_tree) were taken out in 0.21
        if topk > 1:
            raise BadArgument(f"vLLM drafts chains, not trees of top-k {topk}", hint="topk=1")
        return NEWEST
    if name != "sglang":
        raise BadArgument(f"the draft loop of {name!r} is not known", hint="known: sglang, vllm")
    return Loop(position_offset=int(at(POSITION_OFFSET, known_version("sglang", version)[0]).value))
