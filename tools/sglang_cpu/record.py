"""Record one SGLang server: its log, its launch command, what it accepted, what it wrote, and what it really fed the draft.

    PYTHONPATH=. python tools/sglang_cpu/record.py --target DIR --draft DIR --prompts held.jsonl --limit 10 --out FOLDER

``FOLDER`` then holds ``server.log``, ``launch.txt``, ``acceptance.json``, ``outputs.jsonl`` and the dump ``live/``, all without a trace of
the machine. An existing recording there is replaced once the new one is complete.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import serve

from eagle3diag.capture.sglang import hooks
from eagle3diag.dumps import open_dump

HERE = Path(__file__).resolve().parent
STAMPED = re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")


@dataclass(frozen=True)
class Recording:
    """One server to record. ``target_name`` and ``draft_name`` stand for the folders in everything that is written."""

    target: str
    draft: str
    prompts: Path
    chain: serve.Chain = serve.Chain()  # noqa: RUF009  (frozen)
    limit: int = 10
    max_new: int = 48
    keep: int | None = None  # sequences whose features are kept; None: all
    target_name: str = "SmolLM2-135M-Instruct"
    draft_name: str = "draft"


def record(job: Recording, out: Path) -> dict[str, Any]:
    """Run the engine in its own process and write the recording to ``out``; returns the acceptance.

    Raises
    ------
    ChildProcessError: the engine failed; its last lines are shown. RuntimeError: a dumped sequence is not what was asked and answered, or
    something of the machine would be left in the log.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".recording-") as scratch:
        work, new = Path(scratch), Path(scratch) / "new"
        new.mkdir()
        live = str(new / "live")
        # What is fed is enough here: the final states would add a third to what the samples weigh.
        hook_list = hooks(live, target=job.target, limit=job.keep or job.limit, target_name=job.target_name, final=False)
        result, log = _serve(job, hook_list, work)
        _check_dump(new / "live", result)

        names = {live: "live", job.target: job.target_name, job.draft: job.draft_name, scratch: "."}
        (new / "server.log").write_text(clean_log(log, names), encoding="utf-8")
        options = serve.engine_options(job.target_name, job.draft_name, job.chain)
        (new / "launch.txt").write_text(serve.launch_command(options), encoding="utf-8")
        (new / "acceptance.json").write_text(json.dumps(result["acceptance"], indent=1) + "\n", encoding="utf-8")
        with (new / "outputs.jsonl").open("w", encoding="utf-8") as lines:
            for index, output in enumerate(result["outputs"]):
                row = {"name": f"{index:04d}", "prompt_ids": output["prompt_ids"], "output_ids": output["output_ids"]}
                lines.write(json.dumps(row) + "\n")
        if out.exists():
            shutil.rmtree(out)
        new.rename(out)
    acceptance: dict[str, Any] = result["acceptance"]
    return acceptance


def _serve(job: Recording, hook_list: list[dict[str, Any]], work: Path) -> tuple[dict[str, Any], str]:
    (work / "hooks.json").write_text(json.dumps(hook_list), encoding="utf-8")
    command = [sys.executable, str(HERE / "serve.py"), "--target", job.target, "--draft", job.draft, "--prompts", str(job.prompts)]
    command += ["--limit", str(job.limit), "--max-new", str(job.max_new), "--algorithm", job.chain.algorithm]
    command += ["--steps", str(job.chain.steps), "--topk", str(job.chain.topk), "--slots", str(job.chain.num_draft_tokens)]
    command += ["--hooks", str(work / "hooks.json"), "--out", str(work / "result.json")]
    with (work / "raw.log").open("w", encoding="utf-8") as log:
        done = subprocess.run(command, env=environment(), stdout=log, stderr=log, check=False)
    text = (work / "raw.log").read_text(encoding="utf-8", errors="replace")
    if done.returncode or not (work / "result.json").exists():
        raise ChildProcessError("the engine failed:\n" + "\n".join(text.splitlines()[-25:]))
    result: dict[str, Any] = json.loads((work / "result.json").read_text(encoding="utf-8"))
    return result, text


def environment() -> dict[str, str]:
    """The caller's environment, with the stand-in kernels first on the path and one thread unless told otherwise."""
    path = [str(HERE / "shims"), str(HERE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**serve.ENVIRONMENT, "OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": os.pathsep.join(path)}


def _check_dump(live: Path, result: Mapping[str, Any]) -> None:
    """The record named ``i`` must be the start of prompt ``i`` and its answer: names pair recordings with other dumps."""
    dump = open_dump(live)
    if not dump.complete or dump.assumed:
        raise RuntimeError(f"the recorder stopped early: {', '.join(dump.assumed) or 'the dump is not complete'}")
    for item in dump:  # in the order in which they ended
        index = int(item.name)
        asked = result["outputs"][index]
        tokens = [*asked["prompt_ids"], *asked["output_ids"]]
        dumped = item.input_ids.tolist()
        both = min(len(tokens), len(dumped))  # the last round may accept more than was asked for
        if item.prompt_length != len(asked["prompt_ids"]) or both < len(tokens) - 1 or dumped[:both] != tokens[:both]:
            raise RuntimeError(f"record {item.name} is not prompt {index} and its answer")


def clean_log(text: str, names: Mapping[str, str]) -> str:
    """The log's own lines (those with a time stamp) with folders renamed by ``names`` and nothing left that names the machine.

    Raises
    ------
    RuntimeError: an absolute path, the host or the home folder is still there.
    """
    kept = "\n".join(line for line in text.splitlines() if STAMPED.match(line)) + "\n"
    for folder in sorted(names, key=len, reverse=True):
        kept = kept.replace(folder, names[folder])
    kept = re.sub(r"/[^\s'\"]*/site-packages/", "site-packages/", kept)
    kept = re.sub(r"\b\d{1,3}(\.\d{1,3}){3}\b", "HOST", kept)
    kept = re.sub(r"\b((?:parent_)?pid=)\d+", r"\g<1>N", kept)
    for machine in filter(None, (socket.gethostname(), str(Path.home()))):
        kept = kept.replace(machine, "HOST") if len(machine) > 1 else kept
    left = re.findall(r"(?<![\w.:/])/(?:root|home|tmp|usr|opt|mnt|var|data|work|srv|Users)/[^\s'\"]*", kept)
    user = getpass.getuser()
    if left or (user != "root" and re.search(rf"\b{re.escape(user)}\b", kept)):
        raise RuntimeError(f"the log still names the machine: {left[:3] or user}")
    return kept


def main() -> None:
    parser = serve.arguments(__doc__)
    parser.add_argument("--algorithm", default="EAGLE3", choices=["EAGLE", "EAGLE3"])
    parser.add_argument("--keep", type=int, help="sequences whose features are kept; default: all")
    parser.add_argument("--out", required=True, type=Path)
    given = parser.parse_args()
    job = Recording(
        given.target, given.draft, given.prompts, serve.Chain(given.algorithm), limit=given.limit, max_new=given.max_new, keep=given.keep
    )
    sys.stdout.write(json.dumps(record(job, given.out), indent=1) + "\n")


if __name__ == "__main__":
    main()
