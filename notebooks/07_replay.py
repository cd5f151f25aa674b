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
# # 07 · Replay and counterfactuals
#
# **The question.** What accept length should this draft reach, without a server? And which fault would turn that number into the one you see?
#
# The replay is the draft in plain torch: greedy chains from the recorded states, accepted where they equal the target's own text, walked as a server would walk it.

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
# ## 1 · The number to expect
#
# **Before you run it:** the trainer reported about one half for the first step. Write down your guess for chains of four.

# %%
expected = e3.replay(DRAFT, TRAIN, target=TARGET)
expected

# %% [markdown]
# ## 2 · And what the server gave
#
# The real engine served these very prompts.

# %%
from eagle3diag.serving import read_acceptance

served = read_acceptance(ACCEPTANCE)
on_live = e3.replay(DRAFT, LIVE, target=TARGET)
print(f"served                         {served.length:.2f}")
print(f"replayed on what it fed        {on_live.accept_length:.2f}")
print(f"replayed on the training side  {expected.accept_length:.2f}")

# %% [markdown]
# ## 3 · How many steps?
#
# A longer chain accepts more per round and costs more per round. The conditional rates say when to stop.

# %%
for steps in (1, 2, 3, 4, 6):
    r = e3.replay(DRAFT, TRAIN, target=TARGET, steps=steps)
    print(f"{steps} steps: accept length {r.accept_length:.2f}   last conditional rate {r.c[-1]:.2f}")

# %% [markdown]
# ## 4 · One thing broken at a time
#
# A *counterfactual* is the healthy replay with exactly one thing changed. The one that lands on the observed number explains it; the one that costs nothing does not, however real it is.

# %%
from eagle3diag.controls import Bench

bench = Bench(DRAFT, TRAIN, target=TARGET)
lengths = {label: bench.outcome([label]).broken.accept_length for label in bench.faults}
for label, length in sorted(lengths.items(), key=lambda item: item[1]):
    print(f"{length:5.2f}  {label}")

# %% [markdown]
# ## 5 · Faults come in series
#
# Two at once are not the sum of two. Repairing one of them may change nothing at all: that is why the seed case went from 1.00 to 1.05 and stayed there.

# %%
labels = [next(l for l in bench.faults if l.startswith(f)) for f in ("FM-01", "FM-05")]
both = bench.outcome(labels).broken.accept_length
for label in labels:
    print(f"{lengths[label]:5.2f}  {label}")
print(f"{both:5.2f}  both")
print(f"{expected.accept_length:5.2f}  neither")

# %% [markdown]
# ## 6 · Now break it yourself

# %%
bench.controls()

# %% [markdown]
# ## What it is not
#
# A replay needs the target's *own greedy answers*. On other text it measures how well the draft predicts a model that is not there. And a replay that agrees with a poor server is good news of a kind: everything between trainer and engine is right, and the draft itself is weak (notebook 08).

# %%
# Where this notebook ends, as a test reads it.
{"gap to the server": round(abs(on_live.accept_length - served.length), 3), "both": round(both, 3)}
