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
# faster for being shorter, so settings are compared by what a token takes in them.

# %% tags=["parameters"]
run: str = ""  # a run in data/; empty for the newest of the study on this device, measured now if there is none
study: str = "quick"  # what to measure: a file in params/
device: str = "auto"  # auto, cuda, cpu, or none to measure nothing
price_per_hour: float = 3.0  # of the device, in dollars; set your own

# %%
from attnlab import obtain
from attnlab.analyse import advice, backends, companions, cost, dispatched, peers, prose, tables, variants

cost.require_price(price_per_hour)
results = obtain.results(run, study, device)
choices = companions.with_sweep(results, "grid seq_len")
others = companions.with_implementation(results, "peer.flex")
attended = companions.with_implementation(results, "dispatch.attend")

# %%
prose.machine(choices)

# %%
advice.summary(choices)

# %% [markdown]
# ## One dimension at a time
#
# ### Backend

# %%
tables.verdicts(choices, choices.study.target_shape)

# %% [markdown]
# ### Sequence length

# %%
backends.choice(choices, "seq_len")

# %%
backends.tokens(choices)

# %%
backends.length(choices)

# %%
backends.chunking(choices)

# %% [markdown]
# ### Batch and heads
#
# A model with other heads is another model; a batch can be chosen.

# %%
backends.choice(choices, "batch")

# %%
backends.choice(choices, "heads")

# %% [markdown]
# ### Causal masks, head dimensions, dtypes

# %%
backends.choice(choices, "causal seq_len")

# %%
backends.choice(choices, "head_dim 128 seq_len")

# %%
backends.choice(choices, "bfloat16 seq_len")

# %%
backends.choice(choices, "float32 seq_len")

# %% [markdown]
# ## The full grid

# %%
backends.settled(choices)

# %%
backends.choice(choices, "grid seq_len")

# %%
tables.listed(choices, "grid seq_len")

# %% [markdown]
# ## What models call
#
# ### Prompts, and heads that share keys and values

# %%
backends.choice(choices, "prefill seq_len")

# %%
variants.grouped(choices)

# %%
tables.backends(choices, "grouped kv_heads")

# %% [markdown]
# ### Decoding

# %%
variants.decode(choices)

# %%
tables.backends(choices, "decode kv_len")

# %%
tables.backends(choices, "decode alone kv_len")

# %% [markdown]
# ### Sequences of many lengths

# %%
variants.ragged(choices)

# %%
variants.on_the_host(choices)

# %% [markdown]
# ### Training

# %%
variants.training(choices)

# %% [markdown]
# ## What to use, and what to avoid

# %%
advice.rules(choices)

# %% [markdown]
# ## What it costs

# %%
cost.table(choices, price_per_hour)

# %%
cost.unpriced(choices)

# %%
cost.energy(results)

# %% [markdown]
# ## Letting a table choose
#
# `attnlab.attend` calls at each shape what a run found to be faster than SDPA's own choice, and SDPA everywhere else.

# %%
prose.machine(attended)

# %%
dispatched.chosen(attended)

# %%
dispatched.overhead(attended)

# %%
dispatched.held(attended)

# %%
dispatched.stream(attended)

# %% [markdown]
# ## Peers
#
# Attention of other packages, through the same gate, in the same rounds, on the same clocks.

# %%
prose.machine(others)

# %%
peers.support(others)

# %%
peers.beside(others)

# %% [markdown]
# ## What has no latency, and why

# %%
prose.lacking(choices)

# %%
tables.cases(choices)
