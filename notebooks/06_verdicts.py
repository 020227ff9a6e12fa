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
# for how many there are, beside what the baseline makes of itself and how small an effect could have been seen.

# %% tags=["parameters"]
run: str = ""  # a run in data/; empty for the newest of the study on this device, measured now if there is none
study: str = "quick"  # what to measure: a file in params/
device: str = "auto"  # auto, cuda, cpu, or none to measure nothing

# %%
from attnlab import obtain
from attnlab.analyse import accuracy, calibration, prose, regime, tables, verdicts

results = obtain.results(run, study, device)
target = results.study.target_shape

# %%
prose.machine(results)

# %% [markdown]
# ## At one shape
#
# A published report set an array of samples against itself, found a speedup of exactly 1 and $p = 1$, and called the
# baseline optimal. Such a comparison has no candidate, and no noise either. Here the candidates are other
# implementations, and the control is the baseline measured a second time in the same rounds.

# %%
tables.verdicts(results, target)

# %%
tables.to_beat(results)

# %% [markdown]
# ## What may be published
#
# Written from the data, whichever way it comes out.

# %%
verdicts.statement(results, target)

# %% [markdown]
# For each of the candidates:

# %%
prose.publishable(results, target)

# %% [markdown]
# ## Speed and accuracy
#
# A kernel can be fast because it rounds more.

# %%
accuracy.plane(results, target)

# %% [markdown]
# ## Every comparison

# %%
verdicts.told(results)

# %%
verdicts.by_timing(results)

# %%
verdicts.by_candidate(results)

# %%
verdicts.maps(results)

# %% [markdown]
# ## Power
#
# The baseline against itself says how often this run errs, and how small an effect it could have seen.

# %%
calibration.false_positives(results)

# %%
calibration.controls(results)

# %% [markdown]
# ## Burst or sustained?

# %%
prose.throttling(results)

# %%
regime.told(results)

# %% [markdown]
# ## Appendix: Every verdict

# %%
verdicts.every(results)
