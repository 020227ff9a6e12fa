// Rung 1: three passes over the keys, a warp for each query.
//
// Does    what the formula says: find the largest score, sum the exponentials, average the values. Each pass computes
//         the scores anew, since a row of them fits in no register and this rung owns no shared memory.
// Gained  nothing: the others are measured from it. 8.3 ms at (32, 8, 512, 64) on an H200, where 2.5 ms were expected.
// Limits  issue slots, 80 % taken, and the load/store units, 72 % busy, which shuffle too. A score costs a warp two
//         loads and five shuffles in each pass and two loads of V: 23 instructions for 67 million scores, 6 ms at one
//         a cycle on each of 132 multiprocessors. The expectation had counted fused multiply-adds.
#include "element.cuh"

template <int D, typename T>
__device__ __forceinline__ float score(const float (&query)[D / 32], const T* key, int lane) {
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < D / 32; ++i) sum += query[i] * to_float(key[lane + 32 * i]);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    return sum;
}

// q, k, v, o: (heads, seq_len, D); a block of 4 warps takes 4 queries of one head
template <typename T, int D, bool CAUSAL>
__global__ void __launch_bounds__(128)
naive(const T* q, const T* k, const T* v, T* o, int heads, int seq_len, float scale) {
    const int lane = threadIdx.x % 32;
    const int tiles = (seq_len + 3) / 4;
    const int head = blockIdx.x / tiles;
    const int row = blockIdx.x % tiles * 4 + threadIdx.x / 32;
    if (row >= seq_len) return;

    const long long base = static_cast<long long>(head) * seq_len * D;
    const T* keys = k + base;
    const T* values = v + base;
    const int seen = CAUSAL ? row + 1 : seq_len;

    float query[D / 32];
#pragma unroll
    for (int i = 0; i < D / 32; ++i) query[i] = to_float(q[base + static_cast<long long>(row) * D + lane + 32 * i]) * scale;

    float largest = -infinity();
    for (int j = 0; j < seen; ++j) largest = fmaxf(largest, score<D>(query, keys + static_cast<long long>(j) * D, lane));

    float sum = 0.f;
    for (int j = 0; j < seen; ++j) sum += expf(score<D>(query, keys + static_cast<long long>(j) * D, lane) - largest);

    float out[D / 32] = {};
    for (int j = 0; j < seen; ++j) {
        const float p = expf(score<D>(query, keys + static_cast<long long>(j) * D, lane) - largest) / sum;
#pragma unroll
        for (int i = 0; i < D / 32; ++i) out[i] += p * to_float(values[static_cast<long long>(j) * D + lane + 32 * i]);
    }
#pragma unroll
    for (int i = 0; i < D / 32; ++i) o[base + static_cast<long long>(row) * D + lane + 32 * i] = from_float<T>(out[i]);
}
