// Rung 11: O rescaled only where fp16 would overflow; sums of rows as a 65th column of V.
//
// Does    a job's first tile has its exact maximum. After it scores become probabilities relative to the offset at hand,
//         as floats, whose range of 2^127 holds what fp16's of 2^16 doesn't. Whether one rose above 2^15 (2^30 for bf16),
//         the largest of their bits tells, three integers an instruction, and one vote of the warp: no shuffles, and no
//         exponential waits. Only then are the tile and O multiplied by a power of two, so that the largest probability is
//         2^-4 again; nothing is computed twice, but where a score rose by more than 2^126. Two tiles in a row that rose
//         are followed by exact ones, as long as scores keep rising. At D = 64, V has columns of ones, so that the product
//         sums the rounded probabilities: one wgmma of 72 columns. At D = 128 additions sum them, unrounded.
// Gained  in trials on H200s (2026-11-24, graph replays, cuDNN in the same rounds): 1.15x over rung 8 at (32, 8, 512, 64),
//         37.8 us, where 1.17x and 37.5 us were expected: 1.28x over cuDNN on normal values, 1.25 on logits of SD 6 and
//         where like positions attract, 1.235 where scores rise by 24 nats. Expected was that no kind costs more than 2 %;
//         rising by 24 nats costs 4 %, by 45 nats 11 %, logits of SD 12 12 %. Rung 9 takes 39 to 59 us on these.
//         Over the faster of cuDNN and flash-attn-4: 1.13 to 1.17x at 2048 keys, 1.07x at 8192, under the mask 1.20 to
//         1.26 and 1.11x; at (4, 16, 4096, 128) in bf16 1.09x, under the mask 1.13x.
//         Row sums of rounded probabilities by additions, at D = 128, cost 5 % (each is packed and unpacked again), by 72
//         columns beside 64 another 5 to 8 %: left out there. At D = 64 the ones gain 1 % over additions, and their
//         mean error is 1.05 to 1.1 times that of SDPA's flash backend, where additions have 1.05 to 1.3.
//         Tried and left out: the check after packing, of two fp16 in one integer: 2 to 6 % slower, it waits for O.
// Limits  scores that rise again and again cost a multiplication of the tile and of O each time: at SD 60, cuDNN is faster
//         by 5 %. At D = 128 in bf16 the mean error is up to 1.3 times that of SDPA's flash backend on peaked rows.
#include "jobs.cuh"

// What the largest probability begins with: so far can scores rise beyond 2^15 before O has to be rescaled.
constexpr int HEADROOM = 4;
// What a probability may rise to, as the bits of a float: 2^15, and 2^30 for bf16.
template <typename T> __device__ constexpr int bound();
template <> __device__ constexpr int bound<__half>() { return (127 + 15) << 23; }
template <> __device__ constexpr int bound<__nv_bfloat16>() { return (127 + 30) << 23; }

// Floats above 0 are ordered as their bits are, and of integers one instruction takes the largest of three.
template <int N> __device__ __forceinline__ int largest_bits(const float (&s)[N], int half) {
    int largest = 0;
#pragma unroll
    for (int n = 2 * half; n < N; n += 4) largest = max(max(__float_as_int(s[n]), __float_as_int(s[n + 1])), largest);
    return largest;
}
template <int N> __device__ __forceinline__ float sum_of(const float (&s)[N], int half) {
    float sum = 0;
#pragma unroll
    for (int n = 2 * half; n < N; n += 4) sum += s[n] + s[n + 1];
    return sum;
}

// q, k, v, o: maps of (batch, heads, rows, D), with any strides
template <typename T, int D, bool CAUSAL, int KEYS, int PAIRS, int CONSUMERS, int TURNS, int PER_PASS>
__global__ void __launch_bounds__(128 * (1 + CONSUMERS), 1)
lazy(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
     const __grid_constant__ TensorMap o, Problem problem) {
    using P = Plan<D, KEYS, PAIRS, CONSUMERS, TURNS, PER_PASS, D == 64>;
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& shared = *reinterpret_cast<Shared<P>*>(memory);
    if (P::ONES && threadIdx.x < 128) {
        for (int i = 0; i < 8; ++i) (&shared.ones[0][0])[8 * threadIdx.x + i] = pack<T>(1, 1);
        publish_to_tma();
    }
    prepare<P, CAUSAL>(shared, problem);
    if (threadIdx.x < 128) return produce<P, CAUSAL>(shared, q, k, v, problem);

    constexpr int ALLOWED = bound<T>(), FLOATS_END = (127 + 126 - HEADROOM) << 23;
    const float scale_log2 = problem.scale * LOG2_E;
    const unsigned numbers = shared_address(shared.numbers);
    int rises = 0;  // in a row, of tiles of this job
    const auto softmax = [&](Rows& rows, Scores<P, CAUSAL>& scores, int first, bool, const auto& again) {
        const bool masked = KEYS * (scores.tile + 1) > scores.unmasked(first);
        if (masked) scores.mask(first, thread_again(numbers));
        if (scores.tile == 0) rises = 0;
        if (scores.tile && rises < 2) {
#pragma unroll
            for (int n = 0; n < KEYS / 2; ++n) scores.s[n] = exp2_approx(scores.s[n] * scale_log2 - rows.shift[n / 2 % 2]);
            float sum[2];
            int most[2];  // the bits of a row's largest probability, or of a sum of some
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                sum[half] = P::ONES ? 0 : sum_of(scores.s, half);
                most[half] = P::ONES ? largest_bits(scores.s, half) : __float_as_int(sum[half]);
            }
            if (!__any_sync(~0u, max(most[0], most[1]) > ALLOWED)) {
                rows.sum[0] += sum[0];
                rows.sum[1] += sum[1];
                rises = 0;
                return false;
            }
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                most[half] = max(most[half], __shfl_xor_sync(~0u, most[half], 1));
                most[half] = max(most[half], __shfl_xor_sync(~0u, most[half], 2));
            }
            if (!__any_sync(~0u, max(most[0], most[1]) >= FLOATS_END)) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int powers = max(0, (most[half] >> 23) - 127 + HEADROOM);
                    rows.shift[half] += powers;
                    rows.shrink[half] = __int_as_float((127 - powers) << 23);
                    rows.sum[half] = (rows.sum[half] + sum[half]) * rows.shrink[half];
#pragma unroll
                    for (int n = 2 * half; n < KEYS / 2; n += 4) {
                        scores.s[n] *= rows.shrink[half];
                        scores.s[n + 1] *= rows.shrink[half];
                    }
                }
                ++rises;
                return true;
            }
            again();
            if (masked) scores.mask(first, thread_again(numbers));
        }
        if (scores.tile == 0) rows.shift[0] = rows.shift[1] = -infinity();
        rows.exponentiate(scores.s, scale_log2, HEADROOM);
        rises = scores.tile && __any_sync(~0u, fminf(rows.shrink[0], rows.shrink[1]) < 3e-5f) ? 2 : 0;
        return scores.tile > 0;
    };
    consume<T, P, CAUSAL>(shared, o, problem, softmax);
}
