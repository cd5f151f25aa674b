"""The rounds that the real SGLang engine made, in the shipped live dumps, beside its own counts and beside replays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import eagle3diag
from eagle3diag.checkpoints import Draft, Target
from eagle3diag.compare.served import with_rounds_of
from eagle3diag.dumps import HiddenStates, open_dump


@pytest.mark.parametrize("server", ["eagle3", "eagle_flag", "dropped_names", "wrong_layers"])
def test_they_are_those_that_the_engine_counted(server: str, samples: Path) -> None:
    """Of every request that is kept: so many rounds, so many accepted drafts."""
    folder = samples / "live" / server
    requests = json.loads((folder / "acceptance.json").read_text())["requests"]
    for record in open_dump(folder / "live"):
        assert record.accepted is not None
        rounds = [m for m in record.accepted.tolist() if m >= 0]
        counted = requests[int(record.name)]
        assert (len(rounds), sum(rounds)) == (counted["rounds"], counted["accepted"]), record.name


def test_a_replay_makes_them_alike_where_the_server_is_healthy(draft: Draft, target: Target, train: HiddenStates, samples: Path) -> None:
    """On what was fed, and on the training dump of the same tokens; but for rounding (about one in a hundred). Of a server that captures
    one boundary late the replay as trained makes many otherwise, though its accept length is within the interval."""
    healthy, late = (open_dump(samples / "live" / server / "live") for server in ("eagle3", "wrong_layers"))
    fed, own, other = (
        eagle3diag.replay(draft, dump, target=target) for dump in (healthy, with_rounds_of(healthy, train), with_rounds_of(late, train))
    )
    assert fed.served_rounds > 180 and fed.served_rounds - fed.served_alike <= 4
    assert own.served_rounds > 120 and own.served_rounds - own.served_alike <= 6
    assert other.served_rounds > 120 and other.served_rounds - other.served_alike >= 0.1 * other.served_rounds
    served = json.loads((samples / "live" / "wrong_layers" / "acceptance.json").read_text())["accept_length"]
    assert other.accept_length_interval[0] < served < other.accept_length_interval[1]


def test_another_copy_on_the_server_is_thought_of(draft: Draft, target: Target, train: HiddenStates, samples: Path) -> None:
    """The draft given loads whole, and what was recorded is of a server whose copy lost its layer: whatever makes such rounds in a replay is
    said with the doubt, what to do about it first, and which folder the server's log names."""
    server = samples / "live" / "dropped_names"
    found = eagle3diag.diagnose(draft=draft, target=target, train=train, live=server / "live", log=server / "server.log")
    (first,) = (f for f in found.findings if f.severity > eagle3diag.Severity.NOTE)

    assert first.fault not in ("FM-05", "M9") and "FM-05" in first.because
    assert first.fix.startswith("First make sure of the copy: give as --draft the very folder that the server loads")
    assert "make sure that the draft given is the one that is served" in found.verdict
    asked = found.missing[0]
    assert asked.startswith("the draft that is served") and "(it loads draft-dropped-names)" in asked and "--against SERVED" in asked


def test_nobody_is_sent_for_another_copy_where_the_evidence_explains(
    draft: Draft, target: Target, train: HiddenStates, samples: Path
) -> None:
    """Neither of a healthy server nor where the states that were fed show the cause."""
    for name in ("eagle3", "wrong_layers"):
        server = samples / "live" / name
        found = eagle3diag.diagnose(draft=draft, target=target, train=train, live=server / "live", acceptance=server / "acceptance.json")
        assert not any("the draft that is served" in line for line in found.missing), name
