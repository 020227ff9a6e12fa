# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Quickstart
#
# Is your attention kernel really faster? First a recorded run: medians with 95 % intervals, then speedups.

# %% tags=["parameters"]
run = "h200-2026-11-28-main"  # a run in data/
seq_len = [32, 64, 128]  # of what is measured below

# %%
import time

import pandas as pd
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

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
# One thread for each query, with an online softmax. It may have twice SDPA's mean error against float64.
# In each round all take turns in a new order, on new values. SDPA has a second turn, the A/A control.

# %%
source = r"""#include <cuda_fp16.h>
extern "C" __global__ void attention(const half* q, const half* k, const half* v, half* o, long long n) {  // D = 64
    const long long row = blockIdx.x * blockDim.x + threadIdx.x, head = blockIdx.y * n * 64, at = head + row * 64;
    float sum[64] = {}, top = -1e30f, weight = 0;
    for (long long key = head; row < n && key < head + n * 64; key += 64) {
        float score = 0;
        for (int d = 0; d < 64; d++) score += __half2float(q[at + d]) * __half2float(k[key + d]) / 8;
        const float most = fmaxf(top, score), old = __expf(top - most), p = __expf(score - most);
        for (int d = 0; d < 64; d++) sum[d] = old * sum[d] + p * __half2float(v[key + d]);
        top = most, weight = old * weight + p;
    }
    for (int d = 0; row < n && d < 64; d++) o[at + d] = __float2half(sum[d] / weight);
}"""

# %%
try:  # the compiler needs no GPU
    from cuda.bindings import nvrtc
    from cuda.pathfinder import find_nvidia_header_directory
    options = [b"-arch=sm_90a", b"--ptxas-options=-v", b"-I" + find_nvidia_header_directory("cudart").encode()]
    program = nvrtc.nvrtcCreateProgram(source.encode(), b"attention.cu", 0, [], [])[1]
    nvrtc.nvrtcCompileProgram(program, len(options), options)
    log = b" " * nvrtc.nvrtcGetProgramLogSize(program)[1]
    nvrtc.nvrtcGetProgramLog(program, log)
    print(*(line for line in log.decode().splitlines() if "registers" in line or "spill" in line), sep="\n")
except ImportError:
    print("NVRTC is not installed: `make kernels` brings it.")

# %%
device, dtype = ("cuda", torch.float16) if torch.cuda.is_available() else ("cpu", torch.float32)

def mine(q, k, v):
    if not q.is_cuda:
        return torch.softmax(q @ k.mT / 8, dim=-1) @ v
    out, n = torch.empty_like(q), q.shape[2]
    function((-(-n // 128), q.shape[0] * q.shape[1]), (128,), (*(each.data_ptr() for each in (q, k, v, out)), n))
    return out

if device == "cuda":
    import cupy
    function = cupy.RawModule(code=source).get_function("attention")
else:
    print("There is no GPU: below, `mine` is the formula in PyTorch.")

# %%
torch.set_num_threads(1)

def timed(call, *tensors):  # in microseconds: between CUDA events on a GPU, by Python's clock on a CPU
    if device == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record(), call(*tensors), end.record(), end.synchronize()
        return 1e3 * start.elapsed_time(end)
    begin = time.perf_counter()
    call(*tensors)
    return 1e6 * (time.perf_counter() - begin)


# %%
q, k, v = torch.randn(3, 2, 4, 300, 64, dtype=dtype, device=device)
exact = sdpa(q.double(), k.double(), v.double())
error, of_sdpa = ((call(q, k, v) - exact).abs().mean().item() for call in (mine, sdpa))
assert error <= 2 * of_sdpa
print(f"The mean error is {error:.1e}, that of SDPA is {of_sdpa:.1e}.")

# %%
calls, rows = {"sdpa.auto": sdpa, "control.sdpa.auto": sdpa, "mine": mine}, []
for length in seq_len:
    for number in range(-3, 40):  # 3 rounds to warm up
        inputs = torch.randn(3, 1, 4, length, 64, dtype=dtype, device=device)
        for name in pd.Series(list(calls)).sample(frac=1):
            rows.append((name, number, length, timed(calls[name], *inputs)))
samples = pd.DataFrame(rows, columns=["implementation", "round", "seq_len", "latency_us"]).query("round >= 0")
samples = samples.assign(batch=1, heads=4, head_dim=64, dtype=str(dtype)[6:], clock="eager")
judged = al.with_interval(al.compare(samples, baseline="sdpa.auto"), "speedup")
display(al.table(judged[["candidate", "seq_len", "baseline_us", "candidate_us", "speedup", "decision"]]))
al.plot.lines(al.summarize(samples), "seq_len", "median_us", low="low_us", high="high_us", log="xy")
