"""Text from files, made harmless to show: control characters, terminal escapes and direction overrides become visible escapes."""

from __future__ import annotations

import unicodedata

from eagle3diag.report.redaction import clean

# Cc control, Cf format (direction overrides, zero-width, tags), Cs lone surrogates, Zl/Zp line and paragraph separators:
# none of them draws anything, and each can make a screen or a page show something other than what is there.
_HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def visible(text: object, *, keep_newlines: bool = False) -> str:
    r"""``text`` with every character that acts instead of showing written as an escape, and without keys.

    >>> print(visible("a\x1b[31mb" + chr(0x202E)))
    a\x1b[31mb\u202e
    """
    value = clean(str(text), private=True)
    if value.isascii() and value.isprintable():
        return value
    out = []
    for char in value:
        if char == "\n" and keep_newlines:
            out.append(char)
        elif unicodedata.category(char) in _HIDDEN:
            out.append(_escape(char))
        else:
            out.append(char)
    return "".join(out)


def _escape(char: str) -> str:
    if char in "\n\r\t":
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}[char]
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def width(text: str) -> int:
    """Terminal columns that ``text`` takes: wide East Asian characters two, combining marks none."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def shorten(text: str, columns: int) -> str:
    """``text`` in at most ``columns`` columns; the middle gives way, because names differ at their ends.

    >>> shorten("layers.0.self_attn.q_proj.weight", 16)
    'layers.…j.weight'
    """
    if width(text) <= columns:
        return text
    if columns <= 1:
        return "…"[:columns]
    head = tail = ""
    i, j, room = 0, len(text), columns - 1
    while i < j:
        front = len(head) + len(tail) if text.isascii() else width(head) + width(tail)
        char = text[i] if width(head) <= width(tail) - 1 else text[j - 1]
        if front + width(char) > room:
            break
        if width(head) <= width(tail) - 1:
            head, i = head + char, i + 1
        else:
            tail, j = char + tail, j - 1
    return f"{head}…{tail}"


def bounded(text: str, limit: int = 4000) -> str:
    """A text that nobody would read to the end, cut, with the number of characters left out."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit} more characters)"
