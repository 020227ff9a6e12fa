# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Models
#
# A faster kernel need not make a faster model: attention is a part of a model's time, and the rest of each call is others'
# code. Here models of Hugging Face transformers generate text, once with the SDPA that they call by themselves and once with
# `attnlab.attend` in its place, registered through transformers' attention interface. Configurations are those of GPT-2
# and of small Llamas with grouped heads, with random weights; or a model of one's own, on text.
#
# Records are made by `make model`; of each model, the newest of this device counts.

# %% tags=["parameters"]
run: str = ""  # a run in data/; empty for the newest of the study on this device, measured now if there is none
study: str = "quick"  # what to measure: a file in studies/
device: str = "auto"  # auto, cuda, cpu, or none to measure nothing

# %%
from attnlab import select_run

show = select_run.exhibits(run, study, device)
show

# %% [markdown]
# ## What is gained
#
# A user waits for the first token while the model reads the whole prompt: queries are many, and attention grows with the
# square of the length. Each later token is one query over the cache of keys and values. Steps under a CUDA graph also differ
# by how far apart the driver runs a graph's kernels (`docs/models.md`).

# %%
show("model.gained")

# %%
show("model.records")

# %%
show("model.compared")

# %%
show("model.steps")

# %% [markdown]
# ## Whether the outputs agree

# %%
show("model.outputs")

# %% [markdown]
# ## How much there is to gain
#
# If attention took no time at all, a phase would be faster by its share.

# %%
show("model.share")
