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
# # 08 · Trained well, served badly
#
# **The symptom.** Training accuracy is fine, every check is green, the replay agrees with the server, and the number is still low.
#
# Then nothing is broken between trainer and engine, and the question becomes: what is the draft asked that it was not taught?

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
# ## 1 · Accuracy is not acceptance
#
# The trainer reports, for each step, how often *that step* is right. A server needs *all steps before it* right too, and it draws its starting points from rounds, not from every position.

# %%
import json

training = json.loads((SAMPLES / "training.json").read_text())
last = next(e for e in training["epochs"] if e["epoch"] == training["shipped_epoch"])
expected = e3.replay(DRAFT, TRAIN, target=TARGET)
print("trainer, by step      ", ", ".join(f"{x:.2f}" for x in last["acc"]))
print("trainer, all so far   ", ", ".join(f"{x:.2f}" for x in last["joint"]))
print("replay, as served     ", ", ".join(f"{x:.2f}" for x in expected.p))
print(f"accept length: trainer, over every position {last['accept_length']:.2f}; replay {expected.accept_length:.2f}")

# %% [markdown]
# Why is the served walk lower than "every position"? A round starts right after a token the draft got *wrong*: hard places follow each other.
#
# ## 2 · Which epoch?
#
# Loss falls on; acceptance need not. **Guess:** does it rise with every epoch?

# %%
for epoch in training["epochs"]:
    print(f"epoch {epoch['epoch']:2}: accept length over every held-out position {epoch['accept_length']:.3f}")

# %% [markdown]
# It stood still around the eighth, on the same answers again and again, and rose when *further* answers came.

# %% [markdown]
# ## 3 · The template
#
# Drafts learn the target *in its chat template*. Served without it, or with another, the text is fine and the draft is on foreign ground. Here the same question is asked both ways; the target answers for itself.

# %%
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.bfloat16)
tokenizer = AutoTokenizer.from_pretrained(TARGET)
questions = [
    "What should a tourist see in Sweden?",
    "Explain osmosis in simple terms.",
    "Give me five tips for hiking.",
    "Write a short story about an island.",
]
asked = [[{"role": "user", "content": q}] for q in questions]
templated = [tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False) for messages in asked]


# %%
def answered(prompts):
    """The target's greedy answers as a dump; rows of padding are not recorded."""
    batch = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False)
    with torch.inference_mode(), e3.capture(model, boundaries=[2, 15, 27]) as tape:
        model.generate(**batch, max_new_tokens=48, do_sample=False, pad_token_id=tokenizer.pad_token_id)
    return tape.dump


with_template = e3.replay(DRAFT, answered(templated), target=TARGET)
without = e3.replay(DRAFT, answered(questions), target=TARGET)
for what, replay in (("with the template", with_template), ("without", without)):
    low, high = replay.accept_length_interval
    print(f"{what:18} {replay.accept_length:.2f}, 95 % from {low:.2f} to {high:.2f}")

# %% [markdown]
# Four short answers are few: look at the intervals before you believe a difference.
#
# ## 4 · The vocabulary
#
# What the draft cannot say, it cannot get right, and another domain asks for other words.

# %%
for what, replay in (("the samples", expected), ("with the template", with_template), ("without", without)):
    print(f"{what:18} out of vocabulary {replay.out_of_vocabulary:.1%}   cap {replay.vocabulary_cap:.2f}   reached {replay.accept_length:.2f}")

# %% [markdown]
# ## 5 · What the diagnosis says of a weak but right draft
#
# Served as replayed, and little: no fault is invented. Here an early epoch's `fc` stands in for too little training.

# %%
early = e3.open_draft(SAMPLES / "epochs" / "epoch_1")
shipped = e3.open_draft(DRAFT)
weak = shipped.replace(tensors={name: early.tensors[name] for name in early.tensors if name in shipped.tensors})
weak_replay = e3.replay(weak, TRAIN, target=TARGET)
diagnosis = e3.diagnose(draft=weak, target=TARGET, train=TRAIN, acceptance=weak_replay.accept_length)
print(f"replayed {weak_replay.accept_length:.2f}")
print(diagnosis.verdict)

# %% [markdown]
# ## The fix, and what it is not
#
# **Fix.** More of the target's *own* answers, in the template it is served with, of the domain and length it will meet; choose the epoch by replay. If the target was fine-tuned since, retrain the draft.
#
# **What it is not.** Not a reason to touch flags, names or layers: those were checked, and they are right.

# %%
# Where this notebook ends, as a test reads it.
weaker = weak_replay.accept_length < expected.accept_length
{"fault": diagnosis.findings[-1].fault if diagnosis.findings else None, "ok": diagnosis.ok, "weak": weaker}
