"""A real SGLang engine that two recorders watch, one of them on a full disk; its scheduler is killed while a request runs.

    python broken_sglang.py TARGET DRAFT WORK

``WORK/small`` must be a folder on a tiny file system. ``WORK/answers.json`` holds the outputs from before the kill.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from threading import Thread

import psutil
import serve

from eagle3diag.capture.sglang import hooks

PROMPTS = [[1, 4093, 198, 19161, 253, 6634, 826, 253, 3743, 2, 198, 1, 520, 9531, 198], [1, 4093, 198, 19161, 253, 17099, 2, 198]]

NEW = 32


def main(target: str, draft: str, work: Path) -> None:
    import sglang

    both = [*hooks(str(work / "small/live"), target=target), *hooks(str(work / "live"), target=target)]
    engine = sglang.Engine(**serve.engine_options(target, draft, serve.Chain(), both))
    answers = []
    for prompt in PROMPTS * 3:
        answer = engine.generate(input_ids=[prompt], sampling_params={"max_new_tokens": NEW, "temperature": 0, "ignore_eos": True})
        answers.append([prompt, list(answer[0]["output_ids"])])
        time.sleep(1.5)  # the writer rests, and finishes what has ended: else all would end in one file, which the small disk holds or not
    (work / "answers.json").write_text(json.dumps(answers))
    longest = {"max_new_tokens": 400, "temperature": 0, "ignore_eos": True}
    Thread(target=lambda: engine.generate(input_ids=[PROMPTS[0]], sampling_params=longest), daemon=True).start()
    deadline = time.monotonic() + 120  # its first round tells that all the others have ended
    while len(json.loads((work / "live/manifest.json").read_text())["records"]) < len(answers) and time.monotonic() < deadline:
        time.sleep(0.2)
    scheduler = next(p for p in psutil.Process().children(recursive=True) if "scheduler" in " ".join([p.name(), *p.cmdline()]))
    os.kill(scheduler.pid, signal.SIGKILL)
    time.sleep(20)  # the engine ends this process when it misses its scheduler


if __name__ == "__main__":
    os.environ.update({name: os.environ.get(name, value) for name, value in serve.ENVIRONMENT.items()})
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
