"""What an SGLang server really feeds its draft, as a dump: a recorder that SGLang's own ``--forward-hooks`` loads into the server.

    python -m sglang.launch_server ... --disable-cuda-graph --disable-radix-cache --forward-hooks "$(python -c '
    import json; from eagle3diag.capture.sglang import hooks; print(json.dumps(hooks("live_dump", target="TARGET_DIR")))')"

It runs in the scheduler's process, on target and draft. Replayed CUDA graphs call no hook and cached prefixes are not computed again, so
both are switched off. Recording costs a copy of the fed rows; an error ends the recording, is noted in the manifest, and never reaches
the server. Read from and run with SGLang 0.5.23.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import wraps
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor, nn

from eagle3diag.checkpoints import open_target
from eagle3diag.dumps import DumpWriter, TargetIdentity
from eagle3diag.errors import BadArgument, CaptureError

Hook = Callable[[nn.Module, tuple[Any, ...], Any], None]
Method = Callable[["Recorder", nn.Module, tuple[Any, ...], Any], None]

#: What each part of the recorder is hooked to. ``model`` exists in target and draft, the others in the draft alone.
MODULES = {"model": "model", "fc": "model.fc", "hidden_norm": "model.*.hidden_norm"}
# Kimi's MLA draft calls its one layer "midlayer"; both names fit the pattern above, since "*" also matches dots.

logger = logging.getLogger(__name__)
_recorders: dict[str, Recorder] = {}  # one per dump: SGLang calls the factory for each part, once for the target and once for the draft


def hooks(out: str, *, target: str, limit: int | None = None, target_name: str | None = None) -> list[dict[str, Any]]:
    """The value of ``--forward-hooks`` (``forward_hooks=`` of ``sglang.Engine``) that records into the new folder ``out``.

    ``target``: the target's folder, for the identity in the dump; ``target_name``: how to call it there, if not like the folder.
    ``limit``: record the first so many requests, then close the dump. A request counts as ended when a later round runs without it, so
    send one short request more than you want recorded.
    """
    config = {"out": out, "target": target, "limit": limit, "target_name": target_name}
    return [
        {
            "name": f"eagle3diag-{part}",
            "target_modules": [pattern],
            "hook_factory": "eagle3diag.capture.sglang:record_draft",
            "config": {**config, "part": part},
        }
        for part, pattern in MODULES.items()
    ]


def record_draft(config: Mapping[str, Any]) -> Hook:
    """Hook factory for SGLang: ``config`` as :func:`hooks` writes it.

    Raises
    ------
    BadArgument: ``part`` is not one of :data:`MODULES` (SGLang then refuses to start).
    """
    part, out = config.get("part"), str(config["out"])
    if part not in MODULES:
        raise BadArgument(f"part is {part!r}", where="hook config", hint=f"one of {', '.join(MODULES)}; let hooks() write the list")
    if out not in _recorders:
        _recorders[out] = Recorder(out, str(config["target"]), config.get("limit"), config.get("target_name"))
    hook: Hook = getattr(_recorders[out], f"on_{part}")
    return hook


@dataclass
class _Request:
    """One sequence while it runs: the rows fed so far, their positions, and every token known by its position."""

    name: str
    rows: list[Tensor] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    tokens: dict[int, int] = field(default_factory=dict)
    prompt_length: int = 0


def _never_raise(hook: Method) -> Method:
    """A broken recorder must not take the server with it: any error ends the recording."""

    @wraps(hook)
    def guarded(self: Recorder, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if self.active:
            try:
                hook(self, module, inputs, output)
            except Exception as error:
                self.stop(error)

    return guarded


class Recorder:
    """Reassembles, per request, the rows that the draft is fed, and counts how it is run.

    The draft runs in three ways: over a prompt (``EXTEND``), over the accepted tokens after a verify (``DRAFT_EXTEND_V2``, padded to the
    number of slots), both fed with features of the target; and to draft (``DECODE``), fed with its own output, which is not recorded.
    Row ``p`` holds the target's features of position ``p`` beside the embedding of token ``p + 1``.

    Counters in the manifest: ``draft_forwards`` (all three ways), ``draft_extends`` (the first two), ``wide_extends`` and
    ``narrow_extends`` (fed wider than the target, or exactly as wide), ``fc_calls`` (how often the fusion ran at all).
    """

    def __init__(self, out: str, target: str, limit: int | None = None, target_name: str | None = None) -> None:
        self.active = not (torch.distributed.is_available() and torch.distributed.is_initialized() and torch.distributed.get_rank() > 0)
        self._out, self._target, self._limit, self._target_name = out, target, limit, target_name
        self._writer: DumpWriter | None = None
        self._running: dict[str, _Request] = {}
        self._named: dict[str, str] = {}  # request id -> record name, in order of arrival, ended ones included
        self._boundaries: tuple[int, ...] = ()
        self._hidden_size = 0  # of the target, which runs before the draft does
        self._fc_ran = False
        self._fed: Tensor | None = None
        self.counters = dict.fromkeys(("draft_forwards", "draft_extends", "wide_extends", "narrow_extends", "fc_calls"), 0)

    @_never_raise
    def on_fc(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        """The fusion ran in this forward."""
        self._fc_ran = True
        self.counters["fc_calls"] += 1

    @_never_raise
    def on_hidden_norm(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep what the first layer is given where fc is skipped: the layer's residual add overwrites that very tensor."""
        if not self._fc_ran and self._fed is None:
            self._fed = inputs[0].detach().clone()

    @_never_raise
    def on_model(self, module: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """A whole forward has ended, of the target or of the draft (which is the one with a fusion layer)."""
        ids, positions, batch = inputs[:3]
        mode = batch.forward_mode.name
        if not hasattr(module, "fc"):
            if mode == "EXTEND":
                self._hidden_size = int(module.embed_tokens.weight.shape[-1])
                self._boundaries = tuple(sorted(int(b) for b in getattr(module, "layers_to_capture", None) or ()))
                self._see_prompts(ids.tolist(), positions.tolist(), batch)
            return
        kept, fc_ran = self._fed, self._fc_ran
        self._fed, self._fc_ran = None, False
        if mode == "IDLE" or not len(ids):
            return
        self.counters["draft_forwards"] += 1
        if mode == "DECODE":
            return
        if mode not in ("EXTEND", "DRAFT_EXTEND_V2"):
            raise CaptureError(f"the draft ran in mode {mode}", where="SGLang's draft runner", hint="this recorder knows SGLang 0.5.23")
        fed = batch.spec_info.hidden_states
        features = fed if fc_ran else kept
        if features is None or features.shape != fed.shape:
            raise CaptureError("the fed rows were not seen before the first layer", where="SGLang's draft", hint="hook all of MODULES")
        self.counters["draft_extends"] += 1
        self.counters["wide_extends" if features.shape[-1] > self._hidden_size else "narrow_extends"] += 1
        self._see_rows(features, ids.tolist(), positions.tolist(), batch)
        if mode == "DRAFT_EXTEND_V2":
            self._end_absent(set(batch.rids))

    def _see_prompts(self, ids: list[int], positions: list[int], batch: Any) -> None:
        for rid, rows in _prompt_rows(batch):
            request = self._request(rid)
            if request:
                request.tokens.update(zip(positions[rows], ids[rows], strict=True))
                request.prompt_length = positions[rows][-1] + 1

    def _see_rows(self, features: Tensor, ids: list[int], positions: list[int], batch: Any) -> None:
        accepted = batch.forward_mode.name == "DRAFT_EXTEND_V2"
        for rid, rows in _accepted_rows(batch, len(ids)) if accepted else _prompt_rows(batch):
            request = self._request(rid)
            if request:
                request.rows.append(features[rows].detach().to("cpu", copy=True))
                request.positions += positions[rows]
                request.tokens.update((p + 1, token) for p, token in zip(positions[rows], ids[rows], strict=True))

    def _request(self, rid: str) -> _Request | None:
        """The running request, or None where it is past the limit or had ended before (a retracted request comes back whole)."""
        if rid not in self._named:
            if self._limit is not None and len(self._named) >= self._limit:
                return None
            self._named[rid] = f"{len(self._named):04d}"
            self._running[rid] = _Request(self._named[rid])
        return self._running.get(rid)

    def _end_absent(self, present: set[str]) -> None:
        """Every running request is in every round after a verify; who is not has ended."""
        ended = [rid for rid in self._running if rid not in present]
        for rid in ended:
            self._write(self._running.pop(rid))
        if ended and self._writer:
            self._writer.counters = dict(self.counters)
            if self._limit is not None and len(self._named) >= self._limit and not self._running:
                self._writer.close()
                self.active = False
            else:
                self._writer.flush()

    def _write(self, request: _Request) -> None:
        missing = [p for p in request.positions if p not in request.tokens]
        if missing or not request.rows:
            raise CaptureError(f"no token is known for positions {missing[:3]}", where=f"record {request.name}", hint="send whole prompts")
        features = torch.cat(request.rows)
        whole = request.positions == list(range(len(request.positions)))  # not so when a cached prefix was never computed
        self._open(features.dtype).add(
            name=request.name,
            input_ids=torch.tensor([request.tokens[p] for p in request.positions]),
            features=features,
            prompt_length=request.prompt_length,
            positions=None if whole else torch.tensor(request.positions),
        )

    def _open(self, dtype: torch.dtype) -> DumpWriter:
        if self._writer is None:
            target = open_target(self._target)
            identity = TargetIdentity(
                self._target_name or target.name, target.config_hash, str(dtype).removeprefix("torch."), target.n_layers, target.hidden_size
            )
            self._writer = DumpWriter(
                self._out, side="live", target=identity, engine="sglang", engine_version=_engine_version(), boundaries=self._boundaries
            )
        return self._writer

    def stop(self, error: Exception) -> None:
        """End the recording, keep what was finished, and say in the manifest and in the server's log what went wrong."""
        self.active = False
        self._running.clear()
        logger.warning("eagle3diag: recording stopped: %s: %s", type(error).__name__, error)
        if self._writer is not None:
            try:
                self._writer.counters = dict(self.counters)
                self._writer.assumed = (*self._writer.assumed, f"recording stopped early: {type(error).__name__}: {error}")
                self._writer.flush()
            except Exception as second:  # the disk may be full: the server goes on all the same
                logger.warning("eagle3diag: the manifest could not be written either: %s", second)


def _prompt_rows(batch: Any) -> Iterator[tuple[str, slice]]:
    """Request id and rows of each prompt, or chunk of one, in a prefill batch; they lie one after another."""
    start = 0
    for rid, length in zip(batch.rids, batch.extend_seq_lens.tolist(), strict=True):
        yield rid, slice(start, start + length)
        start += length


def _accepted_rows(batch: Any, rows: int) -> Iterator[tuple[str, slice]]:
    """Request id and real rows after a verify: each request has one row per slot, and what lies behind the accepted ones is junk."""
    if batch.spec_info.num_front_tokens:
        raise CaptureError("rows before the last accepted token are fed again", where="SGLang's draft extend", hint="not an EAGLE-3 draft")
    slots = rows // len(batch.rids)
    for index, (rid, accepted) in enumerate(zip(batch.rids, batch.spec_info.num_accept_tokens.tolist(), strict=True)):
        yield rid, slice(index * slots, index * slots + accepted)


def _engine_version() -> str | None:
    try:
        return version("sglang")
    except PackageNotFoundError:
        return None


__all__ = ["MODULES", "Recorder", "hooks", "record_draft"]
