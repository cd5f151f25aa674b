"""What can go wrong with the *input*: every exception that eagle3diag raises on purpose.

    Eagle3DiagError
    ├── InputError                the thing given cannot be used
    │   ├── UnreadableFile        missing, truncated, corrupt, or not the format it claims to be
    │   ├── UnsafeFile            would have to run code to be read (a pickle)
    │   ├── MissingPart           a shard, a tensor or a config field that is needed is not there
    │   ├── MismatchedInputs      two inputs do not belong together (draft and target, train and live)
    │   ├── UnusableServer        a running server cannot be reached, refuses, or does not speak what is expected
    │   └── BadArgument           a value passed by the caller is outside the allowed ones
    ├── MissingDependency         an optional package is needed for this call
    ├── CaptureError              a hook could not be placed, or never fired
    └── FindingsFound             raised by ``Result.raise_for_findings()`` only

A bad *model* is never an exception: it is a finding.
"""

from __future__ import annotations


class Eagle3DiagError(Exception):
    """Base of all: ``what`` was found, ``where`` (file, key, layer), and what to do next (``hint``).

    >>> print(UnreadableFile("the header is cut off after 12 bytes", where="draft/model.safetensors", hint="copy the file again"))
    draft/model.safetensors: the header is cut off after 12 bytes
      -> copy the file again
    """

    def __init__(self, what: str, *, where: object = None, hint: str | None = None) -> None:
        self.what, self.where, self.hint = what, None if where is None else str(where), hint
        super().__init__(what)

    def __str__(self) -> str:
        from eagle3diag.report.safe import visible  # names and values in a message come out of files, and end on somebody's screen

        head = f"{self.where}: {self.what}" if self.where else self.what
        return visible(f"{head}\n  -> {self.hint}" if self.hint else head, keep_newlines=True)


class InputError(Eagle3DiagError):
    """The thing given cannot be used."""


class UnreadableFile(InputError):
    """A file is missing, truncated, corrupt, or not the format it claims to be."""


class UnsafeFile(InputError):
    """Reading the file would mean running code that it carries."""


class MissingPart(InputError):
    """A shard, a tensor or a config field that is needed is not there."""


class MismatchedInputs(InputError):
    """Two inputs do not belong together."""


class UnusableServer(InputError):
    """A running server cannot be reached, refuses, or does not speak what is expected. The message never holds a key."""


class BadArgument(InputError):
    """A value passed by the caller is outside the allowed ones."""


class MissingDependency(Eagle3DiagError):
    """An optional package is needed; the hint is the line that installs it."""


class CaptureError(Eagle3DiagError):
    """A hook could not be placed, or never fired."""


class FindingsFound(Eagle3DiagError):
    """``raise_for_findings()`` was called on a result that has findings."""
