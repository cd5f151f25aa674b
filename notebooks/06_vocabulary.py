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
# # 06 · The draft's vocabulary and its map
#
# **The symptom.** Features are right, names are right, fc is trained; the first draft of every round is already wrong.
#
# A draft with a reduced vocabulary speaks in its own ids. `d2t` brings them back: `target id = draft id + d2t[draft id]`. It is an *offset*. Half of the trouble is in that word.

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
# ## 1 · What a sound map looks like

# %%
import torch

draft = e3.open_draft(DRAFT)
vocabulary = draft.vocabulary
place = torch.arange(len(vocabulary.d2t))
print(f"{len(place)} of {draft.config.vocab_size} target tokens")
print("d2t:", vocabulary.d2t[:6].tolist(), "...", vocabulary.d2t[-3:].tolist())
print("target ids rise:", bool((vocabulary.draft_ids.diff() > 0).all()))
print("marked in t2d:  ", bool(vocabulary.t2d[vocabulary.draft_ids].all()))

# %% [markdown]
# ## 2 · Three ways to get it wrong
#
# **Guess first:** which of these crash, and which just serve badly?

# %%
maps = {
    "absolute ids": vocabulary.draft_ids,
    "arange": place,
    "missing": None,
}
for what, d2t in maps.items():
    broken = draft.replace(tensors={"d2t": d2t})
    finding = e3.audit(broken, target=TARGET).findings[0]
    print(f"{what:13} {finding.fault}  {finding.title}")
    print(f"{'':13} fix: {finding.fix}")

# %% [markdown]
# None of them crashes at load. All of them serve. The whole audit of the first:

# %%
e3.audit(draft.replace(tensors={"d2t": vocabulary.draft_ids}), target=TARGET)

# %% [markdown]
# ## 3 · What each costs
#
# The replay reads the map in each wrong way, and nothing else is changed.

# %%
from eagle3diag.controls import Bench

bench = Bench(DRAFT, TRAIN, target=TARGET)
cost = {}
for label in [name for name in bench.faults if name.startswith(("FM-11", "FM-12"))]:
    outcome = bench.outcome([label])
    cost[label] = outcome.healthy.accept_length - outcome.broken.accept_length
    print(f"{label:45} {outcome.broken.accept_length:.2f}  (healthy {outcome.healthy.accept_length:.2f})")

# %% [markdown]
# ## 4 · The cap that no training lifts
#
# A token that is not in the draft's vocabulary can never be accepted. A draft that is right whenever it *can* be:

# %%
healthy = e3.replay(DRAFT, TRAIN, target=TARGET)
print(f"{healthy.out_of_vocabulary:.1%} of the answers' tokens cannot be said")
print(f"at best {healthy.vocabulary_cap:.2f} of {healthy.steps + 1}; this draft reaches {healthy.accept_length:.2f}")

# %% [markdown]
# ## 5 · Now break it yourself

# %%
bench.controls()

# %% [markdown]
# ## The fix, and what it is not
#
# **Fix.** Offsets: `d2t = ids - arange(len(ids))`; rebuild a lost map from `t2d` when draft ids ascend: `nonzero(t2d) - arange`. Save both with the weights, as persistent buffers.
#
# **What it is not.** `d2t` of zeros is legal when both vocabularies are equal, and a draft without an embedding borrows the target's by design.

# %%
# Where this notebook ends, as a test reads it.
{"cost": {k: round(v, 3) for k, v in cost.items()}, "cap": healthy.vocabulary_cap > healthy.accept_length}
