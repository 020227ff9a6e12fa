// Two ceilings that no library call shows: reads that hit the L2, and exponentials.

// Reads `elements` float4 over and over, past the L1 (.cg), each block starting elsewhere, so that every SM pulls the
// whole set through the L2 `passes` times.
extern "C" __global__ void read_l2(const float4* __restrict__ set, int elements, int passes, float* sink) {
    float sum = 0.f;
    const int stride = gridDim.x * blockDim.x;
    const int first = blockIdx.x * blockDim.x + threadIdx.x;
    for (int pass = 0; pass < passes; ++pass) {
        const int shift = (int)((long long)pass * 997 * blockDim.x % elements);
        #pragma unroll 8
        for (int i = first; i < elements; i += stride) {
            const int shifted = i + shift;
            const float4 x = __ldcg(&set[shifted < elements ? shifted : shifted - elements]);
            sum += x.x + x.y + x.z + x.w;
        }
    }
    if (sum == 1234567.f) *sink = sum;  // never true for a set of zeros and ones: keeps the loads alive
}

// Eight independent chains of ex2 a thread, enough to cover the latency of the special-function unit. x -> 2^-x stays
// near its fixed point 0.641, so the values are ordinary ones.
extern "C" __global__ void exponentials(int rounds, float* sink) {
    float x[8];
    #pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = 0.5f + 0.01f * i + 1e-6f * threadIdx.x;
    for (int round = 0; round < rounds; ++round) {
        #pragma unroll
        for (int i = 0; i < 8; ++i) asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(x[i]) : "f"(-x[i]));
    }
    float sum = 0.f;
    #pragma unroll
    for (int i = 0; i < 8; ++i) sum += x[i];
    if (sum == 1234567.f) *sink = sum;
}
