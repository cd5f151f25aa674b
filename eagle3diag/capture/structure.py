"""Where the decoder blocks of a causal language model live, found by structure and not by class or by module path."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from eagle3diag.errors import CaptureError


@dataclass(frozen=True)
class Decoder:
    """The text decoder inside a model: token embedding, a list of blocks, and a final norm applied by its own forward.

    ``path`` are the modules from the model that was given down to the decoder itself, by dotted name ("" is the model);
    any of them may be the one that is handed ``input_ids``.
    """

    name: str
    module: nn.Module
    blocks_name: str
    blocks: nn.ModuleList
    embedding: nn.Embedding
    path: tuple[tuple[str, nn.Module], ...]

    @property
    def n_layers(self) -> int:
        return len(self.blocks)

    @property
    def hidden_size(self) -> int:
        return self.embedding.embedding_dim

    def block_name(self, index: int) -> str:
        """Dotted name of block ``index``, for messages."""
        return ".".join(part for part in (self.name, self.blocks_name, str(index)) if part)


def find_decoder(model: object) -> Decoder:
    """The one submodule that owns both a token embedding and a list of blocks.

    Vision and audio towers own blocks and, at times, an embedding of *positions*; so when there are several candidates the one
    whose embedding is the model's own input embedding wins.

    Raises
    ------
    CaptureError: nothing, or more than one thing, looks like a decoder; the message lists the block lists that exist.
    """
    if not isinstance(model, nn.Module):
        raise CaptureError(
            f"expected a torch.nn.Module, found {type(model).__name__}", hint="pass the loaded model, for instance AutoModelForCausalLM"
        )
    candidates = list(_candidates(model))
    if len(candidates) > 1:
        declared = _input_embedding(model)
        candidates = [c for c in candidates if c.embedding is declared] or candidates
    if len(candidates) != 1:
        lists = [f"{name} ({len(m)})" for name, m in model.named_modules() if isinstance(m, nn.ModuleList) and len(m)]
        found = ", ".join(c.name or "(root)" for c in candidates)
        what = f"{len(candidates)} decoders found: {found}" if candidates else "no decoder found"
        raise CaptureError(
            f"{what}; a decoder owns a token embedding and a list of blocks. Lists of blocks in this model: {', '.join(lists) or 'none'}",
            where=type(model).__name__,
            hint="pass the language model itself (for instance model.language_model)",
        )
    return candidates[0]


def check_boundaries(decoder: Decoder, boundaries: object) -> tuple[int, ...]:
    """The boundaries to capture, in the order given; ``None`` means ``2, n_layers // 2, n_layers - 3``.

    That default is what SGLang and vLLM capture when a draft's config names no layers (reference: catalogue entry FM-28).

    Raises
    ------
    CaptureError: a boundary that does not exist, one given twice, none at all, or a block that the model uses more than once.
    """
    n = decoder.n_layers
    if boundaries is None:
        chosen = tuple(dict.fromkeys(min(max(b, 0), n) for b in (2, n // 2, n - 3)))
    else:
        if isinstance(boundaries, (str, bytes)) or not hasattr(boundaries, "__iter__"):
            raise CaptureError(f"boundaries must be a list of integers, found {boundaries!r}", hint=f"for instance [2, {n // 2}, {n}]")
        chosen = tuple(boundaries)
    wrong = [b for b in chosen if not isinstance(b, int) or isinstance(b, bool) or not 0 <= b <= n]
    if wrong or not chosen or len(set(chosen)) != len(chosen):
        reason = f"{wrong} do not exist" if wrong else "none given" if not chosen else f"{list(chosen)} has one twice"
        raise CaptureError(
            f"boundaries: {reason}; this model has boundaries 0 (embedding output) to {n} (last block, before the final norm)",
            where=f"{decoder.block_name(0)} .. {decoder.block_name(n - 1)}",
            hint="boundary b is the residual stream after b blocks; Transformers' hidden_states[b] is the same, except the last",
        )
    shared = [b for b in chosen if b and sum(block is decoder.blocks[b - 1] for block in decoder.blocks) > 1]
    if shared:
        raise CaptureError(
            f"boundaries {shared} follow a block that the model runs more than once, so its output has no single depth",
            where=decoder.block_name(shared[0] - 1),
        )
    return chosen


def _candidates(model: nn.Module) -> Iterator[Decoder]:
    named = dict(model.named_modules())
    for name, module in named.items():
        lists = [(n, c) for n, c in module.named_children() if isinstance(c, nn.ModuleList) and len(c)]
        embeddings = [c for _, c in module.named_children() if isinstance(c, nn.Embedding)]
        if not lists or not embeddings:
            continue
        # a decoder may own other lists (per-layer projections, adapters): the blocks are the longest one
        blocks_name, blocks = max(lists, key=lambda item: len(item[1]))
        embedding = max(embeddings, key=lambda e: e.num_embeddings)  # token ids outnumber positions
        parts = name.split(".") if name else []
        prefixes = ["", *(".".join(parts[: i + 1]) for i in range(len(parts)))]
        yield Decoder(name, module, blocks_name, blocks, embedding, tuple((p, named[p]) for p in prefixes))


def _input_embedding(model: nn.Module) -> object:
    getter = getattr(model, "get_input_embeddings", None)
    if getter is None:
        return None
    try:
        return getter()
    except (NotImplementedError, AttributeError):  # wrappers define the method without supporting it
        return None
