// Backward: dQ, dK and dV of attention, the same bits each time.
//
// Does    a persistent CTA for each multiprocessor. It keeps a block of 128 keys, 64 for each of two warpgroups, with dK and
//         dV in registers, and goes through the tiles of M queries that see them, of all query heads that share K and V: so
//         no sum of dK or dV leaves the CTA before it is complete. S and dP are computed transposed, keys by queries, so that
//         P and dS are already the register operands of dV += P^T dO and dK += dS^T Q. dS goes to shared memory once, for
//         dQ = dS K, in halves of the columns (D = 128) or queries (D = 64). dQ leaves through shared memory: TMA adds it to
//         floats in global memory, each tile's in an order that the schedule in backward.cuh fixes. As soon as a tile has had
//         all its turns, a warp that has nothing else to do rounds it. The edge of a block of keys: D = 64 holds K and V twice,
//         and dK and dV leave together from a place of dS, so that the next block's loads run ahead. D = 128 gives V back
//         behind the last dP, dV leaves by the last stage and dK by dS, and the L2 takes the next block's tiles ahead. Where heads
//         of at most 512 queries are many, at D = 64, a CTA takes whole heads, and waits for nobody's additions.
// Order   of a step. D = 128, M = 64: dP is issued once S is there, exponentials run beside it, then dS is computed. dV and dK
//         are issued, and dS is stored beside them. S of the next step is issued behind dK, once dV is over. A third warpgroup
//         computes dQ, one half after the other, and stores it for TMA. dS has two buffers, so consumers wait for that
//         warpgroup only if it is a step late, and one consumer may be a step ahead of the other. Readers of dS and dQ fence
//         them, not the warps that store them: a proxy fence has to be on the path from the write to the access by the other
//         proxy, and in the CTA of that access (Lustig, Cooksey and Giroux, Mixed-proxy extensions, ISCA 2022, section 5.4).
//         D = 64, M = 128: dV and dK are issued as soon as dS is in registers, then S of the next step, and then dQ, of which
//         each warpgroup computes a half. Half of the exponentials run beside dQ, the others beside dP. A warpgroup may be half
//         a step behind the other: one has products under way while the other computes.
// Gained  backward pass alone on an H200, time over that without. D = 128, bf16: dQ by a third warpgroup 0.91 to 0.92, of which
//         dK before dS's stores 0.96 to 0.97; readers' fences 0.98 to 1.01; with them, the edge of a block 0.98 to 0.99.
//         D = 64: the edge of a block 0.97; whole heads 0.92 and 0.93 at (32, 8, 512), full and causal.
// Limits  in a step (cycles of a multiprocessor):
//                                                          D = 128, M = 64    D = 64, M = 128
//           products                                       5 x 512 = 2560     5 x 512 = 2560
//           shared memory, 128 bytes each: S and dP        2 x 512            2 x 384
//                                          dQ              512                512
//                                          dV and dK       2 x 256            2 x 256
//                                          dS              128                256
//                                          dQ as floats    2 x 256            2 x 256
//                                          Q and dO        256                256
//                                          together        2944               2816
//           exponentials                                   8192 / 16 = 512    16384 / 16 = 1024
//         so shared memory has the most to do. At D = 128, products of two shared operands, S, dP and dQ, have N = 64 and take
//         1.4 times as long. When consumers computed dQ, products alone took 3100 to 3280 cycles, and all else 3260 to 3530.
//           measured on an H200 at D = 128, bf16, with all kernels of the pass counted: 3870 cycles at (4, 16, 4096), 4050 the
//         same causal, 3720 at (1, 16, 16384) causal, at 1.67 to 1.68 GHz. At D = 64: 5550 at (8, 16, 2048) causal, bf16, and
//         7800 at (32, 8, 512), fp16, where blocks of keys are short.
//           registers of a consumer. D = 128, of 208: dK and dV 128, S or dP 32, P 32, or P and dS in 16 bits 32. D = 64, of
//         240: dK and dV 64, S 64, dP 64, P 32 = 224; dS takes the place of S and dP.
//           stages. D = 128: three, which just fit; two with K twice take 0.98 to 1.01 of their time. D = 64: two, as one is
//         free a step before it is needed.
//         Additions cost no waiting while one takes less than two steps of 64 queries, or one of 128, from its begin to the
//         next CTA's (model). The turns take a thread that polls, and the last two steps of a head come at once.
//
// In ptxas 13.0, all wgmma wait for one another if registers that one reads are written while another that reads registers is
// under way, if one that reads registers is under way at a loop's end, or if registers don't suffice. Accumulators begin at
// R24, so that a warpgroup with N of them needs more than 24 + N registers: hence dP in place of S at D = 128.
#include "backward.cuh"

constexpr int CONSUMERS = 2;
// Whether a third warpgroup computes dQ.
template <int D> constexpr bool APART = D == 128;
template <int D> constexpr int THREADS = 128 * (1 + CONSUMERS + APART<D>);
// setmaxnreg: registers of a thread of each warpgroup, 504 together at D = 64 and 512 at D = 128.
template <int D> constexpr int PRODUCER_REGISTERS = APART<D> ? 32 : 24;
template <int D> constexpr int CONSUMER_REGISTERS = APART<D> ? 208 : 240;
constexpr int DQ_REGISTERS = 64;
// Blocks of keys of which K and V are held at once. With two, loads run ahead over the edge of a block.
template <int D> constexpr int BLOCKS = D == 64 ? 2 : 1;

// Where K and V of a block of keys are, and the parity of the phase in which they come, by the parities of the number of blocks
// before it and of half that number.
template <int D> __device__ __forceinline__ unsigned place_of(unsigned parity) { return BLOCKS<D> == 1 ? 0 : parity; }
template <int D> __device__ __forceinline__ unsigned phase_of(unsigned parity, unsigned half) {
    return BLOCKS<D> == 1 ? parity : half;
}

template <int D, int M, int STAGES> struct SharedStorage {
    static_assert(D * M == 8192);  // dQ of a warpgroup has 64 rows and 64 columns
    static constexpr int COLUMNS = D / 64;  // tiles of 64 columns beside each other
    static constexpr int TILE_BYTES = M * D * 2, BLOCK_BYTES = KEYS * D * 2, SUM_BYTES = M * D * 2;  // sums: of a warpgroup
    unsigned char k[BLOCKS<D>][BLOCK_BYTES], v[BLOCKS<D>][BLOCK_BYTES];
    unsigned char q[STAGES][TILE_BYTES], dout[STAGES][TILE_BYTES];
    unsigned char ds[2][CONSUMERS][M * 128];  // of a step and the next; then dK, and at D = 64 dV
    unsigned char sums[CONSUMERS][SUM_BYTES];
    alignas(128) float negated[STAGES][M], delta[STAGES][M];
    int ahead[STAGES];  // of a stage's first query's last key, the first key of the block
    Part blocks[2];     // of this block of keys and the next; no steps: the end
    int finished;       // parts of tiles of dQ that somebody has taken to finish
    unsigned long long q_full[STAGES], q_empty[STAGES], dout_full[STAGES], dout_empty[STAGES];
    unsigned long long k_full[BLOCKS<D>], v_full[BLOCKS<D>], k_empty[BLOCKS<D>], v_empty[BLOCKS<D>];
    unsigned long long sums_full[2][CONSUMERS], sums_empty[CONSUMERS], ds_full[2], ds_empty[2];
};

// One thread loads K, V, Q and dO with what belongs to their rows.
template <int D, int M, int STAGES>
__device__ __forceinline__ void load(SharedStorage<D, M, STAGES>& smem, const TensorMap& q, const TensorMap& k,
                                     const TensorMap& v, const TensorMap& dout, const Gradients& problem) {
    using Storage = SharedStorage<D, M, STAGES>;
    const unsigned k_full = shared_address(smem.k_full), v_full = shared_address(smem.v_full);
    const unsigned k_empty = shared_address(smem.k_empty), v_empty = shared_address(smem.v_empty);
    Stage<STAGES> stage;
    unsigned parity = 0, half = 0;
#pragma unroll 1
    for (int at = 2 * first_task(problem); at < 2 * problem.all_tasks; at = at % 2 ? 2 * task_after(problem, at / 2) : at + 1) {
        const Part part = problem.parts[at];
        if (part.steps == 0) continue;
        const int batch = part.head >> 16, kv_head = part.head & 0xFFFF;
        const auto load_keys = [&](const TensorMap& map, unsigned to, unsigned full) {
            arrive_expecting(full, Storage::BLOCK_BYTES);
            for (int c = 0; c < Storage::COLUMNS; ++c)
                load_box(to + c * KEYS * 128, map, 64 * c, part.first_key, kv_head, batch, full);
        };
        const auto load_block = [&] {
            wait(v_empty + 8 * place_of<D>(parity), phase_of<D>(parity, half) ^ 1);
            load_keys(v, shared_address(smem.v[place_of<D>(parity)]), v_full + 8 * place_of<D>(parity));
            wait(k_empty + 8 * place_of<D>(parity), phase_of<D>(parity, half) ^ 1);
            smem.blocks[parity] = part;
            load_keys(k, shared_address(smem.k[place_of<D>(parity)]), k_full + 8 * place_of<D>(parity));
            half ^= parity;
            parity ^= 1;
        };
        if (D == 64) load_block();
        int next = part.order;
        unsigned place = problem.order[next].place;
        if (D == 128) load_block();  // behind this read, as it may wait
#pragma unroll 1
        for (int left = part.steps; left > 0; --left) {
            const unsigned q_full = shared_address(smem.q_full + stage.index());
            const unsigned dout_full = shared_address(smem.dout_full + stage.index());
            const int head = kv_head * problem.group + (place >> 16), tile = place & 0xFFFF, row = M * tile;
            const int rows = ((batch * problem.heads + head) * problem.tiles + tile) * M;
            wait(shared_address(smem.q_empty + stage.index()), stage.phase() ^ 1);
            smem.ahead[stage.index()] = part.first_key - problem.earlier - row;
            arrive_expecting(q_full, Storage::TILE_BYTES + 4 * M);
            for (int c = 0; c < Storage::COLUMNS; ++c)
                load_box(shared_address(smem.q[stage.index()]) + c * M * 128, q, 64 * c, row, head, batch, q_full);
            load_bytes(shared_address(smem.negated[stage.index()]), problem.negated + rows, 4 * M, q_full);
            wait(shared_address(smem.dout_empty + stage.index()), stage.phase() ^ 1);
            arrive_expecting(dout_full, Storage::TILE_BYTES + 4 * M);
            for (int c = 0; c < Storage::COLUMNS; ++c)
                load_box(shared_address(smem.dout[stage.index()]) + c * M * 128, dout, 64 * c, row, head, batch,
                         dout_full);
            load_bytes(shared_address(smem.delta[stage.index()]), problem.delta + rows, 4 * M, dout_full);
            stage.advance();
            if (left > 1) place = problem.order[++next].place;
        }
    }
    wait(k_empty + 8 * place_of<D>(parity), phase_of<D>(parity, half) ^ 1);
    smem.blocks[parity].steps = 0;
    arrive(k_full + 8 * place_of<D>(parity));
}

// The L2 takes K and V of a block of keys, and at the beginning of a task the first tiles.
template <int D, int M, int STAGES>
__device__ __forceinline__ void fetch(const TensorMap& q, const TensorMap& k, const TensorMap& v, const TensorMap& dout,
                                      const Gradients& problem, int at, bool begins) {
    constexpr int COLUMNS = D / 64;
    Part part = problem.parts[at];
    if (part.steps == 0) part = problem.parts[at + 1];
    const int batch = part.head >> 16, kv_head = part.head & 0xFFFF;
    for (int c = 0; c < COLUMNS; ++c) fetch_box(k, 64 * c, part.first_key, kv_head, batch);
    for (int c = 0; c < COLUMNS; ++c) fetch_box(v, 64 * c, part.first_key, kv_head, batch);
    if (!begins) return;
#pragma unroll 1
    for (int step = 0; step < min(part.steps, STAGES); ++step) {
        const unsigned place = problem.order[part.order + step].place;
        const int head = kv_head * problem.group + (place >> 16), row = M * (place & 0xFFFF);
        for (int c = 0; c < COLUMNS; ++c) fetch_box(q, 64 * c, row, head, batch);
        for (int c = 0; c < COLUMNS; ++c) fetch_box(dout, 64 * c, row, head, batch);
    }
}

// A thread adds what is left of dQ in every other step, the even ones or the odd ones, to the sums in global memory, each
// tile's in its turn. Until an addition is over may take as long as a step: so there are two such threads. At D = 128 one of
// them has the L2 take the next block of keys 8 steps before it.
template <int D, int M, int STAGES>
__device__ __forceinline__ void add(SharedStorage<D, M, STAGES>& smem, const TensorMap& q, const TensorMap& k,
                                    const TensorMap& v, const TensorMap& dout, const Gradients& problem, int odd) {
    using Storage = SharedStorage<D, M, STAGES>;
    const unsigned full = shared_address(smem.sums_full[odd]), empty = shared_address(smem.sums_empty);
    unsigned parity = 0;
    int skip = odd;
    for (int task = first_task(problem), next; task < problem.all_tasks; task = next) {
        next = task_after(problem, task);
        const Part* const parts = problem.parts + 2 * task;
        const int first_head = (parts->head >> 16) * problem.heads + (parts->head & 0xFFFF) * problem.group;
        const int steps = parts[0].steps + parts[1].steps, order = parts->order;
        const int halfway = parts[0].steps;
        int step = skip;
#pragma unroll 1
        for (; step < steps; step += 2) {
            const Step now = problem.order[order + step];
            const int tile = (first_head + (now.place >> 16)) * problem.tiles + (now.place & 0xFFFF);
            float* const sums = problem.sums + static_cast<long long>(tile) * (M * D);
            wait_for_turn(problem.turns + tile, now.turn);
#pragma unroll
            for (int w = 0; w < CONSUMERS; ++w) {
                wait(full + 8 * w, parity);
                if (APART<D>) publish_to_tma();  // here, not by the warps that stored dQ
                const unsigned from = shared_address(smem.sums[w]);
                if (now.turn) add_floats(sums + w * (M * D / 2), from, Storage::SUM_BYTES);
                else store_floats(sums + w * (M * D / 2), from, Storage::SUM_BYTES);
                commit_stores();
            }
            wait_until_read<1>();
            arrive(empty);
            wait_until_read<0>();
            arrive(empty + 8);
            wait_until_stored();
            pass_turn(problem.turns + tile, now.turn + 1);
            parity ^= 1;
            if (D == 128 && odd == 0) {
                const bool second = halfway > 0 && step / 2 == max(0, halfway - 8) / 2;
                if (second || (step / 2 == max(0, steps - 8) / 2 && next < problem.all_tasks))
                    fetch<D, M, STAGES>(q, k, v, dout, problem, second ? 2 * task + 1 : 2 * next, !second);
            }
        }
        skip = step - steps;
    }
}

// dQ = scale * sums, rounded, of `count` times 8 columns of a tile, from number `unit` on; a thread has every `apart`-th.
template <typename T, int D, int M, int UNROLL>
__device__ __forceinline__ void finish_part(const Gradients& problem, int all_tile, int unit, int count, int apart) {
    const int all_head = all_tile / problem.tiles, tile = all_tile % problem.tiles;
    const float* const sums = problem.sums + static_cast<long long>(all_tile) * (M * D);
    T* const dq = static_cast<T*>(problem.dq) + all_head / problem.heads * problem.dq_at.batch +
                  all_head % problem.heads * problem.dq_at.head;
#pragma unroll UNROLL
    for (int end = unit + count; unit < end; unit += apart) {
        const int row_of_sums = unit / 8, of_row = row_of_sums % 64;
        const int row = tile * M + (D == 128 ? of_row : row_of_sums);
        const int column = (D == 128 ? row_of_sums / M * 64 : 0) + unit % 8 * 8;
        if (row >= problem.queries) continue;
        const float* const from = sums + 64 * row_of_sums + 4 * permuted(of_row, unit % 8 * 2);
        const float4 a = load_sums(from), b = load_sums(from + 4);
        const float scale = problem.scale;
        const uint4 both = {pack<T>(a.x * scale, a.y * scale), pack<T>(a.z * scale, a.w * scale),
                            pack<T>(b.x * scale, b.y * scale), pack<T>(b.z * scale, b.w * scale)};
        *reinterpret_cast<uint4*>(dq + row * problem.dq_at.row + column) = both;
    }
}

// A warp finishes tiles of dQ, as soon as they have had all turns: of the CTA's share of tiles a quarter at a time.
template <typename T, int D, bool CAUSAL, int M, int UNROLL>
__device__ __forceinline__ void finish_tiles(int& finished, const Gradients& problem) {
    constexpr int PARTS = 4, UNITS = M * D / 8 / PARTS;
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (;;) {
        int part = 0;
        if (lane == 0) part = take_number(shared_address(&finished));
        part = __shfl_sync(~0u, part, 0);
        const int tile = blockIdx.x + part / PARTS * gridDim.x;
        if (tile >= problem.all_tiles) return;
        const int seen = (tile % problem.tiles + 1) * M + problem.earlier + KEYS - 1;
        if (lane == 0) wait_for_all_turns(problem.turns + tile, CAUSAL ? min(problem.blocks, seen / KEYS) : problem.blocks);
        __syncwarp();
        finish_part<T, D, M, UNROLL>(problem, tile, part % PARTS * UNITS + lane, UNITS - lane, 32);
    }
}

// dQ = dS * K: one of the two parts of a step's.
template <typename T, int D, int M, int STAGES>
__device__ __forceinline__ void begin_dq(SharedStorage<D, M, STAGES>& smem, float (&dq)[32], int part, unsigned step_parity,
                                         int block) {
    const unsigned rows = shared_address(smem.ds[0][0]) + step_parity * (CONSUMERS * M * 128) + (D == 64 ? part * M / 2 * 128 : 0);
    const auto of_keys = descriptor(shared_address(smem.k[block]) + (D == 64 ? 0 : part * KEYS * 128), KEYS * 128, 1024);
    begin_products();
    const auto of_ds = descriptor(rows, 16, 1024);
#pragma unroll
    for (int j = 0; j < KEYS / 16; ++j)
        multiply<T, true>(dq, advanced(of_ds, j / 4 * M * 128 + j % 4 * 32), advanced(of_keys, 16 * j * 128), j);
    commit_products();
}

// It goes where one thread of the producer finds it.
template <int D, int M, int STAGES>
__device__ __forceinline__ void leave_dq(SharedStorage<D, M, STAGES>& smem, const float (&dq)[32], int part,
                                         unsigned step_parity) {
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const int row = 16 * warp + lane / 4;
    const unsigned first = shared_address(smem.sums[0]) + 256 * row + permuted(row, lane % 4 / 2) * 16 + lane % 2 * 8;
#pragma unroll
    for (int n = 0; n < 32; n += 2)  // permuted() leaves the bits of 8 columns to n
        store_pair(moved(first, n / 4 * 32) + part * SharedStorage<D, M, STAGES>::SUM_BYTES + n / 2 % 2 * 2048, dq[n], dq[n + 1]);
    if (!APART<D>) publish_to_tma();
    __syncwarp();
    arrive_for_warp(shared_address(smem.sums_full[0]) + 8 * part + step_parity * (8 * CONSUMERS));
}

// The warpgroup that computes dQ at D = 128, of all steps, as soon as both consumers have left dS.
template <typename T, int D, int M, int STAGES>
__device__ __forceinline__ void compute_dq(SharedStorage<D, M, STAGES>& smem) {
    const unsigned ds_full = shared_address(smem.ds_full), ds_empty = shared_address(smem.ds_empty);
    unsigned step_parity = 0, ds_phase = 0;
#pragma unroll 1
    for (unsigned block_parity = 0;; block_parity ^= 1) {
        wait(shared_address(smem.k_full), block_parity);
        int steps = __shfl_sync(~0u, smem.blocks[block_parity].steps, 0);
        if (steps == 0) return;
#pragma unroll 1
        for (; steps > 0; --steps) {
            wait(ds_full + 8 * step_parity, ds_phase);
            publish_to_tma();  // here, not by the warps that stored dS
#pragma unroll
            for (int part = 0; part < 2; ++part) {
                float dq[32];
                begin_dq<T>(smem, dq, part, step_parity, 0);
                wait(shared_address(smem.sums_empty) + 8 * part, step_parity ^ 1);
                finish_products<0>(dq);
                if (part == 1) {
                    arrive_for_warp(ds_empty + 8 * step_parity);
                    if (steps == 1) arrive_for_warp(shared_address(smem.k_empty));
                }
                leave_dq(smem, dq, part, step_parity);
            }
            ds_phase ^= step_parity;
            step_parity ^= 1;
        }
    }
}

// A consumer warpgroup: 64 keys of the block. Scores and all that comes of them are transposed, keys by queries.
template <typename T, int D, bool CAUSAL, int M, int STAGES>
__device__ __forceinline__ void consume(SharedStorage<D, M, STAGES>& smem, const TensorMap& dk_map, const TensorMap& dv_map,
                                        const Gradients& problem) {
    using Storage = SharedStorage<D, M, STAGES>;
    const int consumer = __shfl_sync(~0u, threadIdx.x / 128 - 1, 0);
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const unsigned q_full = shared_address(smem.q_full), q_empty = shared_address(smem.q_empty);
    const unsigned dout_full = shared_address(smem.dout_full), dout_empty = shared_address(smem.dout_empty);
    const unsigned k_empty = shared_address(smem.k_empty), v_empty = shared_address(smem.v_empty);
    const unsigned ds_full = shared_address(smem.ds_full), ds_empty = shared_address(smem.ds_empty);
    const unsigned sums_empty = shared_address(smem.sums_empty) + 8 * consumer;
    const float scale_log2 = problem.scale * LOG2_E;
    // Where this warpgroup stores dS, and then dK.
    const unsigned own_ds = shared_address(smem.ds[0][consumer]);

    float dk[D / 2], dv[D / 2], s[M / 2], dp[M / 2], dq[32];
    constexpr int EARLY = M / 4;  // D = 64: exponentials of a thread beside dQ; the others are beside dP
    unsigned p[M / 16][4], ds[M / 16][4];
    const int zero = problem.paired >> 1;
    Stage<STAGES> stage;
    unsigned block_parity = 0, block_half = 0, step_parity = 0, ds_phase = 0;

    const auto q_stage = [&] { return shared_address(smem.q) + stage.index() * Storage::TILE_BYTES; };
    const auto dout_stage = [&] { return shared_address(smem.dout) + stage.index() * Storage::TILE_BYTES; };
    // S = K * Q^T, or dP = V * dO^T.
    const auto multiply_by_tile = [&](float (&c)[M / 2], unsigned block, unsigned tile) {
        const auto keys = descriptor(block + consumer * 64 * 128, 16, 1024), queries = descriptor(tile, 16, 1024);
#pragma unroll
        for (int d = 0; d < D / 16; ++d)
            multiply<T, false>(c, advanced(keys, d / 4 * KEYS * 128 + d % 4 * 32),
                               advanced(queries, d / 4 * M * 128 + d % 4 * 32), d);
        commit_products();
    };
    const auto begin_scores = [&] {
        wait(q_full + 8 * stage.index(), stage.phase());
        begin_products();
        multiply_by_tile(s, shared_address(smem.k[place_of<D>(block_parity)]), q_stage());
    };
    const auto begin_dp = [&] {
        wait(dout_full + 8 * stage.index(), stage.phase());
        begin_products();
        multiply_by_tile(dp, shared_address(smem.v[place_of<D>(block_parity)]), dout_stage());
    };
    // dV += P^T * dO, or dK += dS^T * Q
    const auto accumulate = [&](float (&sum)[D / 2], const unsigned (&rows)[M / 16][4], unsigned tile, int add) {
        const auto queries = descriptor(tile, M * 128, 1024);
#pragma unroll
        for (int j = 0; j < M / 16; ++j) multiply<T, true>(sum, rows[j], advanced(queries, 16 * j * 128), j ? 1 : add);
        commit_products();
    };
    // Scores become probabilities, from accumulator `begin` to before `end`.
    const auto exponentiate = [&](int begin = 0, int end = M / 2) {
        const int ahead = smem.ahead[stage.index()] + 64 * consumer;
        const int left = problem.keys - smem.blocks[block_parity].first_key - 64 * consumer;
        if (begin == 0 && (left < 64 || (CAUSAL && ahead + 63 > 0))) {
#pragma unroll
            for (int n = 0; n < M / 2; ++n) {
                const int key = 16 * warp + lane / 4 + n / 2 % 2 * 8, query = n / 4 * 8 + lane % 4 * 2 + n % 2;
                if (key >= left || (CAUSAL && key + ahead > query)) s[n] = -infinity();
            }
        }
        const unsigned negated = shared_address(smem.negated) + stage.index() * (4 * M) + lane % 4 * 8;
#pragma unroll
        for (int n = begin; n < end; n += 4) {
            const float2 offset = load_pair(negated + 8 * n);
            s[n] = exp2_here(s[n] * scale_log2 + offset.x);
            s[n + 1] = exp2_here(s[n + 1] * scale_log2 + offset.y);
            s[n + 2] = exp2_here(s[n + 2] * scale_log2 + offset.x);
            s[n + 3] = exp2_here(s[n + 3] * scale_log2 + offset.y);
        }
    };
    const auto pack_probabilities = [&] {
#pragma unroll
        for (int n = 0; n < M / 4; ++n) p[n / 4][n % 4] = pack<T>(s[2 * n], s[2 * n + 1]);
    };
    // dS = P * (dP - delta) of 16 queries.
    float2 ahead[2];  // delta of the queries at hand
    const auto load_delta = [&](float2 (&its)[2], int j) {
        const unsigned delta = shared_address(smem.delta) + stage.index() * (4 * M) + lane % 4 * 8 + 64 * j;
        its[0] = load_pair(delta), its[1] = load_pair(delta + 32);
    };
    const auto differentiate = [&](int j) {
        const float2 its[2] = {ahead[0], ahead[1]};
        if (j + 1 < M / 16) load_delta(ahead, j + 1);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int n = 8 * j + 4 * half;
            ds[j][2 * half] = pack<T>(s[n] * (dp[n] - its[half].x), s[n + 1] * (dp[n + 1] - its[half].y));
            ds[j][2 * half + 1] = pack<T>(s[n + 2] * (dp[n + 2] - its[half].x), s[n + 3] * (dp[n + 3] - its[half].y));
        }
    };
    // It goes to shared memory, there queries by keys.
    const auto ds_place = [&] {
        const int row = lane / 16 * 8 + lane % 8, chunk = 2 * warp + lane / 8 % 2;
        return own_ds + step_parity * (CONSUMERS * M * 128) + swizzled_offset(row, chunk);
    };
    const auto leave_ds = [&](unsigned to, int j) { store_matrices_transposed(to + 16 * j * 128, ds[j]); };
    // Returns once dQ of the step before is out of shared memory, behind the exponentials: ptxas would move these down to their
    // use, behind the wait for dQ.
    const auto wait_for_sums = [&] {
        unsigned all = 0;
#pragma unroll
        for (int n = 0; n < EARLY; ++n) all |= __float_as_uint(s[n]);
        wait(sums_empty, step_parity ^ 1 ^ (all & zero));
    };
    const auto next_step = [&] {
        ds_phase ^= step_parity;
        step_parity ^= 1;
    };
    // dV or dK goes to shared memory, the first 64 columns to one place and the others to another.
    const auto leave_sum = [&](const float (&sum)[D / 2], float factor, unsigned first, unsigned second) {
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int d = 0; d < D / 8; ++d) {
                const unsigned both = pack<T>(sum[4 * d + 2 * half] * factor, sum[4 * d + 2 * half + 1] * factor);
                const unsigned to = swizzled_offset(16 * warp + lane / 4 + 8 * half, d % 8) + lane % 4 * 4;
                store_word((d < 8 ? first : second) + to, both);
            }
    };
    // It leaves from there.
    const auto store_sum = [&](const TensorMap& map, unsigned first, unsigned second) {
        const auto& its = smem.blocks[block_parity];
        for (int c = 0; c < Storage::COLUMNS; ++c)
            store_box(map, 64 * c, its.first_key + 64 * consumer, its.head & 0xFFFF, its.head >> 16, c ? second : first);
    };
    const auto begin_stores = [&](const auto& store) {
        publish_to_tma();
        synchronize(2 + consumer, 128);
        if (threadIdx.x % 128 == 0) store(), commit_stores();
    };
    // D = 128: one of them.
    const auto store_one = [&](const TensorMap& map, const float (&sum)[D / 2], float factor, unsigned first, unsigned second) {
        leave_sum(sum, factor, first, second);
        begin_stores([&] { store_sum(map, first, second); });
    };
    // D = 64: both go to the place of dS of the step before the last: the other warpgroup read it before it stored its last dS.
    const auto own_place = [&] { return own_ds + step_parity * (CONSUMERS * M * 128); };
    const auto store_both = [&] {
        const unsigned its_dv = own_place(), its_dk = its_dv + 64 * 128;
        leave_sum(dv, 1, its_dv, its_dv);
        leave_sum(dk, problem.scale, its_dk, its_dk);
        begin_stores([&] { store_sum(dv_map, its_dv, its_dv), store_sum(dk_map, its_dk, its_dk); });
    };
    // Its place may be written again.
    const auto end_store = [&] {
        if (threadIdx.x % 128 == 0) wait_for_stores();
        synchronize(2 + consumer, 128);
    };

    for (;;) {
        wait(shared_address(smem.k_full) + 8 * place_of<D>(block_parity), phase_of<D>(block_parity, block_half));
        int steps = __shfl_sync(~0u, smem.blocks[block_parity].steps, 0);
        if (steps == 0) break;
        if constexpr (!APART<D>) {
            begin_scores();
            wait(shared_address(smem.v_full) + 8 * place_of<D>(block_parity), phase_of<D>(block_parity, block_half));
            begin_dp();
            finish_products<1>(s);
            exponentiate();
            end_store();  // of the block before
#pragma unroll 1
            for (int add = 0;; add = 1) {
                pack_probabilities();
                load_delta(ahead, 0);
                finish_products<0>(dp);
                const unsigned to = ds_place();
#pragma unroll
                for (int j = 0; j < M / 16; ++j) {
                    differentiate(j);
                    leave_ds(to, j);
                }
                publish_to_tma();
                __syncwarp();
                arrive_for_warp(ds_full + 8 * step_parity);
                begin_products();
                accumulate(dv, p, dout_stage(), add);
                accumulate(dk, ds, q_stage(), add);
                if (--steps == 0) break;
                finish_products<1>(dv);
                release(p);
                arrive_for_warp(dout_empty + 8 * stage.index());
                finish_products<0>(dk);
                release(ds);
                arrive_for_warp(q_empty + 8 * stage.index());
                stage.advance();
                begin_scores();
                wait(ds_full + 8 * step_parity, ds_phase);
                begin_dq<T>(smem, dq, consumer, step_parity, place_of<D>(block_parity));
                finish_products<1>(s);
                exponentiate(0, EARLY);
                wait_for_sums();
                finish_products<0>(dq);
                leave_dq(smem, dq, consumer, step_parity);
                next_step();
                begin_dp();
                exponentiate(EARLY, M / 2);
            }
            wait(ds_full + 8 * step_parity, ds_phase);
            begin_dq<T>(smem, dq, consumer, step_parity, place_of<D>(block_parity));
            finish_products<2>(dv);
            release(p);
            arrive_for_warp(dout_empty + 8 * stage.index());
            finish_products<1>(dk);
            release(ds);
            arrive_for_warp(q_empty + 8 * stage.index());
            wait(sums_empty, step_parity ^ 1);
            finish_products<0>(dq);
            leave_dq(smem, dq, consumer, step_parity);
            next_step();
            store_both();
            __syncwarp();
            arrive_for_warp(v_empty + 8 * place_of<D>(block_parity));
            arrive_for_warp(k_empty + 8 * place_of<D>(block_parity));  // with its part
        } else {
            begin_scores();
            wait(shared_address(smem.v_full), block_parity);
            end_store();  // of the block before
            float weights[M / 2];  // P, as dP takes the registers of S
#pragma unroll 1
            for (int add = 0;; add = 1) {
                finish_products<0>(s);
                exponentiate();
#pragma unroll
                for (int n = 0; n < M / 2; ++n) weights[n] = s[n];
                wait(dout_full + 8 * stage.index(), stage.phase());
                begin_products();
                multiply_by_tile(s, shared_address(smem.v[0]), dout_stage());  // dP
                load_delta(ahead, 0);
                finish_products<0>(s);
#pragma unroll
                for (int j = 0; j < M / 16; ++j) {
                    const float2 its[2] = {ahead[0], ahead[1]};
                    if (j + 1 < M / 16) load_delta(ahead, j + 1);
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        const int n = 8 * j + 2 * i;
                        p[j][i] = pack_here<T>(weights[n], weights[n + 1]);
                        ds[j][i] = pack_here<T>(weights[n] * (s[n] - its[i / 2].x), weights[n + 1] * (s[n + 1] - its[i / 2].y));
                    }
                }
                begin_products();
                accumulate(dv, p, dout_stage(), add);
                accumulate(dk, ds, q_stage(), add);
                wait(ds_empty + 8 * step_parity, ds_phase ^ 1);
                const unsigned to = ds_place();
#pragma unroll
                for (int j = 0; j < M / 16; ++j) leave_ds(to, j);
                __syncwarp();
                arrive_for_warp(ds_full + 8 * step_parity);
                if (--steps == 0) break;
                const unsigned q_done = q_empty + 8 * stage.index(), dout_done = dout_empty + 8 * stage.index();
                stage.advance();
                finish_products<1>(dv);
                release(p);
                arrive_for_warp(dout_done);
                begin_scores();
                finish_products<1>(dk);
                release(ds);
                arrive_for_warp(q_done);
                next_step();
            }
            arrive_for_warp(v_empty);  // behind the loop: a branch in it would move the exponentials
            finish_products<1>(dv);
            release(p);
            finish_products<0>(dk);
            release(ds);
            arrive_for_warp(k_empty);
            synchronize(1, 128 * CONSUMERS);  // nobody reads this Q and dO any more
            const unsigned place = consumer ? q_stage() : dout_stage();
            store_one(dv_map, dv, 1, place, place + M * 128);
            wait(ds_empty + 8 * step_parity, ds_phase);  // nor dS
            next_step();
            store_one(dk_map, dk, problem.scale, own_ds, own_ds + CONSUMERS * M * 128);
            if (threadIdx.x % 128 == 0) wait_until_read<1>();
            __syncwarp();
            arrive_for_warp(q_empty + 8 * stage.index());
            arrive_for_warp(dout_empty + 8 * stage.index());
        }
        stage.advance();
        block_half ^= block_parity;
        block_parity ^= 1;
    }
    end_store();
}

// q, k, v, dout, dk, dv: maps of (batch, heads, rows, D), with any strides. With FINISHES, the warp that is left makes dQ of
// the sums meanwhile.
template <typename T, int D, bool CAUSAL, int M, int STAGES, bool FINISHES>
__global__ void __launch_bounds__(THREADS<D>, 1)
backward(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
         const __grid_constant__ TensorMap dout, const __grid_constant__ TensorMap dk, const __grid_constant__ TensorMap dv,
         const __grid_constant__ Gradients problem) {
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& smem = *reinterpret_cast<SharedStorage<D, M, STAGES>*>(memory);
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            init_barrier(shared_address(smem.q_full + stage), 1);
            init_barrier(shared_address(smem.dout_full + stage), 1);
            init_barrier(shared_address(smem.q_empty + stage), 4 * CONSUMERS);
            init_barrier(shared_address(smem.dout_empty + stage), 4 * CONSUMERS);
        }
        smem.finished = 0;
        for (int block = 0; block < BLOCKS<D>; ++block) {
            init_barrier(shared_address(smem.k_full + block), 1);
            init_barrier(shared_address(smem.k_empty + block), 4 * (CONSUMERS + APART<D>));
            init_barrier(shared_address(smem.v_full + block), 1);
            init_barrier(shared_address(smem.v_empty + block), 4 * CONSUMERS);
        }
        for (int w = 0; w < CONSUMERS; ++w) {
            for (int odd = 0; odd < 2; ++odd) init_barrier(shared_address(smem.sums_full[odd] + w), 4);
            init_barrier(shared_address(smem.sums_empty + w), 1);
            init_barrier(shared_address(smem.ds_full + w), 4 * CONSUMERS);
            if (APART<D>) init_barrier(shared_address(smem.ds_empty + w), 4);
        }
        publish_barriers();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        give_registers<PRODUCER_REGISTERS<D>>();
        if (threadIdx.x == 0) load(smem, q, k, v, dout, problem);
        else if (threadIdx.x == 32 || threadIdx.x == 64) add(smem, q, k, v, dout, problem, threadIdx.x / 32 - 1);
        else if (FINISHES && threadIdx.x >= 96) finish_tiles<T, D, CAUSAL, M, 1>(smem.finished, problem);
        return;
    }
    if constexpr (APART<D>) {
        if (__shfl_sync(~0u, threadIdx.x / 128, 0) > CONSUMERS) {
            give_registers<DQ_REGISTERS>();
            compute_dq<T>(smem);
            if (FINISHES) finish_tiles<T, D, CAUSAL, M, 1>(smem.finished, problem);
            return;
        }
    }
    take_registers<CONSUMER_REGISTERS<D>>();
    consume<T, D, CAUSAL, M, STAGES>(smem, dk, dv, problem);
    if (FINISHES) finish_tiles<T, D, CAUSAL, M, 4>(smem.finished, problem);
}

// Elements of 8 columns that follow each other.
template <typename T> struct alignas(16) Eight { T each[8]; };

// Before: of each row, the negated log-sum-exp in powers of two and the sum of O * dO; no tile has had a turn; and the
// turn of each step. The first CTAs have 256 steps each, which take longest; the rest `256 / (D / 8)` rows, of all query heads.
template <typename T, int D, bool CAUSAL, int M>
__global__ void __launch_bounds__(256) prepare(const __grid_constant__ Gradients problem, int grid) {
    constexpr int LANES = D / 8, ROWS = 256 / LANES;
    const int padded = problem.tiles * M, all_heads = problem.batch * problem.heads;
    const int row_ctas = all_heads * (padded / ROWS);
    const int others = gridDim.x - row_ctas, block = blockIdx.x < others ? row_ctas + blockIdx.x : blockIdx.x - others;
    if (block < row_ctas) {
        const int head = block / (padded / ROWS), row = block % (padded / ROWS) * ROWS + threadIdx.x / LANES;
        const int batch = head / problem.heads, of_batch = head % problem.heads, lane = threadIdx.x % LANES;
        float sum = 0;
        if (row < problem.queries) {
            const auto read = [&](const void* from, const Strides& at) {
                const T* const its = static_cast<const T*>(from) + batch * at.batch + of_batch * at.head + row * at.row;
                return *reinterpret_cast<const Eight<T>*>(its + 8 * lane);
            };
            const Eight<T> out = read(problem.out, problem.out_at), dout = read(problem.dout, problem.dout_at);
#pragma unroll
            for (int i = 0; i < 8; ++i) sum += to_float(out.each[i]) * to_float(dout.each[i]);
        }
#pragma unroll
        for (int apart = LANES / 2; apart; apart /= 2) sum += __shfl_xor_sync(~0u, sum, apart);
        if (lane == 0) {
            const long long at = static_cast<long long>(head) * padded + row;
            problem.delta[at] = sum;
            const long long given = static_cast<long long>(head) * problem.queries + row;
            problem.negated[at] = row < problem.queries ? -LOG2_E * problem.lse[given] : -infinity();
            if (row % M == 0) problem.turns[head * problem.tiles + row / M] = 0;
        }
        return;
    }
    const Schedule<M, CAUSAL> schedule{problem, grid};
    const int number = (block - row_ctas) * 256 + threadIdx.x;
    if (number < problem.all_tasks) {
        const int head = number / problem.tasks, member = number % problem.tasks, parts = schedule.parts(member);
        const unsigned packed = head / problem.kv_heads << 16 | head % problem.kv_heads;
        int order = (head % problem.patterns * problem.tasks + member) * problem.steps;
        for (int index = 0; index < 2; ++index) {
            const Range range = schedule.range(member, parts == 2 ? index : 0);
            const int steps = index == 0 && parts == 1 ? 0 : schedule.steps(range);
            problem.parts[2 * number + index] = {steps, packed, KEYS * range.block, order};
            order += steps;
        }
    }
    const int task = number / problem.steps, member = task % problem.tasks, parts = schedule.parts(member);
    if (task >= problem.patterns * problem.tasks) return;
    const int step = number % problem.steps;
    for (int index = 0, before = 0; index < parts; ++index) {
        const Range range = schedule.range(member, index);
        const int steps = schedule.steps(range), count = problem.tiles - range.first;
        const int own = step - before + (CAUSAL ? 0 : schedule.offset(task / problem.tasks, member));
        if (step >= before && step < before + steps) {
            const int at = CAUSAL ? own : own % steps, of_group = at / count, up = range.pivot + at % count;
            const int tile = up < problem.tiles ? up : problem.tiles - 1 - at % count;
            const int turn = schedule.visits(task / problem.tasks, member, index ? step + PAUSE : step, of_group, tile);
            problem.order[number] = {turn, static_cast<unsigned>(of_group) << 16 | tile};
        }
        before += steps;
    }
}

// After, unless `backward` does that: a CTA for each tile of dQ.
template <typename T, int D, int M> __global__ void __launch_bounds__(256) finish(const __grid_constant__ Gradients problem) {
    finish_part<T, D, M, 4>(problem, blockIdx.x, threadIdx.x, M * D / 8 - threadIdx.x, 256);
}
