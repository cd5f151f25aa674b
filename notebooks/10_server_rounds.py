# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 10 · Round by round: what no file shows
#
# **The symptom.** Names, flags, layers and map are right, the live dump holds what was trained on, and less is accepted than the replay expects. A rotation of another base, cache pages that are lost, a state one token off: all of it happens *behind* what a file or a dump can show.
#
# The server's own rounds show it. Our recorders write down, for each round, how many drafts were accepted and from which token; a replay says what should have been accepted from that very token. Two accept lengths can be alike by chance. A hundred rounds cannot.

# %% tags=["paths"]
import os
from pathlib import Path

import eagle3diag as e3
from eagle3diag.demo import cached_target

SAMPLES = Path(os.environ.get("EAGLE3DIAG_SAMPLES", "../data_samples"))
TARGET = Path(os.environ.get("EAGLE3DIAG_TARGET", cached_target()))  # `make demo` builds the samples' target
DRAFT, TRAIN = SAMPLES / "draft", SAMPLES / "train"
SERVER = SAMPLES / "live" / "eagle3"
LIVE, LAUNCH, LOG, ACCEPTANCE = (SERVER / name for name in ("live", "launch.txt", "server.log", "acceptance.json"))

# %% [markdown]
# ## 1 · A healthy server
#
# Recorded in the real SGLang engine, in bfloat16. **Guess:** in how many of its rounds does a replay in float32 accept another number of drafts?

# %%
healthy = e3.replay(DRAFT, LIVE, target=TARGET)
print(f"{healthy.served_alike} of {healthy.served_rounds} rounds alike; accept length {healthy.accept_length:.2f}")
print("server accepts, down; replay accepts, across")
for row in healthy.served:
    print("  ".join(f"{n:3}" for n in row))

# %% [markdown]
# What is off the diagonal was turned by rounding, where two tokens were nearly as likely.
#
# ## 2 · A fault that the number hides
#
# The next server captured every state one boundary late (notebook 05). It lost next to nothing, so its accept length proves nothing either way. Its rounds do. The replays below know what the draft *should* have been fed; the rounds of the server are laid on the same tokens.

# %%
from eagle3diag.case import Case, Given
from eagle3diag.faults import catalogue

late = Case(Given(draft=DRAFT, target=TARGET, train=TRAIN, live=SAMPLES / "live" / "wrong_layers" / "live", engine="sglang==0.5.23"))
as_trained = late.play()
shift = next(fault for fault in catalogue() if fault.id == "FM-29")
change = next(c for c in shift.changes(late) if "late" in c.name)
as_served = late.play(change)
for what, r in (("as trained", as_trained), (change.name, as_served)):
    print(f"{r.accept_length:5.2f}   {r.served_alike:3} of {r.served_rounds} rounds   {what}")

# %% [markdown]
# ## 3 · A fault behind the recorder
#
# Now something that leaves no trace in any file. A small server walks the target's answers with the right states and the right weights, but its draft finds no keys for the prompt: a prefix cache that the draft was left out of (FM-51). Everything that it records is healthy.

# %%
import dataclasses

import torch

from eagle3diag.dumps import HiddenStates
from eagle3diag.replay import build, loop_of
from eagle3diag.replay.acceptance import accepted, following, walk
from eagle3diag.replay.drafting import draft_chains, pack

STEPS = 4
train = e3.open_dump(TRAIN)
net = build(e3.open_draft(DRAFT), e3.open_target(TARGET))
forgetful = dataclasses.replace(loop_of("sglang"), prefix="answer")


def served(record):
    """The rounds of this server on one text, by the row that each was drafted from."""
    first, rows = record.prompt_length - 1, torch.arange(record.tokens - 1)
    text = pack(net, [(record.input_ids, record.features)], forgetful, [first])
    hits = accepted(draft_chains(net, text, rows, STEPS, forgetful), following(record.input_ids, len(rows), STEPS))
    kept, at = torch.full((record.tokens,), -1), first
    for m in walk(hits[: record.tokens - 1 - STEPS].tolist(), first):
        kept[at] = m
        at += m + 1
    return {"name": record.name, "input_ids": record.input_ids, "features": record.features, "prompt_length": record.prompt_length, "accepted": kept}


live = HiddenStates.from_tensors([served(r) for r in train], side="live", target=train.target, engine="sglang", engine_version="0.5.23")
diagnosis = e3.diagnose(draft=DRAFT, target=TARGET, train=train, live=live, launch=LAUNCH)
diagnosis

# %% [markdown]
# No finding but one: the replay without the prompt's keys makes the server's rounds, every one of them. Others come near in accept length, and are far in rounds:

# %%
near = sorted(diagnosis.counterfactuals, key=lambda c: c.distance)[:6]
for c in near:
    print(f"{c.accept_length:5.2f}   {c.served_alike:3} of {c.served_rounds}   {c.fault} {c.name}")

# %% [markdown]
# ## 4 · Without any dump from training
#
# Where the target is small enough it is run here, on the tokens of the live dump, at the boundaries that the config names. So a checkpoint, the target, and a recording are enough:

# %%
alone = e3.diagnose(draft=DRAFT, target=TARGET, live=LIVE, launch=LAUNCH)
print(alone.verdict)

# %% [markdown]
# **On your server:** `eagle3diag capture sglang --out live/ -- python -m sglang.launch_server ...` (or `vllm`) prints the command that records; a few dozen requests are plenty, and sampled answers serve as well as greedy ones, since a round that was rejected put another token into the text.
#
# ## What it is not
#
# Rounds say what the engine did with what it was fed. They do not say that it was fed the right thing: that is what the states in the same dump are for (notebook 05). And a draft that is weak makes weak rounds in the replay too (notebook 08).

# %%
# Where this notebook ends, as a test reads it.
{
    "fault": diagnosis.ranked[0].finding.fault,
    "alike": diagnosis.ranked[0].predicted.served_share,
    "healthy": healthy.served_share,
    "late": [r.served_share for r in (as_trained, as_served)],
    "alone": alone.ok,
}
