"""The load simulation against the real loaders, tensor by tensor: several versions of SGLang, and vLLM (make test-engines)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from builders import TARGET_CONFIG, target_tensors, write_model
from cases import CASES, TARGETS, YARN, checkpoint, constants
from trainers import TRAINERS, mla, specforge_31

from eagle3diag.audit import Audit, TensorLoad, audit
from eagle3diag.checkpoints import Draft, Target, open_draft
from eagle3diag.convert import convert
from eagle3diag.engines import rules_of
from eagle3diag.engines.draftclass import HOLDS, HOT_TOKEN_ID
from eagle3diag.engines.rules import Version
from eagle3diag.faults.config import FLOATS
from eagle3diag.findings import Severity

pytestmark = pytest.mark.engines

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "tools/loaders"
sys.path.insert(0, str(TOOLS))
import versions  # noqa: E402  (the folder of the tools is not a package)

#: One at least of every stretch between changes of SGLang's loaders: up to 0.4.8, to 0.5.11, to 0.5.16, and from 0.5.17 on.
RUN = versions.run()
ENGINES = [f"{engine}=={version}" for engine, found in RUN.items() for version in found]
#: Cases that would say nothing: SGLang builds a plain target of such a config, and no draft.
NOT_A_DRAFT = {("sglang", "plain_llama")}
LIMIT = 900
#: Every trainer's checkpoint, to be converted for each engine.
SOURCES = {name: build for name, (_, build) in TRAINERS.items()} | {
    "EAGLE-3.1": specforge_31,
    "MLA": lambda folder: mla(folder, rope_scaling=YARN),
}


def environment(engine: str) -> tuple[Path, dict[str, str]]:
    """The interpreter and the search path of one engine version; set up by ``make test-engines``."""
    name, _, version = engine.partition("==")
    python = Path(os.environ.get(f"EAGLE3DIAG_{name.upper()}") or ROOT / f".venv-{name}/bin/python")
    extra = Path(os.environ.get("EAGLE3DIAG_LOADERS") or ROOT / ".loaders") / version
    own = name == "vllm" or version == RUN["sglang"][-1]
    for needed in (python, *(() if own else (extra / "sglang",))):
        if not needed.exists():
            pytest.fail(f"{needed} is not there: run `make test-engines`, which sets it up")
    return python, {"PYTHONPATH": "" if own else str(extra)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All cases on disk, the target beside them."""
    root = tmp_path_factory.mktemp("cases")
    for name in CASES:
        tensors, config = checkpoint(name)
        write_model(root / name, config, tensors)
    write_model(root / "target", TARGET_CONFIG, target_tensors())
    (root / "targets.json").write_text(json.dumps(TARGETS))
    return root


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Draft]:
    """What each trainer writes, its tensors as constants."""
    root = tmp_path_factory.mktemp("sources")
    opened = {name: open_draft(build(root / name)) for name, build in SOURCES.items()}
    return {name: draft.replace(tensors=constants(draft.tensors)) for name, draft in opened.items()}


@pytest.fixture(scope="module", params=ENGINES)
def seen(
    request: pytest.FixtureRequest, folder: Path, sources: dict[str, Draft], tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, dict[str, Any], Path]:
    """Engine, what its loader did with every case and with every trainer's checkpoint converted for it, and where these lie."""
    engine: str = request.param
    python, paths = environment(engine)
    root = tmp_path_factory.mktemp("seen")
    for part in folder.iterdir():
        (root / part.name).symlink_to(part)
    for name, draft in sources.items():
        convert(draft, root / f"converted {name}", engine)
    out = tmp_path_factory.mktemp("out") / "seen.json"
    settings = {
        "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "TORCHDYNAMO_DISABLE": "1",
    }  # fmt: skip
    command = [str(python), str(TOOLS / f"{engine.partition('=')[0]}_load.py"), str(root), str(out)]
    done = subprocess.run(command, env=os.environ | settings | paths, capture_output=True, text=True, timeout=LIMIT, check=False)
    if done.returncode:
        pytest.fail(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(out.read_text())
    assert result["version"] == engine.partition("==")[2]
    return engine, result, root


def predicted(engine: str, name: str) -> tuple[Draft, Audit]:
    tensors, config = checkpoint(name)
    draft = Draft.from_tensors(tensors, config, path=name)
    return draft, audit(draft, engine=engine)


@pytest.mark.parametrize("name", CASES)
def test_prediction_is_what_happened(seen: tuple[str, dict[str, Any], Path], name: str) -> None:
    """Every tensor goes where it was said to go, every other parameter keeps what it was said to hold, and what ends the start does."""
    engine, result, _ = seen
    if (engine.partition("==")[0], name) in NOT_A_DRAFT:
        return
    draft, said = predicted(engine, name)
    happened = result["cases"][name]

    if said.refused:  # some architectures end in a model of another kind, which does not take the tensors
        assert happened["built"] is not None or happened["whole"]["raised"] is not None, said.refused
        return
    assert happened["built"] is None
    _whole(said, happened, draft)
    for load in said.loads:
        if load.shape is not None:
            _alone(load, happened["alone"][load.name], draft, said)
    _starts(said, happened)


@pytest.mark.parametrize("name", SOURCES)
def test_a_converted_draft_arrives_whole(seen: tuple[str, dict[str, Any], Path], name: str) -> None:
    """Every tensor of the copy is in a parameter, every parameter holds one or is borrowed, the map is the draft's, and no finding is left
    but of what no copy can mend: a class, a norm or a field that this version has not, ids that it does not read."""
    engine, result, root = seen
    copy = open_draft(root / f"converted {name}")
    said, happened = audit(copy, engine=engine), result["cases"][f"converted {name}"]
    version = Version.parse(engine.partition("==")[2])
    lacks: set[str] = {field.fault for field in said.unserved}
    if engine.startswith("sglang"):
        lacks |= {"FM-28"} if version < Version.parse("0.4.9") else set()
        lacks |= {"FM-20"} if name == "EAGLE-3.1" and version < Version.parse("0.5.12") else set()
        lacks |= {"FM-29"} if name == "MLA" and version < Version.parse("0.5.13") else set()  # ids of MLA drafts are never rewritten
        if name == "MLA" and version < Version.parse("0.5.12"):
            assert said.refused
            return
    elif name == "MLA":
        lacks |= {"FM-28"}
    assert {f.fault for f in said.findings if f.severity > Severity.NOTE} <= lacks

    assert happened["built"] is None and happened["whole"]["raised"] is None
    held = {value for runs in happened["whole"]["contents"].values() for value, _ in runs}
    sent = {_value(copy, n) for n, t in copy.tensors.items() if t.is_floating_point()}
    dropped = {_value(copy, load.name) for load in said.outcome("dropped")} if "FM-20" in lacks else set()
    assert sent - held - {0.0} == dropped
    borrowed = {_into(load) for load in said.outcome("borrowed")}
    zeros = {_into(load) for load in said.outcome("loaded") if load.dtype in FLOATS and _value(copy, load.name) == 0}
    assert set(happened["starts"]) - set(happened["whole"]["contents"]) == borrowed | zeros
    if copy.vocabulary is not None and "hot_token_id" in happened["extras"]:
        assert happened["extras"]["hot_token_id"] == copy.vocabulary.d2t.tolist()


def _value(draft: Draft, name: str) -> float:
    return float(draft.tensors[name].flatten()[0])


def _into(load: TensorLoad) -> str:
    return (load.into or "").partition("[")[0]


def _whole(said: Audit, happened: dict[str, Any], draft: Draft) -> None:
    """The whole file: an exception exactly where one was said to come, else the same rows of the same parameters."""
    fatal = [load.name for load in said.loads if load.outcome in ("raises", "shape_error")]
    assert (happened["whole"]["raised"] is not None) is bool(fatal), fatal
    if fatal:
        return
    filled: dict[str, set[tuple[float, float]]] = {}
    for load in said.loads:
        if load.outcome in ("loaded", "overwritten") and load.into != HOT_TOKEN_ID:
            assert load.shape is not None
            filled.setdefault(_into(load), set()).add((_value(draft, load.name), float(load.shape[0])))
    assert {name: {(value, rows) for value, rows in runs} for name, runs in happened["whole"]["contents"].items()} == filled
    mapped = [load.name for load in said.loads if load.into == HOT_TOKEN_ID and load.shape is not None]
    if "hot_token_id" in happened["extras"]:
        assert happened["extras"]["hot_token_id"] == (draft.tensors[mapped[-1]].tolist() if mapped else None)


def _alone(load: TensorLoad, happened: dict[str, Any], draft: Draft, said: Audit) -> None:
    """One tensor at a time, so that nothing hides behind an exception before it."""
    if load.outcome in ("raises", "shape_error"):
        assert happened["raised"] is not None, load
        return
    assert happened["raised"] is None, (load, happened["raised"])
    joined = load.into is not None and "fused_qkv_a_proj_with_mqa" in load.into
    if load.outcome in ("loaded", "overwritten") and load.into != HOT_TOKEN_ID and not joined:
        assert load.shape is not None
        assert happened["contents"] == {_into(load): [[_value(draft, load.name), float(load.shape[0])]]}, load
    else:
        assert happened["contents"] == {}, load
    if load.outcome == "dropped" and "line in the log" in load.note:
        assert happened["warnings"], load


def _starts(said: Audit, happened: dict[str, Any]) -> None:
    """Exactly these parameters are built, and those that nothing fills hold what was said."""
    built = {_into(load) for load in said.loads if load.into is not None} - {HOT_TOKEN_ID}
    assert set(happened["starts"]) == built
    for load in said.loads:
        if load.outcome == "missing" and _into(load) != HOT_TOKEN_ID:
            assert HOLDS[happened["starts"][_into(load)]] == load.note, load


def test_captured_layers_are_what_the_targets_say(seen: tuple[str, dict[str, Any], Path]) -> None:
    """SGLang: the target classes' own code on configured ids. vLLM: both runners' own look-up in every case's config."""
    engine, result, _ = seen
    name, _, version = engine.partition("==")
    rules = rules_of(name)
    if name == "vllm":
        for case, happened in result["cases"].items():
            if case in CASES and happened["built"] is None:
                found = {c.runner: c.ids for c in rules.captured(checkpoint(case)[1], Version.parse(version), None)}
                assert found == {"V1": _ids(happened["extras"]["v1_ids"]), "V2": _ids(happened["extras"]["v2_ids"])}, case
        return
    asked = 0
    for (module, target_class, blocks, ids), happened in zip(TARGETS, result["captures"], strict=True):
        raw: dict[str, Any] = {} if ids is None else {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ids}}
        target = Target("t", {"architectures": [target_class], "num_hidden_layers": blocks, "hidden_size": 8, "vocab_size": 8}, {})
        said = rules.captured(raw, Version.parse(version), target)[0]
        if happened is None:  # no such file, no such method, or one that cannot be imported here
            continue
        asked += 1
        assert said.supported, (module, target_class)
        assert said.boundaries is not None
        assert sorted({*said.boundaries, *said.lost}) == happened, (target_class, ids)
    assert asked >= 4


def _ids(found: list[int] | None) -> tuple[int, ...] | None:
    return None if found is None else tuple(found)


def test_the_sample_draft_loads_whole(seen: tuple[str, dict[str, Any], Path], samples: Path) -> None:
    """The shipped draft: nothing dropped, nothing missing but what is borrowed."""
    said = audit(open_draft(samples / "draft"), engine=seen[0])

    outcomes = {load.outcome for load in said.loads if load.canonical != "fc.bias"}
    assert outcomes <= {"loaded", "borrowed", "ignored", "overwritten"}
