"""Text from files, made harmless to show: control characters, terminal escapes and direction overrides become visible escapes."""

from __future__ import annotations

import re
import unicodedata

# Cc control, Cf format (direction overrides, zero-width, tags), Cs lone surrogates, Zl/Zp line and paragraph separators:
# none of them draws anything, and each can make a screen or a page show something other than what is there.
_HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}

# Launch commands and logs carry keys, and reports are passed on: what is plainly a key is not repeated.
_SECRETS = re.compile(
    r"(?P<name>--[\w-]*(?:api-key|token|password|secret)[ =]|\b\w*(?:API_KEY|TOKEN|PASSWORD|SECRET)=|\bBearer )(?!\d+\b)\S+"
    r"|\b(?:hf_|sk-)[A-Za-z0-9_-]{16,}"
)


def visible(text: object, *, keep_newlines: bool = False) -> str:
    r"""``text`` with every character that acts instead of showing written as an escape.

    >>> print(visible("a\x1b[31mb" + chr(0x202E)))
    a\x1b[31mb\u202e
    """
    value = redacted(str(text))
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


def redacted(text: str) -> str:
    """``text`` without API keys and tokens; numbers that merely belong to a flag such as ``--max-token 512`` stay.

    >>> redacted("HF_TOKEN=abc vllm serve m --api-key s3cret --port 80")
    'HF_TOKEN=(hidden) vllm serve m --api-key (hidden) --port 80'
    """
    return _SECRETS.sub(lambda m: f"{m['name'] or ''}(hidden)", text)


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
