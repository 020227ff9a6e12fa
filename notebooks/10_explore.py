# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Explorer
#
# Which kernel is the fastest at a shape depends on the clock, the cache, the mask and the type, and no page can show every
# combination. Here they are chosen: the matrix holds every verdict of the run, a click on a cell shows its samples, and
# another run can be put beside this one.

# %% tags=["parameters"]
run: str = ""  # a run in data/; empty for the newest of the study on this device, measured now if there is none
study: str = "quick"  # what to measure: a file in studies/
device: str = "auto"  # auto, cuda, cpu, or none to measure nothing

# %%
from attnlab import select_run

show = select_run.exhibits(run, study, device)
show

# %%
show("explore.explorer")
