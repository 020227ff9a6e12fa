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
study: str = "quick"  # what to measure: a file in params/
device: str = "auto"  # auto, cuda, cpu, or none to measure nothing

# %%
from attnlab import obtain
from attnlab.analyse import figures, kernels, prose, published, tables

results = obtain.results(run, study, device)
baseline, target = results.study.baseline, results.study.target_shape

# %%
prose.machine(results)

# %%
kernels.overview(results)

# %%
kernels.stale(results)

# %% [markdown]
# ## Are they right?
#
# Nothing is timed that is wrong.

# %%
prose.correctness(results)

# %%
kernels.correctness(results)

# %%
published.l4_errors(results)

# %% [markdown]
# ## What do they use?

# %%
kernels.compiled(results, target)

# %% [markdown]
# ## The ladder

# %%
kernels.climb(results, target)

# %%
kernels.ladder(results, target)

# %%
kernels.standing(results)

# %%
figures.latency(results)

# %%
figures.speed_of_light(results)

# %%
kernels.along(results)

# %% [markdown]
# ## Launch geometry

# %%
kernels.geometry(results, target)

# %%
published.l4_geometry(results)

# %%
published.l4_parallelism(results)

# %% [markdown]
# ## Did each rung gain what was expected?

# %%
kernels.lessons(results, target)

# %%
kernels.ablation(results, target)

# %%
kernels.ablations(results, target)

# %% [markdown]
# ## A published kernel, then and now

# %%
published.beside_l4(results)

# %%
published.l4_limits(results)

# %%
tables.listed(results, "causal small")

# %%
published.l4_finding(results)

# %%
published.l4_work(results)

# %% [markdown]
# ## What has no latency

# %%
tables.cases(results)
