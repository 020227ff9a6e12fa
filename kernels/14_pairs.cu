// Rung 14: rung 12 where a head of K and V has two tiles of rows or more: two CTAs load K and V for each other.
//
// Does    the CTAs of two neighbouring tiles of 128 rows, as of 64 queries of 4 heads, are a cluster and go through K and V
//         together. Each has TMA bring half of the keys of a piece into the shared memory of both (multicast), so that K and V
//         come through the L2 once for the two. A piece is overwritten once both have used it; under the mask the tile with fewer
//         keys goes as far as the other. Where keys are split, results go to the workspace: what is in pairs merges in no
//         cluster. All else is rung 12's: packing, the lazy softmax, turns, and the kernel that merges.
// Gained  in h200-2026-11-28-decode, over rung 12 with 64 queries of 4 heads: 1.06 to 1.09x at 8 and 32 sequences of 1024 keys and
//         more, where flash-attn-4 takes 0.97 to 1.00 of its time; at one sequence 0.89x at 1024 keys, where rung 12 merges in
//         clusters, 1.07x at 8192 and at 32,768.
// Limits  a tile of keys takes as long as in rung 11, 1.5 us: the softmax beside the products. The first bytes come later than by
//         cp.async, so that it needs many keys: 16 tiles of 128 for each CTA and more.
#include "12_few.cu"

// A box comes into the shared memory of both CTAs, at the same place, and counts its bytes on the barrier of each.
__device__ __forceinline__ void load_box_for_both(unsigned to, const TensorMap& map, int column, int row, int head, int batch,
                                                  unsigned barrier) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::
                     "r"(to), "l"(&map), "r"(column), "r"(row), "r"(head), "r"(batch), "r"(barrier),
                     "h"(static_cast<unsigned short>(3)) : "memory");
}
// Arrives on a barrier at an address in the cluster.
__device__ __forceinline__ void arrive_in_cluster(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Of a warp's rows: the offset of their exponents, to base 2, and the sums of their probabilities, two of each for a thread.
template <typename T, int KEYS> struct LazyRows {
    float offset[2] = {}, sum[2] = {}, shrink[2];

    // A tile's scores become probabilities. Returns whether a row rose too far for its offset, and O is to be multiplied by
    // `shrink`.
    __device__ __forceinline__ bool exponentiate(float (&s)[KEYS / 2], float scale_log2, bool first) {
        if (first)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float top = -infinity();
#pragma unroll
                for (int n = 2 * half; n < KEYS / 2; n += 4) top = fmaxf(top, fmaxf(s[n], s[n + 1]));
                top = quad_max(top);
                offset[half] = top == -infinity() ? 0 : top * scale_log2 + HEADROOM;
            }
        int highest[2] = {};  // above 0, floats are ordered as their bits are
#pragma unroll
        for (int n = 0; n < KEYS / 2; n += 2) {
            const int half = n / 2 % 2;
            s[n] = s[n] * scale_log2 - offset[half];
            s[n + 1] = s[n + 1] * scale_log2 - offset[half];
            highest[half] = max(max(__float_as_int(s[n]), __float_as_int(s[n + 1])), highest[half]);
        }
        const bool rises = __any_sync(~0u, max(highest[0], highest[1]) > __float_as_int(most_exponent<T>()));
        if (rises) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float high = quad_max(__int_as_float(highest[half])), by = high > 0 ? ceilf(high) + HEADROOM : 0;
                offset[half] += by;
                shrink[half] = exp2_approx(-by);
                sum[half] *= shrink[half];
#pragma unroll
                for (int n = 2 * half; n < KEYS / 2; n += 4) s[n] -= by, s[n + 1] -= by;
            }
        }
#pragma unroll
        for (int n = 0; n < KEYS / 2; ++n) {
            s[n] = exp2_approx(s[n]);
            sum[n / 2 % 2] += s[n];
        }
        return rises;
    }
};

// q, o: (batch, heads, rows, D), with any strides. K and V come by maps, in boxes of KEYS / 2 rows. Clusters of two CTAs, each
// with a tile of rows and a part of the keys.
template <typename T, int D, bool CAUSAL, int ROWS, int WARPS, int KEYS, int STAGES>
__global__ void __launch_bounds__(32 * WARPS)
pairs(const T* q, const T*, const T*, T* o, float* workspace, const int* kv_lens, const Packing problem,
      const __grid_constant__ TensorMap k_map, const __grid_constant__ TensorMap v_map) {
    using R = Roles<D, ROWS, WARPS, KEYS, STAGES, 1, 1>;
    constexpr int THREADS = R::THREADS, CHUNKS = D / 8, WARPGROUPS = R::CONSUMERS / 4;
    constexpr int WIDTH = Result<D>::WIDTH;
    static_assert(4 * ROWS * WIDTH <= 2 * D * (ROWS + 2 * STAGES * KEYS), "results fit the memory");
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ unsigned long long barriers[2][R::PIECES];
    T* q_tile = reinterpret_cast<T*>(memory);  // (ROWS / 64, D / 64, 64, 64)
    T* ring = q_tile + ROWS * D;               // (STAGES, K and V, D / 64, KEYS, 64)
    const unsigned full = shared_address(barriers[0]), empty = shared_address(barriers[1]);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, own = 16 * warp;  // the warp's rows

    const int rows = problem.rows(), row_tiles = (rows + ROWS - 1) / ROWS, mate = blockIdx.x % 2;
    const int first = blockIdx.x % row_tiles * ROWS, cluster = blockIdx.x / row_tiles % problem.clusters;
    const int head = blockIdx.x / row_tiles / problem.clusters;  // of K and V, over all batches
    const int batch = head / problem.kv_heads, kv_head = head % problem.kv_heads;
    if (threadIdx.x == 0) {
        for (int piece = 0; piece < R::PIECES; ++piece) {
            init_barrier(full + 8 * piece, 1);
            init_barrier(empty + 8 * piece, 2 * R::CONSUMERS);
        }
        publish_barriers();
    }
    if (threadIdx.x == THREADS) prefetch(k_map), prefetch(v_map);
    OwnRows<ROWS, D, THREADS> own_rows(first, problem.group);
    own_rows.now();
    synchronize_cluster();
    wait_for_previous();
    const int keys = problem.keys_of(kv_lens, batch);
    const int pair_keys = CAUSAL ? problem.seen(keys, first + ROWS * (2 - mate) - 1) : keys;  // that any row of both tiles sees
    const int begin = cluster * problem.split_keys, end = min(pair_keys, begin + problem.split_keys);
    if (problem.clusters > 1 && begin >= pair_keys) return;  // `merge` doesn't look for it
    const int tiles = max(0, end - begin + KEYS - 1) / KEYS;

    // Of tile t, K is piece 2t and V piece 2t + 1.
    const auto at = [&](int piece) { return ring + piece % R::PIECES * R::PIECE; };
    if (warp >= R::CONSUMERS) {
        give_registers<R::PRODUCER_REGISTERS>();
        launch_next();
        if (threadIdx.x == THREADS)
#pragma unroll 1
            for (int piece = 0; piece < 2 * tiles; ++piece) {
                const unsigned filled = full + 8 * (piece % R::PIECES);
                const int skipped = mate * KEYS / 2, first_key = begin + piece / 2 * KEYS + skipped;
                const unsigned to = shared_address(at(piece)) + 128 * skipped;
                wait(empty + 8 * (piece % R::PIECES), piece / R::PIECES % 2 ^ 1);
                arrive_expecting(filled, sizeof(T) * R::PIECE);
#pragma unroll
                for (int column = 0; column < D; column += 64)
                    load_box_for_both(to + 2 * column * KEYS, piece % 2 ? v_map : k_map, column, first_key, kv_head, batch, filled);
            }
        return;
    }
    take_registers<R::CONSUMER_REGISTERS>();
    own_rows.template load<64>(q_tile, q + problem.offset(problem.q, batch, kv_head, 0), problem.q, rows - first);
    launch_next();  // once all CTAs run: what is launched waits by itself
    commit_copies();
    wait_for_copies<0>();
    publish_to_tma();
    synchronize(1, THREADS);

    float s[KEYS / 2] = {}, out[D / 2] = {};
    unsigned p[KEYS / 16][4];
    LazyRows<T, KEYS> lazy;
    int seen[2];  // keys before this one are seen by the thread's rows; `all_see` by all rows
    const int all_see = CAUSAL ? min(end, problem.seen(keys, first)) : end;
#pragma unroll
    for (int half = 0; half < 2; ++half)
        seen[half] = CAUSAL ? min(end, problem.seen(keys, first + own + lane / 4 + 8 * half)) : end;
    const auto exponentiate = [&](int tile) {
        const int first_key = begin + tile * KEYS;
        if (first_key + KEYS > all_see) {
#pragma unroll
            for (int n = 0; n < KEYS / 2; ++n)
                if (first_key + n / 4 * 8 + lane % 4 * 2 + n % 2 >= seen[n / 2 % 2]) s[n] = -infinity();
        }
        return lazy.exponentiate(s, problem.scale * LOG2_E, tile == 0);
    };
    const auto pack_probabilities = [&] {
#pragma unroll
        for (int n = 0; n < KEYS / 4; ++n) p[n / 4][n % 4] = pack<T>(s[2 * n], s[2 * n + 1]);
    };
    const int consumer = __shfl_sync(~0u, warp / 4, 0);
    const auto multiply_query_by_keys = [&](int piece) {
        const auto of_q = descriptor(shared_address(q_tile + consumer * 64 * D), 16, 1024);
        const auto of_k = descriptor(shared_address(at(piece)), 16, 1024);
        begin_products();
#pragma unroll
        for (int d = 0; d < D / 16; ++d)
            multiply<T, false>(s, of_q + ((d / 4 * 64 * 128 + d % 4 * 32) >> 4),
                               of_k + ((d / 4 * KEYS * 128 + d % 4 * 32) >> 4), d);
        commit_products();
    };
    const auto multiply_probabilities_by_values = [&](int piece) {
        const auto of_v = descriptor(shared_address(at(piece)), KEYS * 128, 1024);
        begin_products();
#pragma unroll
        for (int j = 0; j < KEYS / 16; ++j) multiply<T, true>(out, p[j], of_v + (16 * j * 128 >> 4), 1);
        commit_products();
    };
    const auto await = [&](int piece) { wait(full + 8 * (piece % R::PIECES), piece / R::PIECES % 2); };
    const unsigned emptied = lane < 2 ? address_in(lane, empty) : 0;
    const auto release = [&](int piece) {
        __syncwarp();
        // A lane for each CTA, if another piece is to come: a barrier on which nobody waits may be gone.
        if (lane < 2 && piece < 2 * tiles - R::PIECES) arrive_in_cluster(emptied + 8 * (piece % R::PIECES));
    };
    // Behind a sequence's last key a cache may hold anything, and 0 * NaN is NaN. Behind the tensor's, TMA writes zeros.
    const auto hide_values_behind_the_end = [&](int piece) {
        const int there = end - begin - (tiles - 1) * KEYS;
        if (there == KEYS || end == problem.keys) return;
        for (int i = there * CHUNKS + threadIdx.x; i < KEYS * CHUNKS; i += THREADS)
            *reinterpret_cast<uint4*>(at(piece) + place<KEYS>(i / CHUNKS, i % CHUNKS)) = make_uint4(0, 0, 0, 0);
        publish_to_tma();
        synchronize(1, THREADS);
    };

    if (consumer == WARPGROUPS - 1) pass_turn<WARPGROUPS>(consumer);  // the first one's begins
    if (tiles > 0) {
        wait_for_turn(consumer);
        await(0);
        multiply_query_by_keys(0);
        finish_products<0>(s);
        pass_turn<WARPGROUPS>(consumer);
        release(0);
        exponentiate(0);
        pack_probabilities();
    }
    // The scores of a tile are computed beside O of the one before, and its softmax runs beside that.
#pragma unroll 1
    for (int tile = 1; tile < tiles; ++tile) {
        wait_for_turn(consumer);
        await(2 * tile);
        multiply_query_by_keys(2 * tile);
        await(2 * tile - 1);
        multiply_probabilities_by_values(2 * tile - 1);
        pass_turn<WARPGROUPS>(consumer);
        finish_products<1>(s);
        release(2 * tile);
        // ptxas moves the wait for O up before the exponentials, but not out of a branch.
        if (exponentiate(tile)) {
            finish_products<0>(out);
            release(2 * tile - 1);
#pragma unroll
            for (int d = 0; d < D / 2; ++d) out[d] *= lazy.shrink[d / 2 % 2];
        } else {
            finish_products<0>(out);
            release(2 * tile - 1);
        }
        pack_probabilities();
    }
    if (tiles > 0) {
        await(2 * tiles - 1);
        hide_values_behind_the_end(2 * tiles - 1);
        multiply_probabilities_by_values(2 * tiles - 1);
        finish_products<0>(out);
    }

    synchronize(1, THREADS);  // all tiles are read by all, and their memory now holds results
    float* results = reinterpret_cast<float*>(memory);  // (ROWS, WIDTH)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = own + lane / 4 + 8 * half;
        const float sum = quad_sum(lazy.sum[half]), inverse = sum == 0 ? 0 : 1 / sum;  // a row that sees no key is zero
        if (lane % 4 == 0) results[row * WIDTH + Result<D>::LOG] = sum == 0 ? -infinity() : lazy.offset[half] + log2f(sum);
#pragma unroll
        for (int d = 0; d < D / 8; ++d)
            *reinterpret_cast<float2*>(results + row * WIDTH + 8 * d + lane % 4 * 2) =
                make_float2(out[4 * d + 2 * half] * inverse, out[4 * d + 2 * half + 1] * inverse);
    }
    synchronize(1, THREADS);
    const Output<T, D> output(o, workspace, problem, head, cluster, first);
    own_rows.each(problem.o, [&](int row, long long offset) {
        if (row >= rows - first) return;
        const int column = threadIdx.x % CHUNKS * 4;
        float value[2][4] = {};
        Result<D>::add(value, results + row * WIDTH + column, 1);
        output.take(row, offset, column, value, results[row * WIDTH + Result<D>::LOG]);
    });
    leave_cluster();  // what the one loaded is there for the other
}
