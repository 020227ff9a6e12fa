# %% [markdown]
# # Verdicts
#
# Is any implementation really faster than the baseline? A round times each implementation once, on the same inputs.
# A comparison pairs the rounds. The baseline has two turns in a round: the second is the A/A control.
# A speedup is the baseline's median latency over the candidate's. Above 1, the candidate is faster.

# %% tags=["parameters"]
run = "h200-2026-11-28-main"  # a run in data/
before = ""  # an earlier run that shares cases with it; empty for none
baseline = "sdpa.auto"  # any implementation of the run
seq_len = None  # None, here and below: as in the study's target
head_dim = None
clock = None  # "device", "eager" or "cupti"

# %%
import pandas as pd

import attnlab as al

recorded = al.load(run)
at = al.target(recorded, seq_len=seq_len, head_dim=head_dim, clock=clock)
verdicts = al.compare(recorded.samples, baseline)
verdicts = verdicts[verdicts["values"] != "zeros"]  # no program computes attention over them
print(recorded, f"Target: {', '.join(f'{axis} {value}' for axis, value in at.items())}", sep="\n")

# %% [markdown]
# ## One shape
#
# The 12 fastest candidates at the target, with 95 % intervals over cards or replicates. Holm's method adjusts p-values.
# No difference below the smallest effect, which the A/A control gives, is called faster or slower.

# %%
here = al.where(verdicts, **at).nlargest(12, "speedup")
al.plot.dots(here, "speedup")

# %% [markdown]
# ## Other input distributions
#
# Some kernels skip work that depends on the scores, so their latency depends on the values in Q, K and V.
# A claim has to hold on the worst input distribution.

# %%
place = {axis: value for axis, value in at.items() if axis != "values"}
timed = al.where(verdicts, **place)
wide = timed.pivot(index="candidate", columns="values", values="speedup")[timed["values"].unique()]
al.plot.heatmap(wide.loc[wide.max(axis=1).nlargest(12).index])

# %%
worst = al.worst(timed).sort_values("speedup", ascending=False)
columns = ["candidate", "values", "candidate_us", "speedup", "highest", "n", "p_holm", "decision", "claimable"]
al.table(al.with_interval(worst, "speedup")[columns], "Each candidate on its worst distribution.", bold=worst.claimable)

# %%
al.statement(worst.iloc[0])

# %% tags=["published"]
ends = worst.set_index("candidate")[["n", "speedup", "highest"]].round(3)
al.holds(
    "On 15 input distributions, `kernel.best` is 1.23x to 1.29x faster than PyTorch. `kernel.bounded` is up to 1.25x "
    "faster, and 1.13x slower on its worst distribution.",
    lambda: ends.loc[["kernel.best", "kernel.bounded"]].values.tolist() == [[15, 1.233, 1.291], [15, 0.884, 1.254]],
)

# %% [markdown]
# ## Does the clock decide?
#
# `device` times calls in a CUDA graph. `eager` times a Python call with its launch. `cupti` times the kernels alone.

# %%
anywhere = al.where(verdicts, **{axis: value for axis, value in place.items() if axis not in ("clock", "cache")})
anywhere = anywhere.assign(timing=anywhere.clock + " clock, " + anywhere.cache + " cache")
by_clock = al.worst(anywhere).pivot(index="candidate", columns="timing", values="speedup").loc[worst.candidate.head(12)]
al.table(by_clock, "Speedup on the worst distribution; bold above 1.", bold=by_clock > 1)

# %% [markdown]
# ## How often is this wrong?
#
# A/A compares the study's baseline with itself at each shape. About 5 % of the intervals should exclude 1.
# Each decision of faster or slower is wrong. The last columns are the smallest effect (%) over the shapes.

# %%
control = al.control(recorded.samples, recorded.manifest["study"]["baseline"])
timings = control.assign(wrong=control.decision.isin(["faster", "slower"])).groupby(["clock", "cache"])
rates = timings.agg(comparisons=("speedup", "size"), excludes_1=("excludes_1", "sum"), wrong=("wrong", "sum"))
effects = 100 * timings.smallest_effect.quantile([0.5, 0.9]).unstack().add_prefix("effect, quantile ")
al.table(rates.join(effects), "The baseline against itself.")

# %% [markdown]
# In simulated runs the speedup is known: none, except in the last column. A row is a distribution of latencies.
# A single replicate can't see that processes differ.

# %%
simulated = pd.read_csv(al.paths.REFERENCE / "calibration.csv")
replicates = max(n for n in simulated.replicates.unique() if n <= recorded.samples.replicate.nunique())
rows = simulated[simulated.replicates == replicates].set_index(["processes", "kind"])
measures = ["median covered", "ratio covered", "faster or slower", "claimable", "faster by 5 % found"]
shares = 100 * rows.pivot(columns="measure", values="value")[measures]
al.table(shares, f"Percent of simulated runs with this outcome; replicates: {replicates}.")

# %% [markdown]
# ## Every comparison, and each case since an earlier run

# %%
decisions = pd.crosstab(verdicts.candidate, verdicts.decision.mask(verdicts.claimable, "faster, claimable"))
al.table(decisions, f"Decisions against {baseline}: all shapes, input distributions and clocks.")

# %%
before = before or ("h200-2026-11-28-backends" if run == "h200-2026-11-28-main" else "")
changes = al.compare_runs(al.load(before), recorded) if before else None
al.table(pd.crosstab(changes.implementation, changes.decision), before) if before else print("No earlier run is named.")
