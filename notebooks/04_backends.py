# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Backends
#
# Which backend, batch and length to choose: per call, per sequence, per token, per dollar. A call over fewer tokens is no
# faster for being shorter, so settings are compared by their time for each token.

# %% tags=["parameters"]
run: str = ""  # a run in data/; empty for the newest of the study on this device, measured now if there is none
study: str = "quick"  # what to measure: a file in studies/
device: str = "auto"  # auto, cuda, cpu, or none to measure nothing
price_per_hour: float = 3.0  # of the device, in dollars; set your own

# %%
from attnlab import select_run
from attnlab.exhibits.backends import cost

cost.require_price(price_per_hour)
show = select_run.exhibits(run, study, device)
show

# %%
show("backends.summary")

# %% [markdown]
# ## What to use, and what to avoid

# %%
show("backends.rules")

# %% [markdown]
# ## Batches, lengths and heads
#
# A model with other heads is another model; a batch can be chosen.

# %%
show("backends.choice")

# %% [markdown]
# ## What models call
#
# ### Heads that share keys and values

# %%
show("backends.grouped")

# %% [markdown]
# ### Few queries over many keys
#
# Decoding asks with one query over the keys so far, speculative decoding with a few, and the last chunk of a prompt
# with more. K and V are read once and little else takes time, so that what counts is the part of the memory's bandwidth
# that is reached.

# %%
show("backends.lead")

# %%
show("backends.few")

# %%
show("backends.decode")

# %%
show("backends.decode_elsewhere")

# %% [markdown]
# ### Sequences of many lengths

# %%
show("backends.ragged")

# %% [markdown]
# ### Training

# %%
show("backends.training")

# %% [markdown]
# ## What it costs

# %%
show("backends.cost", price_per_hour=price_per_hour)

# %% [markdown]
# ## Letting a table choose
#
# `attnlab.attend` calls at each shape what a run found to be faster than SDPA's own choice; at a shape that was not
# measured, what is expected to be the fastest by the nearest ones; and SDPA elsewhere.

# %%
show("backends.attend.chosen")

# %%
show("backends.attend.regret")

# %%
show("backends.attend.overhead")

# %% [markdown]
# ## Peers
#
# Attention of other packages passes the same gate, in the same rounds and on the same clocks.

# %%
show("backends.peers.support")

# %%
show("backends.peers.beside")

# %%
show("backends.peers.dots")

# %% [markdown]
# ## The runs that are shown, and what has no latency

# %%
show("backends.run")
