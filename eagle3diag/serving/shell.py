"""A text as a shell would split it: one table says what each sign does, and what is not in it belongs to the word. Nothing is run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence

from eagle3diag.errors import BadArgument
from eagle3diag.serving.variables import ASSIGNED, REDIRECTS, Commands, Known

BREAK = "\n"
"""Stands for the end of a line that is not continued, or for an operator such as ``&&``; no word can be this."""

DEPTH = 4
"""Of a command in the quotes of another, and of a list or a default in another."""

_PARAMETER = re.compile(r"([A-Za-z_]\w*|[@*\d])(\[[@*]\])?(?::?([-=+?])(.*))?", re.DOTALL)
_NAMED = re.compile(r"[A-Za-z_]\w*|[@*#?$!\d]")
_LIST = re.compile(r"\[(?=[\"']|[ \t\r]*\n\s*[\"']|sys\.executable)")
_COMMAND = re.compile(r"[^`\n]+`")
_HERE = re.compile(r"<(-?)[ \t]*(?:\\?([A-Za-z_]\w*)|'(\w+)'|\"(\w+)\")")  # behind the first "<"
_JSON = json.JSONDecoder()
_BEHIND = " \t\r\n;|&<>)'\""  # a word, or the quotes that hold the command, may end there
_OPERATORS = ("&&", "||", *REDIRECTS)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}  # in $'...'
_CLOSING = {"{": "}", "(": ")"}


class Lexer:
    """``text`` from ``at`` to its end or to the sign ``closing``; ``depth`` 0 is a script, which assigns what it says to ``known``."""

    def __init__(self, text: str, known: Known, at: int = 0, closing: str = "", depth: int = 0) -> None:
        self.text, self.known, self.at, self.closing, self.depth = text, known, at, closing, depth
        self.words: list[str] = []
        self.word: list[str] | None = None  # its pieces; None: between words; a quoted empty word is [""]
        self.equals = self.assigning = False  # whether a "=" was in the word, and whether the word began as NAME=
        self.commands = Commands(known)
        self.here: list[str] = []  # what ends the documents that begin behind this line
        self.documents: list[str] = []
        self.lists = 0  # how many lists of quoted words, as in CMD ["a", "b"]

    def run(self) -> list[str]:
        """The words, with :data:`BREAK` between commands.

        Raises
        ------
        BadArgument: a quote is not closed.
        """
        while self.at < len(self.text):
            sign = self.text[self.at]
            self.at += 1
            if sign == self.closing:
                break
            if not any(take(self, sign) for take in _SIGNS.get(sign, ())):
                self._add(sign)
        self._end()
        for document in self.documents:
            self._append(document)
        return self.words

    # -- what a sign does: True when it was taken -------------------------------------------------------------------------------------

    def _quote(self, quote: str, *, escapes: bool = False) -> bool:
        self._add("")
        while self.at < len(self.text):
            char = self.text[self.at]
            self.at += 1
            if char == quote:
                return True
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

    def _escape(self, sign: str) -> bool:
        if self.at == len(self.text):
            return False
        self._add(self.text[self.at])
        self.at += 1
        return True

    def _dollar(self, sign: str) -> bool:
        quote = self.text[self.at : self.at + 1]
        if quote in ("'", '"') and quote:
            self.at += 1
            return self._quote(quote, escapes=True)
        self._variable(quoted=False)
        return True

    def _document(self, sign: str) -> bool:
        match = _HERE.match(self.text, self.at)
        if match is None:
            return False
        self.at = match.end()
        self.here.append(("\\t*" if match[1] else "") + (match[2] or match[3] or match[4]))
        return True

    def _substitution(self, sign: str) -> bool:
        match = _COMMAND.match(self.text, self.at)
        if match is None:
            return False
        self._add(f"`{match[0]}")
        self.at = match.end()
        return True

    def _open_list(self, sign: str) -> bool:
        opens = self.word is None and _LIST.match(self.text, self.at - 1) is not None
        self.lists += opens
        return opens

    def _close_list(self, sign: str) -> bool:
        if not self.lists:
            return False
        self.lists -= 1
        return self._operator(sign)

    def _between_items(self, sign: str) -> bool:
        if self.lists:
            self._end()
        return bool(self.lists)

    def _array(self, sign: str) -> bool:
        match = ASSIGNED.fullmatch("".join(self.word)) if self.word is not None and self.depth < DEPTH else None
        if match is None or match[3]:
            return False
        inner = Lexer(self.text, self.known, self.at, closing=")", depth=self.depth + 1)
        words = [word for word in inner.run() if word != BREAK]
        self.at, self.word = inner.at, None
        if not self.depth:
            self.commands.assign(match[1], words, added=bool(match[2]), joined=False)
        return True

    def _operator(self, sign: str) -> bool:
        if sign in "<>" and self.word is not None and "".join(self.word).isdigit():
            self.word = None  # a redirection takes the digits before it, as in "2> log"
        self._end()
        operator = next((o for o in _OPERATORS if self.text.startswith(o, self.at - 1)), sign)
        self.at += len(operator) - 1
        if not self.depth:
            self.commands.operator(operator)
        self.words += [BREAK] * (2 if operator in ("&&", "||") else 1)
        if sign == "\n":
            self._skip_documents()
        return True

    def _blank(self, sign: str) -> bool:
        self._end()
        return True

    def _object(self, sign: str) -> bool:
        """JSON as ``ps`` prints it: its quotes are what is left where a shell took away those around it."""
        if self.word is not None and "".join(self.word[-1:]) != "=":
            return False
        try:
            value, end = _JSON.raw_decode(self.text, self.at - 1)
        except (ValueError, RecursionError):
            return False
        if not value or self.text[end : end + 1].strip(_BEHIND):
            return False
        self._add(self.text[self.at - 1 : end])
        self.at = end
        return True

    def _comment(self, sign: str) -> bool:
        if self.word is not None:
            return False
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end
        return True

    def _equals(self, sign: str) -> bool:
        self._add(sign)
        if self.word is not None and not self.equals:
            self.equals, self.assigning = True, ASSIGNED.fullmatch("".join(self.word)) is not None
        return True

    # -- words --------------------------------------------------------------------------------------------------------------------------

    def _add(self, piece: str) -> None:
        if self.word is None:
            self.word, self.equals, self.assigning = [], False, False
        self.word.append(piece)

    def _end(self) -> None:
        if self.word is None:
            return
        word = "".join(self.word).replace(BREAK, " ")
        self.word = None
        if not self.depth:  # a list or a default assigns nothing
            self.commands.word(word)
        self.words.append(word)

    def _spread(self, words: Sequence[str]) -> None:
        for index, word in enumerate(words):
            if index:
                self._end()
            self._add(word)

    # -- documents ----------------------------------------------------------------------------------------------------------------------

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

    def _append(self, document: str) -> None:
        """A file that the script writes, behind all of its own: it is the command where the script itself has none."""
        if self.depth < DEPTH and self.known.budget.spend(len(document) + len(self.known)):
            try:
                words = Lexer(document, Known(self.known, self.known.budget)).run()
            except BadArgument:
                return
            self.words += [BREAK, BREAK, *words]

    # -- variables ----------------------------------------------------------------------------------------------------------------------

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

    def _written(self) -> tuple[str, str]:
        """The text behind the ``$``, and what it names."""
        opening = self.text[self.at : self.at + 1]
        if opening not in _CLOSING:
            match = _NAMED.match(self.text, self.at)
            name = match[0] if match else ""
            self.at += len(name)
            return name, name
        start, depth = self.at, 0
        while self.at < len(self.text):
            depth += (self.text[self.at] == opening) - (self.text[self.at] == _CLOSING[opening])
            self.at += 1
            if not depth:
                break
        return self.text[start : self.at], self.text[start + 1 : self.at - 1].strip()

    def _value(self, match: re.Match[str]) -> Sequence[str] | None:
        name, _, operator, other = match.groups()
        value = self.known.value(name)
        if self.depth > DEPTH:
            return None
        if operator == "+":
            return None if value is None else self._expanded(other) if any(value) else []
        if operator in ("-", "=") and not any(value or ()) and name not in self.known.lost:
            return self._expanded(other) or None  # an empty default says nothing of what the caller's environment holds
        return value

    def _expanded(self, text: str) -> list[str]:
        return [word for word in Lexer(text, self.known, depth=self.depth + 1).run() if word != BREAK]


_SIGNS: Mapping[str, tuple[Callable[[Lexer, str], bool], ...]] = {
    "'": (Lexer._quote,),
    '"': (Lexer._quote,),
    "\\": (Lexer._escape,),
    "$": (Lexer._dollar,),
    "`": (Lexer._substitution,),
    "=": (Lexer._equals,),
    "{": (Lexer._object,),
    "#": (Lexer._comment,),
    "[": (Lexer._open_list,),
    "]": (Lexer._close_list,),
    ",": (Lexer._between_items,),
    "(": (Lexer._array, Lexer._operator),
    "<": (Lexer._document, Lexer._operator),
    "\n": (Lexer._between_items, Lexer._operator),
    **dict.fromkeys(";|&>)", (Lexer._operator,)),
    **dict.fromkeys(" \t\r", (Lexer._blank,)),
}
"""What may take a sign, in this order; one that nobody takes is a letter of the word."""
