# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Environment
#
# A latency means something only together with the machine that it was taken on, the settings that were in force, and
# the clock that read it. This notebook shows all three, and what the machine can do at most.

# %% tags=["parameters"]
run: str = ""  # a run in data/; empty for the newest of the study on this device, measured now if there is none
study: str = "quick"  # what to measure: a file in params/
device: str = "auto"  # auto, cuda, cpu, or none to measure nothing

# %%
from attnlab import obtain
from attnlab.analyse import figures, prose, tables

results = obtain.results(run, study, device)
baseline, target = results.study.baseline, results.study.target_shape

# %% [markdown]
# ## What machine is this?

# %%
prose.machine(results)

# %%
tables.machine(results)

# %% [markdown]
# ## Is it locked?
#
# Settings that change results or speed behind a study's back are fixed before anything is measured, then read back and
# asserted. Two of them are traps. Setting the matrix precision also sets the TF32 flags, so the flags come second.
# And deterministic algorithms in strict mode make PyTorch refuse its cuDNN attention without a word, and fill every
# fresh tensor with NaN inside the timed window; here they only warn, and nothing is filled.

# %%
tables.settings(results)

# %% [markdown]
# ## What are its ceilings?
#
# Rates of this machine, measured in the same run by the same clock. The datasheet's stand beside them; where a device
# is not in the table, they are n/a.

# %%
tables.ceilings(results)

# %% [markdown]
# ## How good is the clock?

# %%
tables.clock_quality(results)

# %%
prose.launch_gap(results)

# %%
figures.timings(results)

# %% [markdown]
# ## Did the machine hold still?

# %%
prose.throttling(results)

# %%
figures.telemetry(results)

# %% [markdown]
# ## What was measured, and what was not?

# %%
tables.parameters(results)

# %%
prose.effort(results)

# %%
prose.lacking(results)

# %%
tables.cases(results)

# %%
tables.hashes(results)
