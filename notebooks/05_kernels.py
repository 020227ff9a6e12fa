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
# Are the hand-written kernels right, what do they use, and how far does each rung of the ladder get? Every rung is
# compared with the one that it builds on, with every backend of SDPA, and with what was expected of it.

# %% tags=["parameters"]
run: str = ""  # a run in data/; empty for the newest of the study on this device, measured now if there is none
study: str = "quick"  # what to measure: a file in studies/
device: str = "auto"  # auto, cuda, cpu, or none to measure nothing

# %%
from attnlab import obtain

show = obtain.exhibits(run, study, device)
show

# %%
show("kernels.overview")

# %%
show("kernels.stale")

# %% [markdown]
# ## Are they right?
#
# Kernels pass through the same gate as every other implementation, before they are timed and after. What the gate found
# over all implementations is on [02_baseline](#baseline.checks).

# %%
show("kernels.correctness")

# %%
show("kernels.l4.errors")

# %% [markdown]
# ## What do they use?

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
show("kernels.carried")

# %% [markdown]
# All lengths, with every implementation, are on [02_baseline](#baseline.latency), and cases without a
# latency on [01_environment](#environment.cases).
#
# ## Launch geometry

# %%
show("kernels.geometry")

# %%
show("kernels.l4.geometry")

# %%
show("kernels.l4.parallelism")

# %% [markdown]
# ## Did each rung gain what was expected?

# %%
show("kernels.lessons")

# %%
show("kernels.ablation")

# %%
show("kernels.ablations")

# %% [markdown]
# ## A published kernel, then and now

# %%
show("kernels.l4")

# %%
show("kernels.l4.limits")

# %%
show("kernels.l4.finding")

# %%
show("kernels.l4.work")
