// Rung 13: Q, K and V in e4m3, with a scale for each head.
//
// Does    products of 8-bit numbers, at twice the rate. Two warps of the producer transpose each tile of V in shared memory
//         (e4m3.cuh). Probabilities are relative to the largest of their row so far, which is 2^8 and rounded exactly, as
//         in the formula. The tensor cores add with 14 bits: what they sum of at most 128 keys is added to O in fp32 by the
//         multiplication that rescales it, one instruction for both. Sums of rows are of probabilities that are not rounded.
//         A consumer computes scores, exponentials and the product with V one after the other, so that scores and that product
//         don't need registers at once; the other consumers fill the gaps. O leaves in fp16, bf16, or e4m3 over a scale that is
//         given: what exceeds 448 of these is 448.
// Gained  in h200-2026-12-01-fp8, over kernel.best in 16 bits: 1.18x at (4, 16, 4096, 128), 1.23x under the mask, 1.16x and 1.14x at
//         16,384 keys, where 1.16x was expected; 1.10x where scores rise. At D = 64 1.01x at 2048 keys and 1.05x at 8192, 0.9x from
//         1024 keys down. With what quantises it takes as long at 4096 keys without the mask, 1.06x as long where scores rise, and
//         pays at 16,384, 1.10x and 1.05x. cuDNN's FP8 takes 0.96 of its time at the first, 1.03 under the mask, 0.99 and 0.98 at
//         16,384, 0.91 where scores rise, and 1.1 to 1.3 times as long at D = 64, with up to 21 times the error where V has a mean.
// Limits  one product at a time, whose latency only other consumers hide: by the counters no unit is busy for more than half of the
//         time at D = 128 (tensor cores 46 %, exponentials 47 %); at D = 64 exponentials are, for 69 %.
//         e4m3 holds 18 powers of two: a probability below 2^-18 of the largest is 0, and below 2^-14 it has fewer bits.
//         Inside an instruction, products below 2^-13 of the largest are lost: beside a key that takes nearly all, the
//         others are.
#include "e4m3.cuh"
#include "jobs.cuh"

// A tensor's scales, one for each head, with the strides of batch and head in elements; 0 where they share one.
struct Scales {
    const float* at;
    int batch, head;
    __device__ __forceinline__ float of(int batch_index, int head_index) const {
        return __ldg(at + batch_index * batch + head_index * head);
    }
};
struct AllScales { Scales q, k, v, o; };  // o where O is e4m3

// What a row's largest probability is, as a power of two: e4m3 has it exactly, and nothing above 448.
constexpr int LARGEST = 8;

// How one instance works, as in jobs.cuh. A consumer computes a tile's scores, then their exponentials, then the product
// with V; another's products run during the exponentials. Of V at most 128 keys are summed by the tensor cores. With SPLIT two
// products have half of its columns each, and the one is added to O while the other still runs.
template <int D_, int KEYS_, int STAGES_, int CONSUMERS_, int PING_PONG_, int SPLIT_> struct Plan8 {
    static constexpr int D = D_, KEYS = KEYS_, STAGES = STAGES_, CONSUMERS = CONSUMERS_, JOBS_PER_PASS = CONSUMERS_;
    static constexpr bool PING_PONG = PING_PONG_, ROUNDED = false;
    static constexpr int COLUMNS = D / (1 + SPLIT_), DEPTH = KEYS > 128 ? KEYS / 2 : KEYS;  // of V in a product
    static constexpr int PRODUCTS = D / COLUMNS * (KEYS / DEPTH);
    static constexpr int TRANSPOSERS = 2;
    static constexpr int THREADS = 128 * (1 + CONSUMERS), OUT_COLUMNS = D / 64;
    using Row = Swizzle<D>;  // of Q, K and V
    using KeyRow = Swizzle<(KEYS + 63) / 64 % 2 ? 64 : 128>;  // of V transposed, in parts of PITCH keys
    static constexpr int QUERY_BYTES = 64 * D, OUT_BYTES = 64 * D * 2, TILE_BYTES = KEYS * D;
    static constexpr int PART_BYTES = D * KeyRow::PITCH, PARTS = (KEYS + KeyRow::PITCH - 1) / KeyRow::PITCH;
    static constexpr int PRODUCER_REGISTERS = CONSUMERS == 2 ? 40 : 32;
    static constexpr int CONSUMER_REGISTERS = CONSUMERS == 2 ? 232 : CONSUMERS == 3 ? 160 : 112;
    static_assert(DEPTH % 32 == 0, "a product with V takes 32 keys");
    static_assert(PRODUCTS <= 2, "of what is under way, one is waited for at a time");
    __device__ __forceinline__ static bool serves(int) { return true; }
};

template <typename P> struct Shared8 {
    unsigned char query[P::CONSUMERS][2][P::OUT_BYTES];  // of a job and of the next; then their O
    unsigned char keys[P::STAGES][P::TILE_BYTES];
    alignas(1024) unsigned char values[P::STAGES][P::TILE_BYTES];
    alignas(1024) unsigned char transposed[P::STAGES][P::PARTS * P::PART_BYTES];
    unsigned long long query_full[P::CONSUMERS][2], query_empty[P::CONSUMERS][2];
    unsigned long long full[P::STAGES][2], empty[P::STAGES][2];  // of K, and of V transposed
    unsigned long long values_full[P::STAGES], values_empty[P::STAGES];
    int passes_begun;
    unsigned char thread_ids[128];
    float row_sum[P::CONSUMERS][64];
    struct Job {
        int head, diagonal, tiles, pipeline_state, idle_turns, round;  // as in jobs.cuh
        float scale_log2, value_scale;
    } jobs[P::CONSUMERS][2];
};

template <typename P, bool CAUSAL>
__device__ __forceinline__ void init_barriers(Shared8<P>& smem, const Problem& problem) {
    if (threadIdx.x < 128) smem.thread_ids[threadIdx.x] = threadIdx.x;
    if (threadIdx.x == 0) {
        smem.passes_begun = TileScheduler<P, CAUSAL>::skips(problem) ? 0 : 0x7fffffff;
        for (int i = 0; i < 4 * P::CONSUMERS; ++i) init_barrier(shared_address(smem.query_full) + 8 * i, 1);
        for (int i = 0; i < P::STAGES; ++i) {
            init_barrier(shared_address(&smem.full[i][0]), 1);
            init_barrier(shared_address(&smem.full[i][1]), P::TRANSPOSERS);
            init_barrier(shared_address(&smem.empty[i][0]), 4 * P::JOBS_PER_PASS);
            init_barrier(shared_address(&smem.empty[i][1]), 4 * P::JOBS_PER_PASS);
            init_barrier(shared_address(&smem.values_full[i]), 1);
            init_barrier(shared_address(&smem.values_empty[i]), P::TRANSPOSERS);
        }
        publish_barriers();
    }
    __syncthreads();
}

template <typename P>
__device__ __forceinline__ void begin_pass(Shared8<P>& smem, const Stage<P::STAGES>& state, int round) {
#pragma unroll 1
    for (int stage = 0; stage < P::STAGES; ++stage) {
        const unsigned full = shared_address(smem.full[stage]), phase = state.phase() ^ (stage >= state.index());
        if (stage != state.index()) wait(full, phase);
        wait(full + 8, phase);
    }
    atomicExch(&smem.passes_begun, round + 1);
}

// One thread loads K and V of all passes, tile after tile.
template <typename P, bool CAUSAL>
__device__ __forceinline__ void load_tiles(Shared8<P>& smem, const TileScheduler<P, CAUSAL>& scheduler, const TensorMap& k,
                                           const TensorMap& v) {
    const bool skips = scheduler.skips(scheduler.problem);
    Stage<P::STAGES> state;
    for (int round = 0, pass; (pass = scheduler.pass(round)) >= 0; ++round) {
        int head, first_block, last_block;
        scheduler.work_tile(pass, head, first_block, last_block);
        const int tiles = scheduler.pass_tiles(first_block, last_block), kv_head = scheduler.packed_kv(head);
#pragma unroll 1
        for (int tile = 0; tile < tiles; ++tile) {
            const int users = last_block + 1 - scheduler.first_user(tile, first_block), stage = state.index();
            const unsigned k_empty = shared_address(&smem.empty[stage][0]), k_full = shared_address(&smem.full[stage][0]);
            wait(k_empty, state.phase() ^ 1);
            arrive_expecting(k_full, P::TILE_BYTES);
            load_box(shared_address(smem.keys[stage]), k, 0, P::KEYS * tile, kv_head & 0xFFFF, kv_head >> 16, k_full);
            if (users < P::JOBS_PER_PASS) arrive_times(k_empty, 4 * (P::JOBS_PER_PASS - users));
            if (skips && tile == 0) begin_pass<P>(smem, state, round);
            const unsigned v_full = shared_address(&smem.values_full[stage]);
            wait(shared_address(&smem.values_empty[stage]), state.phase() ^ 1);
            arrive_expecting(v_full, P::TILE_BYTES);
            load_box(shared_address(smem.values[stage]), v, 0, P::KEYS * tile, kv_head & 0xFFFF, kv_head >> 16, v_full);
            state.advance();
        }
    }
}

// A warp transposes its part of each tile of V.
template <typename P, bool CAUSAL>
__device__ __forceinline__ void transpose_values(Shared8<P>& smem, const TileScheduler<P, CAUSAL>& scheduler, int warp) {
    const int lane = threadIdx.x % 32, matrix = lane / 8, row = lane % 8;
    // Four matrices: two of eight keys, for each of two chunks of 16 columns. Then even and odd columns of both chunks.
    const int key = matrix % 2 * 8 + row, in_chunk = matrix / 2;
    const int out_row = matrix * 8 + row;
    Stage<P::STAGES> state;
    for (int round = 0, pass; (pass = scheduler.pass(round)) >= 0; ++round) {
        int head, first_block, last_block;
        scheduler.work_tile(pass, head, first_block, last_block);
        const int tiles = scheduler.pass_tiles(first_block, last_block);
#pragma unroll 1
        for (int tile = 0; tile < tiles; ++tile) {
            const int stage = state.index();
            const unsigned empty = shared_address(&smem.empty[stage][1]);
            wait(shared_address(&smem.values_full[stage]), state.phase());
            wait(empty, state.phase() ^ 1);
            const int users = last_block + 1 - scheduler.first_user(tile, first_block);
            if (warp + lane == 0 && users < P::JOBS_PER_PASS) arrive_times(empty, 4 * (P::JOBS_PER_PASS - users));
            const unsigned from = shared_address(smem.values[stage]), to = shared_address(smem.transposed[stage]);
            constexpr int GROUPS = P::KEYS / 16, BATCH = P::D / 32;
#pragma unroll 1
            for (int group = warp; group < GROUPS; group += P::TRANSPOSERS) {
                const unsigned part = to + group / (P::KeyRow::PITCH / 16) * P::PART_BYTES;
                const int chunk = group % (P::KeyRow::PITCH / 16);
                unsigned in[BATCH][4];
#pragma unroll
                for (int i = 0; i < BATCH; ++i)
                    load_matrices_transposed(in[i], from + P::Row::offset(16 * group + key, 2 * i + in_chunk));
#pragma unroll
                for (int i = 0; i < BATCH; ++i) {
                    unsigned out[4];
                    interleave(in[i][0], in[i][1], out[0], out[1]);
                    interleave(in[i][2], in[i][3], out[2], out[3]);
                    store_matrices(part + P::KeyRow::offset(32 * i + out_row, chunk), out);
                }
            }
            publish_to_tma();
            __syncwarp();
            if (lane == 0) {
                arrive(shared_address(&smem.values_empty[stage]));
                arrive(shared_address(&smem.full[stage][1]));
            }
            state.advance();
        }
    }
}

// Another thread schedules the jobs of one consumer, one by one, and loads their Q.
template <typename T, typename P, bool CAUSAL>
__device__ __forceinline__ void schedule_jobs(Shared8<P>& smem, const TileScheduler<P, CAUSAL>& scheduler, const TensorMap& q,
                                              const AllScales& scales, int consumer) {
    const unsigned query_full = shared_address(smem.query_full[consumer]);
    const unsigned query_empty = shared_address(smem.query_empty[consumer]);
    Stage<P::STAGES> state;  // of the pass's first tile
    int index = consumer, idle_turns = 0, jobs = 0, round = 0;
    for (int pass; (pass = scheduler.pass(round)) >= 0; ++round) {
        int head, first_block, last_block;
        scheduler.work_tile(pass, head, first_block, last_block);
        const int pass_tiles = scheduler.pass_tiles(first_block, last_block);
        const int block = first_block + (CAUSAL ? P::JOBS_PER_PASS - 1 - scheduler.job_order(index) : index);
        const int tiles = (CAUSAL ? block >= 0 : block <= last_block) ? scheduler.block_tiles(block) : 0;
        if (tiles) {
            const int buffer = jobs % 2;
            const unsigned barrier = query_full + 8 * buffer;
            wait(query_empty + 8 * buffer, jobs / 2 % 2 ^ 1);
            const int own_head = scheduler.head_of(head, block), row = scheduler.first_row(block);
            const int batch = own_head >> 16, q_head = own_head & 0xFFFF, kv_head = scheduler.packed_kv(head) & 0xFFFF;
            const float both = scales.q.of(batch, q_head) * scales.k.of(batch, kv_head);
            // Scales of zeros may multiply to 0, by which a masked score would be no number.
            const float scale_log2 = fmaxf(both * scheduler.problem.scale * LOG2_E, 0x1p-126f);
            float value_scale = scales.v.of(batch, kv_head);
            // At most the largest number: infinity times an O of 0 would be none.
            if constexpr (sizeof(T) == 1)
                value_scale = fminf(value_scale * reciprocal(scales.o.of(batch, q_head)), 0x1.fffffep127f);
            smem.jobs[consumer][buffer] = {own_head, scheduler.problem.last_key + row, tiles, state.packed, idle_turns,
                                           round, scale_log2, value_scale};
            idle_turns = 0;
            arrive_expecting(barrier, P::QUERY_BYTES);
            load_box(shared_address(smem.query[consumer][buffer]), q, 0, row, q_head, batch, barrier);
            ++jobs;
        }
        idle_turns += pass_tiles - tiles;
        index = CAUSAL ? P::CONSUMERS - 1 - index : index;
        state.advance(pass_tiles);
    }
    const int buffer = jobs % 2;
    wait(query_empty + 8 * buffer, jobs / 2 % 2 ^ 1);
    smem.jobs[consumer][buffer].tiles = 0;
    smem.jobs[consumer][buffer].idle_turns = idle_turns;
    arrive(query_full + 8 * buffer);
}

// The bits of a thread's largest score of a row, 0 where none is above 0: those are ordered as their bits are, and of integers
// one instruction takes the largest of three.
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

// q, k, v: maps of (batch, heads, rows, D) of bytes; o: of T, which may be E4M3; any strides
template <typename T, int D, bool CAUSAL, int KEYS, int STAGES, int CONSUMERS, int PING_PONG, int SPLIT>
__global__ void __launch_bounds__(128 * (1 + CONSUMERS), 1)
fp8(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
    const __grid_constant__ TensorMap o, Problem problem, AllScales scales) {
    using P = Plan8<D, KEYS, STAGES, CONSUMERS, PING_PONG, SPLIT>;
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& smem = *reinterpret_cast<Shared8<P>*>(memory);
    init_barriers<P, CAUSAL>(smem, problem);
    if (threadIdx.x < 128) {
        give_registers<P::PRODUCER_REGISTERS>();
        const TileScheduler<P, CAUSAL> scheduler(problem);
        const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
        if (warp >= 2) transpose_values(smem, scheduler, warp - 2);
        else if (threadIdx.x == 0) load_tiles(smem, scheduler, k, v);
        else if (warp == 1 && threadIdx.x % 32 < CONSUMERS) schedule_jobs<T>(smem, scheduler, q, scales, threadIdx.x % 32);
        return;
    }

    take_registers<P::CONSUMER_REGISTERS>();
    const int consumer = __shfl_sync(~0u, threadIdx.x / 128 - 1, 0);
    const unsigned full = shared_address(smem.full), empty = shared_address(smem.empty);
    const unsigned query_full = shared_address(smem.query_full[consumer]);
    const unsigned queries = shared_address(smem.query[consumer][0]);
    const unsigned keys = shared_address(smem.keys), values = shared_address(smem.transposed);
    const unsigned thread_ids = shared_address(smem.thread_ids);
    if (P::PING_PONG && consumer == P::CONSUMERS - 1) ping_pong_signal<P::CONSUMERS>(consumer);

    Stage<P::STAGES> state;
    unsigned job = 0;  // counted from 0: its Q is in buffer `job % 2`
    RowState rows;
    Scores<P, CAUSAL> scores;
    scores.tile = 0, scores.keys = problem.keys;
    float scale_log2 = 0;
    float out[D / 2], product[P::PRODUCTS][P::COLUMNS / 2];  // O, and what the tensor cores sum, with few bits
    unsigned p[KEYS / 32][4];
    int tiles = (problem.keys + KEYS - 1) / KEYS;

    const auto begin_job = [&] {
        const auto& scheduled = smem.jobs[consumer][job % 2];
        if (P::PING_PONG)
#pragma unroll 1
            for (int turns = scheduled.idle_turns; turns > 0; --turns)
                ping_pong_wait(consumer), ping_pong_signal<P::CONSUMERS>(consumer);
        scores.tile = 0;
        rows.row_sum[0] = rows.row_sum[1] = 0;
        state.packed = __shfl_sync(~0u, scheduled.pipeline_state, 0);
        scale_log2 = scheduled.scale_log2;
        if (CAUSAL) tiles = __shfl_sync(~0u, scheduled.tiles, 0);
        const bool begins = scheduled.tiles;
        if (begins) wait_until_above(shared_address(&smem.passes_begun), scheduled.round);
        return begins;
    };
    const auto multiply_query_by_keys = [&] {
        const auto q_tile = P::Row::descriptor(queries + job % 2 * P::OUT_BYTES);
        const auto k_tile = P::Row::descriptor(keys + state.index() * P::TILE_BYTES);
#pragma unroll
        for (int d = 0; d < D / 32; ++d) multiply_e4m3(scores.s, advanced(q_tile, 32 * d), advanced(k_tile, 32 * d), d);
        commit_products();
    };
    // Product `part` of a tile: of the first keys with all columns, then of the others.
    const auto multiply_probabilities_by_values = [&](int part) {
        const auto v_tile = P::KeyRow::descriptor(values + state.index() * P::PARTS * P::PART_BYTES);
        constexpr int STEPS = P::KeyRow::PITCH / 32, SIDES = D / P::COLUMNS;  // in a part of V transposed; of columns
        const int columns = part % SIDES * P::COLUMNS * P::KeyRow::PITCH, first = part / SIDES * (P::DEPTH / 32);
#pragma unroll
        for (int j = 0; j < P::DEPTH / 32; ++j) {
            const int step = first + j, bytes = columns + step / STEPS * P::PART_BYTES + step % STEPS * 32;
            multiply_e4m3(product[part], p[step], advanced(v_tile, bytes), j);
        }
        commit_products();
    };
    // Scores become probabilities, relative to the largest of their row so far.
    const auto exponentiate = [&] {
        const int diagonal = CAUSAL ? smem.jobs[consumer][job % 2].diagonal : 0;
        if (KEYS * (scores.tile + 1) > scores.unmasked(diagonal)) scores.mask(diagonal, reload_thread(thread_ids));
        if (scores.tile == 0) rows.offset[0] = rows.offset[1] = -infinity();
        float offset[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            int largest = largest_bits(scores.s, half);
            largest = max(largest, __shfl_xor_sync(~0u, largest, 1));
            largest = max(largest, __shfl_xor_sync(~0u, largest, 2));
            offset[half] = fmaxf(rows.offset[half], __int_as_float(largest) * scale_log2 - LARGEST);
        }
        // A row that had no score above 0.
        if (__any_sync(~0u, offset[0] == -LARGEST || offset[1] == -LARGEST)) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float largest = -infinity();
#pragma unroll
                for (int n = 2 * half; n < KEYS / 2; n += 4) largest = fmaxf(largest, fmaxf(scores.s[n], scores.s[n + 1]));
                offset[half] = fmaxf(rows.offset[half], quad_max(largest) * scale_log2 - LARGEST);
            }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            rows.rescale[half] = exp2_approx(rows.offset[half] - offset[half]);
            rows.offset[half] = offset[half];
        }
#pragma unroll
        for (int n = 0; n < KEYS / 2; ++n) scores.s[n] = exp2_approx(scores.s[n] * scale_log2 - offset[n / 2 % 2]);
#pragma unroll
        for (int half = 0; half < 2; ++half)
            rows.row_sum[half] = rows.row_sum[half] * rows.rescale[half] + sum_of(scores.s, half);
    };
    const auto pack_probabilities = [&] {
#pragma unroll
        for (int n = 0; n < KEYS / 8; ++n) {
            const int c = n / 2 * 8 + n % 2 * 2;  // sixteen keys, one of the two rows
            p[n / 4][n % 4] = pack_e4m3(scores.s[c], scores.s[c + 1], scores.s[c + 4], scores.s[c + 5]);
        }
    };
    // O by what its rows are multiplied with, plus product `part`.
    const auto promote = [&](int part) {
        constexpr int SIDES = D / P::COLUMNS;
#pragma unroll
        for (int n = 0; n < P::COLUMNS / 2; ++n) {
            float& sum = out[part % SIDES * P::COLUMNS / 2 + n];
            sum = (part < SIDES ? sum * rows.rescale[n / 2 % 2] : sum) + product[part][n];
        }
    };
    const auto store_row_sums = [&] {
        const unsigned thread = reload_thread(thread_ids), lane = thread % 32, warp = thread / 32;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float row_sum = quad_sum(rows.row_sum[half]);
            if (lane % 4 == 0) smem.row_sum[consumer][16 * warp + lane / 4 + 8 * half] = row_sum;
        }
        __syncwarp();
    };
    // O of a job goes where its Q was, and out. Four consecutive columns are in two blocks of the accumulator.
    const auto store_out = [&](int buffer) {
        const unsigned thread = reload_thread(thread_ids), lane = thread % 32, warp = thread / 32;
        const unsigned out_tile = queries + buffer * P::OUT_BYTES;
        const auto& ended = smem.jobs[consumer][buffer];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const unsigned row = 16 * warp + lane / 4 + 8 * half;
            const float factor = ended.value_scale * reciprocal(smem.row_sum[consumer][row]);
#pragma unroll
            for (int d = 0; d < D / 16; ++d) {
                const float* const both = out + 8 * d + 2 * half;
                if constexpr (sizeof(T) == 1) {
                    const unsigned four =
                        pack_e4m3(both[0] * factor, both[4] * factor, both[1] * factor, both[5] * factor);
                    const unsigned to = out_tile + P::Row::offset(row, d) + lane % 4 * 4;
                    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(four) : "memory");
                } else {
                    const unsigned low = pack<T>(both[0] * factor, both[4] * factor);
                    const unsigned high = pack<T>(both[1] * factor, both[5] * factor);
                    const unsigned to =
                        out_tile + d / 4 * 64 * 128 + swizzled_offset(row, d % 4 * 2 + lane % 4 / 2) + lane % 2 * 8;
                    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(low), "r"(high) : "memory");
                }
            }
        }
#pragma unroll
        for (int n = 0; n < D / 2; ++n) out[n] = 0;
        publish_to_tma();
        synchronize(1 + consumer, 128);
        if (threadIdx.x % 128 == 0) {
            for (int c = 0; c < (sizeof(T) == 1 ? 1 : P::OUT_COLUMNS); ++c)
                store_box(o, 64 * c, ended.diagonal - problem.last_key, ended.head & 0xFFFF, ended.head >> 16,
                          out_tile + c * 64 * 128);
            commit_stores();
        }
    };
    bool storing = false;  // O of the job before is on its way: its memory waits for the next job's Q
    const auto release_query = [&] {
        if (storing && threadIdx.x % 128 == 0) {
            wait_for_stores();
            arrive(shared_address(smem.query_empty[consumer]) + 8 * (job % 2 ^ 1));
        }
        storing = false;
    };

#pragma unroll
    for (int n = 0; n < D / 2; ++n) out[n] = 0;
    wait(query_full, 0);
    if (!begin_job()) return;
    for (;;) {
        const unsigned k_full = full + 16 * state.index(), v_full = k_full + 8;
        const unsigned k_empty = empty + 16 * state.index(), v_empty = k_empty + 8;
        if (P::PING_PONG) ping_pong_wait(consumer);
        wait(k_full, state.phase());
        begin_products();
        multiply_query_by_keys();
        finish_products<0>(scores.s);
        if (P::PING_PONG) ping_pong_signal<P::CONSUMERS>(consumer);
        arrive_for_warp(k_empty);
        release_query();
        exponentiate();
        pack_probabilities();
        wait(v_full, state.phase());
        begin_products();
#pragma unroll
        for (int part = 0; part < P::PRODUCTS; ++part) multiply_probabilities_by_values(part);
#pragma unroll
        for (int part = 0; part < P::PRODUCTS; ++part) {
            if (part + 1 < P::PRODUCTS) finish_products<1>(product[part]);
            else finish_products<0>(product[part]);
            promote(part);
        }
        arrive_for_warp(v_empty);
        state.advance();
        if (++scores.tile < tiles) continue;
        store_row_sums();
        store_out(job % 2);
        storing = true;
        ++job;
        wait(query_full + 8 * (job % 2), job / 2 % 2);
        if (!begin_job()) break;
    }
    if (threadIdx.x % 128 == 0) wait_for_stores();
}
