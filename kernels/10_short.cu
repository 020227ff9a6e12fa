// Rung 10: short sequences: all keys of a head in one tile, many small CTAs.
//
// Does    a CTA is one warpgroup with 64 queries of one head. One thread asks TMA for Q, K and V at once; the scores are one
//         product, the softmax is exact, O is another. Five or six CTAs share a multiprocessor, so that one's copies fall
//         into another's products: nothing is persistent, nothing is pipelined.
// Gained  3.3 us at (32, 8, 64, 64) on an H200, where rung 7 takes 6.6 and the fastest of SDPA's backends 6.2, and 5.1 us at
//         128 keys (6.2 and 7.8); 5.0 and 5.5 were expected. Two warpgroups a CTA were slower in a trial, prefetched
//         tensor maps changed nothing.
// Limits  the launch and two trips to the L2, one after the other. Beyond 128 keys scores don't fit into registers.
#include "hopper.cuh"

template <int D, int KEYS> struct SharedStorage {
    static constexpr int COLUMNS = D / 64, QUERY_BYTES = 64 * D * 2, TILE_BYTES = KEYS * D * 2;
    unsigned char query[QUERY_BYTES];  // then O
    unsigned char keys[TILE_BYTES], values[TILE_BYTES];
    unsigned long long qk_full, v_full;
};

// q, k, v, o: maps of (batch, heads, rows, D), with any strides, and at most KEYS keys
template <typename T, int D, bool CAUSAL, int KEYS>
__global__ void __launch_bounds__(128)
one_tile(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
         const __grid_constant__ TensorMap o, Problem problem) {
    using Storage = SharedStorage<D, KEYS>;
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& smem = *reinterpret_cast<Storage*>(memory);
    const unsigned qk_full = shared_address(&smem.qk_full), v_full = shared_address(&smem.v_full);
    const int first_row = problem.items.remainder(blockIdx.x) * 64, index = problem.items.quotient(blockIdx.x);
    const int batch = problem.heads.quotient(index), head = problem.heads.remainder(index);

    if (threadIdx.x == 0) {
        const int kv_head = problem.sharing.quotient(head);
        init_barrier(qk_full, 1);
        init_barrier(v_full, 1);
        publish_barriers();
        arrive_expecting(qk_full, Storage::QUERY_BYTES + Storage::TILE_BYTES);
        for (int c = 0; c < Storage::COLUMNS; ++c) {
            load_box(shared_address(smem.keys) + c * KEYS * 128, k, 64 * c, 0, kv_head, batch, qk_full);
            load_box(shared_address(smem.query) + c * 64 * 128, q, 64 * c, first_row, head, batch, qk_full);
        }
        arrive_expecting(v_full, Storage::TILE_BYTES);
        for (int c = 0; c < Storage::COLUMNS; ++c)
            load_box(shared_address(smem.values) + c * KEYS * 128, v, 64 * c, 0, kv_head, batch, v_full);
    }
    __syncthreads();

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned q_tile = shared_address(smem.query), k_tile = shared_address(smem.keys);
    const float scale_log2 = problem.scale * LOG2_E;
    float s[KEYS / 2], out[D / 2], row_sum[2];
    unsigned p[KEYS / 16][4];

    wait(qk_full, 0);
    begin_products();
#pragma unroll
    for (int d = 0; d < D / 16; ++d)
        multiply<T, false>(s, descriptor(q_tile + d / 4 * 64 * 128 + d % 4 * 32, 16, 1024),
                           descriptor(k_tile + d / 4 * KEYS * 128 + d % 4 * 32, 16, 1024), d);
    commit_products();
    finish_products<0>(s);
    if (KEYS > problem.keys || CAUSAL) {
        // Counted from this thread's first key: all keys, and the last that its first row sees.
        const int keys = problem.keys - lane % 4 * 2, last = problem.earlier + first_row + 16 * warp + lane / 4 - lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < KEYS / 2; ++n) {
            const int key = n / 4 * 8 + n % 2, row = n / 2 % 2 * 8;
            if (key >= keys || (CAUSAL && key - row > last)) s[n] = -infinity();
        }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float row_max = -infinity();
#pragma unroll
        for (int n = 2 * half; n < KEYS / 2; n += 4) row_max = fmaxf(row_max, fmaxf(s[n], s[n + 1]));
        row_max = quad_max(row_max) * scale_log2;
        row_sum[half] = 0;
#pragma unroll
        for (int n = 2 * half; n < KEYS / 2; n += 4) {
            s[n] = exp2_approx(s[n] * scale_log2 - row_max);
            s[n + 1] = exp2_approx(s[n + 1] * scale_log2 - row_max);
            row_sum[half] += s[n] + s[n + 1];
        }
    }
#pragma unroll
    for (int n = 0; n < KEYS / 4; ++n) p[n / 4][n % 4] = pack<T>(s[2 * n], s[2 * n + 1]);
    wait(v_full, 0);
    begin_products();
#pragma unroll
    for (int j = 0; j < KEYS / 16; ++j)
        multiply<T, true>(out, p[j], descriptor(shared_address(smem.values) + 16 * j * 128, KEYS * 128, 1024), j);
    commit_products();
    finish_products<0>(out);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float inverse = 1.f / quad_sum(row_sum[half]);
        const int row = 16 * warp + lane / 4 + 8 * half;
#pragma unroll
        for (int d = 0; d < D / 8; ++d) {
            const unsigned both = pack<T>(out[4 * d + 2 * half] * inverse, out[4 * d + 2 * half + 1] * inverse);
            const unsigned to = q_tile + d / 8 * 64 * 128 + swizzled_offset(row, d % 8) + lane % 4 * 4;
            asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(both) : "memory");
        }
    }
    publish_to_tma();
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int c = 0; c < Storage::COLUMNS; ++c) store_box(o, 64 * c, first_row, head, batch, q_tile + c * 64 * 128);
        commit_stores();
        wait_for_stores();
    }
}
