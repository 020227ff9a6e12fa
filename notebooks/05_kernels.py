# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Kernels
#
# What do the hand-written kernels use, and how far does each rung of the ladder get? Every rung is
# compared with the one that it builds on, with every backend of SDPA, and with what was expected of it.

# %% tags=["parameters"]
run: str = ""  # a run in data/; empty for the newest of the study on this device, measured now if there is none
study: str = "quick"  # what to measure: a file in studies/
device: str = "auto"  # auto, cuda, cpu, or none to measure nothing

# %%
from attnlab import select_run

show = select_run.exhibits(run, study, device)
show

# %%
show("kernels.stale")

# %% [markdown]
# ## What do they use?
#
# Kernels pass through the same gate as every other implementation, before they are timed and after; its errors are on
# [02_baseline](02_baseline.ipynb#baseline.correctness).

# %%
show("kernels.compiled")

# %% [markdown]
# ## The ladder

# %%
show("kernels.climb")

# %%
show("kernels.ladder")

# %%
show("kernels.summary")

# %%
show("kernels.standing")

# %%
show("kernels.lead")

# %%
show("kernels.cross_device")

# %%
show("kernels.fp8.pays")

# %%
show("kernels.fp8")

# %%
show("kernels.fp8.errors")

# %%
show("kernels.fp8.costs")

# %%
show("kernels.fp8.roundings")

# %% [markdown]
# All lengths, with every implementation, are on [02_baseline](02_baseline.ipynb#baseline.latency), and cases without a
# latency on [01_environment](01_environment.ipynb#environment.cases).
#
# ## Did each rung gain what was expected?

# %%
show("kernels.ablation")

