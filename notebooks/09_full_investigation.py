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
# # 09 · A full investigation
#
# From 1.0x to a working draft, as it really goes: a first fault, a fix that changes nothing, a second fault behind it, a number that comes back, and a report that others can read.
#
# Everything is measured as you run it. To walk through *your* case, change the paths, or let `eagle3diag notebooks DIR` fill them in.

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
# ## 1 · What we are told
#
# An EAGLE-3 draft, trained for days. The server is healthy, the text is right. And:

# %%
from eagle3diag.serving import read_acceptance

draft = e3.open_draft(DRAFT)
# as the trainer named the layer
lost = draft.replace(rename=lambda name: name.replace("midlayer.", "draft_layers.0."))
served = read_acceptance(ACCEPTANCE)
print(f"accept length {served.length:.2f} over {served.rounds} rounds")
print(f"an older engine would print an accept rate of {served.biased_rate:.2f}")

# %% [markdown]
# ## 2 · Cheap evidence first
#
# Checkpoint, command and log cost seconds.

# %%
first_look = e3.diagnose(draft=lost, launch=LAUNCH, log=LOG, acceptance=ACCEPTANCE)
first_look

# %% [markdown]
# Two faults at once, and either alone would give a number like this one. What would be left if the names were right? `assume_fixed` judges without a fault, before anything is mended (at a shell: `--assume-fixed FM-05`). **Predict** the accept length that it leaves.

# %%
left = e3.diagnose(draft=lost, launch=LAUNCH, log=LOG, acceptance=ACCEPTANCE, assume_fixed=["FM-05"])
print(left.verdict)

# %% [markdown]
# So after mending the first, expect *no change*, and do not undo it.
#
# ## 3 · Mend the names
#
# In a copy (`e3.convert`, notebook 02). Then judge again, on the number of the server that still has the wrong flag.

# %%
mended = e3.diagnose(draft=draft, target=TARGET, train=TRAIN, live=LIVE, launch=LAUNCH, log=LOG, acceptance=ACCEPTANCE)
mended

# %% [markdown]
# ## 4 · How sure, and by what?
#
# Each finding carries its share of the explanation, how sure it is that it is there at all, and what it costs on *this* pair.

# %%
for row in mended.ranked:
    cost = "not replayed" if row.cost is None else f"costs {row.cost:.2f}"
    print(f"{row.finding.fault}: share {row.weight:.0%}, present {row.certainty:.0%}, {cost}")
print(f"none of these: {mended.none_of_these:.0%}")

# %% [markdown]
# Where acceptance is lost, step by step:

# %%
for stage in mended.waterfall:
    print(f"{stage.accept_length:5.2f}  {stage.name:28} {stage.why}")

# %% [markdown]
# ## 5 · Mend the flag, and measure
#
# The recorded server with `--speculative-algorithm EAGLE3` and the right names:

# %%
HEALTHY = SAMPLES / "live" / "eagle3"
fixed = e3.diagnose(
    draft=DRAFT, target=TARGET, train=TRAIN, live=HEALTHY / "live",
    launch=HEALTHY / "launch.txt", log=HEALTHY / "server.log", acceptance=HEALTHY / "acceptance.json",
)
print(fixed.verdict)

# %% [markdown]
# The replay had said so before any server was restarted.
#
# ## 6 · The report
#
# Before and after in one view; and every number of the investigation in one file that opens offline, with hosts, paths, names and prompts left out. The notebook itself can travel the same way: `eagle3diag export 09_full_investigation.ipynb`.

# %%
e3.before_after(mended, fixed)

# %%
report = mended.to_html(Path(os.environ.get("EAGLE3DIAG_OUT", ".")) / "full_investigation.html")
print(report.name, f"{report.stat().st_size / 1e6:.1f} MB")

# %%
# Where this notebook ends, as a test reads it.
errors = sorted(f.fault for f in first_look.findings if f.severity >= e3.Severity.ERROR)
{"first": errors, "then": mended.findings[0].fault, "fixed": fixed.ok}
