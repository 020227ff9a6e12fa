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
# the clock that read it. This notebook shows them all, and what the machine can do at most.

# %% tags=["parameters"]
run: str = ""  # a run in data/; empty for the newest of the study on this device, measured now if there is none
study: str = "quick"  # what to measure: a file in params/
device: str = "auto"  # auto, cuda, cpu, or none to measure nothing

# %%
from attnlab import obtain
from attnlab.analyse import figures, panel, prose, regime, residency, tables

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
# asserted. Some of them are traps. Setting the matrix precision also sets the TF32 flags, so the flags come second.
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
# ## Is the clock right?
#
# The same calls, from microseconds to milliseconds, by every clock at hand: ours, CUPTI through PyTorch's profiler,
# Triton's, NVIDIA's NVBench, and Nsight Compute. Where they differ, the reason stands beside the difference.

# %%
panel.agreement(results)

# %%
panel.gaps(results)

# %%
panel.explained(results)

# %%
panel.warm(results)

# %%
panel.cold(results)

# %% [markdown]
# ## Is cold cold, is warm warm?
#
# Shown by witnesses, not assumed: what a call reads from memory, and what the L2 holds where it would be timed.

# %%
residency.told(results)

# %%
residency.table(results)

# %% [markdown]
# ## Did the machine hold still?

# %%
prose.throttling(results)

# %%
figures.telemetry(results)

# %% [markdown]
# ## Burst and sustained
#
# A card at rest runs at its highest clock; under load, its power limit decides. Both are results. Here each
# implementation runs alone and without pause until its clock has settled.

# %%
regime.told(results)

# %%
regime.endurance(results)

# %%
regime.endurance_table(results)

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
