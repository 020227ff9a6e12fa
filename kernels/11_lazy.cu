// Rung 11: O rescaled only where probabilities would overflow; sums of rows as one more column of V.
//
// Does    a job begins with the last tile that all queries of its pass see whole, and goes on with the first: where scores rise
//         along the keys, or fall, the largest one rises seldom. The first tile has its exact maximum. After it scores become
//         probabilities relative to the offset at hand, as floats, whose range of 2^127 holds what fp16's of 2^16 doesn't. Whether
//         one rose above 2^15 (2^60 for bf16), the largest of their bits tells, three integers an instruction, and one vote of the
//         warp: no shuffles, and no exponential waits. Only then are the tile and O multiplied by a power of two, so that the
//         largest probability is 2^-4 (2^-60) again; nothing is computed twice, but where a score rose by more than 2^118. In fp16 a
//         tile that rose is followed by exact ones, but for a job's first, as is a first tile whose scores are too far apart; in bf16
//         two tiles in a row. At D = 64 in fp16 exact tiles search the largest score by its bits, too, where a job's first scores
//         are high enough: then scores below 0 make no row rise.
//         Exact tiles wait for the product with V between their exponentials, so that O is scaled and P packed beside the rest; two
//         consumers at D = 128 do so in all tiles, and have Q in registers. V has columns of ones, so that the product sums the
//         rounded probabilities: one wgmma of 72 columns at D = 64 and of 136 at D = 128. At D = 256 registers add them.
// Gained  1.15x over rung 8 at (32, 8, 512, 64) in trials on H200s, 37.8 us, where 1.17x and 37.5 us were expected: 1.28x over cuDNN
//         on normal values, 1.235x where scores rise by 24 nats. NOTES.md has other shapes and trials.
// Limits  where large scores come in any order, as at SD 60 and with Student's t, the lead over flash-attn-4 shrinks to 2 to 7 % at
//         D = 128, and to nothing at (32, 8, 8192, 64). Under the mask calls of 20 to 70 us take up to 3 % longer than if all passes
//         began with tile 0. Where a few keys share a row, as at SD 3, the RMS error is up to 1.14 times cuDNN's, whose largest
//         probability is 1 and has no rounding.
#include "lazy.cuh"

// q, k, v, o: maps of (batch, heads, rows, D), with any strides; with one of LogSums, log-sum-exps are written too
template <typename T, int D, bool CAUSAL, int KEYS, int STAGES, int CONSUMERS, int PING_PONG, int JOBS_PER_PASS, typename... Sums>
__global__ void __launch_bounds__(128 * (1 + CONSUMERS), 1)
lazy(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
     const __grid_constant__ TensorMap o, Problem problem, Sums... log_sums) {
    using P = Plan<D, KEYS, STAGES, CONSUMERS, PING_PONG, JOBS_PER_PASS, true, sizeof...(Sums) != 0>;
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& smem = *reinterpret_cast<SharedStorage<P>*>(memory);
    write_ones<T>(smem);
    init_barriers<P, CAUSAL>(smem, problem);
    if (threadIdx.x < 128) return produce<P, CAUSAL>(smem, q, k, v, problem);
    consume_lazily<T, P, CAUSAL>(smem, o, problem, log_sums...);
}
