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
study: str = "quick"  # what to measure: a file in params/
device: str = "auto"  # auto, cuda, cpu, or none to measure nothing

# %%
from attnlab import obtain
from attnlab.analyse import profiles

results = obtain.results(run, study, device)

# %%
profiles.how(results)

# %% [markdown]
# ## What was launched
#
# A multiprocessor hides latency by switching between the warps that it holds; registers, shared memory and the number
# of CTAs limit how many those are. A kernel can do well with few, if each of its warps has much to do that doesn't
# depend on the last instruction's result.

# %%
profiles.launches(results)

# %% [markdown]
# ## How busy each unit was
#
# The use of a unit, in percent of its peak rate over the kernel's whole time, is a share of the time that no reordering
# saves: only doing less on that unit does. With small heads the exponential unit (XU) needs nearly as long as the tensor
# cores on recent GPUs, so a fast kernel has both busy at once. A busy pipe need not be a fast one:
# `mma.sync` holds Hopper's tensor cores half as long again as `wgmma` does for the same product.

# %%
profiles.units(results)

# %%
profiles.findings(results)

# %% [markdown]
# ## Where the cycles went
#
# In each cycle a scheduler issues an instruction of one of its warps, or all of them wait. What each then waits for is
# counted: the result of a load, a barrier, a pipe in use, the fixed latency of the instruction before. Reasons are given
# shares of the waiting in proportion to the warps that they held, which takes a warp that has to wait by design, such as
# one that only loads for the others, for as important as any.

# %%
profiles.schedulers(results)

# %% [markdown]
# ## What was moved

# %%
profiles.traffic(results)

# %% [markdown]
# ## The first three bottlenecks
#
# The rule, from the counters alone: units that were used at 60 % of their peak or more, the busiest first, then what
# costs the most of the schedulers' cycles. The bound is that of Nsight Compute's guided analysis, which takes a kernel
# with every unit below it for one bound by latency, and only then looks at what warps wait for.

# %%
profiles.bottlenecks(results)

# %% [markdown]
# ## From rung to rung
#
# Cycles issued and waited, the parts above, add up to those of the call: so the difference from rung to rung can
# be told by where it arose.

# %%
profiles.steps(results)
