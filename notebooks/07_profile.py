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
import pandas as pd

import attnlab as al
from attnlab.runs.metrics import WAITS

recorded = al.load(run)
at = al.target(recorded, batch=batch, heads=heads, seq_len=seq_len, head_dim=head_dim, causal=causal, dtype=dtype)
del at["clock"], at["cache"]  # the counters are of one call
counted = al.counters(recorded)
told = recorded.manifest.get("profile") or {"why": "the run is not complete"}
print(recorded, f"{len(counted)} calls were counted." if len(counted) else f"No counters: {told['why']}.", sep="\n")

# %% [markdown]
# The counters are of one call after a warm-up. Nsight Compute runs each kernel several times and counts some metrics
# each time. Its durations are never compared with samples.

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
    """The 3 largest bottlenecks by the counters of a call: units in percent of their peak, losses of the cycles."""
    busy = row[units][row[units] >= 60].rename(lambda name: name.removesuffix("_pct").replace("_", " "))
    losses = row[list(titles)].drop("issued_pct").rename(titles).sort_values(ascending=False)
    first = pd.concat([busy.sort_values(ascending=False), losses]).head(3)
    return [row.implementation, *(f"{name}, {share:.0f} %" for name, share in first.items())]


rows = [bottlenecks(row) for _, row in here.iterrows()]
al.table(pd.DataFrame(rows, columns=["implementation", "first", "second", "third"]), "The three largest bottlenecks.")

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
