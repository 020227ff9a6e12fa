// Rung 11: O rescaled only where fp16 would overflow; sums of rows as a 65th column of V.
//
// Does    a job's first tile has its exact maximum. After it scores become probabilities relative to the offset at hand,
//         as floats, whose range of 2^127 holds what fp16's of 2^16 doesn't. Whether one rose above 2^15 (2^30 for bf16),
//         the largest of their bits tells, three integers an instruction, and one vote of the warp: no shuffles, and no
//         exponential waits. Only then are the tile and O multiplied by a power of two, so that the largest probability is
//         2^-4 again; nothing is computed twice, but where a score rose by more than 2^126. Two tiles in a row that rose are
//         followed by exact ones. At D = 64, V has columns of ones, so that the product sums the rounded probabilities: one
//         wgmma of 72 columns. At D = 128 additions sum them, unrounded.
// Gained  1.15x over rung 8 at (32, 8, 512, 64) in trials on H200s, 37.8 us, where 1.17x and 37.5 us were expected: 1.28x
//         over cuDNN on normal values, 1.235x where scores rise by 24 nats. NOTES.md has other shapes and trials.
// Limits  scores that rise again and again cost a multiplication of the tile and of O each time: at SD 60, cuDNN is faster
//         by 5 %. At D = 128 in bf16 the mean error is up to 1.3 times that of SDPA's flash backend on peaked rows.
#include "jobs.cuh"

// What the largest probability begins with: so far can scores rise beyond 2^15 before O has to be rescaled.
constexpr int HEADROOM = 4;
// What a probability may rise to, as the bits of a float: 2^15, and 2^30 for bf16.
template <typename T> __device__ constexpr int most_bits();
template <> __device__ constexpr int most_bits<__half>() { return (127 + 15) << 23; }
template <> __device__ constexpr int most_bits<__nv_bfloat16>() { return (127 + 30) << 23; }

// Floats above 0 are ordered as their bits are, and of integers one instruction takes the largest of three.
template <int N> __device__ __forceinline__ int largest_bits(const float (&s)[N], int half) {
    int largest = 0;
#pragma unroll
    for (int n = 2 * half; n < N; n += 4) largest = max(max(__float_as_int(s[n]), __float_as_int(s[n + 1])), largest);
    return largest;
}
template <int N> __device__ __forceinline__ float sum_of(const float (&s)[N], int half) {
    float tile_sum = 0;
#pragma unroll
    for (int n = 2 * half; n < N; n += 4) tile_sum += s[n] + s[n + 1];
    return tile_sum;
}

// q, k, v, o: maps of (batch, heads, rows, D), with any strides
template <typename T, int D, bool CAUSAL, int KEYS, int STAGES, int CONSUMERS, int PING_PONG, int JOBS_PER_PASS>
__global__ void __launch_bounds__(128 * (1 + CONSUMERS), 1)
lazy(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
     const __grid_constant__ TensorMap o, Problem problem) {
    using P = Plan<D, KEYS, STAGES, CONSUMERS, PING_PONG, JOBS_PER_PASS, D == 64>;
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& smem = *reinterpret_cast<SharedStorage<P>*>(memory);
    if (P::ONES && threadIdx.x < 128) {
        for (int i = 0; i < 8; ++i) (&smem.ones[0][0])[8 * threadIdx.x + i] = pack<T>(1, 1);
        publish_to_tma();
    }
    init_barriers<P, CAUSAL>(smem, problem);
    if (threadIdx.x < 128) return produce<P, CAUSAL>(smem, q, k, v, problem);

    constexpr int MOST_BITS = most_bits<T>(), OVERFLOW_BITS = (127 + 126 - HEADROOM) << 23;
    const float scale_log2 = problem.scale * LOG2_E;
    const unsigned thread_ids = shared_address(smem.thread_ids);
    int rises = 0;  // in a row, of tiles of this job
    const auto softmax = [&](RowState& rows, Scores<P, CAUSAL>& scores, int diagonal, bool, const auto& recompute) {
        const bool masked = KEYS * (scores.tile + 1) > scores.unmasked(diagonal);
        if (masked) scores.mask(diagonal, reload_thread(thread_ids));
        if (scores.tile == 0) rises = 0;
        if (scores.tile && rises < 2) {
#pragma unroll
            for (int n = 0; n < KEYS / 2; ++n) scores.s[n] = exp2_approx(scores.s[n] * scale_log2 - rows.offset[n / 2 % 2]);
            float tile_sum[2];
            int largest[2];  // the bits of a row's largest probability, or of a sum of some
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                tile_sum[half] = P::ONES ? 0 : sum_of(scores.s, half);
                largest[half] = P::ONES ? largest_bits(scores.s, half) : __float_as_int(tile_sum[half]);
            }
            if (!__any_sync(~0u, max(largest[0], largest[1]) > MOST_BITS)) {
                rows.row_sum[0] += tile_sum[0];
                rows.row_sum[1] += tile_sum[1];
                rises = 0;
                return false;
            }
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                largest[half] = max(largest[half], __shfl_xor_sync(~0u, largest[half], 1));
                largest[half] = max(largest[half], __shfl_xor_sync(~0u, largest[half], 2));
            }
            if (!__any_sync(~0u, max(largest[0], largest[1]) >= OVERFLOW_BITS)) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int exponent = max(0, (largest[half] >> 23) - 127 + HEADROOM);
                    rows.offset[half] += exponent;
                    rows.rescale[half] = __int_as_float((127 - exponent) << 23);
                    rows.row_sum[half] = (rows.row_sum[half] + tile_sum[half]) * rows.rescale[half];
#pragma unroll
                    for (int n = 2 * half; n < KEYS / 2; n += 4) {
                        scores.s[n] *= rows.rescale[half];
                        scores.s[n + 1] *= rows.rescale[half];
                    }
                }
                ++rises;
                return true;
            }
            recompute();
            if (masked) scores.mask(diagonal, reload_thread(thread_ids));
        }
        if (scores.tile == 0) rows.offset[0] = rows.offset[1] = -infinity();
        rows.exponentiate(scores.s, scale_log2, HEADROOM);
        rises = scores.tile && __any_sync(~0u, fminf(rows.rescale[0], rows.rescale[1]) < 3e-5f) ? 2 : 0;
        return scores.tile > 0;
    };
    consume<T, P, CAUSAL>(smem, o, problem, softmax);
}
