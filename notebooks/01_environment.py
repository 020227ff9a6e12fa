# %% [markdown]
# # Environment
#
# A latency holds for one machine, its settings and one clock. This notebook shows them, and compares the clock with 4
# others.

# %% tags=["parameters"]
run = "h200-2026-11-28-main"  # a run in data/

# %%
import pandas as pd

import attnlab as al

recorded = al.load(run)
samples, manifest = recorded.samples, recorded.manifest
at = al.target(recorded)
baseline = manifest["study"]["baseline"]
recorded

# %% [markdown]
# ## The machine

# %%
environment, versions = manifest["environment"], manifest["environment"]["packages"]
stated = {name: value for name, value in manifest["device"].items() if name != "kind"} | environment["card"]
stated |= {name: environment[name] for name in ("driver", "cuda", "cudnn", "python", "system")}
stated |= {name: versions[name] for name in ("torch", "triton", "nvidia-cudnn-cu13") if name in versions}
al.table(
    pd.DataFrame({"what": stated.keys(), "value": map(str, stated.values())}),
    "As the driver and the packages state it.",
)

# %% [markdown]
# ## Is it locked?
#
# Each process sets these values before it measures, reads them back, and stops if one differs. Strict deterministic
# algorithms would make PyTorch drop cuDNN attention and fill new tensors with NaN inside the timed window, so they
# only warn.

# %%
settings = environment["settings"]
is_locked = settings["deterministic_algorithms"] and not (settings["tf32_matmul"] or settings["cudnn_benchmark"])
al.holds("TF32 and cuDNN's autotuner are off, and algorithms are deterministic.", is_locked)
al.table(pd.DataFrame({"setting": settings.keys(), "value": map(str, settings.values())}), "Settings, as read back.")

# %% [markdown]
# ## Ceilings
#
# The run measures the machine's highest rates, with the clock that times the kernels. The datasheet's rates are dense.

# %%
ceilings = recorded.ceilings[recorded.ceilings.ceiling != "l2_size"]
ceilings = ceilings.assign(of_datasheet_pct=100 * ceilings.rate / ceilings.datasheet)
al.table(al.with_interval(ceilings, "rate"), "Rates of this machine, with 95 % intervals.")

# %% [markdown]
# ## The clock
#
# - `device`: k calls in a row, replayed by a CUDA graph, over k. It times the work of the device.
# - `cupti`: the time for which the kernels of such a graph run.
# - `device` with a cold cache: one call, after twice the L2 was overwritten.
# - `eager`: one call into an idle stream, between events. It includes the launch by the host.

# %%
print(", ".join(f"{name.removesuffix('_us')} {value:.3g} µs" for name, value in manifest["clocks"].items()))
axes = {axis: at[axis] for axis in at if axis not in ("seq_len", "kv_len", "clock", "cache")}
lengths = al.where(al.summarize(samples), **axes, implementation=baseline)
length = "seq_len" if at["seq_len"] == at["kv_len"] else "kv_len"  # few queries: the number of keys varies
lengths = lengths[lengths.seq_len == (lengths.kv_len if length == "seq_len" else at["seq_len"])]
lengths = lengths.assign(timing=lengths.clock + ", " + lengths.cache)
al.plot.lines(lengths, length, "median_us", hue="timing", low="low_us", high="high_us", log="xy")

# %% [markdown]
# ## Is the clock right?
#
# Each clock times the same calls. Clocks are near if they agree within 0.5 µs below 20 µs, and within 1 % above.

# %%
clocks = al.clocks(recorded).astype({"gap_us": float, "gap_pct": float})
clocks = clocks[~clocks.method.isin(["device", "device.cold"])].dropna(subset="gap_us")
gaps = clocks.groupby("method").agg(cases=("near", "size"), near=("near", "sum"), gap_us=("gap_us", "median"))
ends = clocks.groupby("method").gap_pct.quantile([0.1, 0.5, 0.9]).unstack().reindex(columns=[0.1, 0.5, 0.9])
gaps = gaps.join(ends.set_axis(["low", "gap_pct", "high"], axis=1)).sort_values("gap_pct").reset_index()
caption = "Other clocks minus ours: medians, and 10 % to 90 % of the cases."
al.table(al.with_interval(gaps, "gap_pct"), caption) if len(gaps) else print("The run has no panel of clocks.")

# %% [markdown]
# ## Cards and processes
#
# Cards differ, and so do processes on one card. A claim about a kind of card needs several cards: see `block` in
# `samples`.

# %%
own = samples[samples.implementation == baseline]
case = [*axes, "seq_len", "kv_len", "clock", "cache"]
levels = {"cards_pct": own.groupby([*case, "card"]).latency_us.median().groupby(case)}
levels["processes_pct"] = own.groupby([*case, "card", "process"]).latency_us.median().groupby([*case, "card"])
levels["samples_pct"] = own.groupby([*case, "process"]).latency_us
levels = {
    name: (100 * level.std() / level.mean()).groupby(["clock", "cache"]).median() for name, level in levels.items()
}
al.table(
    pd.DataFrame(levels),
    f"Standard deviations of latencies of {baseline} between cards, processes and samples: medians of cases.",
)

# %% [markdown]
# ## Load and throttling
#
# A card at rest runs at its highest clock. Under load, its power limit sets the clock. Below, each implementation runs
# alone, without a pause. A latency of 1 is that of the first 0.1 s.

# %%
throttled = samples.throttled.astype("Float64").mean()
print(
    manifest["telemetry"]
    if pd.isna(throttled)
    else f"{throttled:.0%} of the samples were taken while the card throttled."
)

# %%
load = recorded.endurance.dropna(subset="latency_us").assign(second=lambda frame: frame.started_s // 0.1 / 10)
load = load.groupby(["implementation", "second"]).latency_us.median().astype(float).reset_index()
load["relative_latency"] = load.latency_us / load.groupby("implementation").latency_us.transform("first")
al.plot.lines(load, "second", "relative_latency", log="") if len(load) else print("The run holds no load.")
