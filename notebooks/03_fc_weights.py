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
# # 03 · fc: is this matrix trained?
#
# **The symptom.** You print `fc.weight.mean()` and see `0.000000`; the standard deviation is within a few per cent of a fresh matrix. Conclusion: never trained?
#
# That conclusion was drawn in the case this toolkit grew from, and it was wrong. Here is what the numbers can and cannot say.

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
# ## 1 · The numbers that mislead
#
# Training moves a wide matrix in a few directions. Its moments hardly notice.

# %%
weights = e3.weights(DRAFT)
fc = weights.tensor("fc.weight")
print(f"shape {list(fc.shape)}   mean {fc.mean:.6f}   std {fc.std:.6f}   mean |w| {fc.abs_mean:.6f}")
print(f"std of PyTorch's default start for this fan-in: {(1 / (3 * fc.fan_in)) ** 0.5:.6f}")

# %% [markdown]
# What *can* be said from printed figures alone? These are the seed case's: 7,168 by 21,504, std 0.004037, mean of absolute values 0.003556. **Guess:** fresh, or not?

# %%
from eagle3diag.weights import from_moments

seed = from_moments((7168, 21504), std=0.004037, abs_mean=0.003556)
nearest = seed.distances[0]
print("starts that these figures allow:", ", ".join(seed.possible) or "none")
print(f"nearest start: {seed.nearest}, std {nearest.std_ratio:.3f} times its own")
print(f"an independent change of {nearest.implied_update:.0%} explains that")

# %% [markdown]
# Not fresh: no known start gives both figures. A change of 23 % moves the std by 2.5 % only, because the two add in squares. That is why "near its start" reads like "never trained".
#
# ## 2 · The number that does not
#
# All singular values of a matrix of independent entries lie in a band that its shape and standard deviation fix (Marchenko and Pastur); the largest strays above it by a known hair (Tracy and Widom). Whatever stands clear of the band was put there.
#
# **Guess:** how many of the 576 singular values of this `fc` stand outside?

# %%
spectrum = fc.spectrum
print(f"{spectrum.outside} singular values above the edge {spectrum.tracy_widom_high:.3f}, the largest {spectrum.singular_values[0]:.3f}")
print(f"stable rank {spectrum.stable_rank:.1f}, effective rank {spectrum.effective_rank:.0f}")

# %%
weights

# %% [markdown]
# ## 3 · Against a matrix that really is fresh
#
# Same shape, same start, no training. It must come out as noise, and the trained one must not.

# %%
import torch

torch.manual_seed(0)
fresh = torch.nn.Linear(fc.shape[1], fc.shape[0], bias=False).weight.detach()
blank = e3.weights({"fc.weight": fresh}).tensor("fc.weight")
print(f"fresh:   std {blank.std:.6f}   outside the band: {blank.spectrum.outside}")
print(f"trained: std {fc.std:.6f}   outside the band: {fc.spectrum.outside}")

# %% [markdown]
# ## 4 · Epoch by epoch
#
# Two earlier epochs of the sample draft are kept. Learning shows as directions that rise out of the band, one after another.

# %%
outside = {}
for epoch in sorted((SAMPLES / "epochs").iterdir()):
    early = e3.weights(epoch).tensor("fc.weight")
    outside[epoch.name] = early.spectrum.outside
    print(f"{epoch.name}: std {early.std:.6f}   outside {early.spectrum.outside}   largest {early.spectrum.singular_values[0]:.2f}")
outside["shipped"] = spectrum.outside
print(f"shipped: std {fc.std:.6f}   outside {spectrum.outside}   largest {spectrum.singular_values[0]:.2f}")

# %% [markdown]
# ## 5 · Which aux state does fc listen to?
#
# `fc` is three matrices side by side, one for each aux state. A block that is much weaker than the others is a state that never came, or came as zeros. With a training dump, `weights` also reads the real states through `fc`: in which order, and with which norm, does it expect them?

# %%
for block, boundary in zip(fc.blocks, e3.open_draft(DRAFT).config.aux_boundaries):
    print(f"boundary {boundary:2}: Frobenius norm {block.frobenius:.2f}, stable rank {block.stable_rank:.1f}")

e3.weights(DRAFT, dump=TRAIN, spectra="none")

# %% [markdown]
# ## The fix, and what it is not
#
# **If nothing stands outside the band,** the file you are looking at was not trained, or is not the one that was: look at the export (which epoch, which object was saved).
#
# **What it is not.** A spectrum full of directions does not prove that the draft is *good*. Only its replay does: notebook 07.

# %%
# Where this notebook ends, as a test reads it.
{"fresh": blank.spectrum.outside, **outside}
