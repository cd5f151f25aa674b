"""What an SGLang server really feeds its draft, as a dump: a recorder that SGLang's own ``--forward-hooks`` loads into the server.

    eagle3diag capture sglang --out live/ -- python -m sglang.launch_server ...     # prints that command with all it needs

It runs in the scheduler's process, on target and draft; :func:`record_runner` does the same for a ``ModelRunner`` in this process. Replayed
CUDA graphs call no hook and cached prefixes are not computed again, so both are switched off. The forward pays for a copy of the rows; a
thread puts them together and writes. An error ends the recording, is noted in log and manifest, and never reaches the server. The draft's
worker is the one that SGLang has had alone since 0.5.13 (the names used here are the same in 0.5.13, 16, 19, 21, 22 and 23); run with 0.5.23.
"""

from __future__ import annotations

import fnmatch
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from eagle3diag.capture.identity import config_hash
from eagle3diag.capture.options import Options
from eagle3diag.capture.recorder import EngineRecorder, never_raise
from eagle3diag.capture.recording import Recording
from eagle3diag.capture.sglang_rows import Rows, Seen
from eagle3diag.capture.spool import Copies
from eagle3diag.checkpoints import open_target
from eagle3diag.checkpoints.tensors import dtype_name
from eagle3diag.dumps import TargetIdentity
from eagle3diag.errors import BadArgument, CaptureError

Hook = Callable[[nn.Module, tuple[Any, ...], Any], None]

#: Where the decoder is: in most targets and all drafts, and inside a multimodal wrapper.
DECODERS = ("model", "language_model.model")
#: What each part of the recorder is hooked to. ``model`` exists in target and draft, fc and hidden_norm in the draft alone.
MODULES = {"model": DECODERS, "fc": ("model.fc",), "hidden_norm": ("model.*.hidden_norm",)}
# Kimi's MLA draft calls its one layer "midlayer"; both names fit the pattern above, since "*" also matches dots.

#: How to switch off what hooks cannot see.
NO_GRAPHS = "--disable-cuda-graph (or --cuda-graph-backend-decode disabled --cuda-graph-backend-prefill disabled)"

_recorders: dict[str, Recorder] = {}  # one per dump: SGLang calls the factory for each part, once for the target and once for the draft


def hooks(out: str, **options: Any) -> list[dict[str, Any]]:
    """The value of ``--forward-hooks`` (``forward_hooks=`` of ``sglang.Engine``) that records into the new folder ``out``.

    ``options`` are those of :class:`~eagle3diag.capture.options.Options`; ``boundaries="all"`` needs ``target``. A request counts as ended
    when a round runs without it, or when nothing has run for ``idle_seconds``.

    Raises
    ------
    BadArgument: an option that is not known or makes no sense. UnreadableFile: ``target`` is none.
    """
    if options.get("boundaries") == "all":
        if not options.get("target"):
            raise BadArgument("all boundaries are asked for, but no target is named", where="boundaries", hint="give target=FOLDER")
        options["boundaries"] = range(open_target(options["target"]).n_layers + 1)
    chosen = Options.read({"out": out, **options})
    config = chosen.as_json()
    wanted: list[tuple[str, dict[str, int], tuple[str, ...]]] = [(part, {}, patterns) for part, patterns in MODULES.items()]
    last = open_target(chosen.target).n_layers if chosen.target and chosen.boundaries else None
    for b in chosen.boundaries:
        # Boundary b enters block b; that block's norm gives back what entered it in every version, unlike the block itself (since 0.5.22
        # its output is the MLP's delta). The last boundary enters the final norm instead.
        inner = "norm" if b == last else f"layers.{b}.input_layernorm"
        wanted.append(("boundary", {"boundary": b}, tuple(f"{decoder}.{inner}" for decoder in DECODERS)))
    return [
        {
            "name": "-".join(["eagle3diag", part, *(str(v) for v in more.values())]),
            "target_modules": list(patterns),
            "hook_factory": "eagle3diag.capture.sglang:record_draft",
            "config": {**config, "part": part, **more},
        }
        for part, more, patterns in wanted
    ]


def record_draft(config: Mapping[str, Any]) -> Hook:
    """Hook factory for SGLang: ``config`` as :func:`hooks` writes it.

    Raises
    ------
    BadArgument: ``part`` is not known, or an option makes no sense (SGLang then refuses to start).
    """
    given = dict(config)
    part, boundary = given.pop("part", None), given.pop("boundary", None)
    if part not in (*MODULES, "boundary"):
        known = ", ".join((*MODULES, "boundary"))
        raise BadArgument(f"part is {part!r}", where="hook config", hint=f"one of {known}; let hooks() write the list")
    options = Options.read(given)
    if options.out not in _recorders:
        _recorders[options.out] = Recorder(options)
    recorder = _recorders[options.out]
    if part == "boundary":
        return partial(recorder.on_boundary, int(boundary))
    hook: Hook = getattr(recorder, f"on_{part}")
    return hook


@contextmanager
def record_runner(runner: Any, out: str, *, draft: Any = None, **options: Any) -> Iterator[Recorder]:
    """Record a ``ModelRunner`` held in this process (as ``sglang/benchmark/one_batch.py`` runs it) while the ``with`` block lasts.

    ``runner`` and ``draft`` may be runners or their models. Everything is written when the block ends.
    """
    handles = []
    specs = hooks(out, **options)
    for held in (runner, draft):
        model = held if held is None or isinstance(held, nn.Module) else held.model
        for name, module in [] if model is None else model.named_modules():
            for spec in specs:
                if any(fnmatch.fnmatch(name, pattern) for pattern in spec["target_modules"]):
                    handles.append(module.register_forward_hook(record_draft(spec["config"])))
    recorder = _recorders[out]
    recorder.rounds_due = False
    try:
        yield recorder
    finally:
        for handle in handles:
            handle.remove()
        recorder.close()
        del _recorders[out]


class Recorder(EngineRecorder):
    """Sees, per forward of target and draft, what :class:`~eagle3diag.capture.sglang_rows.Rows` puts together.

    The draft runs in three ways: over a prompt (``EXTEND``), over the accepted tokens after a verify (``DRAFT_EXTEND_V2``, padded to the
    number of slots), both fed with features of the target; and to draft (``DECODE``), fed with its own output, which is not recorded.

    Counters in the manifest: ``target_prefills`` and ``target_rounds`` (forwards of the target over prompts, and to verify or decode); and
    once a draft was seen ``draft_forwards`` (all three ways), ``draft_extends`` (the first two), ``wide_extends`` and ``narrow_extends``
    (fed wider than the target, or exactly as wide), ``fed_width``, ``fc_calls`` (how often the fusion ran) and ``fc_input_width``.
    """

    engine = "sglang"

    def __init__(self, options: Options) -> None:
        self._rows: Rows | None = None
        self._states: dict[int, Tensor] = {}  # of the boundaries that are asked for, in the forward that is running
        self._hidden_size = 0  # of the target, which runs before the draft does
        self._fc_ran = False
        self._fed: Tensor | None = None
        self.rounds_due = True  # a server that has answered has had rounds; who drives a runner by hand may leave it at prefills
        super().__init__(options)
        self.counters = {"target_prefills": 0, "target_rounds": 0}

    # -- hooks ---------------------------------------------------------------------------------------------------------------------

    @never_raise
    def on_fc(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        """The fusion ran in this forward."""
        self._fc_ran = True
        self.count_fc(inputs)

    @never_raise
    def on_hidden_norm(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep what the first layer is given where fc is skipped: the layer's residual add overwrites that very tensor."""
        if not self._fc_ran and self._fed is None:
            self._fed = inputs[0].detach().clone()

    @never_raise
    def on_boundary(self, boundary: int, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        """A norm gave back the residual stream that entered it; the first one has none, and is given the embeddings."""
        stream = output[1] if isinstance(output, tuple) else inputs[0] if boundary == 0 else None
        if isinstance(stream, Tensor):
            self._states[boundary] = stream.detach().clone()

    @never_raise
    def on_model(self, module: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """A whole forward has ended, of the target or of the draft (the one that is fed hidden states)."""
        states, self._states = self._states, {}
        fed, self._fed = self._fed, None
        fc_ran, self._fc_ran = self._fc_ran, False
        batch = next(value for value in inputs if hasattr(value, "forward_mode"))
        ids, positions = batch.input_ids, batch.positions
        if batch.forward_mode.name == "IDLE" or not len(ids):
            return
        names = self.choice.names(batch.rids)
        if hasattr(module, "fc"):
            self._see_draft(batch, names, {"ids": ids, "positions": positions}, fed, fc_ran)
        else:
            self._see_target(module, batch, names, {"ids": ids, "positions": positions}, states, output)

    def _see_target(
        self, module: Any, batch: Any, names: Mapping[str, str], where: dict[str, Tensor], states: dict[int, Tensor], output: Any
    ) -> None:
        mode = batch.forward_mode.name
        if mode not in ("EXTEND", "TARGET_VERIFY", "DECODE"):
            raise CaptureError(f"the target ran in mode {mode}", where="SGLang's target runner", hint="this recorder knows SGLang 0.5.23")
        self.count("target_prefills" if mode == "EXTEND" else "target_rounds")
        if not self._hidden_size:
            self._hidden_size = int(module.embed_tokens.weight.shape[-1])
            self.hand_over(partial(self._identified, module), Copies({}), {})
        final, aux = output if isinstance(output, tuple) else (output, ())
        tensors: dict[str, Tensor] = {} if mode == "TARGET_VERIFY" else where
        if self.options.final:
            tensors = tensors | {"final": final}
        if mode == "TARGET_VERIFY" and (states or self.options.final):
            tensors = tensors | {"key": aux[-1] if len(aux) else final}  # rows are told from one another by what the draft is fed
        self._hand(mode, batch, names, tensors, {f"boundary.{b}": t for b, t in states.items()})

    def _see_draft(self, batch: Any, names: Mapping[str, str], where: dict[str, Tensor], fed: Tensor | None, fc_ran: bool) -> None:
        mode = batch.forward_mode.name
        for name in ("draft_forwards", "draft_extends", "wide_extends", "narrow_extends", "fc_calls"):
            self.counters.setdefault(name, 0)
        self.count("draft_forwards")
        if mode == "DECODE":
            return
        if mode not in ("EXTEND", "DRAFT_EXTEND_V2"):
            raise CaptureError(
                f"the draft ran in mode {mode}", where="SGLang's draft runner", hint="this recorder knows SGLang 0.5.13 to 0.5.23"
            )
        wide = batch.spec_info.hidden_states
        if not fc_ran and (fed is None or fed.shape != wide.shape):
            raise CaptureError("the fed rows were not seen before the first layer", where="SGLang's draft", hint="hook all of MODULES")
        self.count_fed(int(wide.shape[-1]), self._hidden_size)
        tensors = where | ({"features": wide} if fc_ran else {})
        if mode == "DRAFT_EXTEND_V2":
            if getattr(batch.spec_info, "num_front_tokens", 0):
                what = "rows before the last accepted token are fed again"
                raise CaptureError(what, where="SGLang's draft extend", hint="not an EAGLE-3 draft")
            tensors |= {"accepted": batch.spec_info.num_accept_tokens}
        self._hand("DRAFT_PREFILL" if mode == "EXTEND" else mode, batch, names, tensors, {"features": fed} if not fc_ran else {})

    def _hand(self, mode: str, batch: Any, names: Mapping[str, str], tensors: dict[str, Tensor], owned: Mapping[str, Any]) -> None:
        """Copy what was seen for the thread; of a forward without a recorded request, only that it was."""
        if mode in ("EXTEND", "DRAFT_PREFILL") and names:
            tensors = tensors | {"lengths": _lengths(batch)}
        copies = Copies(tensors, owned) if names else Copies({})
        seen = Seen(mode, tuple(batch.rids), names)
        self.hand_over(partial(self._put_together, seen), copies, names)

    # -- the thread's side ---------------------------------------------------------------------------------------------------------

    def _put_together(self, seen: Seen, tensors: Mapping[str, Tensor]) -> None:
        if self._rows is None:
            self._rows = Rows(self.recording)
        self._rows.add(seen, tensors)

    def _identified(self, module: Any, _: Mapping[str, Tensor]) -> None:
        config = getattr(module, "config", None)
        path = str(getattr(config, "_name_or_path", "") or type(module).__name__)
        dtype = dtype_name(module.embed_tokens.weight.dtype)
        identity = TargetIdentity(Path(path).name, config_hash(path, config), dtype, len(module.layers), self._hidden_size)
        self.identify(identity, tuple(sorted(int(b) for b in getattr(module, "layers_to_capture", None) or ())))

    def opened(self, recording: Recording) -> None:
        if _graphs_are_on():
            recording.note(f"CUDA graphs are on, and replayed ones call no hook; start the server with {NO_GRAPHS}")

    def idle(self, recording: Recording) -> None:
        if self._rows is not None:
            self._rows.release()
        prefills, rounds = self.counters["target_prefills"], self.counters["target_rounds"]
        if prefills and not rounds and self.rounds_due:
            recording.counters["rounds_missed"] = prefills
            recording.note(
                f"hooks saw {prefills} prefills and no round after them: unless one token each was asked for, CUDA graphs were replayed, "
                f"which call no hook; start the server with {NO_GRAPHS}"
            )


def _lengths(batch: Any) -> Tensor:
    """Rows of each request in a prefill batch [B]; from the CPU's own list where there is one, so that nothing waits for the device."""
    listed = getattr(batch, "extend_seq_lens_cpu", None)
    return torch.tensor(listed) if listed is not None else batch.extend_seq_lens


def _graphs_are_on() -> bool:
    """As the server's own settings say; False where they cannot be read."""
    config, args = (sys.modules.get(f"sglang.srt.{name}") for name in ("model_executor.cuda_graph_config", "server_args"))
    if not torch.cuda.is_available() or args is None:
        return False
    try:
        if config is not None and hasattr(config, "cuda_graph_fully_disabled"):
            return not config.cuda_graph_fully_disabled()
        return not args.get_global_server_args().disable_cuda_graph
    except Exception:  # internals that move from version to version; rounds that are missing will say it later
        return False
