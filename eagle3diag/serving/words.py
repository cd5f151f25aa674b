"""The words of a pasted command, as a shell would split them; nothing is run, and only what the text itself assigns is expanded."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from eagle3diag.errors import BadArgument

# What word processors and chats make of quotes and of two dashes.
_TYPOGRAPHY = str.maketrans({"“": '"', "”": '"', "„": '"', "‘": "'", "’": "'", "\u00a0": " ", "\u200b": " "})
_DASHES = re.compile(r"(?<!\S)[–—]{1,2}(?=[A-Za-z])")
_CONTINUED = re.compile(r"(?:\\|`|\^)[ \t]*\r?\n")  # sh, PowerShell, cmd
_LIST_ITEM = re.compile(r"-\s+(\S.*)")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_PARAMETER = re.compile(r"([A-Za-z_]\w*|[@*\d])(\[[@*]\])?(?::?([-=+?])(.*))?", re.DOTALL)
_LIST = re.compile(r"\[(?=[\"']|[ \t\r]*\n\s*[\"']|sys\.executable)")
_COMMAND = re.compile(r"[^`\n]+`")
_SHELL = re.compile(r"(?:.*/)?(?:ba|z|da|k)?sh")
_SERVES = re.compile(r"sglang\.launch_server|\b(?:vllm|sglang)\s+serve\b|\btrtllm-serve\b|vllm\.entrypoints\.")
_DECLARES = frozenset({"export", "declare", "local", "readonly", "typeset", "-x", "-a", "-r", "-gx", "ENV", "then", "else", "do", "{"})
_OPENS, _CLOSES = frozenset({"if", "case", "for", "while", "until"}), frozenset({"fi", "esac", "done"})
_SAYS = frozenset({"echo", "printf"})
_CHANGES = frozenset({"unset", "read", "mapfile", "readarray", "printf", "getopts", "let"})  # the variables that are named behind it
_SOURCES = frozenset({"source", "."})  # any variable; but what activates an environment of Python sets none of a launch
_ACTIVATES = re.compile(r"(?:.*/)?activate")
_REDIRECTS = ("<<<", "<&", ">&", "&>", "<", ">")
_OPERATORS = ("&&", "||", *_REDIRECTS)
_HERE = re.compile(r"<(-?)[ \t]*(?:\\?([A-Za-z_]\w*)|'(\w+)'|\"(\w+)\")")  # behind the first "<"
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}  # in $'...'
_DEPTH = 4  # of a command in the quotes of another, and of a list or a default in another
_WORK = 1 << 17  # characters put in or read once more, all together, so that nothing can be doubled without end
BREAK = "\n"
"""Stands for the end of a line that is not continued, or for an operator such as ``&&``; no word can be this."""


@dataclass
class Budget:
    """How many characters may still be put in, or be read once more, beyond those of the text itself."""

    left: int = _WORK

    def spend(self, amount: int) -> bool:
        """Whether that much is left; what is refused leaves nothing behind it."""
        self.left -= amount if self.left >= 0 else 0
        return self.left >= 0


def split(text: str, variables: Mapping[str, Sequence[str]] | None = None, budget: Budget | None = None) -> list[str]:
    """Words of a command line, of a script, of a JSON list (``docker inspect``) or of a YAML list, with a :data:`BREAK` between lines.

    Variables that the text itself (or ``variables``) assigns are put in; all others stay as they are written, and so does what hangs on a
    condition, and what is beyond the ``budget``. The command in the quotes of another (``bash -c '...'``) is taken apart too.

    >>> split("A='1 2' vllm serve m --port 80 && echo") == ["A=1 2", "vllm", "serve", "m", "--port", "80", BREAK, BREAK, "echo"]
    True
    >>> split("M=m; vllm serve $M $OPTS")
    ['M=m', '\\n', 'vllm', 'serve', 'm', '$OPTS']

    Raises
    ------
    BadArgument: a quote is not closed.
    """
    return _split(text, _Known(variables or {}, budget or Budget()), 0)


class _Known(dict[str, Sequence[str]]):
    """Variables and the words of their values, which are put in while the budget lasts."""

    def __init__(self, values: Mapping[str, Sequence[str]], budget: Budget) -> None:
        super().__init__(values)
        self.budget = budget
        self.lost: set[str] = set()  # may hold anything, so that a default says nothing either

    def __setitem__(self, name: str, value: Sequence[str]) -> None:
        self.lost.discard(name)
        super().__setitem__(name, value)

    def lose(self, names: Iterable[str]) -> None:
        for name in list(names):
            self.pop(name, None)
            self.lost.add(name)

    def value(self, name: str) -> Sequence[str] | None:
        found = self.get(name)
        return found if found is None or self.budget.spend(sum(map(len, found)) + len(found)) else None


def _split(text: str, known: _Known, depth: int) -> list[str]:
    words = _listed(text)
    if words is None:
        words = _Lexer(_CONTINUED.sub(" ", _DASHES.sub("--", text.translate(_TYPOGRAPHY))), known).run()
    return unwrapped(words, known, known.budget, depth)


def unwrapped(words: Sequence[str], known: Mapping[str, Sequence[str]], budget: Budget, depth: int = 0) -> list[str]:
    """The words, and in place of a word that is a command of its own (``bash -c``, ``ssh host``) those of that command."""
    out: list[str] = []
    first = ""  # word of the command
    for index, word in enumerate(words):
        first = word if not index or words[index - 1] == BREAK else first
        scripted = (
            index > 1 and re.fullmatch(r"-[a-z]*c", words[index - 1]) and any(map(_SHELL.fullmatch, words[max(0, index - 4) : index]))
        )
        served = _SERVES.search(word) and first not in _SAYS and not _ASSIGNED.fullmatch(word)  # neither printed nor assigned
        nested = depth < _DEPTH and word != BREAK and re.search(r"\s", word) and (scripted or served)
        if nested and budget.spend(len(word) + len(known)):
            out += [BREAK, *_split(word, _Known(known, budget), depth + 1), BREAK]
        else:
            out.append(word)
    return out


def _listed(text: str) -> list[str] | None:
    stripped = text.strip()
    if stripped.startswith("["):
        try:
            items = json.loads(stripped)
        except (ValueError, RecursionError):
            return None
        return items if isinstance(items, list) and all(isinstance(i, str) and i != BREAK for i in items) else None
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    found = [_LIST_ITEM.fullmatch(line) for line in lines]
    items = [match[1].strip("\"'") for match in found if match]
    return items if len(items) > 2 and len(items) == len(lines) else None


@dataclass
class _Scope:
    """Of commands: the script, or what stands in parentheses or braces; what it assigned, and what of that holds there only for a while."""

    closing: str = ""
    assigned: set[str] = field(default_factory=set)
    joined: set[str] = field(default_factory=set)  # in this chain of && and ||
    hanging: set[str] = field(default_factory=set)  # of these, behind an operator
    behind: str = ""  # the operator before the command


class _Lexer:
    def __init__(self, text: str, known: _Known, at: int = 0, closing: str = "", depth: int = 0) -> None:
        self.text, self.known, self.at, self.closing, self.depth = text, known, at, closing, depth
        self.words: list[str] = []
        self.word: list[str] | None = None  # its pieces; None: between words; a quoted empty word is [""]
        self.equals = self.assigning = False  # whether a "=" was in the word, and whether the word began as NAME=
        self.first = ""  # word of the command, behind what it assigns
        self.conditions = 0  # how many ifs and loops are open
        self.operator = ""  # the last one
        self.scopes = [_Scope()]
        self.own: dict[str, Sequence[str] | None] = {}  # what the command itself assigned, and what that was before
        self.here: list[str] = []  # what ends the documents that begin behind this line
        self.documents: list[str] = []
        self.lists = 0  # how many lists of quoted words, as in CMD ["a", "b"]

    def run(self) -> list[str]:
        while self.at < len(self.text):
            char = self.text[self.at]
            self.at += 1
            if char == self.closing:
                break
            if char in "'\"":
                self._quoted(char)
            elif char == "\\" and self.at < len(self.text):
                self._add(self.text[self.at])
                self.at += 1
            elif char == "$" and self.text[self.at : self.at + 1] in ("'", '"'):
                self.at += 1
                self._quoted(self.text[self.at - 1], escapes=True)
            elif char == "$":
                self._variable(quoted=False)
            elif char == "<" and (match := _HERE.match(self.text, self.at)):
                self.at = match.end()
                self.here.append(("\\t*" if match[1] else "") + (match[2] or match[3] or match[4]))
            elif char == "`" and (match := _COMMAND.match(self.text, self.at)):
                self._add(f"`{match[0]}")
                self.at = match.end()
            elif char == "[" and self.word is None and _LIST.match(self.text, self.at - 1):
                self.lists += 1
            elif self.lists and char in ",\n":
                self._end()
            elif (
                char == "("
                and self.word is not None
                and self.depth < _DEPTH
                and (match := _ASSIGNED.fullmatch("".join(self.word)))
                and not match[3]
            ):
                self._array(match[1], added=bool(match[2]))
            elif char in "\n;|&<>()" or (self.lists and char == "]"):
                # a redirection takes the digits before it, as in "2> log"
                redirects = char in "<>" and self.word is not None and "".join(self.word).isdigit()
                self.word = None if redirects else self.word
                self._end()
                self.lists -= char == "]"
                self._break(char)
                if char == "\n":
                    self._skip_documents()
            elif char in " \t\r":
                self._end()
            elif char == "#" and self.word is None:
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                self._add(char)
                if char == "=" and self.word is not None and not self.equals:
                    self.equals, self.assigning = True, _ASSIGNED.fullmatch("".join(self.word)) is not None
        self._end()
        for document in self.documents:
            self._append(document)
        return self.words

    def _append(self, document: str) -> None:
        """A file that the script writes, behind all of its own: it is the command where the script itself has none."""
        if self.depth < _DEPTH and self.known.budget.spend(len(document) + len(self.known)):
            try:
                words = _Lexer(document, _Known(self.known, self.known.budget)).run()
            except BadArgument:
                return
            self.words += [BREAK, BREAK, *words]

    def _skip_documents(self) -> None:
        """Here-documents are text; one that does not end is none, and was looked through in vain."""
        for ends in self.here:
            match = re.compile(rf"^{ends}\r?$", re.MULTILINE).search(self.text, self.at) if self.known.budget.spend(0) else None
            if match is not None:
                self.documents.append(self.text[self.at : match.start()])
                self.at = match.end()
            else:
                self.known.budget.spend(len(self.text) - self.at)
        self.here = []

    def _add(self, piece: str) -> None:
        if self.word is None:
            self.word, self.equals, self.assigning = [], False, False
        self.word.append(piece)

    def _end(self) -> None:
        if self.word is None:
            return
        word = "".join(self.word).replace(BREAK, " ")
        self.word = None
        match = _ASSIGNED.fullmatch(word)
        if not self.first and not self.depth:  # a list or a default assigns nothing
            self.conditions = max(0, self.conditions + (word in _OPENS) - (word in _CLOSES))
            if match is not None:
                self._assign(match[1], [match[3]], added=bool(match[2]), joined=True)
            elif word == "}":
                self._close(word)
            elif word not in _DECLARES:
                self.first = word
                for name, before in self.own.items():  # what stands before a command holds for that only
                    self.known.pop(name, None)
                    if before is not None:
                        self.known[name] = before
                self.own = {}
        elif self.first in _CHANGES and self.known.keys() & {word}:
            self.known.lose([word])
        elif self.first in _SOURCES and not _ACTIVATES.fullmatch(word):
            self.known.lose(self.known)
        if word == "{" and self.first in ("", "function"):
            self.first = ""
            self.scopes.append(_Scope("}"))
        self.words.append(word)

    def _break(self, char: str) -> None:
        operator = next((o for o in _OPERATORS if self.text.startswith(o, self.at - 1)), char)
        self.at += len(operator) - 1
        continued = operator == "\n" and self.words[-1:] == [BREAK] and self.operator in ("&&", "||", "|")
        scope = self.scopes[-1]
        if operator in ("(", ")"):
            if operator == "(":
                self.scopes.append(_Scope(")"))
            else:
                self._close(operator)
        elif operator in ("||", "|", "&", ";", "\n") and not continued:
            self.known.lose(scope.joined if operator in ("|", "&") else scope.hanging)
            scope.behind = operator if operator[0] == "|" else ""
            if scope.behind:
                scope.hanging.clear()
            else:
                scope.joined, scope.hanging = set(), set()
        elif operator == "&&":
            scope.behind = operator
        if operator in _REDIRECTS:
            self.known.lose(self.own)
        else:
            self.first = ""
        self.own = {}
        self.operator = self.operator if continued else operator
        self.words += [BREAK] * (2 if operator in ("&&", "||") else 1)

    def _close(self, closing: str) -> None:
        """What was assigned in parentheses or braces is not known behind them."""
        if self.scopes[-1].closing == closing:
            self.known.lose(self.scopes.pop().assigned)

    def _assign(self, name: str, words: list[str], *, added: bool, joined: bool) -> None:
        """Kept where it certainly holds: what hangs on a condition, or is added to what is not known, makes the variable unknown."""
        scope = self.scopes[-1]
        before = self.known.value(name) if added else ()
        self.own.setdefault(name, self.known.get(name))
        scope.assigned.add(name)
        scope.joined.add(name)
        if scope.behind:
            scope.hanging.add(name)
        if self.conditions or scope.behind[:1] == "|" or before is None:
            self.known.lose([name])
        else:
            self.known[name] = ["".join([*before, *words])] if joined else [*before, *words]

    def _array(self, name: str, *, added: bool) -> None:
        inner = _Lexer(self.text, self.known, self.at, closing=")", depth=self.depth + 1)
        words = [word for word in inner.run() if word != BREAK]
        self.at, self.word = inner.at, None
        self._assign(name, words, added=added, joined=False)

    def _variable(self, *, quoted: bool) -> None:
        """What stands behind a ``$``: its value where the text gives it, else as it is written."""
        written, inner = self._written()
        match = _PARAMETER.fullmatch(inner)
        value = None if match is None else self._value(match)
        if value is None:
            self._add(f"${written}")
        elif match is not None and (match[2] == "[@]" or match[1] == "@"):
            self._spread(value)
        elif quoted or self.assigning:
            self._add(" ".join(value))
        else:
            self._spread(" ".join(value).split())

    def _spread(self, words: Sequence[str]) -> None:
        for index, word in enumerate(words):
            if index:
                self._end()
            self._add(word)

    def _written(self) -> tuple[str, str]:
        """The text behind the ``$``, and what it names."""
        pairs = {"{": "}", "(": ")"}
        opening = self.text[self.at : self.at + 1]
        if opening not in pairs or not opening:
            match = re.compile(r"[A-Za-z_]\w*|[@*#?$!\d]").match(self.text, self.at)
            name = match[0] if match else ""
            self.at += len(name)
            return name, name
        start, depth = self.at, 0
        while self.at < len(self.text):
            depth += (self.text[self.at] == opening) - (self.text[self.at] == pairs[opening])
            self.at += 1
            if not depth:
                break
        return self.text[start : self.at], self.text[start + 1 : self.at - 1].strip()

    def _value(self, match: re.Match[str]) -> Sequence[str] | None:
        name, _, operator, other = match.groups()
        value = self.known.value(name)
        if self.depth > _DEPTH:
            return None
        if operator == "+":
            return None if value is None else self._expanded(other) if any(value) else []
        if operator in ("-", "=") and not any(value or ()) and name not in self.known.lost:
            return self._expanded(other) or None  # an empty default says nothing of what the caller's environment holds
        return value

    def _expanded(self, text: str) -> list[str]:
        return [word for word in _Lexer(text, self.known, depth=self.depth + 1).run() if word != BREAK]

    def _quoted(self, quote: str, *, escapes: bool = False) -> None:
        self._add("")
        while self.at < len(self.text):
            char = self.text[self.at]
            self.at += 1
            if char == quote:
                return
            if char == "\\" and quote == '"' and self.at < len(self.text) and self.text[self.at] in '"\\$`':
                char = self.text[self.at]
                self.at += 1
            elif char == "\\" and quote == "'" and escapes and self.at < len(self.text):
                char = _ESCAPES.get(self.text[self.at], self.text[self.at])
                self.at += 1
            elif char == "$" and quote == '"':
                self._variable(quoted=True)
                continue
            self._add(char)
        raise BadArgument(
            f"the launch command cannot be read: a {'single' if quote == chr(39) else 'double'} quote is not closed",
            hint="paste it as it was typed, with its quotes",
        )
