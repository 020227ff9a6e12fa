# %% [markdown]
# # Roofline
#
# What limits attention on this machine, and how near does each implementation come? The roofline compares the work of a
# call with the rates that the machine reaches. Each rate was measured in the same run as the latencies.

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
print(recorded, f"Target: {', '.join(f'{axis} {value}' for axis, value in at.items())}", sep="\n")

# %% [markdown]
# ## Ceilings
#
# `copy` reads and writes memory, `l2` reads from the L2. `matmul` is the library's product, `wgmma` the instruction
# alone. `exponentials` are those of the special-function units. The datasheet states dense rates.

# %%
ceilings = recorded.ceilings.assign(datasheet_pct=100 * recorded.ceilings.rate / recorded.ceilings.datasheet)
shown = ["ceiling", "rate", "unit", "datasheet", "datasheet_pct", "sm_clock_mhz", "how"]
al.table(al.with_interval(ceilings, "rate")[shown], "Measured ceilings.")

# %% [markdown]
# ## The arithmetic
#
# - FLOPs of both products: $F = 4 B H S^2 D$, with a causal mask $2 B H S (S+1) D$
# - bytes of Q, K, V and O, each moved once, with $b$ bytes an element: $M = 4 B H S D\, b$
# - exponentials of the softmax: $E = B H S^2$, with a causal mask $B H S (S+1) / 2$
# - intensity: $I = F / M$, without a mask $S / b$

# %%
B, H, D, size = at["batch"], at["heads"], at["head_dim"], 4 if at["dtype"] == "float32" else 2
work = pd.DataFrame({"seq_len": seq_len or [64, 128, 256, 512, 1024, 2048, 4096, 8192]})
S = work.seq_len
work = work.assign(flops=4 * B * H * S**2 * D, bytes=4 * B * H * S * D * size, exponentials=B * H * S**2)
work["intensity"] = work.flops / work.bytes
shown = pd.DataFrame({"seq_len": S, "GFLOP": work.flops / 1e9, "MB": work.bytes / 1e6, "Gexp": work.exponentials / 1e9})
al.table(shown.assign(intensity=work.intensity), f"Work of a call: B = {B}, H = {H}, D = {D}, {at['dtype']}, no mask.")


# %% [markdown]
# No call takes less time than its work at the highest rates. The floor is
#
# $$t_{\min} = \max\left(\frac{F}{\pi},\; \frac{E}{\varepsilon},\; \frac{M}{\lambda},\; \frac{M - L}{\beta}\right)$$
#
# with the rates of products $\pi$, exponentials $\varepsilon$, the L2 $\lambda$ and memory $\beta$. A warm L2 may hold
# $L$ bytes. With a cold cache all bytes come from memory: $M / \beta$. Rates that were not measured set no floor.

# %%
def floors(work, rates, cache):
    """The least time in µs by each ceiling, the largest of these, and its name. Rates in TFLOP/s, Gexp/s and GB/s."""
    rate = {"wgmma": np.nan, "exponentials": np.nan, "l2": np.nan, "l2_size": 0, **rates}
    product = max(rate.get(f"{kind}.{at['dtype']}", 0) for kind in ("matmul", "wgmma"))
    beyond = work.bytes if cache == "cold" else (work.bytes - rate["l2_size"]).clip(lower=0)
    times = pd.DataFrame({"matrix product": work.flops / product / 1e6})
    times["exponentials"] = work.exponentials / rate["exponentials"] / 1e3
    times["L2"] = np.nan if cache == "cold" else work.bytes / rate["l2"] / 1e3
    times["memory"] = beyond / rate["copy"] / 1e3
    return times.assign(floor_us=times.max(axis=1), limit=times.idxmax(axis=1))


rates = dict(zip(ceilings.ceiling, ceilings.rate, strict=True))
floor = pd.concat([work[["seq_len", "intensity"]], floors(work, rates, at["cache"])], axis=1)
al.table(floor, f"Least time in µs by each ceiling, {at['cache']} cache.")

# %%
cases = al.add_floor(al.add_work(al.summarize(recorded.samples)), recorded.ceilings)
kept = cases[~cases.implementation.str.startswith("kernel.") | (cases.implementation == "kernel.best")]
fixed = {axis: at[axis] for axis in at if axis not in ("seq_len", "kv_len", "kv_heads", "causal")}
lengths = al.where(kept[kept.kv_len == kept.seq_len], **fixed)
lengths = lengths[lengths.seq_len.isin(work.seq_len)]
same = lengths[~lengths.causal].merge(floor, on="seq_len", suffixes=("", "_here"))
print(f"add_work and add_floor give the same: {np.allclose(same.floor_us, same.floor_us_here)}")

# %% [markdown]
# ## Regimes
#
# Left of the ridge, where the roof bends, memory sets the floor. Right of it, matrix products or exponentials do.
# Hollow marks are causal.

# %%
product = max(rates.get(f"{kind}.{at['dtype']}", 0) for kind in ("matmul", "wgmma"))
print(f"The ridge between memory and products is at {1e3 * product / rates['copy']:.0f} FLOP/byte in {at['dtype']}.")
for limit, part in floor.groupby("limit", sort=False):
    print(f"{limit}: S = {', '.join(map(str, part.seq_len))}")

# %%
square = kept[(kept.kv_len == kept.seq_len) & (kept["values"] == "normal")]
headline = al.where(square, dtype=at["dtype"], clock=at["clock"], cache=at["cache"])
al.plot.roofline(headline, recorded.ceilings)

# %% [markdown]
# ## Distance from the floor
#
# The speed of light is the floor over the median: 100 % is the least time that the ceilings allow. More than 100 %
# shows that a ceiling was measured too low, as on a machine that other programs use.

# %%
al.plot.lines(lengths, "seq_len", "speed_of_light", col="causal")

# %% [markdown]
# ## Ceilings of your own
#
# Type the rates of another machine and see its limits. These are a B200's by data/reference/datasheets.csv. Its
# exponentials are computed: 16 per clock on each of 148 multiprocessors, as on Hopper, at 1.85 GHz.

# %%
mine = {"copy": 8000, "matmul.float16": 2250, "matmul.bfloat16": 2250, "exponentials": 16 * 148 * 1.85}
mine |= {"matmul.float32": rates["matmul.float32"]}  # not stated for a B200
theirs = pd.concat([work[["seq_len", "intensity"]], floors(work, mine, "cold")], axis=1)
al.table(theirs, "Least time in µs by ceilings of your own, cold cache.")
