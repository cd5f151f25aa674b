"""What a script assigns to its variables, and how long that certainly holds: no longer than its scope, and on no condition."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
REDIRECTS = ("<<<", "<&", ">&", "&>", "<", ">")

_DECLARES = frozenset({"export", "declare", "local", "readonly", "typeset", "-x", "-a", "-r", "-gx", "ENV", "then", "else", "do", "{"})
_OPENS, _CLOSES = frozenset({"if", "case", "for", "while", "until"}), frozenset({"fi", "esac", "done"})
_CHANGES = frozenset({"unset", "read", "mapfile", "readarray", "printf", "getopts", "let"})  # the variables that are named behind it
_SOURCES = frozenset({"source", "."})  # any variable; but what activates an environment of Python sets none of a launch
_ACTIVATES = re.compile(r"(?:.*/)?activate")
_WORK = 1 << 17  # characters put in or read once more, all together, so that nothing can be doubled without end


@dataclass
class Budget:
    """How many characters may still be put in, or be read once more, beyond those of the text itself."""

    left: int = _WORK

    def spend(self, amount: int) -> bool:
        """Whether that much is left; what is refused leaves nothing behind it."""
        self.left -= amount if self.left >= 0 else 0
        return self.left >= 0


class Known(dict[str, Sequence[str]]):
    """Variables and the words of their values, which are put in while the budget lasts."""

    def __init__(self, values: Mapping[str, Sequence[str]], budget: Budget) -> None:
        super().__init__(values)
        self.budget = budget
        self.lost: set[str] = set()  # may hold anything, so that a default says nothing either

    def __setitem__(self, name: str, value: Sequence[str]) -> None:
        self.lost.discard(name)
        super().__setitem__(name, value)

    def lose(self, names: Iterable[str]) -> None:
        """From here on nobody knows what these hold."""
        for name in list(names):
            self.pop(name, None)
            self.lost.add(name)

    def value(self, name: str) -> Sequence[str] | None:
        """The words of a variable; None where they are not known, or the budget is spent."""
        found = self.get(name)
        return found if found is None or self.budget.spend(sum(map(len, found)) + len(found)) else None


@dataclass
class _Scope:
    """Of commands: the script, or what stands in parentheses or braces; what it assigned, and what of that holds there only for a while."""

    closing: str = ""
    assigned: set[str] = field(default_factory=set)
    joined: set[str] = field(default_factory=set)  # in this chain of && and ||
    hanging: set[str] = field(default_factory=set)  # of these, behind an operator
    behind: str = ""  # the operator before the command


class Commands:
    """Follows a script from word to word and from operator to operator, and keeps :class:`Known` in step with it."""

    def __init__(self, known: Known) -> None:
        self.known = known
        self._first = ""  # word of the command, behind what it assigns
        self._bare = False  # whether nothing came since the last operator
        self._operator = ""
        self._conditions = 0  # how many ifs and loops are open
        self._scopes = [_Scope()]
        self._own: dict[str, Sequence[str] | None] = {}  # what the command itself assigned, and what that was before

    def word(self, word: str) -> None:
        """The next word."""
        self._bare = False
        if not self._first:
            self._conditions = max(0, self._conditions + (word in _OPENS) - (word in _CLOSES))
            if match := ASSIGNED.fullmatch(word):
                self.assign(match[1], [match[3]], added=bool(match[2]), joined=True)
            elif word == "}":
                self._close(word)
            elif word not in _DECLARES:
                self._begin(word)
        elif self._first in _CHANGES and word in self.known:
            self.known.lose([word])
        elif self._first in _SOURCES and not _ACTIVATES.fullmatch(word):
            self.known.lose(self.known)
        if word == "{" and self._first in ("", "function"):
            self._first = ""
            self._scopes.append(_Scope("}"))

    def operator(self, sign: str) -> None:
        """The next operator, or the end of a line; one behind ``&&`` only goes on with the chain."""
        continued = sign == "\n" and self._bare and self._operator in ("&&", "||", "|")
        scope = self._scopes[-1]
        if sign == "(":
            self._scopes.append(_Scope(")"))
        elif sign == ")":
            self._close(sign)
        elif sign == "&&":
            scope.behind = sign
        elif sign in ("||", "|", "&", ";", "\n") and not continued:
            self.known.lose(scope.joined if sign in ("|", "&") else scope.hanging)
            scope.behind = sign if sign[0] == "|" else ""
            scope.hanging = set()
            scope.joined = scope.joined if scope.behind else set()
        if sign in REDIRECTS:
            self.known.lose(self._own)
        else:
            self._first = ""
        self._own = {}
        self._bare = True
        self._operator = self._operator if continued else sign

    def assign(self, name: str, words: list[str], *, added: bool, joined: bool) -> None:
        """Kept where it certainly holds: what hangs on a condition, or is added to what is not known, makes the variable unknown."""
        self._bare = False
        scope = self._scopes[-1]
        before = self.known.value(name) if added else ()
        self._own.setdefault(name, self.known.get(name))
        scope.assigned.add(name)
        scope.joined.add(name)
        if scope.behind:
            scope.hanging.add(name)
        if self._conditions or scope.behind[:1] == "|" or before is None:
            self.known.lose([name])
        else:
            self.known[name] = ["".join([*before, *words])] if joined else [*before, *words]

    def _begin(self, word: str) -> None:
        """What stands before a command holds for that command only."""
        self._first = word
        for name, before in self._own.items():
            self.known.pop(name, None)
            if before is not None:
                self.known[name] = before
        self._own = {}

    def _close(self, closing: str) -> None:
        """What was assigned in parentheses or braces is not known behind them."""
        if self._scopes[-1].closing == closing:
            self.known.lose(self._scopes.pop().assigned)
