// The softmax of rungs 11 and 15: O rescaled only where probabilities would overflow, as the head of 11_lazy.cu says.
#pragma once
#include "jobs.cuh"

// The largest probability of a row begins at 2^-BEGIN and may rise to 2^MOST. A rise beyond 2^OVERFLOW is computed again, and
// another one rescales in so many TIMES, as a float holds 2^-126 at the least. bf16 has the range of floats. RISE is what a rise
// counts: fp16's window is narrow, so that one is followed by six exact tiles, and in bf16 two in a row by one.
template <typename T> struct Window;
template <> struct Window<__half> {
    static constexpr int BEGIN = 4, MOST = 15, OVERFLOW = 118, TIMES = 1, RISE = 7, KEEPS = 0;
};
template <> struct Window<__nv_bfloat16> {
    static constexpr int BEGIN = 60, MOST = 60, OVERFLOW = 118, TIMES = 2, RISE = 1, KEEPS = 1;
};

__device__ __forceinline__ constexpr int power_bits(int exponent) { return (127 + exponent) << 23; }
__device__ __forceinline__ float power(int exponent) { return __int_as_float(power_bits(exponent)); }

// Floats above 0 are ordered as their bits are, and of integers one instruction takes the largest of three.
template <int N> __device__ __forceinline__ int largest_bits(const float (&s)[N], int half, int largest = 0) {
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

template <typename T, typename P, bool CAUSAL> struct LazySoftmax {
    using W = Window<T>;
    static constexpr bool IN_PARTS = true;
    static constexpr int KEYS = P::KEYS, SCORES = KEYS / 2;
    // An exact tile's offset rises with the largest score once that is so many powers of two above it.
    static constexpr int SLACK = W::BEGIN + W::MOST - 4;
    // How many of a tile's probabilities a thread makes behind the wait for the product before, in exact tiles and in others. They
    // overlap the packing of P, and in exact tiles the scaling of O.
    static constexpr int EXACT = P::D == 64 ? SCORES * 5 / 8 : SCORES / 2, OTHERS = P::HOLDS_QUERY ? SCORES * 5 / 8 : 0;
    // In fp16 at D = 64, jobs whose first scores are high enough search the largest score by its bits: half as many instructions.
    // Scores below 0 then make no row rise. Whether a job does is the lowest bit of `rises`, as registers don't last.
    static constexpr bool BY_BITS = P::D == 64 && !W::KEEPS && !(CAUSAL && KEYS == 128);
    static constexpr int ONE = BY_BITS ? 2 : 1;
    static constexpr bool KEPT = OTHERS && W::KEEPS;  // bf16 holds what is packed, however large
    const float scale_log2;
    const unsigned thread_ids;
    int rises = 0;  // as the window counts them, ONE each; from two on, tiles are exact, until as many did not rise
    // A job's first rise doesn't count: the second tile rises where scores fall along the keys, and others seldom rise again.
    static constexpr int BEGINS = 1 - W::RISE;

    __device__ __forceinline__ LazySoftmax(float scale, unsigned thread_ids) : scale_log2(scale * LOG2_E), thread_ids(thread_ids) {}

    __device__ __forceinline__ bool mask(Scores<P, CAUSAL>& scores, int diagonal) const {
        const bool masked = KEYS * (scores.tile + 1) > scores.unmasked(diagonal);
        if (masked) scores.mask(diagonal, reload_thread(thread_ids));
        return masked;
    }
    // Offsets by the largest scores, and probabilities; of the last LATE scores the exponents alone. Whether a row rose. With BITS
    // a largest score below 0 counts as 0.
    template <int LATE, bool BITS = false> __device__ __forceinline__ bool find_offsets(RowState& rows, float (&s)[SCORES]) const {
        float rise = 0, row_max = 0;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            // That of the second row behind that of the first, whose exponentials begin meanwhile.
            if (BITS) {
                row_max = __int_as_float(largest_bits(s, half, __float_as_int(fminf(row_max, 0))));
            } else {
                row_max -= infinity();
#pragma unroll
                for (int n = 2 * half; n < SCORES; n += 4) row_max = fmaxf(row_max, fmaxf(s[n], s[n + 1]));
            }
            const float best = quad_max(row_max) * scale_log2 + W::BEGIN, before = rows.offset[half];
            rows.offset[half] = best > before + SLACK ? best : before;
            rows.rescale[half] = exp2_approx((before - rows.offset[half]) / W::TIMES);
            rise = fmaxf(rise, best - before);
#pragma unroll
            for (int n = 2 * half; n < SCORES; n += n % 2 ? 3 : 1) {
                s[n] = s[n] * scale_log2 - rows.offset[half];
                if (n < SCORES - LATE) s[n] = exp2_approx(s[n]);
            }
        }
        return __any_sync(~0u, rise > SLACK);
    }
    template <int LATE> __device__ __forceinline__ void exponentiate_late(float (&s)[SCORES]) const {
#pragma unroll
        for (int n = SCORES - LATE; n < SCORES; ++n) s[n] = exp2_approx(s[n]);
    }
    // Ends a block of instructions, as ptxas would move a wait to its beginning. Late scores stay before it.
    template <int LATE> __device__ __forceinline__ void end_block(float (&s)[SCORES]) const {
#pragma unroll
        for (int n = SCORES - LATE; n < SCORES; ++n) asm volatile("" : "+f"(s[n]));
        if (never(scale_log2, LATE)) asm volatile("trap;");
    }
    // A job's first tile.
    template <typename Recompute>
    __device__ __forceinline__ bool operator()(RowState& rows, Scores<P, CAUSAL>& scores, int diagonal, bool, const Recompute&) {
        mask(scores, diagonal);
        rows.offset[0] = rows.offset[1] = -infinity();
        find_offsets<0>(rows, scores.s);
        // Scores 40 nats below the largest, of four in each of eight threads: they will rise far, too.
        const bool far = fmaxf(fmaxf(scores.s[0], scores.s[1]), fmaxf(scores.s[2], scores.s[3])) < power(-60);
        rises = W::RISE > 1 && __popc(__ballot_sync(~0u, far)) >= 8 ? W::RISE : BEGINS;
        if (BY_BITS) rises = 2 * rises | !__any_sync(~0u, fminf(rows.offset[0], rows.offset[1]) < W::BEGIN - SLACK);
        return false;
    }
    // A tile in which rises are likely.
    template <bool BITS, typename Release, typename Wait, typename Rescale, typename Pack>
    __device__ __forceinline__ void exact_tile(RowState& rows, float (&s)[SCORES], const Release& release, const Wait& wait,
                                               const Rescale& rescale, const Pack& pack) {
        const bool rose = find_offsets<EXACT, BITS>(rows, s);
        release();
        rises = rose ? max(rises, ONE * W::RISE | BITS) : rises < 3 * ONE ? BITS : rises - ONE;
        if (rose) {
            wait();
            rescale();
            exponentiate_late<EXACT>(s);
            pack();
            asm volatile("// O was scaled");  // both ways stay apart
        } else {
            wait();
            exponentiate_late<EXACT>(s);
            pack();
            asm volatile("// O stays");
        }
    }
    // Any other tile: `release` K, `wait` for the product before, `rescale` O, `pack` probabilities or rescale them as bf16.
    template <typename Release, typename Wait, typename Rescale, typename Pack, typename RescalePacked, typename Recompute>
    __device__ __forceinline__ void in_parts(RowState& rows, Scores<P, CAUSAL>& scores, int diagonal, const Release& release,
                                             const Wait& wait, const Rescale& rescale, const Pack& pack,
                                             const RescalePacked& rescale_packed, const Recompute& recompute) {
        auto& s = scores.s;
        const bool masked = mask(scores, diagonal);
        if (rises >= 2 * ONE) {
            if (BY_BITS && rises & 1)
                exact_tile<true>(rows, s, release, wait, rescale, pack);
            else
                exact_tile<false>(rows, s, release, wait, rescale, pack);
            return;
        }
#pragma unroll
        for (int n = 0; n < SCORES; ++n) {
            s[n] = s[n] * scale_log2 - rows.offset[n / 2 % 2];
            if (n < SCORES - OTHERS) s[n] = exp2_approx(s[n]);
        }
        if (OTHERS) {
            end_block<OTHERS>(s);
            wait();
            exponentiate_late<OTHERS>(s);
            pack();
        }
        int largest[2] = {largest_bits(s, 0), largest_bits(s, 1)};  // of each row
        if (!__any_sync(~0u, max(largest[0], largest[1]) > power_bits(W::MOST))) {
            rises = min(rises, rises & ONE - 1);
            release();
            if (!OTHERS) wait(), pack();
            return;
        }
        rises += ONE * W::RISE;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            largest[half] = max(largest[half], __shfl_xor_sync(~0u, largest[half], 1));
            largest[half] = max(largest[half], __shfl_xor_sync(~0u, largest[half], 2));
        }
        const bool far = __any_sync(~0u, max(largest[0], largest[1]) >= power_bits(W::OVERFLOW));
        if (far) {
            recompute();
            if (masked) scores.mask(diagonal, reload_thread(thread_ids));
            find_offsets<0>(rows, s);
            rises = max(rises, 2 * ONE | rises & ONE - 1);
        } else {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int exponent = max(0, (largest[half] >> 23) - 127 + W::BEGIN + W::TIMES - 1) / W::TIMES;
                rows.offset[half] += W::TIMES * exponent;
                rows.rescale[half] = power(-exponent);
#pragma unroll
                for (int time = 0; time < W::TIMES && !KEPT; ++time)
#pragma unroll
                    for (int n = 2 * half; n < SCORES; n += n % 2 ? 3 : 1) s[n] *= rows.rescale[half];
            }
        }
        release();
        if (!OTHERS) wait();
        rescale();
        if (KEPT && !far)
            rescale_packed();
        else
            pack();
    }
};

// A consumer warpgroup.
template <typename T, typename P, bool CAUSAL, typename J, typename AnyProblem, typename... Sums>
__device__ __forceinline__ void consume_lazily(SharedStorage<P, J>& smem, const TensorMap& o, const AnyProblem& problem,
                                               const Sums&... log_sums) {
    LazySoftmax<T, P, CAUSAL> softmax(problem.scale, shared_address(smem.thread_ids));
    consume<T, P, CAUSAL, Window<T>::TIMES>(smem, o, problem, softmax, log_sums...);
}
