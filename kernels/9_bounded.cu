// Rung 9: no largest score: the sum tells whether one was needed.
//
// Does    after a job's first tile, scores become probabilities relative to the offset at hand, without their maximum. The
//         sum, which is needed anyway, then tells whether a score rose so far that fp16 could overflow (2^15; 2^30 for
//         bf16). Only then a warp computes its scores again, by mma.sync, and proceeds as rung 8 does. A job begins with
//         the offset of the job before, mostly of the same head, unless its first tile is masked: there a sum below 2^-6,
//         where fp16 would lose digits, calls for the maximum as well. The result is a softmax whatever the scores are.
// Gained  1.13x over rung 8, 38.9 us at (32, 8, 512, 64) on an H200, where 1.12x was expected: 1.25x over cuDNN there, 1.20x
//         by the sum of kernel durations. 1.20x over it at 1024 keys; over flash-attn-4, which is faster than cuDNN from
//         2048 on, 1.14, 1.09 and 1.06x at 2048, 4096 and 8192. Under the mask 1.26, 1.25 and 1.24x over cuDNN at 512, 1024
//         and 2048, 1.18x over flash-attn-4 at 4096; at D = 128 1.14 and 1.07x over the faster of them at 512 and 2048 keys,
//         under the mask 1.22 and 1.17x.
//         A pass of one job for each consumer beat one that keeps a whole head for all its jobs by 5 % in trials: a tile's
//         memory is free after one use, and the next pass's tiles come early.
//         Four consumers wait for K and V before their turn, so that nobody waits in it: 56 instead of 85 instructions from
//         the barrier to the next, 2 % at 1024 keys. Three lose 2 % by the same; why, is not known.
//         Tried and left out: O awaited in the midst of the exponentials (9 to 17 % slower: the product with V is not over
//         by then); turns passed on after the first product; tensor maps prefetched and barriers initialised by many
//         threads (together 1 us at S = 256). With four consumers a CTA has 96 registers a
//         thread and a consumer 112: every variable counts (`Place` is one number, `thread_again` is read where needed).
// Limits  the last bits of a row depend on the job before it, by its offset: they are the same in every run of a shape, and
//         may differ where the same query lies in another batch.
//         In bf16, where all scores of a row are alike, its probabilities all round alike, by up to 2^-8, and their sum is
//         not of rounded ones: with one query a head the gate refused it (h200-backends-3). With the maximum they are 1.
//         What is gained depends on the values, and all of the above is of standard normal ones. Scores that rise by more
//         than 2^15 cost a second product each tile: on logits of SD 6, where like positions attract and where scores rise
//         over the keys it takes 55 to 61 us at (32, 8, 512, 64), and cuDNN 48 (trials of 2026-11-24). Rung 11 heals that.
//         By counters at 512 keys (h200-2026-11-23), tensor cores are 46 % busy, the MUFU 46 %, issue slots 50 %; in 14 %
//         of a scheduler's cycles all warps wait for a fixed latency, in 11 % for memory, where warps of the producer, which
//         wait by design, count as well, and in 9 % there is no work: launch and tail. At 8192 keys tensor cores and MUFU
//         are 65 % busy. At 2048 keys power limits the card now and then, from 4096 on always.
//         An H100 keeps the gains (h100-2026-11-23): 1.20x over cuDNN at 512 keys, 1.14 and 1.09x over flash-attn-4 at 2048
//         and 4096. Of D = 128 at 512 keys it keeps least, 1.06 to 1.07x over cuDNN, where an H200 has 1.13 to 1.22: 134 MB
//         are too many for their L2, and by memory alone take 28 us at an H200's 4.8 TB/s, 40 us at an H100's 3.35.
//         Few and short heads suit it badly: at (3, 7, 777, 64) under the mask flash-attn-4 takes 0.84 of its time on either
//         card. With other tiles it would lead there by 1.12x: `kernel.best` takes them.
#include "jobs.cuh"

constexpr float LEAST = 0.015625f;  // 2^-6: of 16 or 32 probabilities of a first tile at least one is then a normal fp16
// What a thread's probabilities of one tile may add up to.
template <typename T> __device__ __forceinline__ float bound();
template <> __device__ __forceinline__ float bound<__half>() { return 32768.f; }
template <> __device__ __forceinline__ float bound<__nv_bfloat16>() { return 1073741824.f; }

// q, k, v, o: maps of (batch, heads, rows, D), with any strides
template <typename T, int D, bool CAUSAL, int KEYS, int PAIRS, int CONSUMERS, int TURNS, int PER_PASS>
__global__ void __launch_bounds__(128 * (1 + CONSUMERS), 1)
bounded(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
        const __grid_constant__ TensorMap o, Problem problem) {
    using P = Plan<D, KEYS, PAIRS, CONSUMERS, TURNS, PER_PASS>;
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& shared = *reinterpret_cast<Shared<P>*>(memory);
    prepare<P, CAUSAL>(shared, problem);
    if (threadIdx.x < 128) return produce<P, CAUSAL>(shared, q, k, v, problem);

    const float scale_log2 = problem.scale * LOG2_E;
    const unsigned numbers = shared_address(shared.numbers);
    const auto softmax = [&](Rows& rows, Scores<P, CAUSAL>& scores, int first, bool begin, const auto& again) {
        const bool masked = KEYS * (scores.tile + 1) > scores.unmasked(first);
        bool fresh = begin || (scores.tile == 0 && masked);
        for (;;) {
            if (masked) scores.mask(first, thread_again(numbers));
            if (fresh) {
                if (scores.tile == 0) rows.shift[0] = rows.shift[1] = -infinity();
                break;
            }
            float more[2] = {};
#pragma unroll
            for (int n = 0; n < KEYS / 2; n += 2) {
                const int half = n / 2 % 2;
                scores.s[n] = exp2_approx(scores.s[n] * scale_log2 - rows.shift[half]);
                scores.s[n + 1] = exp2_approx(scores.s[n + 1] * scale_log2 - rows.shift[half]);
                more[half] += scores.s[n] + scores.s[n + 1];
            }
            const bool above = !(more[0] + more[1] <= bound<T>()), below = !(fminf(more[0], more[1]) >= LEAST);
            if (!__any_sync(~0u, above || (scores.tile == 0 && below))) {
                rows.sum[0] += more[0];
                rows.sum[1] += more[1];
                return false;
            }
            again();
            fresh = true;
        }
        rows.exponentiate(scores.s, scale_log2);
        return scores.tile > 0;
    };
    consume<T, P, CAUSAL>(shared, o, problem, softmax);
}
