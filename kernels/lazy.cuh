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

template <typename T, typename P, bool CAUSAL> struct LazySoftmax {
    using W = Window<T>;
    static constexpr bool IN_PARTS = true;
    static constexpr int KEYS = P::KEYS, SCORES = KEYS / 2;
    // An exact tile's offset rises with the largest score once that is so many powers of two above it.
    static constexpr int SLACK = W::BEGIN + W::MOST - 4;
    // How many of a tile's probabilities a thread makes behind the wait for the product before, in exact tiles and in others. They
    // overlap the packing of P, and in exact tiles the scaling of O.
    static constexpr int EXACT = P::D == 64 ? SCORES * 5 / 8 : SCORES / 2, OTHERS = P::HOLDS_QUERY ? SCORES * 5 / 8 : 0;
    static constexpr bool KEPT = OTHERS && W::KEEPS;  // bf16 holds what is packed, however large
    const float scale_log2;
    const unsigned thread_ids;
    int rises = 0;  // as the window counts them; from 2 on, tiles are exact, until as many did not rise
    // A rise of a job's second tile doesn't count: that follows where scores fall along the keys.
    static constexpr int BEGINS = 1 - W::RISE;

    __device__ __forceinline__ LazySoftmax(float scale, unsigned thread_ids) : scale_log2(scale * LOG2_E), thread_ids(thread_ids) {}

    __device__ __forceinline__ bool mask(Scores<P, CAUSAL>& scores, int diagonal) const {
        const bool masked = KEYS * (scores.tile + 1) > scores.unmasked(diagonal);
        if (masked) scores.mask(diagonal, reload_thread(thread_ids));
        return masked;
    }
    // Offsets by the largest scores, and probabilities.
    __device__ __forceinline__ void find_offsets(RowState& rows, float (&s)[SCORES]) const {
        float row_max = 0;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            row_max -= infinity();  // of the second row behind that of the first, whose exponentials begin meanwhile
#pragma unroll
            for (int n = 2 * half; n < SCORES; n += 4) row_max = fmaxf(row_max, fmaxf(s[n], s[n + 1]));
            const float best = quad_max(row_max) * scale_log2 + W::BEGIN, before = rows.offset[half];
            rows.offset[half] = best > before + SLACK ? best : before;
            rows.rescale[half] = exp2_approx((before - rows.offset[half]) / W::TIMES);
#pragma unroll
            for (int n = 2 * half; n < SCORES; n += n % 2 ? 3 : 1) s[n] = exp2_approx(s[n] * scale_log2 - rows.offset[half]);
        }
    }
    // Scores become exponents relative to the offsets, of which largest has the bits, and all but the last LATE probabilities.
    template <int LATE> __device__ __forceinline__ void find_exponents(const RowState& rows, float (&s)[SCORES], int (&largest)[2]) const {
        float exponents[SCORES];
#pragma unroll
        for (int n = 0; n < SCORES; ++n) {
            exponents[n] = s[n] * scale_log2 - rows.offset[n / 2 % 2];
            s[n] = n < SCORES - LATE ? exp2_approx(exponents[n]) : exponents[n];
        }
        largest[0] = largest_bits(exponents, 0), largest[1] = largest_bits(exponents, 1);
    }
    // The offsets of rows that rose, and probabilities of exponents, but for the last LATE.
    template <int LATE> __device__ __forceinline__ void raise_offsets(RowState& rows, float (&s)[SCORES], const int (&largest)[2]) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float best = __int_as_float(largest[half]), before = rows.offset[half];
            rows.offset[half] += best > SLACK - W::BEGIN ? best + W::BEGIN : 0;
            const float by = rows.offset[half] - before;
            rows.rescale[half] = exp2_approx(-by / W::TIMES);
#pragma unroll
            for (int n = 2 * half; n < SCORES; n += n % 2 ? 3 : 1) {
                s[n] -= by;
                if (n < SCORES - LATE) s[n] = exp2_approx(s[n]);
            }
        }
    }
    // Of the row's largest bits, from those that each thread found.
    __device__ __forceinline__ static void find_quads_largest(int (&largest)[2]) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            largest[half] = max(largest[half], __shfl_xor_sync(~0u, largest[half], 1));
            largest[half] = max(largest[half], __shfl_xor_sync(~0u, largest[half], 2));
        }
    }
    __device__ __forceinline__ static bool any_above(const int (&largest)[2], float most) {
        return __any_sync(~0u, max(largest[0], largest[1]) > __float_as_int(most));
    }
    template <int LATE> __device__ __forceinline__ void exponentiate_late(float (&s)[SCORES]) const {
#pragma unroll
        for (int n = SCORES - LATE; n < SCORES; ++n) s[n] = exp2_approx(s[n]);
    }
    // A job's first tile.
    template <typename Recompute>
    __device__ __forceinline__ bool operator()(RowState& rows, Scores<P, CAUSAL>& scores, int diagonal, bool, const Recompute&) {
        mask(scores, diagonal);
        rows.offset[0] = rows.offset[1] = -infinity();
        find_offsets(rows, scores.s);
        // Scores 40 nats below the largest, of four in each of eight threads: they will rise far, too.
        const bool far = fmaxf(fmaxf(scores.s[0], scores.s[1]), fmaxf(scores.s[2], scores.s[3])) < power(-60);
        rises = W::RISE > 1 && __popc(__ballot_sync(~0u, far)) >= 8 ? W::RISE : BEGINS;
        return false;
    }
    // Any other tile: `release` K, `wait` for the product before, `rescale` O, `pack` probabilities or rescale them as bf16.
    template <typename Release, typename Wait, typename Rescale, typename Pack, typename RescalePacked, typename Recompute>
    __device__ __forceinline__ void in_parts(RowState& rows, Scores<P, CAUSAL>& scores, int diagonal, const Release& release,
                                             const Wait& wait, const Rescale& rescale, const Pack& pack,
                                             const RescalePacked& rescale_packed, const Recompute& recompute) {
        auto& s = scores.s;
        const bool masked = mask(scores, diagonal);
        int largest[2];  // of each row
        if (rises >= 2) {
            find_exponents<SCORES>(rows, s, largest);
            find_quads_largest(largest);
            raise_offsets<EXACT>(rows, s, largest);
            const bool rose = any_above(largest, SLACK - W::BEGIN);
            rises = rose ? max(rises, W::RISE) : rises == 2 ? 0 : rises - 1;
            if (!rose) {
                release();
                wait();
                exponentiate_late<EXACT>(s);
                pack();
                asm volatile("// O stays");  // both ways stay apart
                return;
            }
            if (any_above(largest, 1024)) {  // the difference of exponents is too coarse
                recompute();
                if (masked) scores.mask(diagonal, reload_thread(thread_ids));
                find_exponents<EXACT>(rows, s, largest);
            }
            release();
            wait();
            rescale();
            exponentiate_late<EXACT>(s);
            pack();
            asm volatile("// O was scaled");
            return;
        }
        find_exponents<OTHERS>(rows, s, largest);
        if (!any_above(largest, W::MOST)) {
            rises = 0;
            release();
            wait();
            exponentiate_late<OTHERS>(s);
            pack();
            return;
        }
        rises += W::RISE;
        find_quads_largest(largest);
        const bool far = any_above(largest, W::OVERFLOW);
        if (far) {
            recompute();
            if (masked) scores.mask(diagonal, reload_thread(thread_ids));
            find_offsets(rows, s);
            rises = max(rises, 2);
        } else {
            exponentiate_late<OTHERS>(s);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int whole = static_cast<int>(__int_as_float(largest[half])) + W::BEGIN + W::TIMES - 1;
                const int exponent = largest[half] ? whole / W::TIMES : 0;
                rows.offset[half] += W::TIMES * exponent;
                rows.rescale[half] = power(-exponent);
#pragma unroll
                for (int time = 0; time < W::TIMES && !KEPT; ++time)
#pragma unroll
                    for (int n = 2 * half; n < SCORES; n += n % 2 ? 3 : 1) s[n] *= rows.rescale[half];
            }
        }
        release();
        wait();
        rescale();
        pack();
        if (KEPT && !far) rescale_packed();
    }
};

// A consumer warpgroup.
template <typename T, typename P, bool CAUSAL, typename J, typename AnyProblem, typename... Sums>
__device__ __forceinline__ void consume_lazily(SharedStorage<P, J>& smem, const TensorMap& o, const AnyProblem& problem,
                                               const Sums&... log_sums) {
    LazySoftmax<T, P, CAUSAL> softmax(problem.scale, shared_address(smem.thread_ids));
    consume<T, P, CAUSAL, Window<T>::TIMES>(smem, o, problem, softmax, log_sums...);
}
