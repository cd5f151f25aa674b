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
# # 01 · The launch command, and what "accept rate" means
#
# **The symptom.** `accept len: 1.0x`, and an accept *rate* that is not zero. The command looks right.
#
# One word in it decides whether the target's aux states are captured at all, and one number in the log has meant three things. Both are settled here in a minute, without a GPU.

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
# ## 1 · Read the command as the server does
#
# The command is read as words. It is never run.

# %%
from eagle3diag.serving import read_launch

launch = read_launch(LAUNCH)
launch.engine, launch.algorithm, launch.steps, launch.topk, launch.num_draft_tokens

# %% [markdown]
# `EAGLE` is a legal value: it names EAGLE-1 and EAGLE-2. Only the exact string `EAGLE3` arms the capture of aux states. Under `EAGLE` the draft is handed the target's final state, one hidden size wide, and the guard before `fc` lets it pass, because its width happens to equal the embedding's.
#
# **Before you run the next cell:** will the checkpoint and the command alone be enough to see it?

# %%
from_files = e3.diagnose(draft=DRAFT, launch=LAUNCH)
from_files

# %% [markdown]
# `fc` is three hidden sizes wide, so this draft was trained on three aux states: `EAGLE` cannot be meant. The same draft with the right word is silent:

# %%
right = LAUNCH.read_text().replace("EAGLE ", "EAGLE3 ")
e3.diagnose(draft=DRAFT, launch=right).verdict

# %% [markdown]
# ## 2 · What the log says
#
# Every `Decode batch` line carries an accept length and, since 0.5.4, an accept rate.

# %%
from eagle3diag.serving import read_log

log = read_log(LOG)
for window in log.windows[:4]:
    print(f"accept len {window.accept_length:.2f}   accept rate {window.accept_rate:.2f}")
print("this version's rate is", log.rate_kind)

# %% [markdown]
# ## 3 · One number, three meanings
#
# With `k` drafts a round, `T` slots and `A` accepted drafts a round on average:
#
# | what is printed | formula | when nothing is accepted |
# |---|---|---|
# | accept length | `1 + A` | 1.00 |
# | strict rate (vLLM; SGLang since 0.5.11) | `A / k` | 0.00 |
# | biased rate (SGLang 0.5.5.post3 to 0.5.10) | `(1 + A) / T` | `1 / T` |
#
# **Guess first:** your 0.5.8 server with five slots shows `accept rate: 0.20`. One draft in five?

# %%
from eagle3diag.serving import strict_from_biased

for rate in (0.20, 0.21, 0.40, 1.00):
    print(f"printed {rate:.2f} at 5 slots  ->  strict {strict_from_biased(rate, 5):.4f}")

# %% [markdown]
# 0.20 is zero. Read the accept length, or convert. A server that runs now can be asked instead: `e3.probe("http://127.0.0.1:30000")` sends a few short prompts and says what it is, how it was started and what it accepts.
#
# ## 4 · How sure is a number?
#
# Two accepted of 24 drafts is not "8 %". It is anything from one to twenty-six.

# %%
from eagle3diag.intervals import wilson
from eagle3diag.serving import read_acceptance

low, high = wilson(2, 24)
served = read_acceptance(ACCEPTANCE)
print(f"2 of 24: {low:.0%} to {high:.0%}")
low, high = served.interval
print(f"this server: accept length {served.length:.2f} over {served.rounds} rounds, 95 % from {low:.2f} to {high:.2f}")

# %% [markdown]
# ## The fix, and what it is not
#
# **Fix.** `--speculative-algorithm EAGLE3` (vLLM: `"method": "eagle3"` in `--speculative-config`). For chains, `--speculative-num-draft-tokens` is `--speculative-num-steps` + 1.
#
# **What it is not.** A healthy flag does not prove that the *right* layers are captured (notebook 05), and an accept length that stays low after the fix usually has a second cause: faults come in series. Next: names, notebook 02.

# %%
# Where this notebook ends, as a test reads it.
verdicts = {"from files": from_files.findings[0].fault, "nothing accepted is": strict_from_biased(0.20, 5)}
verdicts
