// Rung 8: jobs of 64 queries, and a pipeline that runs on from one to the next.
//
// Does    a job is 64 queries of one head for one consumer warpgroup, where rung 7 hands 128 to two at once. The scores of a
//         job's first tile are computed beside the last product with V of the job before, and O leaves through the memory
//         that held Q: there is no gap between jobs. Warps of the producer deal the consumers their jobs; those of a pass
//         share tiles of K and V. Without the mask, a CTA moves on from round to round, so that nobody always has a head's
//         last pass, which may be short, and what is left for the last round is dealt in shares. Under it, passes are dealt
//         by sections of heads, the longest first; how many heads, is chosen so that the CTAs end together and K and V stay
//         in the L2 meanwhile (`section` in problem.py). Descriptors are advanced by one addition.
// Gained  1.05x over rung 7, 43.8 us at (32, 8, 512, 64) on an H200, where 1.05x was expected (h200-2026-11-23); 1.12x at
//         2048 keys and 1.14x at 8192, under the mask 1.13 and 1.16x at 2048 and 4096. At 256 keys it is a loss, 15.6 us for
//         14.6, and at 512 under the mask, 35.8 for 33.1: a pass is three jobs, and four or eight blocks of 64 queries leave
//         a consumer idle in one pass of a head; under the mask that is the shortest, since blocks are grouped from the last
//         one on. At D = 128 it loses 1 and 2 % at 512 and 2048 keys, and gains 1.21 and 1.23x under the mask.
//         The dealing is much of this: as it was before, the rung gained 0.8 % at the target. In trials of rung 9 on an
//         H100, old and new in one process, by median: shares 1.5 % at 2048 keys and 17 % at 32 heads of 512; moving on
//         0.9 % more there at 2048, 5 % at 1024 keys and at 640; sections at D = 128 under the mask 20 % at 512 keys and 7 %
//         at 2048, with two consumers 15 and 37 %, and 32 % at 35 heads of 2048. On an H200 shares gained 1.6 %, sections 8,
//         6, 12, 37 and 30 %. Expected was 2.5 % of shares, but one job takes longer than a third of a pass, and 4 to 6 % of
//         moving on at D = 128 and 512 keys, where it was 2.
//         Tried and left out: K and V of the next pass brought into the L2 ahead, 4 to 20 % slower at D = 128; hints that Q
//         and O are used once, 1 % faster at 512 keys and 2 to 6 % slower at few heads.
//         Views cost 5 % while heads and batches were found by division, of which a pass needs five; by multiplication
//         (`Divisor`) they cost nothing that was measured.
//         Wrong until 2026-11-22: a consumer that had skipped the last tiles of a pass could take what came for them for
//         the tiles that follow, if they came late. Beside copies that kept the memory busy, 357 of 285,828 calls of rung 9
//         were wrong on an H200, 254 of 8,738 at (32, 8, 300, 128) under the mask; alone, one output of a run on an H100,
//         which the comparison of timed outputs found. Since `begin_pass`, none of 286,228.
// Limits  a score costs 12 issue slots, five of them for the maximum and its shuffles, on which every exponential waits.
#include "jobs.cuh"

// q, k, v, o: maps of (batch, heads, rows, D), with any strides
template <typename T, int D, bool CAUSAL, int KEYS, int PAIRS, int CONSUMERS, int TURNS, int PER_PASS>
__global__ void __launch_bounds__(128 * (1 + CONSUMERS), 1)
jobs(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
     const __grid_constant__ TensorMap o, Problem problem) {
    using P = Plan<D, KEYS, PAIRS, CONSUMERS, TURNS, PER_PASS>;
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& shared = *reinterpret_cast<Shared<P>*>(memory);
    prepare<P, CAUSAL>(shared, problem);
    if (threadIdx.x < 128) return produce<P, CAUSAL>(shared, q, k, v, problem);

    const float scale_log2 = problem.scale * LOG2_E;
    const unsigned numbers = shared_address(shared.numbers);
    const auto softmax = [&](Rows& rows, Scores<P, CAUSAL>& scores, int first, bool, const auto&) {
        if (KEYS * (scores.tile + 1) > scores.unmasked(first)) scores.mask(first, thread_again(numbers));
        if (scores.tile == 0) rows.shift[0] = rows.shift[1] = -infinity();
        rows.exponentiate(scores.s, scale_log2);
        return scores.tile > 0;
    };
    consume<T, P, CAUSAL>(shared, o, problem, softmax);
}
