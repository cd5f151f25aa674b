"""Evidence that is not of one server: both values are said with their sources, nothing legal is, and it is never the cause."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import write_draft

import eagle3diag
from eagle3diag.case import Case, Given
from eagle3diag.dumps import HiddenStates, TargetIdentity
from eagle3diag.faults.sources import disagree
from eagle3diag.findings import Finding, Severity
from eagle3diag.serving import Acceptance

BATCH = "[2026-11-01 10:00:09] Decode batch, #running-req: 1, #token: 353, token usage: 0.00, accept len: {:.2f}, cuda graph: True\n"
METRICS = (
    "INFO 11-29 10:00:10 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: 1.05, Accepted: 20 tokens, Drafted: 1200 tokens, "
    "Per-position acceptance rate: 0.040, 0.007, 0.003, Avg Draft acceptance rate: 1.7%\n"
)


def sglang_log(windows: bool = True, **arguments: Any) -> str:
    told = {
        "model_path": "/models/Kimi-K2.5",
        "speculative_algorithm": "EAGLE3",
        "speculative_draft_model_path": "/models/kimi-eagle3",
    } | arguments
    line = ", ".join(f"{k}={v!r}" for k, v in told.items())
    return f"[2026-11-01 10:00:00] server_args=ServerArgs({line})\n" + (BATCH.format(1.0) if windows else "loaded\n")


def vllm_log(**arguments: Any) -> str:
    told = {"method": "eagle3", "model": "org/kimi-eagle3", "num_spec_tokens": 3} | arguments
    draft = ", ".join(f"{k}={v!r}" for k, v in told.items())
    start = "INFO 11-29 10:00:00 [core.py:58] Initializing a V1 LLM engine (v0.32.0) with config: model='moonshotai/Kimi-K2.5', "
    return f"{start}speculative_config=SpeculativeConfig({draft}), dtype=torch.bfloat16\n{METRICS}"


def sglang(options: str = "", target: str = "moonshotai/Kimi-K2.5", draft: str = "org/kimi-eagle3", algorithm: str = "EAGLE3") -> str:
    named = f"--speculative-algorithm {algorithm} " if algorithm else ""
    return f"python -m sglang.launch_server --model-path {target} {named}--speculative-draft-model-path {draft} {options}"


def vllm(target: str = "moonshotai/Kimi-K2.5", **config: Any) -> str:
    given = {"method": "eagle3", "model": "org/kimi-eagle3", "num_speculative_tokens": 3} | config
    return f"vllm serve {target} --speculative-config '{json.dumps({k: v for k, v in given.items() if v is not None})}'"


def dump(
    engine: str = "sglang", version: str | None = "0.5.23", name: str = "Kimi-K2.5", digest: str = "a", side: str = "live"
) -> HiddenStates:
    record = {"name": "0", "input_ids": torch.arange(4), "features": torch.zeros(4, 6)}
    return HiddenStates.from_tensors(
        [record], side=side, target=TargetIdentity(name, digest, "bfloat16", 4, 2), engine=engine, engine_version=version
    )


def of(**given: Any) -> Finding | None:
    return disagree(Case(Given(**given)))


DISAGREE: dict[str, tuple[dict[str, Any], Severity, str, dict[str, str], str]] = {
    "engines": (
        {"launch": sglang(), "log": vllm_log()},
        Severity.WARNING,
        "engine",
        {"vllm (gone on with)": "log", "sglang": "launch command"},
        "--log alone",
    ),
    "engine of the dump": (
        {"log": vllm_log(), "live": dump()},
        Severity.WARNING,
        "engine",
        {"vllm (gone on with)": "log", "sglang": "live dump"},
        "capture vllm",
    ),
    "engine of the counts": (
        {"launch": vllm(), "acceptance": Acceptance(rounds=9, accepted=1, steps=3, engine="sglang")},
        Severity.WARNING,
        "engine",
        {"sglang (gone on with)": "counts", "vllm": "launch command"},
        "--log alone",
    ),
    "algorithm": (
        {"launch": sglang(), "log": sglang_log(speculative_algorithm="EAGLE")},
        Severity.WARNING,
        "algorithm",
        {"EAGLE (gone on with)": "log", "EAGLE3": "launch command"},
        "--log alone",
    ),
    "method": (
        {"launch": vllm(method="eagle"), "log": vllm_log()},
        Severity.WARNING,
        "algorithm",
        {"eagle3 (gone on with)": "log", "eagle": "launch command"},
        "--log",
    ),
    "no speculation in the log": (
        {"launch": sglang(), "log": sglang_log(windows=False, speculative_algorithm=None)},
        Severity.WARNING,
        "algorithm",
        {"none": "log", "EAGLE3 (gone on with)": "launch command"},
        "--log",
    ),
    "no speculation in the command": (
        {"launch": "sglang serve --model-path Kimi-K2.5", "log": sglang_log()},
        Severity.WARNING,
        "algorithm",
        {"EAGLE3 (gone on with)": "log", "none": "launch command"},
        "--log",
    ),
    "target": (
        {"launch": sglang(target="Qwen/Qwen3-8B"), "log": sglang_log()},
        Severity.WARNING,
        "target",
        {"kimi-k2.5": "log", "qwen3-8b": "launch command"},
        "",
    ),
    "draft": (
        {"launch": sglang(draft="org/other"), "log": sglang_log()},
        Severity.WARNING,
        "draft",
        {"kimi-eagle3": "log", "other": "launch command"},
        "",
    ),
    "steps": (
        {"launch": sglang("--speculative-num-steps 5"), "log": sglang_log(speculative_num_steps=3)},
        Severity.WARNING,
        "drafts a round",
        {"3 (gone on with)": "log", "5": "launch command"},
        "",
    ),
    "steps in vLLM": (
        {"launch": vllm(num_speculative_tokens=5), "log": vllm_log()},
        Severity.WARNING,
        "drafts a round",
        {"3 (gone on with)": "log"},
        "",
    ),
    "positions of the counts": (
        {"launch": vllm(), "acceptance": Acceptance(rounds=100, accepted=200, p=(0.9, 0.6, 0.3, 0.2), engine="vllm", steps=4)},
        Severity.WARNING,
        "drafts a round",
        {"4 (gone on with)": "counts", "3": "launch command"},
        "counts from that server",
    ),
    "steps of the counts": (
        {"log": sglang_log(speculative_num_steps=3, speculative_eagle_topk=1), "acceptance": {"rounds": 9, "accepted": 9, "steps": 5}},
        Severity.WARNING,
        "drafts a round",
        {"5 (gone on with)": "counts", "3": "arguments in the log"},
        "counts from that server",
    ),
    "positions of the log": (
        {"launch": vllm(num_speculative_tokens=5), "log": METRICS},
        Severity.WARNING,
        "drafts a round",
        {"3 (gone on with)": "windows of the log", "5": "launch command"},
        "",
    ),
    "top-k": (
        {
            "launch": sglang("--speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 8"),
            "log": sglang_log(speculative_num_steps=3, speculative_eagle_topk=2, speculative_num_draft_tokens=8),
        },
        Severity.WARNING,
        "top-k",
        {"2": "log", "4 (gone on with)": "launch command"},
        "",
    ),
    "slots": (
        {
            "launch": sglang("--speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 8"),
            "log": sglang_log(speculative_num_steps=3, speculative_eagle_topk=4, speculative_num_draft_tokens=16),
        },
        Severity.WARNING,
        "slots",
        {"16 (gone on with)": "log", "8": "launch command"},
        "",
    ),
    "port": (
        {"launch": sglang("--port 30000"), "log": sglang_log(port=31000)},
        Severity.NOTE,
        "port",
        {"31000": "log", "30000": "launch command"},
        "",
    ),
    "version": (
        {"log": sglang_log() + "sglang==0.5.8\n", "live": dump()},
        Severity.NOTE,
        "version",
        {"0.5.8 (gone on with)": "log", "0.5.23": "live dump"},
        "--engine sglang",
    ),
    "version of the image": (
        {"launch": f"docker run lmsysorg/sglang:v0.5.8-cu126 {sglang()}", "live": dump()},
        Severity.NOTE,
        "version",
        {"0.5.23 (gone on with)": "live dump"},
        "--engine",
    ),
    "target of the dump": (
        {"log": sglang_log(), "live": dump(name="Kimi-K2")},
        Severity.NOTE,
        "target",
        {"kimi-k2": "live dump", "kimi-k2.5": "log"},
        "--target",
    ),
    "targets of two dumps": (
        {"live": dump(), "train": dump("transformers", "5.24.0", name="Kimi-K2", digest="b", side="train")},
        Severity.NOTE,
        "target",
        {"kimi-k2.5": "live dump"},
        "",
    ),
}


def taken(given: dict[str, Any]) -> set[str]:
    """What is said of two engines beside their names: where each thing was taken from."""
    return {"accept length", "algorithm", "drafts a round", *(("records of states",) if "live" in given else ())}


@pytest.mark.parametrize("name", DISAGREE)
def test_both_values_are_said_with_their_sources(name: str) -> None:
    """Which one was gone on with, and what to give instead; nothing else is named."""
    given, severity, what, said, instead = DISAGREE[name]
    found = of(**given)

    assert found is not None and (found.fault, found.severity) == ("M10", severity)
    assert {e.name for e in found.evidence} == {what} | (taken(given) if what == "engine" else set()) and what in found.title
    assert said.items() <= {str(e.value): e.source for e in found.evidence}.items()
    assert len(found.evidence) >= 2 and instead in found.fix
    assert ("gone on with" in " ".join(str(e.value) for e in found.evidence)) is ("neither" not in found.because)


@pytest.mark.parametrize(
    ("log", "drafts"),
    [(sglang_log(), ("3", "launch command")), (sglang_log(speculative_num_steps=5), ("5", "log"))],
)
def test_of_two_engines_the_number_and_the_settings_have_their_source(log: str, drafts: tuple[str, str]) -> None:
    """vLLM's command beside SGLang's log: whose number it is, whose settings it is held together with, and what that is worth."""
    found = of(launch=vllm(), log=log)
    assert found is not None and "the number says nothing of the settings" in found.because
    said = {e.name: (str(e.value), e.source) for e in found.evidence}
    assert (said["accept length"], said["algorithm"], said["drafts a round"]) == (("1.00", "log"), ("EAGLE3", "log"), drafts)
    assert not any(
        "--engine vllm" in f.fix for f in eagle3diag.diagnose(launch=vllm(), log=log).findings
    )  # which would turn all of it around


LEGAL: dict[str, dict[str, Any]] = {
    "hub name and local folder": {"launch": sglang(), "log": sglang_log()},
    "relative and absolute": {"launch": sglang(target="./Kimi-K2.5/", draft="kimi-eagle3"), "log": sglang_log()},
    "hub's cache": {
        "launch": sglang(),
        "log": sglang_log(model_path="/home/user/.cache/huggingface/hub/models--moonshotai--Kimi-K2.5/snapshots/0a1b2c3"),
    },
    "ModelScope's cache": {
        "launch": sglang(),
        "log": sglang_log(model_path="/home/user/.cache/modelscope/hub/models/moonshotai/Kimi-K2___5"),
    },
    "variables": {"launch": sglang(target="$MODEL", draft="${DRAFT}", algorithm="$ALGO"), "log": sglang_log()},
    "template": {"launch": "sglang serve --model-path '{{ .Values.model }}' --speculative-algorithm EAGLE3", "log": sglang_log()},
    "remote store": {"launch": sglang(target="s3://bucket/model"), "log": sglang_log(model_path="/tmp/abc")},
    "defaults written out": {
        "launch": sglang(),
        "log": sglang_log(speculative_num_steps=5, speculative_eagle_topk=4, speculative_num_draft_tokens=8, port=30000),
    },
    "positions as launched": {"launch": vllm(), "acceptance": Acceptance(rounds=9, accepted=9, p=(0.6, 0.3, 0.1)), "log": vllm_log()},
    "a length alone": {"launch": vllm(), "acceptance": 1.05},
    "steps of a tree": {
        "launch": sglang("--speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 8"),
        "acceptance": {"rounds": 9, "accepted": 9, "steps": 7},
    },
    "steps that adapt": {
        "launch": sglang("--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-adaptive"),
        "acceptance": {"rounds": 9, "accepted": 9, "steps": 5},
    },
    "slots of a chain": {
        "launch": sglang("--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 24"),
        "log": sglang_log(speculative_num_steps=3, speculative_eagle_topk=1, speculative_num_draft_tokens=4),
    },
    "NEXTN": {"launch": sglang(algorithm="NEXTN"), "log": sglang_log(speculative_algorithm="EAGLE")},
    "small letters": {"launch": sglang(algorithm="eagle3"), "log": sglang_log()},
    "states only": {
        "launch": sglang("--enable-return-aux-hidden-states"),
        "log": sglang_log(windows=False, speculative_algorithm=None, speculative_draft_model_path=None),
    },
    "options in a file": {"launch": "sglang serve --config c.yaml", "log": sglang_log()},
    "vLLM guesses": {"launch": vllm(method=None), "log": vllm_log()},
    "vLLM's names of MTP": {"launch": vllm(method="deepseek_mtp"), "log": vllm_log(method="mtp")},
    "a speculators draft in the target's place": {"launch": "vllm serve org/kimi-eagle3", "log": vllm_log()},
    "vLLM's start without a config": {"launch": vllm(), "log": f"INFO LLM engine (v0.32.0)\n{METRICS}"},
    "build of a release": {"log": vllm_log(), "live": dump("vllm", "0.32.0+cpu")},
    "trainer's dump": {"log": sglang_log(), "train": dump("transformers", "5.24.0", side="train")},
    "an engine that is not known": {"log": sglang_log(), "live": dump("a fork", None)},
    "a folder called target": {"log": sglang_log(model_path="/data/target"), "live": dump()},
    "two names of one config": {"live": dump(), "train": dump("transformers", "5.24.0", name="Kimi-K2.5-copy", side="train")},
    "nothing but a number": {"acceptance": 1.0},
    "the log alone": {"log": vllm_log()},
}


@pytest.mark.parametrize("name", LEGAL)
def test_what_is_legal_is_no_disagreement(name: str) -> None:
    """The same thing said in another way, and what one source leaves out."""
    assert of(**LEGAL[name]) is None


@pytest.mark.parametrize("name", ["algorithm", "draft", "engines", "steps"])
def test_it_is_never_the_cause(name: str) -> None:
    """It takes no share of what is lost, stands behind what does, and moves no share of others."""
    given = DISAGREE[name][0]
    found = eagle3diag.diagnose(**given)
    told = [r for r in found.ranked if r.finding.fault == "M10"]
    assert len(told) == 1 and told[0].weight == 0.0 and told[0].predicted is None
    assert "M10" not in [s.fault for s in found.suspects]
    if any(r.weight > 0 for r in found.ranked):
        assert found.ranked[0].finding.fault != "M10" and not found.verdict.startswith("M10")
    assert "M10 sources that disagree" in str(found)


def test_symptoms_are_told_all_the_same() -> None:
    """That nothing is accepted is not silenced by sources that disagree."""
    given = DISAGREE["draft"][0]
    assert {"M1", "M10"} <= {f.fault for f in eagle3diag.diagnose(**given).findings}


def test_a_healthy_server_with_two_ports_stays_clean() -> None:
    """A router's port is not that of its workers."""
    log = sglang_log(windows=False, port=31000) + "".join(BATCH.format(2.5) for _ in range(3))
    found = eagle3diag.diagnose(log=log, launch=sglang("--port 30000"))
    assert found.ok and "M10" in [f.fault for f in found.findings]


def test_the_trail_says_each_thing_of_its_own_source() -> None:
    """The command's drafts a round under the command, though the log says another number; and the number with where it was read."""
    launch, log = sglang("--speculative-num-steps 5 --speculative-eagle-topk 1"), sglang_log(speculative_num_steps=3)
    told = eagle3diag.diagnose(launch=launch, log=log).trail
    assert told[0] == "launch command: sglang, algorithm EAGLE3, 5 steps, top-k 1" and "observed: accept length 1.00 (log)" in told
    assert eagle3diag.diagnose(log=log).trail[0] == "arguments in the log: sglang, algorithm EAGLE3, 3 steps"
    assert eagle3diag.diagnose(launch=sglang(), acceptance=1.0).trail == (
        "launch command: sglang, algorithm EAGLE3",
        "observed: accept length 1.00 (number given)",
    )
    for given, said in (
        ({"launch": launch, "log": log}, (3, "log")),
        ({"launch": launch, "acceptance": 1.0}, (5, "launch command")),
        ({"acceptance": Acceptance(rounds=9, accepted=1, steps=2)}, (2, "counts")),
        ({"acceptance": 1.0}, (4, None)),
    ):
        assert Case(Given(**given)).steps_said == said


@pytest.mark.parametrize("log", [sglang_log(), sglang_log(speculative_algorithm="EAGLE"), vllm_log(method="eagle")])
def test_arguments_in_a_log_are_no_launch_command(log: str, tmp_path: Path) -> None:
    """Nothing was typed: evidence names the log, and nobody is asked for the log that was given."""
    path = tmp_path / "server.log"
    path.write_text(log)
    found = eagle3diag.diagnose(log=path).findings
    assert found and all("launch command" not in e.source for f in found for e in f.evidence)
    assert all("or the log" not in f.fix for f in found)
    assert any(e.source == "arguments in the log" for f in found for e in f.evidence)


def test_eagle_for_eagle3_is_told_in_the_words_of_its_engine(tmp_path: Path) -> None:
    """SGLang has an algorithm and a guard before fc, vLLM a method; neither is told of the other's option."""
    said = {}
    for engine, command in (("sglang", sglang(algorithm="EAGLE")), ("vllm", vllm(method="eagle"))):
        for draft in (None, write_draft(tmp_path / engine)):
            found = eagle3diag.diagnose(draft=draft, launch=command.replace("kimi-eagle3", "kimi-EAGLE3"), acceptance=1.0).findings
            told = [f"{f.because} {f.fix}" for f in found if f.fault == "FM-01" and f.severity > Severity.NOTE]
            said.setdefault(engine, []).extend(told)
    assert all(len(told) >= 2 for told in said.values())
    assert all("--speculative-algorithm EAGLE3" in told and "vLLM" not in told for told in said["sglang"])
    assert all('"method": "eagle3"' in told and "EAGLE3" not in told and "algorithm" not in told for told in said["vllm"])
