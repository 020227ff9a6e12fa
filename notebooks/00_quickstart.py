# %% [markdown]
# # Quickstart
#
# Is your attention kernel really faster? First a recorded run: medians with 95 % intervals, then speedups.

# %% tags=["parameters"]
run = "h200-2026-11-28-main"  # a run in data/
seq_len = [32, 64, 128]  # of what is measured below

# %%
import torch

import attnlab as al

recorded = al.load(run)
at = al.target(recorded)
cases = al.where(al.summarize(recorded.samples), **{axis: at[axis] for axis in at if axis not in ("seq_len", "kv_len")})
cases = cases[cases.implementation.isin(["sdpa.auto", "kernel.best"]) & cases.seq_len.isin([2**n for n in range(20)])]
al.plot.lines(cases, "seq_len", "median_us", low="low_us", high="high_us", log="xy")

# %% [markdown]
# `compare` gives speedups with intervals. A latency may depend on the values in Q, K and V: here is the worst of n.

# %%
verdicts = al.compare(recorded.samples, baseline="sdpa.auto")
worst = al.worst(al.where(verdicts, **{axis: at[axis] for axis in at if axis != "values"})).nlargest(5, "speedup")
al.table(al.with_interval(worst, "speedup")[["candidate", "values", "speedup", "highest", "n", "decision"]])

# %% [markdown]
# ## Your own kernel
#
# One thread for each query, with an online softmax. CuPy's RawModule compiles it where it is first called.

# %%
source = r"""#include <cuda_fp16.h>
extern "C" __global__ void attention(const half* q, const half* k, const half* v, half* o, int heads, int n, float scale) {
    const long long row = blockIdx.x * blockDim.x + threadIdx.x, head = blockIdx.y * n * 64LL, at = head + row * 64;
    float sum[64] = {}, top = -1e30f, weight = 0;  // D = 64, no mask
    for (long long key = head; row < n && key < head + n * 64LL; key += 64) {
        float score = 0;
        for (int d = 0; d < 64; d++) score += __half2float(q[at + d]) * __half2float(k[key + d]) * scale;
        const float most = fmaxf(top, score), old = __expf(top - most), p = __expf(score - most);
        for (int d = 0; d < 64; d++) sum[d] = old * sum[d] + p * __half2float(v[key + d]);
        top = most, weight = old * weight + p;
    }
    for (int d = 0; row < n && d < 64; d++) o[at + d] = __float2half(sum[d] / weight);
}"""

# %%
kernel = al.kernel(
    "mine", source, function="attention", threads=128, grid=lambda s: (-(-s.seq_len // 128), s.batch * s.heads)
)
al.table(kernel.resources(al.Shape(1, 4, 128, 64)), "What the compiler says. It needs no GPU.")


# %%
def formula(q, k, v, causal, scale=None):
    return torch.softmax(q @ k.mT * (scale or q.shape[-1] ** -0.5), dim=-1) @ v


mine, dtype = (kernel, "float16") if torch.cuda.is_available() else (formula, "float32")
print("Below, `mine` is the kernel." if mine is kernel else "There is no GPU: below, `mine` is the formula in PyTorch.")
shapes = al.sweep(batch=1, heads=4, seq_len=seq_len, head_dim=64, dtype=dtype)

# %% [markdown]
# `check` compares with float64, on values and on extremes. It allows twice the error of the same formula in PyTorch.

# %%
checks = al.check(mine, shapes)
al.table(checks[["seq_len", "inputs", "route", "max_error", "allowed_max_error", "passed", "fault"]])

# %% [markdown]
# `measure` times both in turns, in a process of its own, in a new order and on new values each time. SDPA has a second
# turn, the A/A control: smaller differences than its own are noise.

# %%
measured = al.measure({"mine": mine, "sdpa.auto": al.sdpa()}, shapes, samples=40)
judged = al.with_interval(al.compare(measured.samples, baseline="sdpa.auto"), "speedup")
al.table(judged[["candidate", "seq_len", "baseline_us", "candidate_us", "speedup", "decision"]])

# %%
al.plot.lines(al.summarize(measured.samples), "seq_len", "median_us", low="low_us", high="high_us", log="xy")
