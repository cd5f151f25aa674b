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
# # 02 · Names in the checkpoint, and what the engine dropped
#
# **The symptom.** Start-up is clean, not a warning, and next to nothing is accepted. The flag is right.
#
# Loaders walk over the *file's* names and skip what they do not know. A parameter that no name fills keeps whatever memory held, and nobody says so.

# %% tags=["paths"]
import os
from pathlib import Path

import eagle3diag as e3
from eagle3diag.demo import cached_target

SAMPLES = Path(os.environ.get("EAGLE3DIAG_SAMPLES", "../data_samples"))
TARGET = Path(os.environ.get("EAGLE3DIAG_TARGET", cached_target()))  # `make demo` builds the samples' target
DRAFT, TRAIN = SAMPLES / "draft", SAMPLES / "train"
SERVER = SAMPLES / "live" / "dropped_names"
LIVE, LAUNCH, LOG, ACCEPTANCE = (SERVER / name for name in ("live", "launch.txt", "server.log", "acceptance.json"))

# %% [markdown]
# ## 1 · What would this engine version load?
#
# Only headers are read, so this takes a blink for a draft of any size. First the sample draft as it is:

# %%
audit = e3.audit(DRAFT, engine="sglang==0.5.23", target=TARGET)
audit

# %% [markdown]
# ## 2 · The same draft, named as another trainer names it
#
# `layers.0.*` is Transformers' and speculators' spelling, `midlayer.*` is SafeAILab's. **Predict:** which of these engine versions loads it?

# %%
draft = e3.open_draft(DRAFT)
renamed = draft.replace(rename=lambda name: name.replace("midlayer.", "layers.0."))

missing = {}
for version in ("0.4.6", "0.5.8", "0.5.11", "0.5.12", "0.5.23"):
    result = e3.audit(renamed, engine=f"sglang=={version}")
    missing[version] = len(result.missing_layer)
    print(f"{version:>7}: {missing[version]:2} layer parameters without a value   {'; '.join(f.fault for f in result.findings)}")

# %% [markdown]
# 0.4.5 to 0.4.8 end with a `KeyError`; 0.4.9 to 0.5.11 say nothing and serve noise; since 0.5.12 both spellings load.
#
# ## 3 · What does it cost?
#
# A fault that is *found* is not yet *guilty*. The recorded server ran with a layer whose names (`draft_layers.0.*`) no version knows. Replaying the healthy draft with its layer lost should give what that server gave.

# %%
lost = draft.replace(rename=lambda name: name.replace("midlayer.", "draft_layers.0."))
diagnosis = e3.diagnose(draft=lost, target=TARGET, train=TRAIN, log=LOG, acceptance=ACCEPTANCE)
diagnosis

# %%
first = diagnosis.ranked[0]
print(f"served                        {diagnosis.observed.length:.2f}")
print(f"replayed with the layer lost  {first.predicted.accept_length:.2f}")
print(f"replayed as trained           {diagnosis.replay.accept_length:.2f}")

# %% [markdown]
# ## 4 · Mend it, in a copy
#
# `convert` writes what one engine version reads, and lists every change. Nothing is changed in place, and what is not certain is left alone. **Predict:** what does 0.5.8 miss of the copy?

# %%
import tempfile

with tempfile.TemporaryDirectory() as folder:
    copy = Path(folder) / "for_0.5.8"
    conversion = e3.convert(renamed, copy, to="sglang==0.5.8")
    mended = e3.audit(copy, engine="sglang==0.5.8")
print(f"missing before {missing['0.5.8']}, after {len(mended.missing_layer)}")
conversion

# %% [markdown]
# ## 5 · Now break it yourself
#
# Lose something else, and see what the audit says before any server would.

# %%
broken = {
    "no head": draft.replace(tensors={"lm_head.weight": None}),
    "no map": draft.replace(tensors={"d2t": None}),
    "no fc": draft.replace(tensors={"fc.weight": None}),
    "half of the layer renamed": draft.replace(rename=lambda name: name.replace("midlayer.mlp.", "layer.mlp.")),
}
for what, changed in broken.items():
    print(what)
    for finding in e3.audit(changed).findings:
        if finding.severity >= e3.Severity.WARNING:
            print("   ", finding.fault, finding.title)

# %% [markdown]
# ## The fix, and what it is not
#
# **Fix.** `eagle3diag convert DRAFT COPY --to sglang==0.5.8`, or upgrade the engine; then audit again: no parameter may be missing.
#
# **What it is not.** If acceptance moves from 1.00 to 1.05 after the rename, the rename was right and a second fault was waiting: do not undo it. The seed case went exactly so. Next: is `fc` trained at all? Notebook 03.

# %%
# Where this notebook ends, as a test reads it.
{"fault": diagnosis.findings[0].fault, "missing": missing, "mended": len(mended.missing_layer)}
