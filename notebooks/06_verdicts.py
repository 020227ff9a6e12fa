# %% [markdown]
# # Verdicts
#
# Is any implementation really faster than the baseline? A round times each implementation once, on the same inputs.
# A comparison pairs the rounds. The baseline has 2 turns in a round: the second is the A/A control.
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
# ## At what accuracy?
#
# Errors against float64, over those of cuDNN (of the study's baseline if cuDNN was not checked) at the same shape and
# input distribution. Means are geometric, over all cases. Speedups are at the target's clock.

# %%
axes, names = [*al.Shape.AXES], recorded.checks.implementation.unique()
reference = "sdpa.cudnn" if "sdpa.cudnn" in names else recorded.manifest["study"]["baseline"]
errors = al.compare_errors(recorded.checks, reference)
rms, largest = (al.worst(errors, axes, of).set_index("candidate") for of in ("rms_ratio", "max_ratio"))
speed = al.worst(al.where(verdicts, clock=at["clock"], cache=at["cache"]), axes).set_index("candidate")
accuracy = rms[["n"]].assign(
    **{"mean speedup": speed["mean"].reindex(rms.index), "mean RMS": rms["mean"], "worst RMS": rms.rms_ratio},
    **{"B, H, S, D": [str(row)[1:-1] for row in rms[axes[:4]].itertuples(index=False, name=None)]},
    **{"dtype": rms["dtype"], "worst on": rms["values"], "mean max": largest["mean"], "worst max": largest.max_ratio},
)
al.table(accuracy.sort_values("worst RMS"), f"Speedups over {baseline}, errors over those of {reference}.")

# %%
of_values = al.worst(errors, [axis for axis in axes if axis != "values"], "rms_ratio")
means = of_values.pivot(index="values", columns="candidate", values="mean")
means = means.loc[:, means.max() > 1.01]
al.table(means, "Mean RMS on each distribution; bold above 1.1. Only implementations above 1.01.", bold=means > 1.1)

# %% tags=["published"]
worse = list(accuracy["worst RMS"].nlargest(7).index)
al.holds(
    "RMS errors of `kernel.best` are 1.04 times cuDNN's in the mean and 1.36 times at the worst (`sd 6`, bfloat16). "
    "Its largest errors are up to 1.90 times cuDNN's. At the worst `kernel.lazy` and `kernel.bounded` have 1.36 times "
    "cuDNN's RMS error, `peer.flashinfer` 1.22, `peer.flash4` and `kernel.jobs` 1.02. All others have at most 1.01.",
    lambda: accuracy["mean RMS"].round(2)["kernel.best"] == 1.04
    and round(accuracy["worst max"]["kernel.best"], 2) == 1.90
    and accuracy.loc["kernel.best", ["worst on", "dtype"]].to_list() == ["sd 6", "bfloat16"]
    and accuracy["worst RMS"].round(2).nlargest(7).to_list() == [1.36, 1.36, 1.36, 1.22, 1.02, 1.02, 1.01]
    and set(worse[:3]) == {"kernel.best", "kernel.lazy", "kernel.bounded"}
    and worse[3] == "peer.flashinfer" and set(worse[4:6]) == {"peer.flash4", "kernel.jobs"},
)  # fmt: skip

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
# 5 replicates have 16 rounds and are on 3 cards, as at most shapes of the published run; 3 replicates have 24 rounds.
# A single replicate, of 100 rounds, can't see that processes differ.

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
