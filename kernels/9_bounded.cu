// Rung 9: no largest score: the sum tells whether one was needed.
//
// Does    after a job's first tile, scores become probabilities relative to the offset at hand, without their maximum. The
//         sum, which is needed anyway, then tells whether a score rose so far that fp16 could overflow (2^15; 2^30 for
//         bf16). Only then a warp computes its scores again, by mma.sync, and proceeds as rung 8 does. A job begins with
//         the offset of the job before, mostly of the same head, unless its first tile is masked: there a sum below 2^-6,
//         where fp16 would lose digits, calls for the maximum as well. The result is a softmax whatever the scores are.
// Gained  1.13x over rung 8, 38.9 us at (32, 8, 512, 64) on an H200, where 1.12x was expected: 1.25x over cuDNN there, 1.20x
//         by the sum of kernel durations, on standard normal values. NOTES.md has other shapes, cards and trials.
// Limits  scores that rise by more than 2^15 cost a second product each tile: on logits of SD 6, where like positions attract
//         and where scores rise over the keys it takes 55 to 61 us, and cuDNN 48. Rung 11 heals that. The last bits of a row
//         depend on the job before it, by its offset. Few and short heads suit it badly; `kernel.best` takes other tiles.
#include "jobs.cuh"

constexpr float LEAST_SUM = 0.015625f;  // 2^-6: of 16 or 32 probabilities of a first tile at least one is then a normal fp16
// What a thread's probabilities of one tile may add up to.
template <typename T> __device__ __forceinline__ float most_sum();
template <> __device__ __forceinline__ float most_sum<__half>() { return 32768.f; }
template <> __device__ __forceinline__ float most_sum<__nv_bfloat16>() { return 1073741824.f; }

// q, k, v, o: maps of (batch, heads, rows, D), with any strides
template <typename T, int D, bool CAUSAL, int KEYS, int STAGES, int CONSUMERS, int PING_PONG, int JOBS_PER_PASS>
__global__ void __launch_bounds__(128 * (1 + CONSUMERS), 1)
bounded(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
        const __grid_constant__ TensorMap o, Problem problem) {
    using P = Plan<D, KEYS, STAGES, CONSUMERS, PING_PONG, JOBS_PER_PASS>;
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& smem = *reinterpret_cast<SharedStorage<P>*>(memory);
    init_barriers<P, CAUSAL>(smem, problem);
    if (threadIdx.x < 128) return produce<P, CAUSAL>(smem, q, k, v, problem);

    const float scale_log2 = problem.scale * LOG2_E;
    const unsigned thread_ids = shared_address(smem.thread_ids);
    const auto softmax = [&](RowState& rows, Scores<P, CAUSAL>& scores, int diagonal, bool begin, const auto& recompute) {
        const bool masked = KEYS * (scores.tile + 1) > scores.unmasked(diagonal);
        bool exact = begin || (scores.tile == 0 && masked);
        for (;;) {
            if (masked) scores.mask(diagonal, reload_thread(thread_ids));
            if (exact) {
                if (scores.tile == 0) rows.offset[0] = rows.offset[1] = -infinity();
                break;
            }
            float tile_sum[2] = {};
#pragma unroll
            for (int n = 0; n < KEYS / 2; n += 2) {
                const int half = n / 2 % 2;
                scores.s[n] = exp2_approx(scores.s[n] * scale_log2 - rows.offset[half]);
                scores.s[n + 1] = exp2_approx(scores.s[n + 1] * scale_log2 - rows.offset[half]);
                tile_sum[half] += scores.s[n] + scores.s[n + 1];
            }
            const bool above = !(tile_sum[0] + tile_sum[1] <= most_sum<T>());
            const bool below = !(fminf(tile_sum[0], tile_sum[1]) >= LEAST_SUM);
            if (!__any_sync(~0u, above || (scores.tile == 0 && below))) {
                rows.row_sum[0] += tile_sum[0];
                rows.row_sum[1] += tile_sum[1];
                return false;
            }
            recompute();
            exact = true;
        }
        rows.exponentiate(scores.s, scale_log2);
        return scores.tile > 0;
    };
    consume<T, P, CAUSAL>(smem, o, problem, softmax);
}
