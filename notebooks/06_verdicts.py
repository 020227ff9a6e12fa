# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Verdicts
#
# Is anything really faster than the baseline? First one fixed shape in full, then every comparison of the run, corrected
# for their number, beside the comparison of the baseline with itself and the minimum detectable effect.

# %% tags=["parameters"]
run: str = ""  # a run in data/; empty for the newest of the study on this device, measured now if there is none
study: str = "quick"  # what to measure: a file in studies/
device: str = "auto"  # auto, cuda, cpu, or none to measure nothing

# %%
from attnlab import select_run

show = select_run.exhibits(run, study, device)
show

# %%
show("verdicts.abstract")

# %%
show("verdicts.at_target")

# %%
show("verdicts.findings")

# %% [markdown]
# ## At one shape
#
# One of the audited reports compared an array of samples with itself, found a speedup of exactly 1 and $p = 1$, and called
# the baseline optimal. Such a comparison has no candidate and no noise. Here the candidates are other implementations, and
# the control is the baseline measured a second time in the same rounds.

# %%
show("verdicts.target")

# %%
show("verdicts.timings")

# %%
show("verdicts.to_beat")

# %% [markdown]
# ## On other values
#
# What a kernel takes may depend on the values of Q, K and V: on how large the scores are, and where a row's largest one
# lies. Each kind of values is checked and timed like a shape of its own, and a verdict over all kinds is that on the worst.

# %%
show("verdicts.values.said")

# %%
show("verdicts.values")

# %%
show("verdicts.values.elsewhere")

# %%
show("verdicts.kinds")

# %% [markdown]
# ## What may be published
#
# These statements follow from the data, whichever way it comes out. Where several kinds of values were timed at the
# shape, they are made on the worst of them.

# %%
show("verdicts.statement")

# %% [markdown]
# For each of the candidates:

# %%
show("verdicts.publishable")

# %% [markdown]
# ## Speed and accuracy
#
# A kernel can be fast because it rounds more.

# %%
show("verdicts.accuracy")

# %% [markdown]
# ## Every comparison

# %%
show("verdicts.counted")

# %%
show("verdicts.by_timing")

# %%
show("verdicts.by_candidate")

# %% [markdown]
# ## Power
#
# The baseline measured against itself shows how often this run errs, and its minimum detectable effect.

# %%
show("verdicts.false_positives")

# %%
show("verdicts.controls")

# %% [markdown]
# How often the inference itself errs was simulated, with known truth.

# %%
show("verdicts.calibration.brief")

# %%
show("verdicts.calibration")

# %% [markdown]
# ## Burst or sustained?
#
# Tables name the regime of each comparison. What a load without pause does to the clock is on
# [01_environment](01_environment.ipynb#environment.load).

# %% [markdown]
# ## Appendix: Every verdict

# %%
show("verdicts.every")
