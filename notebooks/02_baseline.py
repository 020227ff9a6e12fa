# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Baseline
#
# How fast is PyTorch's scaled dot-product attention on this machine? Sweeps of sequence length, batch and heads around
# one target shape, each median with its interval, and how far each number can be trusted.

# %% tags=["parameters"]
run: str = ""  # a run in data/; empty for the newest of the study on this device, measured now if there is none
study: str = "quick"  # what to measure: a file in params/
device: str = "auto"  # auto, cuda, cpu, or none to measure nothing

# %%
from attnlab import obtain
from attnlab.analyse import figures, prose, repeat, tables

results = obtain.results(run, study, device)
baseline, target = results.study.baseline, results.study.target_shape

# %%
prose.machine(results)

# %%
prose.span(results)

# %% [markdown]
# ## Is it right?
#
# Nothing is timed that is wrong.

# %%
prose.correctness(results)

# %%
tables.correctness(results)

# %%
figures.errors(results)

# %% [markdown]
# ## Sequence length

# %%
tables.sweep(results, "seq_len", baseline)

# %%
tables.backends(results, "seq_len")

# %%
figures.latency(results)

# %%
figures.throughput(results, ["seq_len", "causal seq_len"])

# %% [markdown]
# ## Causal

# %%
tables.sweep(results, "causal seq_len", baseline)

# %%
tables.backends(results, "causal seq_len")

# %%
tables.listed(results, "causal small")

# %% [markdown]
# ## Batch and heads

# %%
tables.sweep(results, "batch", baseline)

# %%
tables.backends(results, "batch")

# %%
tables.sweep(results, "heads", baseline)

# %%
tables.backends(results, "heads")

# %%
figures.throughput(results, ["batch", "heads"])

# %% [markdown]
# ## Scaling
#
# From one step of a sweep to the next, latency should grow as the work does: four times for twice the length, twice
# for twice the batch or heads. Less means that the smaller shape left the machine idle.

# %%
tables.scaling(results, "seq_len", baseline)

# %%
tables.scaling(results, "batch", baseline)

# %%
tables.scaling(results, "heads", baseline)

# %% [markdown]
# ## Variance and tails

# %%
figures.distribution(results, target)

# %%
tables.variance(results, "seq_len", baseline)

# %%
tables.tails(results, "seq_len", baseline)

# %% [markdown]
# ## Memory

# %%
tables.memory(results, "seq_len")

# %%
figures.memory(results)

# %% [markdown]
# ## Which kernel ran?

# %%
tables.kernels(results)

# %% [markdown]
# ## Clock and cache

# %%
tables.timings(results, target)

# %%
prose.launch_gap(results)

# %% [markdown]
# ## What must be beaten

# %%
tables.to_beat(results)

# %%
tables.verdicts(results, target)

# %%
prose.publishable(results, target)

# %% [markdown]
# ## Measured again
#
# What another recorded run on a device of the same name found again, and what moved.

# %%
repeat.told(results)
