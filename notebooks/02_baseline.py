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
study: str = "quick"  # what to measure: a file in studies/
device: str = "auto"  # auto, cuda, cpu, or none to measure nothing

# %%
from attnlab import select_run

show = select_run.exhibits(run, study, device)
show

# %%
show("baseline.span")

# %% [markdown]
# ## Is it right?
#
# Every case is checked against a float64 oracle before it is timed, and again after.

# %%
show("baseline.correctness")

# %%
show("baseline.checks")

# %% [markdown]
# ## Along the sweeps
#
# Sequence length, without and with the causal mask, batch and heads.

# %%
show("baseline.latency")

# %%
show("baseline.throughput")

# %% [markdown]
# ## Every implementation
#
# Along every sweep of the study: other head dimensions, dtypes and lengths too. Kinds of values are in
# [06_verdicts](06_verdicts.ipynb#verdicts.values).

# %%
show("baseline.implementations")

# %% [markdown]
# ## Lengths that no tile divides

# %%
show("baseline.odd_lengths")

# %% [markdown]
# ## Spread and tails
#
# The explorer of 10_explore draws the samples of each case.

# %%
show("baseline.tails")

# %% [markdown]
# ## Memory

# %%
show("baseline.memory")

# %% [markdown]
# ## Which kernel ran?

# %%
show("baseline.kernels")

# %% [markdown]
# ## Clock and cache
#
# The verdicts under each timing are on [06_verdicts](06_verdicts.ipynb#verdicts.timings). What the launch adds to a call, and how the clocks compare with others, is on [01_environment](01_environment.ipynb#environment.launch_gap).

# %% [markdown]
# ## What must be beaten
#
# The bar at the target, and the verdict on each implementation, are on [06_verdicts](06_verdicts.ipynb#verdicts.to_beat).

# %% [markdown]
# ## Reproducibility
#
# What another recorded run on a device of the same name reproduced, and what moved.

# %%
show("baseline.reproducibility")

# %% [markdown]
# ## Appendix: Every case

# %%
show("baseline.every_case")
