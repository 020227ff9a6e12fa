// Rung 13: Q, K and V in e4m3, with a scale for each head.
//
// Does    rung 11's pipeline with products of 8-bit numbers, at twice the rate. Two warps of the producer transpose each tile
//         of V in shared memory (e4m3.cuh). Probabilities are at most 2^(8 - HEADROOM) where a job begins; once one rises above
//         448, the tile and O are multiplied by a power of two. The tensor cores add with 14 bits: after PROMOTE tiles their
//         sums are added to O, which is in fp32. A column of ones in V sums the rounded probabilities, tile by tile; where all
//         are so small that many are rounded to nothing, and in exact tiles, additions sum them. O leaves in fp16 or bf16.
// Gained  nothing where sums are promoted: 0.98x of rung 11 in fp16 at (4, 16, 4096, 128) on normal values, 0.84x where scores
//         rise, where 1.16x was expected; and the largest error is up to 3.4 times the formula's without the mask, since a
//         row's largest probability is rounded too. Three consumers without promotion gain 1.27x, and are wrong by 250 times
//         the formula's error where V has a mean, as cuDNN's FP8 is (NOTES.md).
// Limits  shared memory, which each consumer reads for itself; registers, of which promotion takes 64. e4m3 holds 18 powers of
//         two: a probability of 2^-(17 - HEADROOM) of the largest is 0, and below 2^-(14 - HEADROOM) it has fewer bits.
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
struct AllScales { Scales q, k, v; };

// Floats as integers above this don't fit into e4m3.
constexpr int LARGEST_BITS = 0x43E00000, INFINITY_BITS = 0x7F800000;  // 448
// Of a tile whose largest is below 2^-4, too much is rounded to nothing, below 2^-10.
constexpr int SMALL_BITS = 0x3D800000;

// How one instance works, as in jobs.cuh. With PROMOTE, after so many tiles; with ONES, V has 8 columns of ones more.
template <int D_, int KEYS_, int STAGES_, int CONSUMERS_, int PING_PONG_, int PROMOTE_, int ONES_>
struct Plan8 {
    static constexpr int D = D_, KEYS = KEYS_, STAGES = STAGES_, CONSUMERS = CONSUMERS_, JOBS_PER_PASS = CONSUMERS_;
    static constexpr bool PING_PONG = PING_PONG_, ONES = ONES_;
    static constexpr int PROMOTE = PROMOTE_, WIDTH = D / 2 + 4 * ONES_, TRANSPOSERS = 2;
    static constexpr int THREADS = 128 * (1 + CONSUMERS), OUT_COLUMNS = D / 64;
    using Row = Swizzle<D>;        // of Q, K and V
    using KeyRow = Swizzle<KEYS>;  // of V transposed, in parts of PITCH keys
    static constexpr int QUERY_BYTES = 64 * D, OUT_BYTES = 64 * D * 2, TILE_BYTES = KEYS * D;
    static constexpr int PART_BYTES = (D + 8 * ONES) * KeyRow::PITCH, PARTS = (KEYS + KeyRow::PITCH - 1) / KeyRow::PITCH;
    static constexpr int PRODUCER_REGISTERS = CONSUMERS == 2 ? 40 : 32;
    static constexpr int CONSUMER_REGISTERS = CONSUMERS == 2 ? 232 : CONSUMERS == 3 ? 160 : 112;
    static_assert(KEYS % 32 == 0, "a product with V takes 32 keys");
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
        int head, diagonal, tiles, pipeline_state, idle_turns, round, drains;  // as in jobs.cuh
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
    if (P::ONES && threadIdx.x < 128) {
        constexpr int WORDS = 8 * P::KeyRow::PITCH / 4;
        for (int part = 0; part < P::STAGES * P::PARTS; ++part)
            for (int i = threadIdx.x; i < WORDS; i += 128)
                reinterpret_cast<unsigned*>(&smem.transposed[0][0] + part * P::PART_BYTES + P::D * P::KeyRow::PITCH)[i] = 0x38383838;
        publish_to_tma();
    }
    __syncthreads();
}

template <typename P>
__device__ __forceinline__ void begin_pass(Shared8<P>& smem, const PipelineState<P::STAGES>& state, int round) {
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
    PipelineState<P::STAGES> state;
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
    PipelineState<P::STAGES> state;
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
template <typename P, bool CAUSAL>
__device__ __forceinline__ void schedule_jobs(Shared8<P>& smem, const TileScheduler<P, CAUSAL>& scheduler, const TensorMap& q,
                                              const AllScales& scales, int consumer) {
    const unsigned query_full = shared_address(smem.query_full[consumer]);
    const unsigned query_empty = shared_address(smem.query_empty[consumer]);
    PipelineState<P::STAGES> state;  // of the pass's first tile
    int index = consumer, idle_turns = 0, jobs = 0, round = 0, tiles_since = 0;
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
            const bool drains = tiles_since >= P::STAGES || idle_turns + 2 > P::STAGES;
            const int batch = head >> 16, q_head = head & 0xFFFF, kv_head = scheduler.packed_kv(head) & 0xFFFF;
            const float both = scales.q.of(batch, q_head) * scales.k.of(batch, kv_head);
            // Scales of zeros may multiply to 0, by which a masked score would be no number.
            const float scale_log2 = fmaxf(both * scheduler.problem.scale * LOG2_E, 0x1p-126f);
            smem.jobs[consumer][buffer] = {head, scheduler.problem.earlier + 64 * block, tiles, state.packed, idle_turns,
                                           round, drains, scale_log2,
                                           scales.v.of(batch, kv_head)};
            tiles_since = 1 - tiles;
            idle_turns = 0;
            arrive_expecting(barrier, P::QUERY_BYTES);
            load_box(shared_address(smem.query[consumer][buffer]), q, 0, 64 * block, q_head, batch, barrier);
            ++jobs;
        }
        idle_turns += pass_tiles - tiles;
        index = CAUSAL ? P::CONSUMERS - 1 - index : index;
        tiles_since += pass_tiles;
        state.advance(pass_tiles);
    }
    const int buffer = jobs % 2;
    wait(query_empty + 8 * buffer, jobs / 2 % 2 ^ 1);
    smem.jobs[consumer][buffer].tiles = 0;
    smem.jobs[consumer][buffer].idle_turns = idle_turns;
    smem.jobs[consumer][buffer].drains = 1;
    arrive(query_full + 8 * buffer);
}

// Floats above 0 are ordered as their bits are, and of integers one instruction takes the largest of three.
template <int N> __device__ __forceinline__ int largest_bits(const float (&s)[N], int half) {
    int largest = 0;
#pragma unroll
    for (int n = 2 * half; n < N; n += 4) largest = max(max(__float_as_int(s[n]), __float_as_int(s[n + 1])), largest);
    return largest;
}

template <bool SECOND, typename A, typename B> __device__ __forceinline__ auto& second_if(A& first, B& second) {
    if constexpr (SECOND) return second;
    else return first;
}

template <int N> __device__ __forceinline__ float sum_of(const float (&s)[N], int half) {
    float tile_sum = 0;
#pragma unroll
    for (int n = 2 * half; n < N; n += 4) tile_sum += s[n] + s[n + 1];
    return tile_sum;
}

// q, k, v: maps of (batch, heads, rows, D) of bytes; o: of T; any strides
template <typename T, int D, bool CAUSAL, int KEYS, int STAGES, int CONSUMERS, int PING_PONG, int PROMOTE, int ONES, int HEADROOM>
__global__ void __launch_bounds__(128 * (1 + CONSUMERS), 1)
fp8(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
    const __grid_constant__ TensorMap o, Problem problem, AllScales scales) {
    using P = Plan8<D, KEYS, STAGES, CONSUMERS, PING_PONG, PROMOTE, ONES>;
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& smem = *reinterpret_cast<Shared8<P>*>(memory);
    init_barriers<P, CAUSAL>(smem, problem);
    if (threadIdx.x < 128) {
        give_registers<P::PRODUCER_REGISTERS>();
        const TileScheduler<P, CAUSAL> scheduler(problem);
        const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
        if (warp >= 2) transpose_values(smem, scheduler, warp - 2);
        else if (threadIdx.x == 0) load_tiles(smem, scheduler, k, v);
        else if (warp == 1 && threadIdx.x % 32 < CONSUMERS) schedule_jobs(smem, scheduler, q, scales, threadIdx.x % 32);
        return;
    }

    constexpr int WIDTH = P::WIDTH;
    take_registers<P::CONSUMER_REGISTERS>();
    const int consumer = __shfl_sync(~0u, threadIdx.x / 128 - 1, 0);
    const unsigned full = shared_address(smem.full), empty = shared_address(smem.empty);
    const unsigned query_full = shared_address(smem.query_full[consumer]);
    const unsigned queries = shared_address(smem.query[consumer][0]);
    const unsigned keys = shared_address(smem.keys), values = shared_address(smem.transposed);
    const unsigned thread_ids = shared_address(smem.thread_ids);
    if (P::PING_PONG && consumer == P::CONSUMERS - 1) ping_pong_signal<P::CONSUMERS>(consumer);

    PipelineState<P::STAGES> k_state, v_state;
    unsigned job = 0;  // counted from 0: its Q is in buffer `job % 2`
    RowState rows;
    Scores<P, CAUSAL> scores;
    scores.tile = 0, scores.keys = problem.keys;
    float scale_log2 = 0;
    float out[PROMOTE ? D / 2 : WIDTH], sums[PROMOTE ? WIDTH : 1];  // of the tensor cores, since `out` last had them
    auto& product = second_if<PROMOTE != 0>(out, sums);
    unsigned p[KEYS / 32][4];
    bool added = true;   // whether additions sum the tile's probabilities, not the column of ones
    int since = 0;  // tiles in `product`
    int rises = 0;  // in a row, of tiles of this job
    int tiles = (problem.keys + KEYS - 1) / KEYS;

    const auto begin_job = [&] {
        const auto& scheduled = smem.jobs[consumer][job % 2];
        if (P::PING_PONG)
#pragma unroll 1
            for (int turns = scheduled.idle_turns; turns > 0; --turns)
                ping_pong_wait(consumer), ping_pong_signal<P::CONSUMERS>(consumer);
        scores.tile = 0;
        rows.row_sum[0] = rows.row_sum[1] = 0;
        k_state.packed = __shfl_sync(~0u, scheduled.pipeline_state, 0);
        scale_log2 = scheduled.scale_log2;
        if (CAUSAL) tiles = __shfl_sync(~0u, scheduled.tiles, 0);
        const bool begins = scheduled.tiles;
        if (begins) wait_until_above(shared_address(&smem.passes_begun), scheduled.round);
        return begins;
    };
    const auto multiply_query_by_keys = [&] {
        const auto q_tile = P::Row::descriptor(queries + job % 2 * P::OUT_BYTES);
        const auto k_tile = P::Row::descriptor(keys + k_state.index() * P::TILE_BYTES);
#pragma unroll
        for (int d = 0; d < D / 32; ++d) multiply_e4m3(scores.s, advanced(q_tile, 32 * d), advanced(k_tile, 32 * d), d);
        commit_products();
    };
    const auto multiply_probabilities_by_values = [&] {
        const auto v_tile = P::KeyRow::descriptor(values + v_state.index() * P::PARTS * P::PART_BYTES);
        constexpr int STEPS = P::KeyRow::PITCH / 32;  // in a part
#pragma unroll
        for (int j = 0; j < KEYS / 32; ++j)
            multiply_e4m3(product, p[j], advanced(v_tile, j / STEPS * P::PART_BYTES + j % STEPS * 32), j ? 1 : since);
        commit_products();
    };
    // The tile's scores once more, by this warp alone.
    const auto recompute = [&] {
        const unsigned thread = reload_thread(thread_ids), lane = thread % 32, warp = thread / 32;
#pragma unroll
        for (int n = 0; n < KEYS / 2; ++n) scores.s[n] = 0;
        const unsigned q_tile = queries + job % 2 * P::OUT_BYTES, k_tile = keys + k_state.index() * P::TILE_BYTES;
#pragma unroll 1
        for (unsigned d = 0; d < D / 32; ++d) {
            unsigned a[4];
            load_matrices(a, q_tile + P::Row::offset(16 * warp + lane % 16, 2 * d + lane / 16));
#pragma unroll
            for (int n = 0; n < KEYS / 8; n += 2) {
                unsigned b[4];
                load_matrices(b, k_tile + P::Row::offset(8 * n + lane / 16 * 8 + lane % 8, 2 * d + lane / 8 % 2));
                multiply<E4M3>(reinterpret_cast<float(&)[4]>(scores.s[4 * n]), a, b[0], b[1]);
                multiply<E4M3>(reinterpret_cast<float(&)[4]>(scores.s[4 * n + 4]), a, b[2], b[3]);
            }
        }
    };
    // Sums of rows are of probabilities that are not rounded, since small ones are rounded away, but for a thread's largest of
    // each row: where one takes most of a row, its rounding changes numerator and denominator alike.
    const auto add_rounding = [&](const float (&largest)[2]) {
        float change[2];
        rounding(change, largest);
        rows.row_sum[0] += change[0], rows.row_sum[1] += change[1];
    };
    const auto add_to_sums = [&](const float (&largest)[2]) {
        rows.row_sum[0] += sum_of(scores.s, 0), rows.row_sum[1] += sum_of(scores.s, 1);
        add_rounding(largest);
    };
    // Scores become probabilities; whether O has to be multiplied by `rows.rescale`.
    const auto exponentiate = [&] {
        const int diagonal = CAUSAL ? smem.jobs[consumer][job % 2].diagonal : 0;
        const bool masked = KEYS * (scores.tile + 1) > scores.unmasked(diagonal);
        if (masked) scores.mask(diagonal, reload_thread(thread_ids));
        if (scores.tile == 0) rises = 0;
        added = true;
        if (scores.tile && rises < 2) {
#pragma unroll
            for (int n = 0; n < KEYS / 2; ++n) scores.s[n] = exp2_approx(scores.s[n] * scale_log2 - rows.offset[n / 2 % 2]);
            int largest[2] = {largest_bits(scores.s, 0), largest_bits(scores.s, 1)};
            float own[2] = {__int_as_float(largest[0]), __int_as_float(largest[1])};
            if (!__any_sync(~0u, max(largest[0], largest[1]) > LARGEST_BITS)) {
                // Where all are small, rounding takes a part of them.
                if (ONES) added = __any_sync(~0u, min(largest[0], largest[1]) < SMALL_BITS);
                if (added) add_to_sums(own);
                rises = 0;
                return false;
            }
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                largest[half] = max(largest[half], __shfl_xor_sync(~0u, largest[half], 1));
                largest[half] = max(largest[half], __shfl_xor_sync(~0u, largest[half], 2));
            }
            if (!__any_sync(~0u, max(largest[0], largest[1]) >= INFINITY_BITS)) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int exponent = max(0, (largest[half] + 0x7FFFFF >> 23) - 127 - (8 - HEADROOM));
                    rows.offset[half] += exponent;
                    rows.rescale[half] = __int_as_float((127 - exponent) << 23);
                    rows.row_sum[half] *= rows.rescale[half];
                    own[half] *= rows.rescale[half];
#pragma unroll
                    for (int n = 2 * half; n < KEYS / 2; n += 4) {
                        scores.s[n] *= rows.rescale[half];
                        scores.s[n + 1] *= rows.rescale[half];
                    }
                }
                add_to_sums(own);
                ++rises;
                return true;
            }
            recompute();
            if (masked) scores.mask(diagonal, reload_thread(thread_ids));
        }
        if (scores.tile == 0) rows.offset[0] = rows.offset[1] = -infinity();
        rows.exponentiate(scores.s, scale_log2, HEADROOM - 8);
        const float own[2] = {__int_as_float(largest_bits(scores.s, 0)), __int_as_float(largest_bits(scores.s, 1))};
        add_rounding(own);
        rises = scores.tile && __any_sync(~0u, fminf(rows.rescale[0], rows.rescale[1]) < 3e-5f) ? 2 : 0;
        return scores.tile > 0;
    };
    const auto pack_probabilities = [&] {
#pragma unroll
        for (int n = 0; n < KEYS / 8; ++n) {
            const int c = n / 2 * 8 + n % 2 * 2;  // sixteen keys, one of the two rows
            p[n / 4][n % 4] = pack_e4m3(scores.s[c], scores.s[c + 1], scores.s[c + 4], scores.s[c + 5]);
        }
    };
    const auto promote = [&] {
        if (PROMOTE)
#pragma unroll
            for (int n = 0; n < D / 2; ++n) out[n] += product[n];
        since = 0;
    };
    // The tensor cores' sum of a tile's rows is taken after each tile: they add with few bits, and lose what is small.
    const auto take_ones = [&](bool added, bool rescale) {
        if (!ONES) return;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float sum = 0.25f * product[WIDTH - 4 + 2 * half];  // four threads have it
            if (!added) rows.row_sum[half] += rescale ? sum * rows.rescale[half] : sum;
            product[WIDTH - 4 + 2 * half] = 0;
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
    const auto store_out = [&](int buffer, bool added) {
        const unsigned thread = reload_thread(thread_ids), lane = thread % 32, warp = thread / 32;
        const unsigned out_tile = queries + buffer * P::OUT_BYTES;
        const auto& ended = smem.jobs[consumer][buffer];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const unsigned row = 16 * warp + lane / 4 + 8 * half;
            const float row_sum = smem.row_sum[consumer][row] + (added ? 0 : product[WIDTH - 4 + 2 * half]);
            const float factor = ended.value_scale * reciprocal(row_sum);
#pragma unroll
            for (int d = 0; d < D / 16; ++d) {
                const float* const both = out + 8 * d + 2 * half;
                const unsigned low = pack<T>(both[0] * factor, both[4] * factor);
                const unsigned high = pack<T>(both[1] * factor, both[5] * factor);
                const unsigned to = out_tile + d / 4 * 64 * 128 + swizzled_offset(row, d % 4 * 2 + lane % 4 / 2) + lane % 2 * 8;
                asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(low), "r"(high) : "memory");
            }
        }
        if (PROMOTE)
#pragma unroll
            for (int n = 0; n < D / 2; ++n) out[n] = 0;
        publish_to_tma();
        synchronize(1 + consumer, 128);
        if (threadIdx.x % 128 == 0) {
            for (int c = 0; c < P::OUT_COLUMNS; ++c)
                store_box(o, 64 * c, ended.diagonal - problem.earlier, ended.head & 0xFFFF, ended.head >> 16,
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
    const auto drains = [&] { return smem.jobs[consumer][job % 2].drains; };

    if (PROMOTE)
#pragma unroll
        for (int n = 0; n < D / 2; ++n) out[n] = 0;
    wait(query_full, 0);
    if (!begin_job()) return;
    if (P::PING_PONG) ping_pong_wait(consumer);
    wait(full + 16 * k_state.index(), k_state.phase());
    begin_products();
    multiply_query_by_keys();
    finish_products<0>(scores.s);
    if (P::PING_PONG) ping_pong_signal<P::CONSUMERS>(consumer);
    exponentiate();
    arrive_for_warp(empty + 16 * k_state.index());
    pack_probabilities();

    for (;;) {
        const bool ends = scores.tile + 1 == tiles;  // the job of the probabilities at hand ends with them
        const bool before = added;
        v_state = k_state;
        if (ends) {
            store_row_sums();
            release_query();
            ++job;
            wait(query_full + 8 * (job % 2), job / 2 % 2);
            if (drains()) {
                wait(full + 16 * v_state.index() + 8, v_state.phase());
                begin_products();
                multiply_probabilities_by_values();
                finish_products<0>(product);
                arrive_for_warp(empty + 16 * v_state.index() + 8);
                promote();
                store_out(job % 2 ^ 1, !ONES || before);
                storing = true;
            }
            if (!begin_job()) break;
        } else {
            ++scores.tile;
            k_state.advance();
        }
        if (P::PING_PONG) ping_pong_wait(consumer);
        wait(full + 16 * k_state.index(), k_state.phase());
        begin_products();
        multiply_query_by_keys();
        if (!ends || !drains()) wait(full + 16 * v_state.index() + 8, v_state.phase());
        begin_products();
        multiply_probabilities_by_values();  // after a drain for nothing: no product may depend on a condition
        if (P::PING_PONG) ping_pong_signal<P::CONSUMERS>(consumer);
        release_query();
        finish_products<1>(scores.s);
        const bool rescale = exponentiate();
        arrive_for_warp(empty + 16 * k_state.index());
        finish_products<0>(product);
        ++since;
        if (!ends) {
            arrive_for_warp(empty + 16 * v_state.index() + 8);
            take_ones(before, rescale);
            if (PROMOTE && since == PROMOTE) promote();
        } else if (!drains()) {
            arrive_for_warp(empty + 16 * v_state.index() + 8);
            promote();
            store_out(job % 2 ^ 1, !ONES || before);
            storing = true;
        } else {
            since = 0;
        }
        if (rescale) {  // by this warp alone: whether products are added to is the same for all four
#pragma unroll
            for (int n = 0; n < D / 2; ++n) {
                out[n] *= rows.rescale[n / 2 % 2];
                if (PROMOTE) product[n] *= rows.rescale[n / 2 % 2];
            }
        }
        pack_probabilities();
    }
    if (threadIdx.x % 128 == 0) wait_for_stores();
}
