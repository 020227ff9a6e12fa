// Rung 7: products and softmax overlapped, within a warpgroup and between two.
//
// Does    while a tile's scores are computed, the tile before is multiplied by V, and the softmax runs beside the second
//         of the two products (FlashAttention-3, arXiv 2407.08608, algorithm 2). The two warpgroups issue their products
//         in turns, so that one's softmax falls into the other's products (section 3.1 there). Q is kept in registers.
// Gained  4 % over rung 6, 0.046 ms at (32, 8, 512, 64) on an H200, where 1.2x was expected; 7 to 8 % at D = 128. Without
//         turns it is a loss, 54 us: both warpgroups then reach their softmax together. In h200-2026-11-23 it gained 0.5 %
//         there, and lost 3 % at 2048 and 4096 keys. NOTES.md has what was tried and left out.
// Limits  16 us of exponentials and 20 us of products would fit into each other, yet either pipe is busy for 40 % of the
//         cycles or less: with two warps a scheduler, too little is ready to issue. 07_profile shows the counters.
#include "hopper.cuh"

constexpr int CONSUMERS = 2, ROWS = 64 * CONSUMERS;

template <int D, int KEYS, int STAGES> struct SharedStorage {
    static constexpr int COLUMNS = D / 64;  // tiles of 64 columns beside each other
    static constexpr int QUERY_BYTES = 64 * D * 2;  // of one consumer
    static constexpr int TILE_BYTES = KEYS * D * 2;
    unsigned char query[CONSUMERS][QUERY_BYTES];
    unsigned char out[CONSUMERS][QUERY_BYTES];
    unsigned char ring[STAGES][TILE_BYTES];  // K and V of a tile follow one another
    unsigned long long query_full, query_empty, full[STAGES], empty[STAGES];
};

// The stage of a ring, and the parity of the phase in which it is filled.
template <int STAGES> struct PipelineState {
    int stage = 0;
    unsigned phase = 0;
    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
};

// A work tile: ROWS queries of one head, and the tiles of keys that they see.
template <bool CAUSAL, int KEYS> struct WorkTile {
    int head, first_row, tiles;
    __device__ __forceinline__ WorkTile(int index, int heads, int seq_len) {
        const int blocks = (seq_len + ROWS - 1) / ROWS;
        // Under the mask the last queries have most to do: begin with those of all heads.
        head = CAUSAL ? index % heads : index / blocks;
        first_row = (CAUSAL ? blocks - 1 - index / heads : index % blocks) * ROWS;
        tiles = ((CAUSAL ? min(seq_len, first_row + ROWS) : seq_len) + KEYS - 1) / KEYS;
    }
};

// Consumers issue their products in turn, so that one's softmax falls into the other's products.
__device__ __forceinline__ void ping_pong_wait(int consumer) { synchronize(3 + consumer, 256); }
__device__ __forceinline__ void ping_pong_signal(int consumer) { arrive_by_name(3 + (consumer ^ 1), 256); }

// q, k, v, o: maps of (heads, seq_len, D)
template <typename T, int D, bool CAUSAL, int KEYS, int STAGES>
__global__ void __launch_bounds__(128 * (1 + CONSUMERS), 1)
overlap(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
        const __grid_constant__ TensorMap o, int heads, int seq_len, float scale) {
    using Storage = SharedStorage<D, KEYS, STAGES>;
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& smem = *reinterpret_cast<Storage*>(memory);
    const unsigned query_full = shared_address(&smem.query_full), query_empty = shared_address(&smem.query_empty);
    const unsigned full = shared_address(smem.full), empty = shared_address(smem.empty);
    const int work_tiles = (seq_len + ROWS - 1) / ROWS * heads;

    if (threadIdx.x == 0) {
        init_barrier(query_full, 1);
        init_barrier(query_empty, 4 * CONSUMERS);
        for (int stage = 0; stage < STAGES; ++stage) {
            init_barrier(full + 8 * stage, 1);
            init_barrier(empty + 8 * stage, 4 * CONSUMERS);
        }
        publish_barriers();
    }
    __syncthreads();

    if (threadIdx.x < 128) {
        give_registers<24>();
        if (threadIdx.x != 0) return;
        PipelineState<STAGES> state;
        PipelineState<1> query_state;
        for (int index = blockIdx.x; index < work_tiles; index += gridDim.x) {
            const WorkTile<CAUSAL, KEYS> work_tile(index, heads, seq_len);
            wait(query_empty, query_state.phase ^ 1);
            arrive_expecting(query_full, CONSUMERS * Storage::QUERY_BYTES);
            for (int w = 0; w < CONSUMERS; ++w)
                for (int c = 0; c < Storage::COLUMNS; ++c)
                    load_box(shared_address(smem.query[w]) + c * 64 * 128, q, 64 * c, work_tile.first_row + 64 * w,
                             work_tile.head, query_full);
            query_state.advance();
            for (int tile = 0; tile < work_tile.tiles; ++tile) {
                for (const TensorMap* map : {&k, &v}) {
                    wait(empty + 8 * state.stage, state.phase ^ 1);
                    arrive_expecting(full + 8 * state.stage, Storage::TILE_BYTES);
                    for (int c = 0; c < Storage::COLUMNS; ++c)
                        load_box(shared_address(smem.ring[state.stage]) + c * KEYS * 128, *map, 64 * c, KEYS * tile,
                                 work_tile.head, full + 8 * state.stage);
                    state.advance();
                }
            }
        }
        return;
    }

    take_registers<240>();
    const int consumer = threadIdx.x / 128 - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const unsigned query_tile = shared_address(smem.query[consumer]), out_tile = shared_address(smem.out[consumer]);
    const float scale_log2 = scale * LOG2_E;
    PipelineState<STAGES> k_state, v_state;  // every other stage
    v_state.advance();
    PipelineState<1> query_state;
    if (consumer == 1) ping_pong_signal(consumer);

    for (int index = blockIdx.x; index < work_tiles; index += gridDim.x) {
        const WorkTile<CAUSAL, KEYS> work_tile(index, heads, seq_len);
        const int first_row = work_tile.first_row + 64 * consumer;
        const int unmasked = CAUSAL ? min(seq_len, first_row + 1) : seq_len;  // keys before this one are seen by every query

        unsigned query[D / 16][4];
        wait(query_full, query_state.phase);
        query_state.advance();
#pragma unroll
        for (int d = 0; d < D / 16; ++d)
            load_matrices(query[d], query_tile + d / 4 * 64 * 128 +
                                    swizzled_offset(16 * warp + lane % 16, 2 * (d % 4) + lane / 16));
        __syncwarp();
        if (lane == 0) arrive(query_empty);

        float out[D / 2] = {}, row_max[2] = {-infinity(), -infinity()}, row_sum[2] = {}, rescale[2];
        float s[KEYS / 2];
        unsigned p[KEYS / 16][4];

        const auto multiply_query_by_keys = [&] {
            const unsigned k_tile = shared_address(smem.ring[k_state.stage]);
#pragma unroll
            for (int d = 0; d < D / 16; ++d)
                multiply<T, false>(s, query[d], descriptor(k_tile + d / 4 * KEYS * 128 + d % 4 * 32, 16, 1024), d);
            commit_products();
        };
        const auto multiply_probabilities_by_values = [&] {
            const unsigned v_tile = shared_address(smem.ring[v_state.stage]);
#pragma unroll
            for (int j = 0; j < KEYS / 16; ++j)
                multiply<T, true>(out, p[j], descriptor(v_tile + 16 * j * 128, KEYS * 128, 1024), 1);
            commit_products();
        };
        const auto release = [&](PipelineState<STAGES>& state) {
            if (lane == 0) arrive(empty + 8 * state.stage);
            state.advance();
            state.advance();
        };
        // Scores become probabilities, relative to the largest score so far.
        const auto exponentiate = [&](int tile) {
            if (KEYS * (tile + 1) > unmasked) {
#pragma unroll
                for (int n = 0; n < KEYS / 2; ++n) {
                    const int key = KEYS * tile + n / 4 * 8 + lane % 4 * 2 + n % 2;
                    const int row = first_row + 16 * warp + lane / 4 + n / 2 % 2 * 8;
                    if (key >= seq_len || (CAUSAL && key > row)) s[n] = -infinity();
                }
            }
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float new_max = row_max[half];
#pragma unroll
                for (int n = 2 * half; n < KEYS / 2; n += 4) new_max = fmaxf(new_max, fmaxf(s[n], s[n + 1]));
                new_max = quad_max(new_max);
                rescale[half] = exp2_approx((row_max[half] - new_max) * scale_log2);  // finite: key 0 came first
                const float offset = new_max * scale_log2;
                row_max[half] = new_max;
                row_sum[half] *= rescale[half];
#pragma unroll
                for (int n = 2 * half; n < KEYS / 2; n += 4) {
                    s[n] = exp2_approx(s[n] * scale_log2 - offset);
                    s[n + 1] = exp2_approx(s[n + 1] * scale_log2 - offset);
                    row_sum[half] += s[n] + s[n + 1];
                }
            }
        };
        const auto pack_probabilities = [&] {
#pragma unroll
            for (int n = 0; n < KEYS / 4; ++n) p[n / 4][n % 4] = pack<T>(s[2 * n], s[2 * n + 1]);
        };

        ping_pong_wait(consumer);
        wait(full + 8 * k_state.stage, k_state.phase);
        begin_products();
        multiply_query_by_keys();
        finish_products<0>(s);
        ping_pong_signal(consumer);
        release(k_state);
        exponentiate(0);
        pack_probabilities();

        for (int tile = 1; tile < work_tile.tiles; ++tile) {
            ping_pong_wait(consumer);
            wait(full + 8 * k_state.stage, k_state.phase);
            begin_products();
            multiply_query_by_keys();
            wait(full + 8 * v_state.stage, v_state.phase);
            begin_products();
            multiply_probabilities_by_values();
            ping_pong_signal(consumer);
            finish_products<1>(s);
            release(k_state);
            exponentiate(tile);
            finish_products<0>(out);
            release(v_state);
#pragma unroll
            for (int n = 0; n < D / 2; ++n) out[n] *= rescale[n / 2 % 2];
            pack_probabilities();
        }
        wait(full + 8 * v_state.stage, v_state.phase);
        begin_products();
        multiply_probabilities_by_values();
        finish_products<0>(out);
        release(v_state);

        if (threadIdx.x % 128 == 0) wait_for_stores();  // of the work tile before, out of the same memory
        synchronize(1 + consumer, 128);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float inverse = 1.f / quad_sum(row_sum[half]);
            const int row = 16 * warp + lane / 4 + 8 * half;
#pragma unroll
            for (int d = 0; d < D / 8; ++d) {
                const unsigned both = pack<T>(out[4 * d + 2 * half] * inverse, out[4 * d + 2 * half + 1] * inverse);
                const unsigned to = out_tile + d / 8 * 64 * 128 + swizzled_offset(row, d % 8) + lane % 4 * 4;
                asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(both) : "memory");
            }
        }
        publish_to_tma();
        synchronize(1 + consumer, 128);
        if (threadIdx.x % 128 == 0) {
            for (int c = 0; c < Storage::COLUMNS; ++c) store_box(o, 64 * c, first_row, work_tile.head, out_tile + c * 64 * 128);
            commit_stores();
        }
    }
    if (threadIdx.x % 128 == 0) wait_for_stores();
}
