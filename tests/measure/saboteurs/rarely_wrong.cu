// Leaves one block's rows zero in every 61st launch.
#include "honest.cuh"

constexpr unsigned PERIOD = 61;
__device__ unsigned launches;

template <typename T, int D, bool CAUSAL>
__global__ void __launch_bounds__(ROWS)
rarely_wrong(const T* q, const T* k, const T* v, T* o, int heads, int seq_len, float scale) {
    __shared__ bool wrong;
    if (threadIdx.x == 0) wrong = blockIdx.x == 0 && atomicAdd(&launches, 1) % PERIOD == PERIOD - 1;
    attend<Honest, T, D, CAUSAL>(q, k, v, o, seq_len, scale);
    __syncthreads();
    if (wrong && threadIdx.x < seq_len)
        for (int d = 0; d < D; ++d) o[threadIdx.x * D + d] = T(0.f);
}
