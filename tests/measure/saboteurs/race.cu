// Waits for nobody: reads tiles that other warps have not written yet, or have overwritten. One warp dawdles, as any may.
#include "honest.cuh"

struct NoBarriers : Honest {
    __device__ static void barrier() {
        if (threadIdx.x < 32) __nanosleep(20000);
    }
};

template <typename T, int D, bool CAUSAL>
__global__ void __launch_bounds__(ROWS)
race(const T* q, const T* k, const T* v, T* o, int heads, int seq_len, float scale) {
    attend<NoBarriers, T, D, CAUSAL>(q, k, v, o, seq_len, scale);
}
