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
study: str = "quick"  # what to measure: a file in studies/
device: str = "auto"  # auto, cuda, cpu, or none to measure nothing

# %%
from attnlab import select_run

show = select_run.exhibits(run, study, device)
show

# %% [markdown]
# ## What machine is this?

# %%
show("environment.run")

# %%
show("environment.machine")

# %%
show("environment.cards")

# %%
show("environment.neighbours")

# %% [markdown]
# ## Which settings are fixed?
#
# Settings that change results or speed unnoticed are fixed before anything is measured, then read back and asserted. Some
# are traps. Setting the matrix precision also sets the TF32 flags, so the flags come second. Deterministic algorithms in
# strict mode make PyTorch drop its cuDNN attention silently and fill every new tensor with NaN inside the timed window;
# here they only warn, and nothing is filled.

# %%
show("environment.settings")

# %% [markdown]
# ## What are its ceilings?
#
# Rates of this machine, measured in the same run by the same clock. The datasheet's stand beside them, where it states
# them.

# %%
show("environment.ceilings")

# %% [markdown]
# ## How good is the clock?

# %%
show("environment.clocks")

# %%
show("environment.launch_gap")

# %%
show("environment.timings")

# %% [markdown]
# ## Is the clock right?
#
# The same calls, from microseconds to milliseconds, by those of five clocks that the machine has: ours, CUPTI through
# PyTorch's profiler, Triton's, NVIDIA's NVBench, and Nsight Compute. The table gives the reason for each difference. Samples
# are of values that no implementation has seen before; where our clock also timed calls that repeat the same values, the difference is
# what that costs an honest call, and latencies are not claimed to be more exact.

# %%
show("environment.panel")

# %%
show("environment.panel.table")

# %% [markdown]
# ## What is in the cache?
#
# The bytes that a call reads from memory show it, and which tensors are in the L2 when a sample begins.

# %%
show("environment.residency")

# %% [markdown]
# ## Did its clock change?

# %%
show("environment.throttling")

# %% [markdown]
# ## Burst and sustained
#
# A card at rest runs at its highest clock; under load, the power limit sets it. Both are results. Here each implementation
# runs alone and without pause until the clock has settled.

# %%
show("environment.load")

# %%
show("environment.endurance")

# %% [markdown]
# ## What was measured, and what was not?

# %%
show("environment.effort")

# %%
show("environment.lacking")

# %%
show("environment.cases")

# %% [markdown]
# ## Can it be checked and repeated?

# %%
show("environment.checklist")

# %%
show("environment.rules")

# %%
show("environment.commands")

# %%
show("environment.hashes")
