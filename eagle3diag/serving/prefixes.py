"""Whose line it is: the name that docker compose, Kubernetes, stern or journald put before each line of a server."""

from __future__ import annotations

import re
from collections.abc import Iterator

KEPT_NAMES = 64
FIRST = 1 << 16
"""Bytes of a piece in which names are looked for, where no earlier piece had any; the first piece is looked through whole."""

_TIME = rb"(?:\d{4}-\d\d-\d\dT[\d:.,]+(?:Z|[+-]\d\d:?\d\d)? )?(?:std(?:out|err) [FP] )?"
_NAME = (
    rb"(?:([\w.@-]+) +\| "  # docker compose, docker service
    rb"|\[([a-z][\w.-]*(?:[/ ][\w.-]+)*)\] "  # kubectl --prefix, kubetail
    rb"|(?:[A-Z][a-z]{2} [ \d]\d [\d:]{8} )?([\w.-]+ [\w.@:-]+)\[\d+\]: "  # journald; a restart has another process id
    rb"|([a-z0-9.]+-[a-z0-9.-]+(?: [a-z0-9.-]+)?) (?=[\d\[(A-Z]))"  # stern: pod and container
)
# How SGLang and vLLM begin a line. Only before this a name is believed, for a table or a message may look like one.
_OWN = rb"(?=\[\d{4}-\d\d-|\(\w+ pid=|(?:INFO|WARNING|ERROR) \d\d-\d\d )"
_SERVER = re.compile(b"^" + _TIME + _NAME + b"?" + _TIME + _OWN, re.MULTILINE)
_NAMED = re.compile(b"^" + _TIME + _NAME + _TIME + _OWN, re.MULTILINE)
_ANY = re.compile(_TIME + _NAME)


class Names:
    """The names seen so far in a log, of which the first 64 are told apart."""

    def __init__(self) -> None:
        self._known: set[bytes] = set()
        self._last = b""
        self._first = True

    def apart(self, piece: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The lines of each name, in their order; one group without a name where the log has none. A line without a name goes with the
        line before, unless a server begins one so."""
        if not self._known and not _NAMED.search(piece if self._first else piece[:FIRST]):
            self._first = False
            yield self._last, piece
            return
        self._first = False
        groups: dict[bytes, list[bytes]] = {}
        for line in piece.splitlines(keepends=True):
            self._last = self._name(line)
            groups.setdefault(self._last, []).append(line)
        for name, lines in groups.items():
            yield name, b"".join(lines)

    def _name(self, line: bytes) -> bytes:
        if match := _SERVER.match(line):
            name = match[match.lastindex] if match.lastindex else b""
            if name and len(self._known) < KEPT_NAMES:
                self._known.add(name)
            return name if name in self._known else b""
        match = _ANY.match(line)
        return match[match.lastindex] if match and match.lastindex and match[match.lastindex] in self._known else self._last
