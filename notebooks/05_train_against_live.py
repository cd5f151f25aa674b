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
# # 05 · Train against live
#
# **The symptom.** Names are right, the flag is right, the weights are trained. Acceptance is poor all the same.
#
# The draft was trained on certain states. Is it fed the same ones? Two dumps of the same prompts answer that: one from the trainer's side, one recorded in the server.

# %% tags=["paths"]
import os
from pathlib import Path

import eagle3diag as e3
from eagle3diag.demo import cached_target

SAMPLES = Path(os.environ.get("EAGLE3DIAG_SAMPLES", "../data_samples"))
TARGET = Path(os.environ.get("EAGLE3DIAG_TARGET", cached_target()))  # `make demo` builds the samples' target
DRAFT, TRAIN = SAMPLES / "draft", SAMPLES / "train"
SERVER = SAMPLES / "live" / "wrong_layers"
LIVE, LAUNCH, LOG, ACCEPTANCE = (SERVER / name for name in ("live", "launch.txt", "server.log", "acceptance.json"))

# %% [markdown]
# ## 1 · Compare
#
# Records are paired by their token ids. **Before you run it:** the widths agree here, 1,728 on both sides. What else can differ?

# %%
comparison = e3.compare(TRAIN, LIVE)
comparison

# %% [markdown]
# ## 2 · Why plain cosine lies
#
# A few channels of the residual stream are huge. They alone make *any* two layers look alike. Standardise each channel by the training side, drop the first token (an attention sink), and the difference appears:

# %%
for block in comparison.blocks:
    print(f"boundary {block.boundary:2}: plain cosine {block.cosine.median:.4f}   channel-standardised {block.standardised.median:.4f}")

# %% [markdown]
# ## 3 · Which boundary is it really?
#
# Capture *every* boundary of the target on the same tokens, and each live block can be named. (`diagnose` does this by itself when two dumps disagree and the target is small.)

# %%
from eagle3diag.capture.reference import capture_reference

train = e3.open_dump(TRAIN).select(range(6))
reference = capture_reference(e3.open_target(TARGET), train)
named = e3.compare(train, LIVE, reference=reference)
declared = named.train.boundaries
found = []
for block, boundary in enumerate(declared):
    column = {b: row[block] for b, row in zip(named.reference_boundaries, named.reference)}
    best = max(column, key=column.get)
    found.append(best)
    print(f"live block {block}: declared {boundary:2}, is {best:2}   ({column[best]:.4f} against {column[boundary]:.4f})")

# %% [markdown]
# All three are one boundary late: somebody wrote boundaries where this engine reads *output* ids, and output id `i` is boundary `i + 1`.
#
# ## 4 · Is it guilty?
#
# Found is not guilty. On this pair, one early and one late do not even cost the same.

# %%
diagnosis = e3.diagnose(draft=DRAFT, target=TARGET, train=TRAIN, live=LIVE, acceptance=ACCEPTANCE)
first = diagnosis.ranked[0]
print(diagnosis.verdict)
print(f"replayed, healthy          {diagnosis.replay.accept_length:.2f}")
print(f"replayed, with this fault  {first.predicted.accept_length:.2f}   so it costs {first.cost:.2f}")
print(f"served                     {diagnosis.observed.length:.2f}")

# %% [markdown]
# ## 5 · Now break it yourself
#
# Choose one fault or several, change the steps, and watch the accept length and the cosine of what is fed move together.

# %%
from eagle3diag.controls import Bench

bench = Bench(DRAFT, train, target=TARGET, reference=reference)
bench.controls()

# %% [markdown]
# Without a kernel, the same as a table:

# %%
for label in [name for name in bench.faults if name.startswith(("FM-28", "FM-29", "FM-33"))]:
    print(f"{label:55} {bench.outcome([label]).summary}")

# %% [markdown]
# ## The fix, and what it is not
#
# **Fix.** Write the ids in the engine's convention: for SGLang `eagle_config.eagle_aux_hidden_state_layer_ids` holds output ids, boundary − 1.
#
# **What it is not.** A cosine of 0.99 between *neighbouring* boundaries is normal, and a shift that costs nothing does not explain a 1.00. Judge by the margin between candidates, and by the replay.

# %%
# Where this notebook ends, as a test reads it.
{"declared": declared, "found": tuple(found), "fault": diagnosis.findings[0].fault}
