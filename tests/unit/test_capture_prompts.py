"""What a file of prompts may hold: ids, texts as they are, and chats as trainers have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eagle3diag.cli_capture import _ids, _lines
from eagle3diag.errors import InputError


class Tokenizer:
    """One id a character; a template that names the roles and opens the answer."""

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [ord(c) for c in text]}

    def apply_chat_template(self, chat: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool) -> str:
        assert not tokenize
        return "".join(f"<{t['role']}>{t['content']}." for t in chat) + ("<assistant>" if add_generation_prompt else "")


CHAT = [("user", "hi"), ("assistant", "yes")]
LINES = {
    "ids": ({"prompt_ids": [1, 2], "output_ids": [3]}, ([1, 2], [3])),
    "text": ({"text": "ab"}, ([97, 98], [])),
    "prompt": ({"prompt": "ab"}, ([97, 98], [])),
    "messages": ({"messages": [{"role": r, "content": c} for r, c in CHAT]}, ("<user>hi.<assistant>", "yes.")),
    "sharegpt": ({"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yes"}]}, ("<user>hi.<assistant>", "yes.")),
    "conversations": ({"conversations": [{"role": r, "content": c} for r, c in CHAT[:1]]}, ("<user>hi.<assistant>", "")),
}


@pytest.mark.parametrize("name", LINES)
def test_a_line_is_read_in_every_form_that_trainers_use(name: str, tmp_path: Path) -> None:
    """A chat goes through the target's template; its last turn, if it is the target's, is the answer."""
    line, expected = LINES[name]
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps(line) + "\n")
    (read,) = _lines(path)
    wanted = tuple([ord(c) for c in part] if isinstance(part, str) else part for part in expected)
    assert _ids(read, Tokenizer(), 1000, where="here") == wanted


@pytest.mark.parametrize("turns", [5, [], ["a"], [{"role": "user"}], [{"content": "a"}], [{"role": "assistant", "content": "a"}]])
def test_what_is_no_chat_is_said(turns: Any) -> None:
    """Never a traceback of a template."""
    with pytest.raises(InputError):
        _ids({"messages": turns}, Tokenizer(), 1000, where="here")
