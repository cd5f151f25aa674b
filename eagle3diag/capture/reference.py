"""Every boundary of a target on given tokens, from a Transformers run in this process: what live blocks are identified with."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from eagle3diag.checkpoints import Target
from eagle3diag.dumps import HiddenStates

#: A target whose files are larger is not loaded unasked: on a laptop that is the whole memory.
LARGEST_TARGET = 4 * 1024**3
#: Bytes of weights times tokens that a target is run for unasked: each weight is multiplied and added once a token, so this is a
#: teraflop or two, half a minute on a laptop.
MOST_WORK = 2e12


def affordable(target: Target, dump: HiddenStates) -> bool:
    """Whether :func:`capture_reference` takes so little that nobody need be asked."""
    return _size(Path(target.path)) * sum(r.tokens for r in dump) <= MOST_WORK


def capture_reference(target: Target, dump: HiddenStates) -> HiddenStates | None:
    """Run ``target`` over the tokens of ``dump``, in memory, under the records' names.

    None when that cannot or should not be done here: Transformers is not installed, the target is no folder, or it is larger than
    ``LARGEST_TARGET`` bytes.
    """
    folder = Path(target.path)
    if find_spec("transformers") is None or not folder.is_dir() or _size(folder) > LARGEST_TARGET:
        return None
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    from eagle3diag.capture import capture

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # nobody asked for this model to be loaded, and stderr may be a log
    try:
        model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(str(folder), dtype="auto")
    finally:
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
    model.train(False)
    boundaries = range(target.n_layers + 1)
    with torch.inference_mode(), capture(model, boundaries=boundaries, side="reference") as tape:
        for record in dump:
            model(input_ids=record.input_ids[None], use_cache=False)
    taped = tape.dump
    named = [
        {
            "name": r.name,
            "input_ids": t.input_ids,
            "states": {b: t.state(b) for b in boundaries},
            "final": t.final,
            "prompt_length": r.prompt_length,
        }
        for r, t in zip(dump, taped, strict=True)
    ]
    return HiddenStates.from_tensors(
        named, side="reference", target=dump.target, engine=taped.engine, engine_version=taped.engine_version, boundaries=dump.boundaries
    )


def _size(folder: Path) -> int:
    return sum(f.stat().st_size for f in folder.glob("*.safetensors"))
