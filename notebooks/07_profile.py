# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Profile
#
# Why does each implementation take as long as it does? A latency doesn't say; the hardware's counters do. At the target
# shape, Nsight Compute counted how busy each unit was, and what warps waited for when no instruction was issued.

# %% tags=["parameters"]
run: str = ""  # a run in data/; empty for the newest of the study on this device, measured now if there is none
study: str = "quick"  # what to measure: a file in studies/
device: str = "auto"  # auto, cuda, cpu, or none to measure nothing

# %%
from attnlab import select_run

show = select_run.exhibits(run, study, device)
show

# %%
show("profile.how")

# %% [markdown]
# ## Bottlenecks
#
# A unit's use is in percent of its peak rate over the kernel's whole time. No reordering saves that share of the time; only
# less work on that unit does. With small heads the exponential unit (XU) needs nearly as long as the tensor
# cores on recent GPUs, so a fast kernel has both busy at once. A busy pipe need not be a fast one:
# `mma.sync` holds Hopper's tensor cores longer than `wgmma` does for the same product.
#
# In each cycle a scheduler issues an instruction of one of its warps, or all of them wait. What each then waits for is
# counted: the result of a load, a barrier, a pipe in use, the fixed latency of the instruction before. The waiting is
# divided among the reasons in proportion to the warps that each held. A warp that waits by design, such as one that only
# loads for the others, counts as much as any.
#
# The rule uses the counters alone: first units that were used at 60 % of their peak or more, the busiest first, then the
# largest losses of the schedulers' cycles. The bound is that of Nsight Compute's guided analysis: it calls a kernel bound by
# latency if every unit is below it, and only then looks at what warps wait for.

# %%
show("profile.bottlenecks")

# %% [markdown]
# ## What was moved

# %%
show("profile.traffic")

# %% [markdown]
# ## What the values change
#
# Where a kernel goes by the scores, it executes other instructions on other values.

# %%
show("profile.values")

# %% [markdown]
# ## The distance to the floor
#
# What a call takes beyond its floor, as a sum of parts with names.

# %%
show("profile.beyond")

# %% [markdown]
# ## From rung to rung
#
# Cycles issued and cycles waited add up to the cycles of the call, so the difference between two rungs splits into the same
# parts.

# %%
show("profile.steps")
