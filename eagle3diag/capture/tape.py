"""Hidden states out of a running Transformers model: hooks that copy, a tape that sorts the copies into sequences."""

from __future__ import annotations

import inspect
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from os import PathLike
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from eagle3diag.capture.identity import identify, installed, special_ids
from eagle3diag.capture.sequences import Batch, Forward, valid_columns
from eagle3diag.capture.structure import Decoder, check_boundaries, find_decoder
from eagle3diag.dumps import DumpWriter, HiddenStates, open_dump
from eagle3diag.errors import BadArgument, CaptureError


class Tape:
    """What :func:`capture` gives to the ``with`` block, and what is left of it afterwards.

    Attributes
    ----------
    boundaries: the captured boundaries, in the order they were asked for.
    hooked: dotted module name of every hook, by what it captures (``"boundary 2"``, ``"final"``).
    forwards: target forwards recorded so far.
    """

    def __init__(self, model: nn.Module, decoder: Decoder, boundaries: tuple[int, ...], out: str | PathLike[str] | None, side: str) -> None:
        self.boundaries, self.forwards = boundaries, 0
        self.hooked = {f"boundary {b}": decoder.block_name(b - 1) if b else decoder.block_name(0) + " (input)" for b in boundaries}
        self.hooked["final"] = decoder.name or type(decoder.module).__name__
        self._model, self._decoder, self._out, self._side = model, decoder, out, side
        self._identity = identify(model, decoder)
        self._pad_ids, self._eos_ids = special_ids(model)
        self._fired: Counter[str] = Counter()
        self._handles: list[Any] = []
        self._parameters = {name: tuple(inspect.signature(m.forward).parameters) for name, m in decoder.path}
        self._given: dict[str, Any] = {}  # what the modules of the path were called with, during one forward
        self._begun = False
        self._states: dict[int, Tensor] | None = None  # None outside a forward: recomputation for a backward pass is not recorded
        self._open: list[Batch] = []
        self._started = 0
        self._writer: DumpWriter | None = None
        self._records: list[tuple[int, dict[str, Any]]] = []
        self._dump: HiddenStates | None = None

    @property
    def dump(self) -> HiddenStates:
        """The captured sequences; from the folder ``out`` when one was given. Available once the ``with`` block has ended."""
        if self._dump is None:
            raise CaptureError("the tape is still recording", hint="read tape.dump after the with block")
        return self._dump

    def __repr__(self) -> str:
        state = "recording" if self._dump is None else f"{len(self._dump)} sequences"
        return f"Tape(boundaries={list(self.boundaries)}, {self.forwards} forwards, {state})"

    # -- the with block ------------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Tape:
        if self._handles or self._dump is not None:
            raise CaptureError("a tape records once", hint="call capture(...) again")
        if self._out is not None:
            self._writer = DumpWriter(
                self._out,
                side=self._side,
                target=self._identity,
                engine="transformers",
                engine_version=installed("transformers"),
                boundaries=self.boundaries,
            )
            self._writer.__enter__()
        try:
            self._place_hooks()
        except BaseException:
            self._remove_hooks()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._remove_hooks()
        while self._open:
            self._close(self._open.pop(0))
        # at least one forward is due, unless the first was cut short by the very error that ends the block
        due = self.forwards if error is not None and self._begun else max(self.forwards, 1)
        silent = sorted(what for what in self.hooked if self._fired[what] < due)
        problem: CaptureError | None = None
        if silent:
            fired = ", ".join(f"{what} at {self.hooked[what]}: {self._fired[what]} of {self.forwards}" for what in silent)
            problem = CaptureError(
                f"hooks that did not fire in every forward of the target: {fired}",
                where=type(self._model).__name__,
                hint="run the model that was given, inside the with block; a compiled or offloaded copy may bypass its modules",
            )
        reason = error if error is not None else problem
        if self._writer is not None:
            self._writer.__exit__(None if reason is None else type(reason), reason, None if reason is None else reason.__traceback__)
            assert self._out is not None
            if reason is None:
                self._dump = open_dump(self._out)
        elif reason is None or self._records:
            self._records.sort(key=lambda item: item[0])  # by start: a sequence may outlive one that began after it
            self._dump = self._in_memory([record for _, record in self._records])
        if problem is not None:
            if error is None:
                raise problem
            warnings.warn(str(problem), RuntimeWarning, stacklevel=2)

    # -- hooks ---------------------------------------------------------------------------------------------------------------------

    def _place_hooks(self) -> None:
        decoder, keep = self._decoder, self._handles.append
        for name, module in decoder.path:
            keep(module.register_forward_pre_hook(self._arguments_hook(name), with_kwargs=True))
        for b in self.boundaries:
            if b == 0:
                keep(decoder.blocks[0].register_forward_pre_hook(self._input_hook, with_kwargs=True))
            else:
                keep(decoder.blocks[b - 1].register_forward_hook(self._output_hook(b)))
        keep(decoder.module.register_forward_hook(self._end_of_forward))

    def _remove_hooks(self) -> None:
        while self._handles:
            self._handles.pop().remove()

    def _arguments_hook(self, name: str) -> Any:
        names, outermost, is_decoder = self._parameters[name], name == "", name == self._decoder.name

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if outermost:
                self._given = {}
            given = dict(zip(names, args, strict=False)) | kwargs
            for key in ("input_ids", "attention_mask"):
                value = given.get(key)
                # an outer module's plain 2-D mask says more than the 4-D one it hands down
                if value is not None and not (key == "attention_mask" and _plain(self._given.get(key)) and not _plain(value)):
                    self._given[key] = value
            cache = given.get("cache", given.get("past_key_values"))
            if hasattr(cache, "get_seq_length"):
                self._given["cache"] = cache
            if is_decoder:
                self._begin(given)

        return hook

    def _begin(self, given: Mapping[str, Any]) -> None:
        self._begun = True
        if not isinstance(self._given.get("input_ids"), Tensor):
            raise CaptureError(
                "the target was fed inputs_embeds without input_ids, so the captured rows would have no token ids",
                where=self._decoder.name or type(self._decoder.module).__name__,
                hint="call the outermost model with input_ids, and capture that model",
            )
        cache = self._given.get("cache")
        self._given["past"] = 0 if cache is None else self._length(cache)  # before this forward adds to it
        self._states = {}

    def _length(self, cache: Any) -> int:
        """Tokens that the cache holds; caches of linear attention alone do not count them, so there what was fed is counted."""
        try:
            return int(cache.get_seq_length())
        except ValueError:
            return next((b.end for b in self._open if b.has(cache)), 0)

    def _input_hook(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._keep(0, args[0] if args else kwargs.get("hidden_states"))

    def _output_hook(self, boundary: int) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            self._keep(boundary, output)

        return hook

    def _keep(self, boundary: int, value: Any) -> None:
        tensor = value[0] if isinstance(value, (tuple, list)) and value else value
        if self._states is not None and isinstance(tensor, Tensor):
            self._states[boundary] = tensor.detach().clone()  # clone: blocks that follow may write in place (FM-36)

    def _end_of_forward(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        states, given = self._states, self._given
        self._states, self._given = None, {}
        if states is None:
            return
        self.forwards += 1
        final = getattr(output, "last_hidden_state", None)
        if final is None:
            final = output[0] if isinstance(output, (tuple, list)) and output else output
        self._fired.update(f"boundary {b}" for b in states)
        if not isinstance(final, Tensor):
            return  # counted: the end of the block says so
        self._fired["final"] += 1
        if len(states) < len(self.boundaries):
            return
        cache = given.get("cache")
        if cache is None:  # built by the decoder itself
            # the old name is asked for only where the new one is not: newer Transformers complains
            cache = output.cache if hasattr(output, "cache") else getattr(output, "past_key_values", None)
        self._record(given, states, final.detach().clone(), cache if hasattr(cache, "get_seq_length") else None)

    # -- sequences -----------------------------------------------------------------------------------------------------------------

    def _record(self, given: Mapping[str, Any], states: dict[int, Tensor], final: Tensor, cache: object | None) -> None:
        ids = given["input_ids"].detach()
        ids = ids[None] if ids.dim() == 1 else ids
        if final.dim() == 2:
            final, states = final[None], {b: s[None] for b, s in states.items()}
        for what, tensor in (*((f"boundary {b}", s) for b, s in states.items()), ("final", final)):
            if tensor.shape[:2] != ids.shape:
                raise CaptureError(
                    f"{what} has shape {list(tensor.shape)} but input_ids had {list(ids.shape)}: rows and tokens cannot be paired",
                    where=self.hooked[what],
                    hint="models that expand their input (image tokens, prefix tuning) must be fed input_ids already expanded",
                )
        past = given["past"]
        valid = valid_columns(given.get("attention_mask"), ids.shape[0], ids.shape[1], past)
        step = Forward(ids.clone(), torch.ones_like(ids, dtype=torch.bool) if valid is None else valid.clone(), states, final, past)
        batch = next((b for b in self._open if b.has(cache)), None)
        if batch is not None and batch.accepts(step):
            batch.append(step)
        else:
            if past:
                warnings.warn(
                    f"{past} tokens of the cache were fed before the capture saw them; these sequences start at position {past}",
                    RuntimeWarning,
                    stacklevel=2,
                )
            if batch is not None:  # the same cache, emptied or filled by someone else
                self._open.remove(batch)
                self._close(batch)
            self._open.append(Batch(step, self._started, cache))
            self._started += ids.shape[0]
        for done in [b for b in self._open if not b.alive]:
            self._open.remove(done)
            self._close(done)

    def _close(self, batch: Batch) -> None:
        for i, record in enumerate(batch.records(self._pad_ids, self._eos_ids)):
            named = {"name": f"sequence-{batch.number + i:05d}", **record}
            if self._writer is not None:
                self._writer.add(**named)
            else:
                self._records.append((batch.number + i, named))

    def _in_memory(self, records: list[dict[str, Any]]) -> HiddenStates:
        return HiddenStates.from_tensors(
            records,
            side=self._side,
            target=self._identity,
            engine="transformers",
            engine_version=installed("transformers"),
            boundaries=self.boundaries,
        )


def capture(
    model: nn.Module,
    boundaries: Iterable[int] | None = None,
    out: str | PathLike[str] | None = None,
    *,
    side: str = "train",
) -> Tape:
    """Record the hidden states of a Transformers causal language model while it runs inside a ``with`` block.

    Every forward is recorded, whether called directly or by ``generate``: steps with a KV cache are appended to the sequences they
    continue, left and right padding is removed, beams are followed when they change rows. ``generate`` never feeds its last token, so a
    record is one row shorter than the text. Rows are copies in the model's own dtype; the model is left exactly as it was found, also
    after an exception.

    Parameters
    ----------
    model: anything that holds one decoder (token embedding, blocks, final norm), at any depth; wrappers are fine.
    boundaries: boundary ``b`` is the residual stream after ``b`` blocks, 0 the embedding output, ``n_layers`` the last block's output
        before the final norm. Default: ``2, n_layers // 2, n_layers - 3``.
    out: a folder for a native dump, written sequence by sequence; without it everything stays in memory.
    side: ``"train"``, ``"live"`` or ``"reference"``: which side of a comparison this is going to be.

    Returns
    -------
    A context manager that gives a :class:`Tape`; after the block, ``tape.dump`` is a :class:`~eagle3diag.dumps.HiddenStates` whose records
    hold ``input_ids`` [T], ``state(b)`` [T, H], ``features`` [T, n_aux * H] and ``final`` [T, H] (after the final norm).

    Raises
    ------
    CaptureError: no decoder, or a boundary that does not exist (before anything runs); a hook that did not fire (at the end of the block).

    >>> import eagle3diag as e3
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> model = LlamaForCausalLM(LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=6, num_attention_heads=4,
    ...     num_key_value_heads=2, vocab_size=99))
    >>> with e3.capture(model, boundaries=[2, 3, 6]) as tape:
    ...     _ = model.generate(torch.arange(5)[None], max_new_tokens=4, do_sample=False, eos_token_id=None)
    >>> record = tape.dump[0]
    >>> record.input_ids.shape, record.prompt_length, record.state(2).shape, record.features.shape
    (torch.Size([8]), 5, torch.Size([8, 32]), torch.Size([8, 96]))
    """
    if side not in ("train", "live", "reference"):
        raise BadArgument(f"side={side!r}", hint="one of 'train', 'live', 'reference'")
    decoder = find_decoder(model)
    return Tape(model, decoder, check_boundaries(decoder, None if boundaries is None else _listed(boundaries)), out, side)


def _listed(boundaries: Any) -> Any:
    return list(boundaries) if hasattr(boundaries, "__iter__") and not isinstance(boundaries, (str, bytes)) else boundaries


def _plain(mask: Any) -> bool:
    return isinstance(mask, Tensor) and mask.dim() == 2
