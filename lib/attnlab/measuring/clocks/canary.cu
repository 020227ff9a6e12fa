// Reads single lines one after the other and records how many cycles each takes: a line in the L2 arrives several times
// sooner than one from memory.

// One block per set, one thread: the line `where[i]` of 128 bytes in set `blockIdx.x`, past the L1. A warp issues in
// order, so the store of what was read delays the second reading of the clock until the line has arrived.
extern "C" __global__ void canary(const unsigned long long* sets, const unsigned* where, int loads, unsigned* cycles) {
    extern __shared__ unsigned held[];
    volatile unsigned* sink = held + loads;
    const char* set = (const char*)sets[blockIdx.x];
    where += (size_t)blockIdx.x * loads;
    cycles += (size_t)blockIdx.x * loads;
    for (int i = 0; i < loads; ++i) held[i] = where[i];
    for (int i = 0; i < loads; ++i) {
        const char* line = set + (size_t)held[i] * 128;
        const long long before = clock64();
        *sink = __ldcg((const unsigned*)line);
        held[i] = (unsigned)(clock64() - before);
    }
    for (int i = 0; i < loads; ++i) cycles[i] = held[i];
}
