"""Write docs/faults/: one page per fault of the catalogue, from its words and from what the code does with it. ``--check`` writes nothing."""

from __future__ import annotations

import argparse
from pathlib import Path

from eagle3diag.faults import catalogue, in_words
from eagle3diag.faults.base import Fault, no_changes

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "faults"


def page(fault: str, words: dict[str, str | list[str]], code: Fault | None) -> str:
    """Symptom, measure, verdict, fix, what it is not."""
    seen = ", ".join(_link(str(s)) for s in words["seen"]) or "no public report is known"
    return (
        f"# {fault} · {words['title']}\n\n{words['mechanism']}\n\n"
        f"**Symptom.** {words['symptom']}\n\n**Measure.** {words['measure']}\n\n**Verdict.** {_verdict(code)}\n\n"
        f"**Fix.** {words['fix']}\n\n**What it is not.** {words['not_it']}\n\n**Seen.** {seen}\n"
    )


def _verdict(code: Fault | None) -> str:
    if code is None:
        return "Not judged by the code yet: this page is what a person can check."
    shown = " or ".join(" + ".join(kinds) for kinds in code.shown_by)
    parts = [f"`diagnose` names it from {shown}." if shown else "No evidence shows it directly."]
    if code.changes is not no_changes:
        parts.append("Its counterfactual is replayed, and says what it costs on your pair.")
    elif code.typical is not None:
        parts.append(f"It is not replayed; accept lengths of {code.typical[0]:g} to {code.typical[1]:g} were reported of it.")
    return " ".join(parts)


def _link(thread: str) -> str:
    repository, number = thread.split("#")
    return f"[{thread}](https://github.com/{repository}/issues/{number})"


def index(words: dict[str, dict[str, str | list[str]]], code: dict[str, Fault]) -> str:
    """The table of all, by group."""
    lines = [
        "# The catalogue",
        "",
        "Eighty ways in which a draft is not accepted. *Named*: `diagnose` sees it. *Replayed*: it has a counterfactual.",
        "",
    ]
    for group in dict.fromkeys(str(w["group"]) for w in words.values()):
        lines += [f"## {group}", "", "| | fault | named | replayed |", "|---|---|---|---|"]
        for fault, w in words.items():
            if w["group"] == group:
                known = code.get(fault)
                named = "yes" if known is not None and known.shown_by else ""
                replayed = "yes" if known is not None and known.changes is not no_changes else ""
                lines.append(f"| [{fault}]({fault}.md) | {w['title']} | {named} | {replayed} |")
        lines.append("")
    return "\n".join(lines)


def pages() -> dict[str, str]:
    """File name to content."""
    words, code = in_words(), {f.id: f for f in catalogue()}
    return {"index.md": index(words, code)} | {f"{fault}.md": page(fault, w, code.get(fault)) for fault, w in words.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a page is stale")
    check, stale = parser.parse_args().check, []
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        path = FOLDER / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not check:
                path.write_text(text, encoding="utf-8")
    print(f"{'stale' if check else 'written'}: {', '.join(stale) or 'none'}")
    return int(check and bool(stale))


if __name__ == "__main__":
    raise SystemExit(main())
