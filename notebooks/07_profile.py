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
# Why does each implementation take as long as it does? A latency does not say; the counters of the hardware do. Nsight
# Compute counted how busy each unit was, and the reasons for which warps waited.

# %% tags=["parameters"]
run = "h200-2026-11-28-main"  # a run in data/
batch = None  # None: the value of the study's target
heads = None
seq_len = None
head_dim = None
causal = None
dtype = None

# %%
import numpy as np
import pandas as pd

import attnlab as al
from attnlab.runs.metrics import WAITS

recorded = al.load(run)
at = al.target(recorded, batch=batch, heads=heads, seq_len=seq_len, head_dim=head_dim, causal=causal, dtype=dtype)
timing = {"clock": at.pop("clock"), "cache": at.pop("cache")}
counted = al.counters(recorded)
told = recorded.manifest.get("profile") or {"why": "the run is not complete"}
print(recorded, f"{len(counted)} calls were counted." if len(counted) else f"No counters: {told['why']}.", sep="\n")

# %% [markdown]
# The counters are of one call after a warm-up. Nsight Compute runs each kernel several times and counts some metrics each
# time. Its durations are never compared with samples.

# %%
here = al.where(counted, **at) if len(counted) else counted
units = list(counted.loc[:, "tensor_cores_pct":"dram_pct"])
shown = here[["implementation", "launches", "cycles", *units]].rename(columns=lambda name: name.replace("_pct", ""))
al.table(shown, f"Use of each unit in percent of its peak, S = {at['seq_len']}.", bold=(here[units] >= 60).any(axis=1))

# %% [markdown]
# ## Bottlenecks
#
# A busy unit limits a kernel: no reordering saves that share of the time. On recent GPUs small heads need the
# exponential units nearly as long as the tensor cores, so that a fast kernel keeps both busy at once.
#
# In each cycle a scheduler issues an instruction, or every warp waits, or the multiprocessor has no work. Cycles of
# waiting are divided among the reasons, in proportion to the warps that each held. Warps that wait by design, such as
# those that only load, count as all others.
#
# The rule is that of Nsight Compute's guided analysis: units from 60 % of their peak on, then the largest losses.

# %%
titles = {f"wait_{reason}_pct": f"waits for {title}" for reason, title in WAITS.items()}
titles |= {"idle_pct": "no work", "issued_pct": "instructions"}


def bottlenecks(row):
    """The three largest bottlenecks by the counters of a call: units in percent of their peak, losses of the cycles."""
    busy = row[units][row[units] >= 60].rename(lambda name: name.removesuffix("_pct").replace("_", " "))
    losses = row[list(titles)].drop("issued_pct").rename(titles).sort_values(ascending=False)
    first = pd.concat([busy.sort_values(ascending=False), losses]).head(3)
    return [row.implementation, *(f"{name}, {share:.0f} %" for name, share in first.items())]


rows = [bottlenecks(row) for _, row in here.iterrows()]
al.table(pd.DataFrame(rows, columns=["implementation", "first", "second", "third"]), "The three largest bottlenecks.")

# %%
pipes = here.melt(["implementation"], ["tensor_cores_pct", "exponentials_pct", "issue_slots_pct"], "unit", "used_pct")
pipes = pipes.assign(unit=pipes.unit.str.replace("_pct", "").str.replace("_", " "))
al.plot.dots(pipes, "used_pct", "implementation", None, None, reference=60, hue="unit", log="") if len(pipes) else None

# %% tags=["published"]
use = here.set_index("implementation")
al.holds(
    "`kernel.best` keeps its tensor cores 50 % busy and its exponential units 48 %, the most of all kernels.",
    lambda: [round(use[unit]["kernel.best"]) for unit in units[:2]] == [50, 48]
    and (use[units[:2]].idxmax() == "kernel.best").all(),
)

# %% [markdown]
# ## Traffic
#
# Below 100 % of the compulsory bytes, the L2 still held data of the call before. Bank conflicts are accesses to shared
# memory that repeat.

# %%
names = {"dram__bytes_read.sum": "read", "dram__bytes_write.sum": "written", "sm__inst_executed.sum": "executed"}
totals = recorded.profile.pivot_table(index=["implementation", *at], columns="metric", values="value", aggfunc="sum")
totals = totals.reindex(columns=list(names)).rename(columns=names).reset_index()
totals = al.add_work(totals.astype({axis: counted[axis].dtype for axis in at}))
totals = totals.assign(dram_mb=(totals.read + totals.written) / 1e6, instructions=totals.executed / 1e6)
totals["compulsory_pct"] = 1e8 * totals.dram_mb / totals.bytes
shown = ["implementation", "dram_mb", "compulsory_pct", "instructions", "bank_conflicts_pct"]
al.table(here.merge(totals).reindex(columns=shown), "Traffic of a call, and its instructions in millions.")

# %% [markdown]
# ## Input distributions
#
# A kernel that computes a tile again, or corrects a result, executes more instructions where the values need it.

# %%
fixed = [axis for axis in at if axis != "values"]
other = totals[(totals[fixed] == pd.Series(at)[fixed]).all(axis=1)]
by_values = other.pivot(index="implementation", columns="values", values="instructions")
most = by_values.max(axis=1) / by_values.min(axis=1)
by_values = by_values.assign(ratio=most).sort_values("ratio", ascending=False)
al.table(by_values, "Millions of instructions by input distribution.")

# %% tags=["published"]
al.holds(
    "`kernel.bounded` executes 33 % more instructions on rising scores than on normal ones. No library executes more.",
    lambda: round(most["kernel.bounded"], 2) == 1.33 and most[~most.index.str.startswith("kernel.")].max() < 1.001,
)

# %% [markdown]
# ## Distance from the floor
#
# A call takes its floor, the time in which multiprocessors had no work, and the time in which warps waited. The last is
# divided by the counted cycles. Calls that take more than 4 times their floor are left out.

# %%
cases = al.add_floor(al.add_work(al.summarize(recorded.samples)), recorded.ceilings)
timed = cases[(cases.clock == timing["clock"]) & (cases.cache == timing["cache"])]
shown = ["implementation", "median_us", "floor_us"]
near = here.merge(timed, on=["implementation", *at]).reindex(columns=[*shown, *titles])
near = near[near.median_us.between(near.floor_us, 4 * near.floor_us)].sort_values("median_us")
beyond_us, waits = near.median_us - near.floor_us, near[list(titles)[:-2]]
idle_us = np.minimum(beyond_us, near.idle_pct / 100 * near.median_us)
waits_us = waits.div(waits.sum(axis=1), axis=0).mul(beyond_us - idle_us, axis=0).rename(columns=titles)
largest = list(waits_us.sum().nlargest(5).index)
parts = near[shown].assign(idle_us=idle_us).join(waits_us[largest])
parts["other"] = beyond_us - idle_us - waits_us[largest].sum(axis=1)
al.table(parts, "Parts of the median in µs; idle: no work.")

# %% [markdown]
# ## From kernel to kernel
#
# Each kernel of the ladder changes one thing of the kernel before. The table splits the change of its cycles.

# %%
cycles = here.set_index("implementation").reindex(columns=["cycles", *titles])
cycles = cycles[list(titles)].mul(cycles.cycles / 100, axis=0).rename(columns=titles)
rows = []
for kernel, before in ((f"kernel.{rung['name']}", f"kernel.{rung['after']}") for rung in recorded.manifest["ladder"]):
    if {kernel, before} <= set(cycles.index):
        change = (cycles.loc[kernel] - cycles.loc[before]).sort_values()
        words = [f"{name} {amount:+,.0f}" for name, amount in change.iloc[[0, 1, -1]].items()]
        rows.append([kernel, before, cycles.loc[kernel].sum(), cycles.loc[before].sum(), *words])
columns = ["kernel", "after", "cycles", "cycles before", "saves most", "saves next", "adds most"]
al.table(pd.DataFrame(rows, columns=columns), "Cycles of a scheduler, and the largest changes.")
