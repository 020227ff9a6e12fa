// Is right for the first inputs that it sees, and 5 % off for any others.
#include "honest.cuh"

__device__ unsigned first_seen;

struct FirstSeed : Honest {
    template <typename T> __device__ static float factor(const T* q) {
        const unsigned now = __float_as_uint(float(q[0])) | 1u;
        const unsigned first = atomicCAS(&first_seen, 0u, now);
        return first == 0u || first == now ? 1.f : 1.05f;
    }
};

template <typename T, int D, bool CAUSAL>
__global__ void __launch_bounds__(ROWS)
first_seed(const T* q, const T* k, const T* v, T* o, int heads, int seq_len, float scale) {
    attend<FirstSeed, T, D, CAUSAL>(q, k, v, o, seq_len, scale);
}
