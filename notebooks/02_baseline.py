# %% [markdown]
# # Baseline
#
# How fast is attention on this machine, and how far can each number be trusted? A row of `samples` is one timed call.
# The cells below compute everything from these rows.

# %% tags=["parameters"]
run = "h200-2026-11-28-main"  # a run in data/
batch = None  # None: the value of the study's target
heads = None
seq_len = None  # None: all powers of 2 that were measured; or a list, such as [64, 128, 256]
head_dim = None
dtype = None
clock = None
cache = None

# %%
import json

import numpy as np
import pandas as pd

import attnlab as al

recorded = al.load(run)
at = al.target(recorded, batch=batch, heads=heads, head_dim=head_dim, dtype=dtype, clock=clock, cache=cache)
seq_len = json.loads(seq_len) if isinstance(seq_len, str) else seq_len  # `papermill -p` passes a list as text
baseline = recorded.manifest["study"]["baseline"]
print(recorded, f"Target: {', '.join(f'{axis} {value}' for axis, value in at.items())}", sep="\n")

# %%
columns = ["implementation", "seq_len", "values", "clock", "cache", "replicate", "round", "latency_us", "sm_clock_mhz"]
recorded.samples[columns].sample(5, random_state=0)

# %% [markdown]
# ## Is it right?
#
# A check compares an implementation with a float64 reference, before it is timed and again after. The bound follows
# from the error of the same formula in PyTorch operations ("theirs"). A case that fails a check has no latency.

# %%
checks = recorded.checks[~recorded.checks.implementation.str.startswith("control.")]
timed = checks[(checks.inputs == checks["values"]) & (checks.framework_max_error > 0)]
ratio = (timed.max_error / timed.framework_max_error).groupby(timed.implementation, sort=False).agg(["median", "max"])
counts = checks.groupby("implementation", sort=False).passed.agg(checks="size", passed="sum")
al.table(counts.join(ratio), "Checks; the largest error of a check over theirs, on timed values.")

# %% tags=["published"]
al.holds("Every check passed.", checks.passed)

# %% [markdown]
# ## Cases
#
# `summarize` gives a row per case: the median with its 95 % interval, spread and tails. `add_work` counts FLOPs and
# bytes. `add_floor` compares the median with the ceilings of the machine, see [03_roofline](03_roofline.ipynb).

# %%
cases = al.add_floor(al.add_work(al.summarize(recorded.samples)), recorded.ceilings)
print(f"{len(cases):,} cases; columns: {', '.join(cases.columns)}")


# %%
def along(*axes):
    """The cases along some axes; other axes and the timing are the target's. Ladder kernels are left out."""
    kept = cases[(cases.kv_heads == cases.heads) & (cases.kv_len == cases.seq_len)]
    kept = kept[~kept.implementation.str.startswith("kernel.") | (kept.implementation == "kernel.best")]
    return al.where(kept, **{axis: at[axis] for axis in at if axis not in (*axes, "kv_heads", "kv_len")})


# %% [markdown]
# ## Sequence length

# %%
lengths = al.where(along("seq_len", "causal"), **({"seq_len": seq_len} if seq_len else {}))
lengths = lengths if seq_len else lengths[np.log2(lengths.seq_len) % 1 == 0]
al.plot.lines(lengths, "seq_len", "median_us", col="causal", low="low_us", high="high_us", log="xy")

# %%
al.plot.lines(lengths, "seq_len", "throughput_tflops", col="causal")

# %%
wide = lengths[~lengths.causal].pivot(index="implementation", columns="seq_len", values="median_us")
widths = 100 * (lengths.high_us - lengths.low_us) / lengths.median_us
print(f"The 95 % intervals are {widths.median():.1f} % wide in the median, {widths.max():.1f} % at most.")
al.table(wide, "Median latency in µs by sequence length, without a mask.")

# %% tags=["published"]
fastest = lengths.loc[lengths.groupby(["seq_len", "causal"]).median_us.idxmin()]
al.holds("On normal values `kernel.best` has the smallest median at all 15 lengths and masks.", fastest.implementation == "kernel.best")

# %% [markdown]
# ## Batch and heads
#
# A small batch leaves multiprocessors without work. The time per row of Q is constant once the machine is full.

# %%
sweeps = [along(axis).assign(sweep=axis, size=lambda cases, axis=axis: cases[axis]) for axis in ("batch", "heads")]
al.plot.lines(pd.concat(sweeps), "size", "throughput_tflops", col="sweep")

# %%
own = al.where(along("batch", "heads"), implementation=baseline).sort_values(["heads", "batch"])
own = own.assign(row_ns=1e3 * own.median_us / (own.batch * own.heads * own.seq_len))
own = al.with_interval(own, "median_us", "low_us", "high_us")
shown = ["batch", "heads", "median_us", "row_ns", "throughput_tflops", "bandwidth_gbs", "speed_of_light"]
al.table(own[shown], f"{baseline} by batch and heads; row: latency over the rows of Q.")

# %% [markdown]
# ## Spread and tails
#
# An interval of a P95 needs 73 samples, and one of a P99 needs 368. Outliers are beyond Tukey's fences; they are
# counted and kept. `lag1` is the correlation of neighbouring samples.

# %%
tails = al.where(along("seq_len"), implementation=baseline).sort_values("seq_len")
tails = al.with_interval(tails, "p95_us", "p95_low_us", "p95_high_us")
shown = ["samples", "median_us", "p95_us", "cv_pct", "outliers_pct", "lag1", "throttled_pct", "sm_clock_mhz"]
al.table(tails.set_index("seq_len")[shown], f"Spread of the samples of {baseline}.")

# %% tags=["published"]
al.holds("From 4,096 on the card throttles in every sample.", tails[tails.seq_len >= 4096].throttled_pct == 100)

# %% [markdown]
# ## Memory
#
# The ratio is the peak of allocated memory during a call, over the size of Q, K, V and O.

# %%
axes = [axis for axis in at if axis not in ("clock", "cache")]
peaks = recorded.cases.groupby(["implementation", *axes]).peak_memory_bytes.max().reset_index()
peaks = lengths[~lengths.causal].merge(peaks)
peaks = peaks.assign(memory_ratio=peaks.peak_memory_bytes / peaks.bytes)
al.plot.lines(peaks, "seq_len", "memory_ratio", log="xy")
