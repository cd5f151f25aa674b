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
# # 00 · Start here
#
# **The symptom.** The server is healthy, the answers are right, and `accept len` stays at 1.00: not one drafted token is accepted. The draft costs time and gives none back.
#
# This notebook walks from that number to its cause on a real pair: an EAGLE-3 draft for SmolLM2-135M-Instruct, served by SGLang, recorded healthy and broken. Every figure is computed as you run it. To look at your own files, change the paths in the next cell.

# %% tags=["paths"]
import os
from pathlib import Path

import eagle3diag as e3
from eagle3diag.demo import cached_target

SAMPLES = Path(os.environ.get("EAGLE3DIAG_SAMPLES", "../data_samples"))
TARGET = Path(os.environ.get("EAGLE3DIAG_TARGET", cached_target()))  # `make demo` builds the samples' target
DRAFT, TRAIN = SAMPLES / "draft", SAMPLES / "train"
SERVER = SAMPLES / "live" / "eagle_flag"
LIVE, LAUNCH, LOG, ACCEPTANCE = (SERVER / name for name in ("live", "launch.txt", "server.log", "acceptance.json"))

# %% [markdown]
# ## 1 · Is the number really low?
#
# Accept *length* counts the bonus token: 1.00 is nothing. Accept *rate* has had three meanings in SGLang alone; with five slots, versions 0.5.5.post3 to 0.5.10 print 0.20 for zero.

# %%
from eagle3diag.serving import read_acceptance

served = read_acceptance(ACCEPTANCE)
print(f"accept length {served.length:.2f}, strict rate {served.rate:.2f}")
print(f"an older version would print a rate of {served.biased_rate:.2f}")

# %% [markdown]
# ## 2 · What should it be?
#
# `replay` runs the draft on the training-side states, in plain torch, and walks the text as a server would. No server is needed. **Before you run it:** training reported a step-0 accuracy near one half. What accept length do you expect from chains of four?

# %%
expected = e3.replay(DRAFT, TRAIN, target=TARGET)
expected

# %% [markdown]
# ## 3 · Is everything in the checkpoint, and under names that the engine knows?

# %%
e3.audit(DRAFT, engine="sglang==0.5.23", target=TARGET)

# %% [markdown]
# ## 4 · Was fc trained at all?
#
# Its mean prints as zero, its standard deviation is near that of a fresh matrix. Neither says anything. Look at the singular values over the noise band instead.

# %%
weights = e3.weights(DRAFT)
fc = weights.tensor("fc.weight")
print(f"mean {fc.mean:.6f}   std {fc.std:.6f}   singular values above the noise edge: {fc.spectrum.outside}")

# %% [markdown]
# ## 5 · What is the draft fed?
#
# Trained on three aux states side by side. And served?

# %%
comparison = e3.compare(TRAIN, LIVE)
comparison

# %% [markdown]
# ## 6 · The diagnosis
#
# Everything at once: direct evidence first, then *counterfactuals*: the healthy replay with exactly one thing broken. The one that lands on the served number explains it.

# %%
diagnosis = e3.diagnose(
    draft=DRAFT, target=TARGET, train=TRAIN, live=LIVE,
    launch=LAUNCH, log=LOG, acceptance=ACCEPTANCE,
)
diagnosis

# %% [markdown]
# ## 7 · The fix, and whether it held
#
# Start the server with `--speculative-algorithm EAGLE3` and measure again. **What it is not:** the weights (step 4) and the names (step 3) were fine all along; a fix that changes little may still be right, so look for the next fault before you undo it.

# %%
fixed = e3.diagnose(
    draft=DRAFT, target=TARGET, train=TRAIN, live=SAMPLES / "live" / "eagle3" / "live",
    launch=SAMPLES / "live" / "eagle3" / "launch.txt", acceptance=SAMPLES / "live" / "eagle3" / "acceptance.json",
)
print(fixed.verdict)

# %% [markdown]
# ## 8 · Share it
#
# One file, offline, with every number in it.

# %%
report = diagnosis.to_html(Path(os.environ.get("EAGLE3DIAG_OUT", ".")) / "investigation.html")
print(report.name, f"{report.stat().st_size / 1e6:.1f} MB")

# %% [markdown]
# ## Which notebook next
#
# | you have, or you see | open |
# |---|---|
# | only the launch command and the log | 01 launch flags |
# | the checkpoint | 02 names, 03 fc weights, 06 vocabulary |
# | a running server | 04 capture |
# | dumps of both sides | 05 train against live |
# | a number that nothing explains | 07 replay and counterfactuals |
# | every check green, the number still low | 08 trained well, served badly; 10 round by round |
# | all of it | 09 a full investigation |

# %%
# Where this notebook ends, as a test reads it.
widths = comparison.train.width // comparison.live.width
{"fault": diagnosis.findings[0].fault, "fixed": fixed.ok, "widths": widths}
