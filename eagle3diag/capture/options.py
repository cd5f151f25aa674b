"""What is recorded inside an engine, and how much of it: the options that reach the engine's process as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from eagle3diag.errors import BadArgument


@dataclass(frozen=True)
class Options:
    """One recording.

    Attributes
    ----------
    out: the folder to write; ranks behind the first write to ``out.rank1`` and so on.
    target: the target's folder, for the identity in the dump; without it the config that the engine holds is used.
    target_name: how to call the target there, if not like its folder.
    boundaries: boundaries to store besides what the draft is fed; each is hooked by itself.
    final: store the target's final normed state.
    limit, every: the first so many requests; of all requests, one in so many (by a checksum of the request's id).
    max_bytes: close the dump when so much is recorded; what runs then is cut off there.
    queue_bytes: copies that may wait for the writer; a request that finds it full is left out and counted, the server never waits.
    ids: ``keep`` the token ids, ``hash`` them with ``salt`` (equal ids stay equal), or ``drop`` them (all -1).
    ranks: ``first`` records on rank 0 only, ``all`` on every rank.
    idle_seconds: a request is over when no module has run in the engine's process for so long.
    """

    out: str
    target: str | None = None
    target_name: str | None = None
    boundaries: tuple[int, ...] = ()
    final: bool = True
    limit: int | None = None
    every: int = 1
    max_bytes: int = 4 * 1024**3
    queue_bytes: int = 512 * 1024**2
    ids: str = "keep"
    salt: str = ""
    ranks: str = "first"
    idle_seconds: float = 10.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "boundaries", tuple(self.boundaries))
        wrong = {
            "out": not self.out,
            "boundaries": any(type(b) is not int or b < 0 for b in self.boundaries) or len(set(self.boundaries)) < len(self.boundaries),
            "limit": self.limit is not None and not _positive(self.limit),
            "every": not _positive(self.every),
            "max_bytes": not _positive(self.max_bytes),
            "queue_bytes": not _positive(self.queue_bytes),
            "ids": self.ids not in ("keep", "hash", "drop"),
            "salt": self.ids == "hash" and not self.salt,
            "ranks": self.ranks not in ("first", "all"),
            "idle_seconds": not isinstance(self.idle_seconds, (int, float)) or not self.idle_seconds > 0,
        }
        for name, is_wrong in wrong.items():
            if is_wrong:
                hint = "see eagle3diag.capture.options.Options for what each option means"
                raise BadArgument(f"{name} is {getattr(self, name)!r}", where="capture options", hint=hint)

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Options:
        """The options in ``config``, as :meth:`as_json` writes them.

        Raises
        ------
        BadArgument: no ``out``, an unknown option, or a value that makes no sense.
        """
        known = {f.name for f in fields(cls)}
        unknown = sorted(config.keys() - known)
        if unknown or "out" not in config:
            what = f"there is no option {unknown[0]!r}" if unknown else "no out is given"
            raise BadArgument(what, where="capture options", hint=f"known are {', '.join(sorted(known))}")
        return cls(**config)

    def as_json(self) -> dict[str, Any]:
        """What is not the default, as plain values."""
        default = {f.name: f.default for f in fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items() if value != default[name]}


def _positive(value: object) -> bool:
    return type(value) is int and value > 0
