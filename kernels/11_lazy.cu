// Rung 11: O rescaled only where probabilities would overflow; sums of rows as one more column of V.
//
// Does    a job's first tile has its exact maximum. After it scores become probabilities relative to the offset at hand,
//         as floats, whose range of 2^127 holds what fp16's of 2^16 doesn't. Whether one rose above 2^15 (2^60 for bf16),
//         the largest of their bits tells, three integers an instruction, and one vote of the warp: no shuffles, and no
//         exponential waits. Only then are the tile and O multiplied by a power of two, so that the largest probability is
//         2^-4 (2^-60) again; nothing is computed twice, but where a score rose by more than 2^118. Two tiles in a row that rose
//         are followed by exact ones; so is a first tile whose scores are too far apart. V has columns of ones, so that the
//         product sums the rounded probabilities: one wgmma of 72 columns at D = 64 and of 136 at D = 128. At D = 256 registers
//         add them.
// Gained  1.15x over rung 8 at (32, 8, 512, 64) in trials on H200s, 37.8 us, where 1.17x and 37.5 us were expected: 1.28x
//         over cuDNN on normal values, 1.235x where scores rise by 24 nats. NOTES.md has other shapes and trials.
// Limits  in fp16, scores that rise again and again cost a multiplication of the tile and of O each time: with 12 nats a tile
//         of 64 keys, flash-attn-4 is ahead by a tenth at D = 128. Where a few keys share a row, as at SD 3, the RMS error is
//         up to 1.14 times cuDNN's, whose largest probability is 1 and has no rounding.
#include "jobs.cuh"

// The largest probability of a row begins at 2^-BEGIN and may rise to 2^MOST. A rise beyond 2^OVERFLOW is computed again, and
// another one rescales in so many TIMES, as a float holds 2^-126 at the least. bf16 has the range of floats.
template <typename T> struct Window;
template <> struct Window<__half> {
    static constexpr int BEGIN = 4, MOST = 15, OVERFLOW = 118, TIMES = 1;
};
template <> struct Window<__nv_bfloat16> {
    static constexpr int BEGIN = 60, MOST = 60, OVERFLOW = 118, TIMES = 2;
};
constexpr int CALM = 3;  // exact tiles without a rise that end a job's exact beginning

__device__ __forceinline__ constexpr int power_bits(int exponent) { return (127 + exponent) << 23; }
__device__ __forceinline__ float power(int exponent) { return __int_as_float(power_bits(exponent)); }

// Floats above 0 are ordered as their bits are, and of integers one instruction takes the largest of three.
template <int N> __device__ __forceinline__ int largest_bits(const float (&s)[N], int half) {
    int largest = 0;
#pragma unroll
    for (int n = 2 * half; n < N; n += 4) largest = max(max(__float_as_int(s[n]), __float_as_int(s[n + 1])), largest);
    return largest;
}

// q, k, v, o: maps of (batch, heads, rows, D), with any strides; with one of LogSums, log-sum-exps are written too
template <typename T, int D, bool CAUSAL, int KEYS, int STAGES, int CONSUMERS, int PING_PONG, int JOBS_PER_PASS, typename... Sums>
__global__ void __launch_bounds__(128 * (1 + CONSUMERS), 1)
lazy(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
     const __grid_constant__ TensorMap o, Problem problem, Sums... log_sums) {
    using P = Plan<D, KEYS, STAGES, CONSUMERS, PING_PONG, JOBS_PER_PASS, true, sizeof...(Sums) != 0>;
    using W = Window<T>;
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& smem = *reinterpret_cast<SharedStorage<P>*>(memory);
    // In one loop for both, the compiler computes the addresses of all operands anew in each tile.
    if (P::ONES && P::COLUMNS == 1 && threadIdx.x < 128) {
        for (int i = 0; i < 8; ++i) (&smem.ones[0][0])[8 * threadIdx.x + i] = pack<T>(1, 1);
        publish_to_tma();
    }
    if (P::ONES && P::COLUMNS > 1) {
        for (int i = threadIdx.x; i < STAGES * KEYS * 32; i += 128 * (1 + CONSUMERS))
            reinterpret_cast<unsigned*>(smem.ring[i / (KEYS * 32)] + 2 * P::TILE_BYTES)[i % (KEYS * 32)] = pack<T>(1, 1);
        publish_to_tma();
    }
    init_barriers<P, CAUSAL>(smem, problem);
    if (threadIdx.x < 128) return produce<P, CAUSAL>(smem, q, k, v, problem);

    const float scale_log2 = problem.scale * LOG2_E;
    const unsigned thread_ids = shared_address(smem.thread_ids);
    int rises = 0;  // in a row, of tiles of this job; from 2 on, tiles are exact
    const auto softmax = [&](RowState& rows, Scores<P, CAUSAL>& scores, int diagonal, bool, const auto& recompute) {
        const bool masked = KEYS * (scores.tile + 1) > scores.unmasked(diagonal);
        if (masked) scores.mask(diagonal, reload_thread(thread_ids));
        if (scores.tile == 0) rises = 0;
        if (scores.tile && rises < 2) {
#pragma unroll
            for (int n = 0; n < KEYS / 2; ++n) scores.s[n] = exp2_approx(scores.s[n] * scale_log2 - rows.offset[n / 2 % 2]);
            int largest[2] = {largest_bits(scores.s, 0), largest_bits(scores.s, 1)};  // of each row
            if (!__any_sync(~0u, max(largest[0], largest[1]) > power_bits(W::MOST))) {
                rises = 0;
                return false;
            }
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                largest[half] = max(largest[half], __shfl_xor_sync(~0u, largest[half], 1));
                largest[half] = max(largest[half], __shfl_xor_sync(~0u, largest[half], 2));
            }
            if (!__any_sync(~0u, max(largest[0], largest[1]) >= power_bits(W::OVERFLOW))) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int exponent = max(0, (largest[half] >> 23) - 127 + W::BEGIN + W::TIMES - 1) / W::TIMES;
                    rows.offset[half] += W::TIMES * exponent;
                    rows.rescale[half] = power(-exponent);
#pragma unroll
                    for (int time = 0; time < W::TIMES; ++time)
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
            rises = 2;
        }
        if (scores.tile == 0) rows.offset[0] = rows.offset[1] = -infinity();
        const float before[2] = {rows.offset[0], rows.offset[1]};
        rows.exponentiate(scores.s, scale_log2, W::BEGIN);
        if (scores.tile == 0) {
            // Scores 84 nats below the largest, of four in each of eight threads: they will rise far, too.
            const bool far = fmaxf(fmaxf(scores.s[0], scores.s[1]), fmaxf(scores.s[2], scores.s[3])) == 0;
            if (W::TIMES == 1 && __popc(__ballot_sync(~0u, far)) >= 8) rises = 2 + CALM;
            return false;
        }
        const bool rose = __any_sync(~0u, fminf(rows.rescale[0], rows.rescale[1]) < power(4 - W::BEGIN - W::MOST));
        if (!rose) rises = rises == 2 ? 0 : rises - 1;
        if (W::TIMES == 2)
#pragma unroll
            for (int half = 0; half < 2; ++half) rows.rescale[half] = exp2_approx((before[half] - rows.offset[half]) / 2);
        return true;
    };
    consume<T, P, CAUSAL, W::TIMES>(smem, o, problem, softmax, log_sums...);
}
