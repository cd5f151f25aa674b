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
# # 04 · Capture hidden states, in process
#
# **The question.** What does the target really hand to the draft? Printing a shape in the engine's source works once. A dump can be compared, replayed and shared.
#
# Everything speaks of *boundaries*: boundary `b` is the residual stream after `b` blocks, `0` is the embedding's output. Every engine's own layer numbers are converted where they are read, and only there.

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
# ## 1 · A target in Transformers
#
# A context manager. The model is left exactly as it was, also after an exception.

# %%
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.bfloat16)
tokenizer = AutoTokenizer.from_pretrained(TARGET)
question = [{"role": "user", "content": "Why is the sky blue?"}]
prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)

with torch.inference_mode(), e3.capture(model, boundaries=[2, 15, 27]) as tape:
    model.generate(**prompt, max_new_tokens=16, do_sample=False, pad_token_id=tokenizer.pad_token_id)

tape.dump

# %% [markdown]
# Prefill and decode steps were stitched into one record: one row per token, in order.

# %%
record = tape.dump[0]
print(f"{record.tokens} tokens, {record.prompt_length} of them prompt; features {list(record.features.shape)} in {record.features.dtype}")
print(tokenizer.decode(record.input_ids[record.prompt_length:]))

# %% [markdown]
# ## 2 · Is a boundary what we say it is?
#
# Transformers' own `output_hidden_states[b]` is boundary `b`, bit for bit, with one exception: its *last* entry is already normed, so it is not boundary `n_layers`.

# %%
with torch.inference_mode():
    states = model(record.input_ids[None], output_hidden_states=True, use_cache=False).hidden_states
    with e3.capture(model, boundaries=[2, 15, 27, 30]) as again:
        model(record.input_ids[None], use_cache=False)
same = {b: bool((again.dump[0].state(b) == states[b][0]).all()) for b in (2, 15, 27, 30)}
same

# %% [markdown]
# ## 3 · Does the dump hold what it says?
#
# One dump can be checked without a second one: rows that are zero, not finite or stale, records that belong to another request, and, with the target at hand, whether its last states predict the very tokens that follow them.

# %%
checked = e3.check_dump(TRAIN, target=TARGET)
checked

# %% [markdown]
# ## 4 · A served draft
#
# In an engine the states live in another process. `docs/capture.md` has the command for each engine, ready to paste. What comes out is the same kind of dump. Here is one that SGLang wrote while it served the sample draft:

# %%
live = e3.open_dump(LIVE)
print(live)
print("counted in the server:", dict(live.counters))

# %% [markdown]
# `fc_calls` is worth a look before anything else: a draft whose `fc` never ran was never fed aux states, whatever the log says.

# %%
for server in ("eagle3", "eagle_flag"):
    dump = e3.open_dump(SAMPLES / "live" / server / "live")
    print(f"{server:10}  fed {dump[0].features.shape[-1]:4} wide   fc ran {dump.counters['fc_calls']} times")

# %% [markdown]
# ## What next
#
# Compare the two sides: notebook 05. Predict the accept length from a dump: notebook 07.

# %%
# Where this notebook ends, as a test reads it.
{"bit for bit": same, "fed": live[0].features.shape[-1], "checked": checked.ok}
