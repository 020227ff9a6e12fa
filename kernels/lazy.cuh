// The softmax of rungs 11 and 15: O rescaled only where probabilities would overflow, as the head of 11_lazy.cu says.
#pragma once
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

// Columns of ones beside V. In one loop for both, the compiler computes the addresses of all operands anew in each tile.
template <typename T, typename P, typename J> __device__ __forceinline__ void write_ones(SharedStorage<P, J>& smem) {
    if (P::ONES && P::COLUMNS == 1 && threadIdx.x < 128) {
        for (int i = 0; i < 8; ++i) (&smem.ones[0][0])[8 * threadIdx.x + i] = pack<T>(1, 1);
        publish_to_tma();
    }
    if (P::ONES && P::COLUMNS > 1) {
        for (int i = threadIdx.x; i < P::STAGES * P::KEYS * 32; i += P::THREADS)
            reinterpret_cast<unsigned*>(smem.ring[i / (P::KEYS * 32)] + 2 * P::TILE_BYTES)[i % (P::KEYS * 32)] = pack<T>(1, 1);
        publish_to_tma();
    }
}

// A consumer warpgroup.
template <typename T, typename P, bool CAUSAL, typename J, typename AnyProblem, typename... Sums>
__device__ __forceinline__ void consume_lazily(SharedStorage<P, J>& smem, const TensorMap& o, const AnyProblem& problem,
                                               const Sums&... log_sums) {
    using W = Window<T>;
    constexpr int KEYS = P::KEYS;
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
