// Fills the shared memory and the registers of a multiprocessor with one word. A kernel that reads what it never wrote
// then reads that word, and not what its own last run left there.

constexpr int HELD = 48;  // registers that hold the word at once in each of 1024 threads, of 64 that there are for each

// shared: `words` words, at least 1024; `never` is not written
extern "C" __global__ void __launch_bounds__(1024, 1) poison(unsigned word, int words, int rounds, unsigned* never) {
    extern __shared__ unsigned memory[];
    volatile unsigned* shared = memory;
    for (int i = threadIdx.x; i < words; i += blockDim.x) shared[i] = word;
    __syncthreads();
    unsigned held[HELD], all = word;
#pragma unroll
    for (int i = 0; i < HELD; ++i) held[i] = shared[threadIdx.x];
#pragma unroll 1
    for (int round = 0; round < rounds; ++round)  // changes nothing, but needs all of them from one round to the next
#pragma unroll
        for (int i = 0; i < HELD; ++i) held[i] &= held[(i + 1) % HELD];
#pragma unroll
    for (int i = 0; i < HELD; ++i) all &= held[i];
    if (all != word) *never = all;
}
