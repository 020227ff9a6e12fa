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
from attnlab import obtain
from attnlab.exhibits.backends import cost

cost.require_price(price_per_hour)
show = obtain.exhibits(run, study, device)
show

# %%
show("backends.run")

# %%
show("backends.summary")

# %% [markdown]
# ## One dimension at a time
#
# ### Backend

# %%
show("backends.verdicts")

# %% [markdown]
# ### Sequence length

# %%
show("backends.choice.seq_len")

# %%
show("backends.tokens")

# %%
show("backends.length")

# %%
show("backends.chunking")

# %% [markdown]
# ### Batch and heads
#
# A model with other heads is another model; a batch can be chosen.

# %%
show("backends.choice.batch")

# %%
show("backends.choice.heads")

# %% [markdown]
# ### Causal masks, head dimensions, dtypes

# %%
show("backends.choice.causal_seq_len")

# %%
show("backends.choice.head_dim_128")

# %%
show("backends.choice.bfloat16")

# %%
show("backends.choice.float32")

# %% [markdown]
# ## The full grid

# %%
show("backends.settled")

# %%
show("backends.choice.grid")

# %%
show("backends.grid")

# %% [markdown]
# ## What models call
#
# ### Prompts, and heads that share keys and values

# %%
show("backends.choice.prefill")

# %%
show("backends.grouped")

# %%
show("backends.grouped.table")

# %% [markdown]
# ### Decoding

# %%
show("backends.decode")

# %%
show("backends.decode.table")

# %%
show("backends.decode.alone")

# %% [markdown]
# ### Sequences of many lengths

# %%
show("backends.ragged")

# %%
show("backends.on_the_host")

# %% [markdown]
# ### Training

# %%
show("backends.training")

# %% [markdown]
# ## What to use, and what to avoid

# %%
show("backends.rules")

# %% [markdown]
# ## What it costs

# %%
show("backends.cost", price_per_hour=price_per_hour)

# %%
show("backends.unpriced")

# %%
show("backends.energy")

# %% [markdown]
# ## Letting a table choose
#
# `attnlab.attend` calls at each shape what a run found to be faster than SDPA's own choice, and SDPA everywhere else.

# %%
show("backends.attend.run")

# %%
show("backends.attend.chosen")

# %%
show("backends.attend.overhead")

# %%
show("backends.attend.held")

# %%
show("backends.attend.stream")

# %% [markdown]
# ## Peers
#
# Attention of other packages passes the same gate, in the same rounds and on the same clocks.

# %%
show("backends.peers.run")

# %%
show("backends.peers.support")

# %%
show("backends.peers.beside")

# %%
show("backends.peers.dots")

# %% [markdown]
# ## What has no latency, and why

# %%
show("backends.lacking")

# %%
show("backends.cases")
