// Returns the result of the first inputs that it saw at an address, ever after.
#include "honest.cuh"

constexpr int MOST_ROWS = 4096, MOST_COLUMNS = 64;
__device__ const void* known[MOST_ROWS];
__device__ float results[MOST_ROWS][MOST_COLUMNS];

template <typename T, int D, bool CAUSAL>
__global__ void __launch_bounds__(ROWS)
last_result(const T* q, const T* k, const T* v, T* o, int heads, int seq_len, float scale) {
    attend<Honest, T, D, CAUSAL>(q, k, v, o, seq_len, scale);
    const int blocks = (seq_len + ROWS - 1) / ROWS;
    const int row = blockIdx.x % blocks * ROWS + threadIdx.x;
    const int place = blockIdx.x / blocks * seq_len + row;
    if (row >= seq_len || place >= MOST_ROWS) return;
    for (int d = 0; d < D; ++d) {
        T& output = o[static_cast<long long>(place) * D + d];
        if (known[place] == q) output = T(results[place][d]);
        else results[place][d] = float(output);
    }
    known[place] = q;
}
