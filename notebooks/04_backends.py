# %% [markdown]
# # Backends
#
# Which implementation, batch and length should you choose? `peer.*` are other packages, and `kernel.best` is the
# hand-written kernel that was chosen before the run. Latencies are at the target's clock, on standard normal values.

# %% tags=["parameters"]
run = "h200-2026-11-28-main"  # a run in data/
layouts = "h200-2026-11-28-backends"  # runs of the same device: other layouts, dtypes and directions;
decode = "h200-2026-11-28-decode"  # few queries over many keys;
fp8 = "h200-2026-12-01-fp8"  # kernels in FP8
sample = None  # a run of the study `drawn`; None: the published run's
training = None  # a run of the study `training`; None: the published run's, if it is in data/
ragged = None  # a run of the study `ragged`; likewise
price_per_hour = 3.0  # of the device, in US dollars: type in yours
head_dim = None  # None: as in the study's target

# %%
import pandas as pd

import attnlab as al
from attnlab import frames
from attnlab.runs import dispatch

AXES, CACHES = list(al.Shape.AXES), ("warm", "cold")
runs = [al.load(run)]
device, baseline = runs[0].manifest["device"]["name"], runs[0].manifest["study"]["baseline"]
torch = runs[0].manifest["environment"]["packages"]["torch"]
at = al.target(runs[0], head_dim=head_dim)
table = dispatch.load(dispatch.path(device), device) if dispatch.path(device).is_file() else None
print(runs[0], f"Target: {', '.join(f'{axis} {value}' for axis, value in at.items())}", sep="\n")


# %%
def choices(run, cache=at["cache"]):
    """The cases that a user chooses from, with the time and the price per token; no ladder kernel but the chosen."""
    cases = al.where(al.summarize(run.samples), clock=at["clock"], cache=cache, values="normal")
    cases = al.add_work(cases[~cases.implementation.str.match("kernel.(?!best)")])
    per_token_ns = 1e3 * cases.median_us / (cases.batch * cases.seq_len)
    return cases.assign(per_token_ns=per_token_ns, micro_dollars=price_per_hour / 3600 * per_token_ns * 1e3)


def shown(best, caption, *more):
    varied = [axis for axis in AXES if best[axis].nunique() > 1]
    columns = ["implementation", "median_us", "throughput_tflops", *more, "next", "next_pct", "attend", "attend_pct"]
    return al.table(best[[*varied, *columns]], caption)


# %%
def fastest(cases):
    """A row per shape: the fastest implementation, the next one, `attend`'s choice, and how much longer these take."""
    ranked = cases.sort_values("median_us").groupby(AXES, sort=False)
    both = ranked.nth(0).merge(ranked.nth(1), on=AXES, how="left", suffixes=("", "_next"))
    names = [table.choose(al.Shape(**axes), torch) if table else "sdpa.auto" for axes in both[AXES].to_dict("records")]
    both["attend"] = pd.Series(names).where((both.direction == "forward") & (both.lengths == "equal"), "sdpa.auto")
    own = cases[[*AXES, "implementation", "median_us"]].rename(columns={"implementation": "attend"})
    both = both.merge(own, on=[*AXES, "attend"], how="left", suffixes=("", "_attend")).sort_values(AXES)
    both["next_pct"] = 100 * (both.median_us_next / both.median_us - 1)
    both["attend_pct"] = 100 * (both.median_us_attend / both.median_us - 1)
    return both.rename(columns={"implementation_next": "next"})


# %% [markdown]
# ## Per call and per token
#
# A shorter call is less efficient, so settings are compared by their time per token. The cheapest is first.
# The price of one attention layer is in micro-dollars per million tokens.

# %%
cases = choices(runs[0])
model = {axis: at[axis] for axis in ("heads", "head_dim", "dtype", "causal")}
length = "seq_len" if at["seq_len"] == at["kv_len"] else "kv_len"  # few queries: the number of keys varies
alike = cases.seq_len == (cases.kv_len if length == "seq_len" else at["seq_len"])
fixed = {axis: at[axis] for axis in ("kv_heads", "lengths", "direction")}
near = al.where(cases[alike], **model, **fixed)
sweep = near[(near.batch == at["batch"]) & near[length].isin([at[length], *(2**n for n in range(20))])]
al.plot.lines(sweep, length, "per_token_ns", log="xy")

# %%
words = ", ".join(f"{axis} {value}" for axis, value in model.items())
shown(fastest(near).sort_values("per_token_ns"), f"At {words}.", "per_token_ns", "micro_dollars")

# %% [markdown]
# ## The fastest at every shape
#
# The heat map has speedups over the study's baseline. In the table, `attend` is the choice of `al.attend` here.
# `next_pct` and `attend_pct` show how much longer these take. 1 % may be noise: see [06](06_verdicts.ipynb).

# %%
verdicts = al.compare(runs[0].samples, baseline).rename(columns={"candidate": "implementation"})
along = verdicts.merge(sweep[[*AXES, "clock", "cache", "implementation"]])
al.plot.heatmap(along.pivot(index="implementation", columns=length, values="speedup"))

# %%
shown(fastest(cases), f"The fastest at every shape of {run}.")

# %% tags=["published"]
al.holds("`kernel.best` has the lowest median at all shapes above.", fastest(cases).implementation == "kernel.best")

# %% tags=["published"]
runs.append(al.load(layouts))
shown(fastest(choices(runs[1])), f"The fastest at every shape of {layouts}.")

# %% [markdown]
# ## A drawn sample
#
# The study `drawn` has 200 shapes, drawn by a seed that was committed before. `sample` names its run. No shape is left
# out. `baseline` is SDPA, `fastest` the fastest of all implementations that are not ours, `total` the ratio of all times.
# The clock `cupti` counts kernels alone, without SDPA's memset and the gap after it. Eager ratios of one replicate are
# not shown: SDPA's own differ by up to 24 % between processes.

# %%
sample = sample or ("h200-2026-11-30-drawn" if run == "h200-2026-11-28-main" else "")
sampled = al.load(sample) if sample else None
for clock in sorted(set(sampled.samples.clock) - {"eager"}) if sample else []:
    summary = frames.summarize_drawn(frames.drawn(sampled, clock=clock))
    display(al.table(summary, f"al.attend at the shapes that {sample} drew, {clock} clock, warm cache."))

# %%
rows = frames.drawn(sampled).sort_values("over_fastest") if sample else pd.DataFrame()
if sample:
    figure = al.plot.NotebookFigure(figsize=(6.4, 3), layout="constrained")
    axes = figure.subplots()
    for word, colour, part in (("faster", "C0", rows.over_fastest >= 1), ("a loss", "C3", rows.over_fastest < 1)):
        axes.scatter(rows.kv_len[part], rows.over_fastest[part], 12, colour, label=f"{word}: {part.sum()}")
    axes.axhline(1, color="#444444", linewidth=0.9)
    axes.set(xscale="log", yscale="log", xlabel="keys", ylabel="speedup over the fastest other")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.legend()
    figure.alt = f"Speedups over the number of keys, from {rows.over_fastest.min():.3f} on."
    display(figure)

# %%
if sample:
    rows = rows.rename(columns={"us": "attend_us"})
    columns = ["label", "attend_us", "baseline_us", "speedup", "fastest", "fastest_us", "over_fastest"]
    display(al.table(rows[columns], f"Every shape that {sample} drew, by the device clock."))

# %% [markdown]
# ## Gradients, and sequences of unlike lengths
#
# Speedups over the fastest other, by the device clock with a warm cache. `backward` is the backward pass alone, from a
# forward pass that was made before, `training` both passes. Sequences of unlike lengths are packed end to end. SDPA takes
# them as nested tensors (`sdpa.auto`), padded under a mask, or in a call for each.

# %%
published = {"training": "h200-2026-11-30-training-3", "ragged": "h200-2026-12-01-ragged"}
is_here = {name: run == "h200-2026-11-28-main" and (al.paths.data() / name).is_dir() for name in published.values()}
named = {study: own or (name if is_here[name] else "") for own, (study, name) in zip((training, ragged), published.items())}
print(", ".join(f"{study}: {name or 'no run'}" for study, name in named.items()))

# %%
for study, candidate in (("training", "dispatch.attend"), ("ragged", "kernel.ragged")):
    if name := named[study]:
        leads = frames.over_fastest(al.where(al.load(name).samples, clock="device", cache="warm"), candidate)
        leads["case"] = [al.Shape(**axes).plain.label for axes in leads[AXES].to_dict("records")]
        display(al.plot.dots(leads, "speedup", "case", hue="values"))
        columns = ["case", "values", "n", "fastest", "baseline_us", "candidate_us", "speedup", "over_sdpa"]
        least = al.with_interval(al.worst(leads), "speedup")[columns]
        display(al.table(least, f"{candidate} on the distribution with its least lead over the fastest other, in {name}."))

# %% tags=["published"]
passes = al.load(published["training"]).cases.query("direction == 'backward' and implementation.str.startswith('peer.')")
al.holds(
    "The gate could not capture the backward pass of `peer.flash4` alone, as it leaves the stream that calls it. So rows "
    "of `backward` are over SDPA's backends. In trials it takes 0.97 to 1.05 of our time (kernels/NOTES.md).",
    (passes.status == "failed").all() and passes.reason.str.contains("no graph of it can be captured").all(),
)  # fmt: skip

# %% [markdown]
# ## What each accepts

# %%
c = pd.concat([side.cases for side in runs], ignore_index=True)
c = c[~c.implementation.str.match("control|kernel.(?!best)") & ~c.reason.str.startswith("one call takes", na=False)]
is_plain = (c.direction == "forward") & (c.lengths == "equal")
traits = {dtype: is_plain & (c.dtype == dtype) for dtype in c.dtype.unique()} | {"causal": is_plain & c.causal}
traits |= {"grouped": c.kv_heads < c.heads, "few queries": c.seq_len < c.kv_len, "BSHD": c.layout == "tokens first"}
traits |= {"varlen": c.lengths != "equal", "training": c.direction != "forward"}
share = {trait: (c.status[has] == "measured").groupby(c.implementation).mean() for trait, has in traits.items()}
al.table(100 * pd.DataFrame(share).dropna(axis=1, how="all"), "Percent of the cases that ran and passed every check.")

# %% [markdown] tags=["published"]
# ## Few queries
#
# In decoding, a few queries read many keys, so the bandwidth counts. A warm L2 may hold a part of K and V. `failed`
# names implementations without a latency at a shape, as they failed the check there.

# %% tags=["published"]
decoding = al.load(decode)
few, goal = choices(decoding), al.target(decoding)
fixed = {axis: goal[axis] for axis in AXES if axis not in ("batch", "values")}
al.plot.lines(al.where(few, **fixed), "batch", "bandwidth_gbs")

# %% tags=["published"]
lost = decoding.cases[decoding.cases.status == "failed"].drop_duplicates([*AXES, "implementation"])
lost = lost.groupby(AXES).implementation.agg(", ".join).rename("failed").reset_index()
ends = {cache: fastest(choices(decoding, cache)).merge(lost, "left", on=AXES) for cache in CACHES}
for cache, rows in ends.items():
    display(shown(rows, f"The fastest at every shape of {decode}, {cache} cache.", "bandwidth_gbs", "failed"))

# %% tags=["published"]
own = {cache: al.where(choices(decoding, cache), implementation="kernel.best").set_index(AXES) for cache in ends}
behind = {cache: own[cache].median_us / rows.set_index(AXES).median_us - 1 for cache, rows in ends.items()}
leaders = pd.concat(ends).query("implementation != 'kernel.best'")
al.holds(
    "`kernel.best` trails at 5 of 55 shapes with a warm cache, by 3.5 % at most, and at 5 with a cold one, by 6.7 % at "
    "most. 7 of these 10 have 64 queries, and `peer.flash4` is ahead there. `peer.flashinfer` failed at 7 shapes.",
    [(len(row), (row > 0).sum(), round(100 * row.max(), 1)) for row in behind.values()] == [(55, 5, 3.5), (55, 5, 6.7)]
    and leaders[leaders.seq_len == 64].implementation.to_list() == 7 * ["peer.flash4"]
    and lost.failed.to_list() == 7 * ["peer.flashinfer"],
)  # fmt: skip

# %% [markdown] tags=["published"]
# ## FP8
#
# Speedups of kernels on e4m3 inputs over `kernel.best` in 16 bits. `quantizing` includes rounding Q, K and V. `rotated`
# rotates Q and K first. The table has RMS errors against float64 of the unrounded values, over those of `kernel.best`.

# %% tags=["published"]
eight = al.load(fp8)
goal = {axis: value for axis, value in al.target(eight).items() if axis != "values"}
faster = al.where(al.compare(eight.samples, "kernel.best"), **goal)
al.plot.heatmap(faster.pivot(index="candidate", columns="values", values="speedup"))

# %% tags=["published"]
errors = al.compare_errors(eight.checks, "kernel.best")
errors = al.where(errors, **{axis: goal[axis] for axis in AXES if axis in goal})
errors = errors.pivot(index="candidate", columns="values", values="rms_ratio")
al.table(errors.loc[faster.candidate.unique()], "RMS error over that of kernel.best.")
