"""Loads small checkpoints of constant tensors through an engine's own ``load_weights`` and tells where every constant went.

Every tensor of a checkpoint holds one number of its own, so that a parameter says which tensors it was filled from. Memory that nothing
initialises is told from memory that is: ``torch.empty`` gives :data:`UNTOUCHED` while a model is built.
"""

from __future__ import annotations

import contextlib
import json
import logging
import resource
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

UNTOUCHED = 12345.0
MEMORY = 5 << 30
_EMPTY_INTEGER = -777


class Lines(logging.Handler):
    """The warnings that are logged while it is attached."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    @contextlib.contextmanager
    def attached(self) -> Iterator[list[str]]:
        """Attach to every logger there is: engines keep theirs from passing records on."""
        self.lines = []
        loggers = [logging.getLogger(), *(logging.getLogger(n) for n in list(logging.root.manager.loggerDict))]
        for logger in loggers:
            logger.addHandler(self)
        try:
            yield self.lines
        finally:
            for logger in loggers:
                logger.removeHandler(self)


@contextlib.contextmanager
def marked_memory() -> Iterator[None]:
    """Within, ``torch.empty`` returns floats of :data:`UNTOUCHED`, so that what stays so was never initialised."""
    plain = torch.empty

    def empty(*size: Any, **options: Any) -> torch.Tensor:
        made = plain(*size, **options)
        return made.fill_(UNTOUCHED) if made.is_floating_point() else made

    torch.empty = empty  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.empty = plain  # type: ignore[assignment]


def start_of(parameter: torch.Tensor) -> str:
    """What a parameter holds after construction: ``memory``, ``ones``, ``zeros`` or ``random``."""
    for value, name in ((UNTOUCHED, "memory"), (1.0, "ones"), (0.0, "zeros")):
        if bool((parameter == value).all()):
            return name
    return "random"


def blank(model: torch.nn.Module) -> None:
    """Fill every parameter with NaN, or with a number that no tensor holds where it is of integers."""
    for parameter in model.parameters():
        parameter.data.fill_(float("nan") if parameter.is_floating_point() else _EMPTY_INTEGER)


def contents(model: torch.nn.Module) -> dict[str, list[list[float]]]:
    """Every parameter that is not blank any more: ``[value, rows that hold it]``, in the order of the rows. Integers count as one run."""
    found: dict[str, list[list[float]]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.is_floating_point():
            if not bool((parameter == _EMPTY_INTEGER).all()):
                found[name] = [[float(parameter.flatten()[0]), float(len(parameter))]]
            continue
        runs: list[list[float]] = []
        for row in parameter.detach().reshape(len(parameter), -1)[:, 0].tolist():
            if row == row and row != 0.0:  # neither blank nor padding of a vocabulary
                if runs and runs[-1][0] == row:
                    runs[-1][1] += 1
                else:
                    runs.append([row, 1.0])
        if runs:
            found[name] = runs
    return found


def attempt(load: Callable[[], object]) -> dict[str, str] | None:
    """Run ``load``: None, or the exception as ``{"type", "message", "where"}``."""
    try:
        load()
    except Exception as error:  # whatever the engine raises is what is to be told
        last = traceback.extract_tb(error.__traceback__)[-1]
        return {"type": type(error).__name__, "message": str(error)[:400], "where": f"{Path(last.filename).name}:{last.lineno} {last.line}"}
    return None


def observe(folder: Path, build: Callable[[Path], torch.nn.Module], extras: Callable[[torch.nn.Module], dict[str, Any]]) -> dict[str, Any]:
    """What happens to the checkpoint in ``folder``: loaded whole, and each tensor alone.

    ``{"built": exception or None, "starts": parameter to content, "whole": {"raised", "contents", "warnings"}, "alone": tensor to the
    same, "extras"}``.
    """
    made: list[torch.nn.Module] = []

    def construct() -> None:
        with marked_memory():
            made.append(build(folder))

    log = Lines()
    with log.attached() as lines:
        built = attempt(construct)
    if built is not None:
        return {"built": built, "warnings": list(lines)}
    model = made[0]
    starts = {name: start_of(parameter.detach()) for name, parameter in model.named_parameters()}
    tensors = load_file(folder / "model.safetensors")

    def loaded(chosen: dict[str, torch.Tensor]) -> dict[str, Any]:
        blank(model)
        with log.attached() as lines:
            raised = attempt(lambda: model.load_weights(iter([(n, t.clone()) for n, t in chosen.items()])))  # type: ignore[operator]
        return {"raised": raised, "contents": contents(model), "warnings": list(lines)}

    alone = {name: loaded({name: tensor}) for name, tensor in tensors.items()}
    whole = loaded(tensors)
    return {"built": None, "starts": starts, "whole": whole, "alone": alone, "extras": extras(model)}


def observe_all(
    root: Path, build: Callable[[Path], torch.nn.Module], extras: Callable[[torch.nn.Module], dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """:func:`observe` for every folder of ``root`` that holds a config, but for the target.

    Older Transformers guess a config without ``model_type`` from the folder's name, and may come to a model of billions of parameters:
    what takes more than :data:`MEMORY` is an exception, and not the machine's trouble.
    """
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    folders = [folder for folder in sorted(root.iterdir()) if (folder / "config.json").is_file() and folder.name != "target"]
    return {folder.name: observe(folder, build, extras) for folder in folders}


def write(out: Path, result: dict[str, Any]) -> None:
    """``{"version", "cases", ...}`` as JSON."""
    out.write_text(json.dumps(result, indent=1))
