// Ignores the mask.
#include "honest.cuh"

struct Seeing : Honest {
    __device__ static bool hidden(bool causal, int row, int key) { return false; }
};

template <typename T, int D, bool CAUSAL>
__global__ void __launch_bounds__(ROWS)
ignores_mask(const T* q, const T* k, const T* v, T* o, int heads, int seq_len, float scale) {
    attend<Seeing, T, D, CAUSAL>(q, k, v, o, seq_len, scale);
}
