// Rung 6: Hopper. wgmma for the products, TMA for the copies, a warpgroup that does nothing but copy.
//
// Does    a persistent block of three warpgroups for each multiprocessor. The first brings Q, K and V by TMA into rings of
//         tiles and runs ahead, into the next work item too; the other two keep 64 queries each, with the probabilities
//         and O in registers, and read Q, K and V from shared memory by wgmma. O leaves by TMA.
// Gained  1.3x over rung 5, 0.048 ms at (32, 8, 512, 64) on an H200: the tensor cores at their full rate, no register for
//         K or V, no thread that computes an address, loads that are over when they are waited for.
// Limits  inside a warpgroup the first product, the softmax and the second product wait for one another, so the tensor
//         cores are shared by two warpgroups that may both be in their softmax.
//
// Q stays in shared memory here: with Q in registers and KEYS = D, ptxas 13.0 gave the probabilities the registers of Q,
// and every tile but the first was wrong.
#include "hopper.cuh"

constexpr int CONSUMERS = 2, ROWS = 64 * CONSUMERS;

template <int D, int KEYS, int STAGES> struct SharedStorage {
    static constexpr int COLUMNS = D / 64;  // tiles of 64 columns beside each other
    static constexpr int QUERY_BYTES = 64 * D * 2;  // of one consumer
    static constexpr int TILE_BYTES = KEYS * D * 2;
    unsigned char query[2][CONSUMERS][QUERY_BYTES];  // of this work tile and of the next
    unsigned char out[CONSUMERS][QUERY_BYTES];
    unsigned char ring[STAGES][TILE_BYTES];  // K and V of a tile follow one another
    unsigned long long query_full[2], query_empty[2], full[STAGES], empty[STAGES];
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

// q, k, v, o: maps of (heads, seq_len, D)
template <typename T, int D, bool CAUSAL, int KEYS, int STAGES>
__global__ void __launch_bounds__(128 * (1 + CONSUMERS), 1)
wgmma(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
      const __grid_constant__ TensorMap o, int heads, int seq_len, float scale) {
    using Storage = SharedStorage<D, KEYS, STAGES>;
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& smem = *reinterpret_cast<Storage*>(memory);
    const unsigned query_full = shared_address(smem.query_full), query_empty = shared_address(smem.query_empty);
    const unsigned full = shared_address(smem.full), empty = shared_address(smem.empty);
    const int work_tiles = (seq_len + ROWS - 1) / ROWS * heads;

    if (threadIdx.x == 0) {
        for (int half = 0; half < 2; ++half) {
            init_barrier(query_full + 8 * half, 1);
            init_barrier(query_empty + 8 * half, 4 * CONSUMERS);
        }
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
        PipelineState<2> query_state;
        for (int index = blockIdx.x; index < work_tiles; index += gridDim.x) {
            const WorkTile<CAUSAL, KEYS> work_tile(index, heads, seq_len);
            wait(query_empty + 8 * query_state.stage, query_state.phase ^ 1);
            arrive_expecting(query_full + 8 * query_state.stage, CONSUMERS * Storage::QUERY_BYTES);
            for (int w = 0; w < CONSUMERS; ++w)
                for (int c = 0; c < Storage::COLUMNS; ++c)
                    load_box(shared_address(smem.query[query_state.stage][w]) + c * 64 * 128, q, 64 * c,
                             work_tile.first_row + 64 * w, work_tile.head, query_full + 8 * query_state.stage);
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
    const unsigned out_tile = shared_address(smem.out[consumer]);
    const float scale_log2 = scale * LOG2_E;
    PipelineState<STAGES> state;
    PipelineState<2> query_state;

    for (int index = blockIdx.x; index < work_tiles; index += gridDim.x) {
        const WorkTile<CAUSAL, KEYS> work_tile(index, heads, seq_len);
        const int first_row = work_tile.first_row + 64 * consumer;
        const int unmasked = CAUSAL ? min(seq_len, first_row + 1) : seq_len;  // keys before this one are seen by every query

        wait(query_full + 8 * query_state.stage, query_state.phase);
        const unsigned q_tile = shared_address(smem.query[query_state.stage][consumer]);
        float out[D / 2] = {}, row_max[2] = {-infinity(), -infinity()}, row_sum[2] = {};
        for (int tile = 0; tile < work_tile.tiles; ++tile) {
            float s[KEYS / 2];
            wait(full + 8 * state.stage, state.phase);
            const unsigned k_tile = shared_address(smem.ring[state.stage]);
            begin_products();
#pragma unroll
            for (int d = 0; d < D / 16; ++d)
                multiply<T, false>(s, descriptor(q_tile + d / 4 * 64 * 128 + d % 4 * 32, 16, 1024),
                                   descriptor(k_tile + d / 4 * KEYS * 128 + d % 4 * 32, 16, 1024), d);
            commit_products();
            finish_products<0>(s);
            if (lane == 0) arrive(empty + 8 * state.stage);
            state.advance();

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
                const float rescale = exp2_approx((row_max[half] - new_max) * scale_log2);  // finite: key 0 came first
                const float offset = new_max * scale_log2;
                row_max[half] = new_max;
                row_sum[half] *= rescale;
#pragma unroll
                for (int n = 2 * half; n < D / 2; n += 4) out[n] *= rescale, out[n + 1] *= rescale;
#pragma unroll
                for (int n = 2 * half; n < KEYS / 2; n += 4) {
                    s[n] = exp2_approx(s[n] * scale_log2 - offset);
                    s[n + 1] = exp2_approx(s[n + 1] * scale_log2 - offset);
                    row_sum[half] += s[n] + s[n + 1];
                }
            }
            unsigned p[KEYS / 16][4];
#pragma unroll
            for (int n = 0; n < KEYS / 4; ++n) p[n / 4][n % 4] = pack<T>(s[2 * n], s[2 * n + 1]);

            wait(full + 8 * state.stage, state.phase);
            const unsigned v_tile = shared_address(smem.ring[state.stage]);
            begin_products();
#pragma unroll
            for (int j = 0; j < KEYS / 16; ++j)
                multiply<T, true>(out, p[j], descriptor(v_tile + 16 * j * 128, KEYS * 128, 1024), 1);
            commit_products();
            finish_products<0>(out);
            if (lane == 0) arrive(empty + 8 * state.stage);
            state.advance();
        }

        if (lane == 0) arrive(query_empty + 8 * query_state.stage);
        query_state.advance();

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
