// Rung 8: jobs of 64 queries, and a pipeline that runs on from one to the next.
//
// Does    a job is 64 queries of one head for one consumer warpgroup, where rung 7 hands 128 to two at once. The scores of a
//         job's first tile are computed beside the last product with V of the job before, and O leaves through the memory
//         that held Q: there is no gap between jobs. Warps of the producer schedule the jobs; those of a pass share tiles of
//         K and V. Without the mask, a CTA moves on from round to round, so that nobody always has a head's last pass, which
//         may be short, and what is left for the last round is split into shares. Under it, passes are scheduled by sections
//         of heads, the longest first (`section` in problem.py). Descriptors are advanced by one addition.
// Gained  1.05x over rung 7, 43.8 us at (32, 8, 512, 64) on an H200, where 1.05x was expected (h200-2026-11-23); 1.12x at
//         2048 keys and 1.14x at 8192, under the mask 1.13 and 1.16x at 2048 and 4096. A loss at 256 keys and, under the
//         mask, at 512, where a consumer is idle in one pass of a head. NOTES.md has the trials.
// Limits  a score costs 12 issue slots, five of them for the maximum and its shuffles, on which every exponential waits.
#include "jobs.cuh"

// q, k, v, o: maps of (batch, heads, rows, D), with any strides
template <typename T, int D, bool CAUSAL, int KEYS, int STAGES, int CONSUMERS, int PING_PONG, int JOBS_PER_PASS>
__global__ void __launch_bounds__(128 * (1 + CONSUMERS), 1)
jobs(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
     const __grid_constant__ TensorMap o, Problem problem) {
    using P = Plan<D, KEYS, STAGES, CONSUMERS, PING_PONG, JOBS_PER_PASS>;
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& smem = *reinterpret_cast<SharedStorage<P>*>(memory);
    init_barriers<P, CAUSAL>(smem, problem);
    if (threadIdx.x < 128) return produce<P, CAUSAL>(smem, q, k, v, problem);

    const float scale_log2 = problem.scale * LOG2_E;
    const unsigned thread_ids = shared_address(smem.thread_ids);
    const auto softmax = [&](RowState& rows, Scores<P, CAUSAL>& scores, int diagonal, bool, const auto&) {
        if (KEYS * (scores.tile + 1) > scores.unmasked(diagonal)) scores.mask(diagonal, reload_thread(thread_ids));
        if (scores.tile == 0) rows.offset[0] = rows.offset[1] = -infinity();
        rows.exponentiate(scores.s, scale_log2);
        return scores.tile > 0;
    };
    consume<T, P, CAUSAL>(smem, o, problem, softmax);
}
