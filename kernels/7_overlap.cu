// Rung 7: products and softmax overlapped, within a warpgroup and between two.
//
// Does    while a tile's scores are computed, the tile before is multiplied by V, and the softmax runs beside the second
//         of the two products (FlashAttention-3, arXiv 2407.08608, algorithm 2). The two warpgroups issue their products
//         in turns, so that one's softmax falls into the other's products (section 3.1 there). Q is kept in registers.
// Gained  4 % over rung 6, 0.046 ms at (32, 8, 512, 64) on an H200, where 1.2x was expected; 7 to 8 % at D = 128. Without
//         turns it is a loss, 54 us: both warpgroups then reach their softmax together. Tried and left out: rescaling
//         only where a row's largest score rises by more than 2^8 (FlashAttention-4) took 2 % off here and 3 % at 2048
//         keys, but added 2 to 7 % under the mask; four chains of maxima and sums instead of two changed nothing.
//         In h200-2026-11-23 it gained 0.5 % there, and lost 3 % at 2048 and 4096 keys.
// Limits  16 us of exponentials and 20 us of products would fit into each other, yet either pipe is busy for 40 % of the
//         cycles or less: with two warps a scheduler, too little is ready to issue. 07_profile shows the counters.
#include "hopper.cuh"

constexpr int CONSUMERS = 2, ROWS = 64 * CONSUMERS;

template <int D, int KEYS, int SLOTS> struct Shared {
    static constexpr int COLUMNS = D / 64;                // tiles of 64 columns beside each other
    static constexpr int QUERY_BYTES = 64 * D * 2;        // of one consumer
    static constexpr int SLOT_BYTES = KEYS * D * 2;
    unsigned char query[CONSUMERS][QUERY_BYTES];
    unsigned char out[CONSUMERS][QUERY_BYTES];
    unsigned char ring[SLOTS][SLOT_BYTES];                // K and V of a tile follow one another
    unsigned long long query_full, query_empty, full[SLOTS], empty[SLOTS];
};

// Where a ring of SLOTS stands: the slot, and the parity of the phase in which it is filled.
template <int SLOTS> struct Place {
    int slot = 0;
    unsigned parity = 0;
    __device__ __forceinline__ void advance() {
        if (++slot == SLOTS) slot = 0, parity ^= 1;
    }
};

// A work item: ROWS queries of one head, and the tiles of keys that they see.
template <bool CAUSAL, int KEYS> struct Item {
    int head, first, tiles;
    __device__ __forceinline__ Item(int index, int heads, int seq_len) {
        const int blocks = (seq_len + ROWS - 1) / ROWS;
        // Under the mask the last queries have most to do: begin with those of all heads.
        head = CAUSAL ? index % heads : index / blocks;
        first = (CAUSAL ? blocks - 1 - index / heads : index % blocks) * ROWS;
        tiles = ((CAUSAL ? min(seq_len, first + ROWS) : seq_len) + KEYS - 1) / KEYS;
    }
};

// Consumers issue their products in turn, so that one's softmax falls into the other's products.
__device__ __forceinline__ void take_turn(int consumer) { synchronize(3 + consumer, 256); }
__device__ __forceinline__ void pass_turn(int consumer) {
    asm volatile("bar.arrive %0, 256;" ::"r"(3 + (consumer ^ 1)) : "memory");
}

// q, k, v, o: maps of (heads, seq_len, D)
template <typename T, int D, bool CAUSAL, int KEYS, int SLOTS>
__global__ void __launch_bounds__(128 * (1 + CONSUMERS), 1)
overlap(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
        const __grid_constant__ TensorMap o, int heads, int seq_len, float scale) {
    using Memory = Shared<D, KEYS, SLOTS>;
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& shared = *reinterpret_cast<Memory*>(memory);
    const unsigned query_full = shared_address(&shared.query_full), query_empty = shared_address(&shared.query_empty);
    const unsigned full = shared_address(shared.full), empty = shared_address(shared.empty);
    const int items = (seq_len + ROWS - 1) / ROWS * heads;

    if (threadIdx.x == 0) {
        init_barrier(query_full, 1);
        init_barrier(query_empty, 4 * CONSUMERS);
        for (int slot = 0; slot < SLOTS; ++slot) {
            init_barrier(full + 8 * slot, 1);
            init_barrier(empty + 8 * slot, 4 * CONSUMERS);
        }
        publish_barriers();
    }
    __syncthreads();

    if (threadIdx.x < 128) {
        give_registers<24>();
        if (threadIdx.x != 0) return;
        Place<SLOTS> ring;
        Place<1> query;
        for (int index = blockIdx.x; index < items; index += gridDim.x) {
            const Item<CAUSAL, KEYS> item(index, heads, seq_len);
            wait(query_empty, query.parity ^ 1);
            arrive_expecting(query_full, CONSUMERS * Memory::QUERY_BYTES);
            for (int w = 0; w < CONSUMERS; ++w)
                for (int c = 0; c < Memory::COLUMNS; ++c)
                    load_box(shared_address(shared.query[w]) + c * 64 * 128, q, 64 * c, item.first + 64 * w, item.head, query_full);
            query.advance();
            for (int tile = 0; tile < item.tiles; ++tile) {
                for (const TensorMap* map : {&k, &v}) {
                    wait(empty + 8 * ring.slot, ring.parity ^ 1);
                    arrive_expecting(full + 8 * ring.slot, Memory::SLOT_BYTES);
                    for (int c = 0; c < Memory::COLUMNS; ++c)
                        load_box(shared_address(shared.ring[ring.slot]) + c * KEYS * 128, *map, 64 * c, KEYS * tile, item.head,
                                 full + 8 * ring.slot);
                    ring.advance();
                }
            }
        }
        return;
    }

    take_registers<240>();
    const int consumer = threadIdx.x / 128 - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const unsigned query_tile = shared_address(shared.query[consumer]), out_tile = shared_address(shared.out[consumer]);
    const float scale_log2 = scale * LOG2_E;
    Place<SLOTS> key_ring, value_ring;  // every other slot
    value_ring.advance();
    Place<1> query_place;
    if (consumer == 1) pass_turn(consumer);

    for (int index = blockIdx.x; index < items; index += gridDim.x) {
        const Item<CAUSAL, KEYS> item(index, heads, seq_len);
        const int first = item.first + 64 * consumer;
        const int unmasked = CAUSAL ? min(seq_len, first + 1) : seq_len;  // keys before this one are seen by every query

        unsigned query[D / 16][4];
        wait(query_full, query_place.parity);
        query_place.advance();
#pragma unroll
        for (int d = 0; d < D / 16; ++d)
            load_matrices(query[d], query_tile + d / 4 * 64 * 128 + place(16 * warp + lane % 16, 2 * (d % 4) + lane / 16));
        __syncwarp();
        if (lane == 0) arrive(query_empty);

        float out[D / 2] = {}, largest[2] = {-infinity(), -infinity()}, sum[2] = {}, shrink[2];
        float s[KEYS / 2];
        unsigned p[KEYS / 16][4];

        const auto multiply_query_by_keys = [&] {
            const unsigned k_tile = shared_address(shared.ring[key_ring.slot]);
#pragma unroll
            for (int d = 0; d < D / 16; ++d)
                multiply<T, false>(s, query[d], descriptor(k_tile + d / 4 * KEYS * 128 + d % 4 * 32, 16, 1024), d);
            commit_products();
        };
        const auto multiply_probabilities_by_values = [&] {
            const unsigned v_tile = shared_address(shared.ring[value_ring.slot]);
#pragma unroll
            for (int j = 0; j < KEYS / 16; ++j)
                multiply<T, true>(out, p[j], descriptor(v_tile + 16 * j * 128, KEYS * 128, 1024), 1);
            commit_products();
        };
        const auto release = [&](Place<SLOTS>& ring) {
            if (lane == 0) arrive(empty + 8 * ring.slot);
            ring.advance();
            ring.advance();
        };
        // Scores become probabilities, relative to the largest score so far.
        const auto exponentiate = [&](int tile) {
            if (KEYS * (tile + 1) > unmasked) {
#pragma unroll
                for (int n = 0; n < KEYS / 2; ++n) {
                    const int key = KEYS * tile + n / 4 * 8 + lane % 4 * 2 + n % 2;
                    const int row = first + 16 * warp + lane / 4 + n / 2 % 2 * 8;
                    if (key >= seq_len || (CAUSAL && key > row)) s[n] = -infinity();
                }
            }
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float top = largest[half];
#pragma unroll
                for (int n = 2 * half; n < KEYS / 2; n += 4) top = fmaxf(top, fmaxf(s[n], s[n + 1]));
                top = quad_max(top);
                shrink[half] = exp2_approx((largest[half] - top) * scale_log2);  // top is finite: key 0 came first
                const float shift = top * scale_log2;
                largest[half] = top;
                sum[half] *= shrink[half];
#pragma unroll
                for (int n = 2 * half; n < KEYS / 2; n += 4) {
                    s[n] = exp2_approx(s[n] * scale_log2 - shift);
                    s[n + 1] = exp2_approx(s[n + 1] * scale_log2 - shift);
                    sum[half] += s[n] + s[n + 1];
                }
            }
        };
        const auto pack_probabilities = [&] {
#pragma unroll
            for (int n = 0; n < KEYS / 4; ++n) p[n / 4][n % 4] = pack<T>(s[2 * n], s[2 * n + 1]);
        };

        take_turn(consumer);
        wait(full + 8 * key_ring.slot, key_ring.parity);
        begin_products();
        multiply_query_by_keys();
        finish_products<0>(s);
        pass_turn(consumer);
        release(key_ring);
        exponentiate(0);
        pack_probabilities();

        for (int tile = 1; tile < item.tiles; ++tile) {
            take_turn(consumer);
            wait(full + 8 * key_ring.slot, key_ring.parity);
            begin_products();
            multiply_query_by_keys();
            wait(full + 8 * value_ring.slot, value_ring.parity);
            begin_products();
            multiply_probabilities_by_values();
            pass_turn(consumer);
            finish_products<1>(s);
            release(key_ring);
            exponentiate(tile);
            finish_products<0>(out);
            release(value_ring);
#pragma unroll
            for (int n = 0; n < D / 2; ++n) out[n] *= shrink[n / 2 % 2];
            pack_probabilities();
        }
        wait(full + 8 * value_ring.slot, value_ring.parity);
        begin_products();
        multiply_probabilities_by_values();
        finish_products<0>(out);
        release(value_ring);

        if (threadIdx.x % 128 == 0) wait_for_stores();  // of the item before, out of the same memory
        synchronize(1 + consumer, 128);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float inverse = 1.f / quad_sum(sum[half]);
            const int row = 16 * warp + lane / 4 + 8 * half;
#pragma unroll
            for (int d = 0; d < D / 8; ++d) {
                const unsigned both = pack<T>(out[4 * d + 2 * half] * inverse, out[4 * d + 2 * half + 1] * inverse);
                const unsigned to = out_tile + d / 8 * 64 * 128 + place(row, d % 8) + lane % 4 * 4;
                asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(both) : "memory");
            }
        }
        publish_to_tma();
        synchronize(1 + consumer, 128);
        if (threadIdx.x % 128 == 0) {
            for (int c = 0; c < Memory::COLUMNS; ++c) store_box(o, 64 * c, first, item.head, out_tile + c * 64 * 128);
            commit_stores();
        }
    }
    if (threadIdx.x % 128 == 0) wait_for_stores();
}
