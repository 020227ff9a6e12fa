// Rung 12: few queries over many keys: decoding, speculative decoding, and the last chunk of a prompt.
//
// Does    the query heads that share a head of K and V are packed with their queries into the rows of one tile, so that K
//         and V are read once for all of them. Keys are split over as many CTAs as fill the device. With few rows, the
//         warps of a CTA share the keys of each tile and merge their results in shared memory. A CTA's results, O and the
//         logarithm of the sum of its exponentials, go to a workspace, and a second kernel merges them; it is launched
//         while the first one still runs. With one split O is written at once. Sequences may differ in length: `kv_lens`.
// Gained  with 4 queries 1.4 to 5.5x over the fastest of SDPA from memory, with one 0.8 to 1.0x (NOTES.md); 4.5 TB/s at batch 32.
// Limits  mma.sync: with 64 queries of 4 heads the products take longer than reading K and V does. The second launch, about
//         2 us, where caches are short.
#include "mma.cuh"

struct Strides { long long batch, head, row; };  // in elements; rows are queries or keys

// `group` query heads share each of the `kv_heads`; together their queries are rows, numbered head by head. A head's keys
// are split into `splits` parts of `split_keys`. Under the mask, the last query sees all keys of its sequence.
struct Packing {
    Strides q, k, v, o;
    int queries, keys, group, kv_heads, splits, split_keys;
    float scale;
    __device__ __forceinline__ int rows() const { return group * queries; }
    // The keys of a sequence, of which the tensors hold `keys` at most.
    __device__ __forceinline__ int keys_of(const int* kv_lens, int batch) const {
        return kv_lens ? min(max(kv_lens[batch], 0), keys) : keys;
    }
    // Where a row of Q or O begins.
    __device__ __forceinline__ long long offset(const Strides& of, int batch, int kv_head, int row) const {
        return batch * of.batch + (kv_head * group + row / queries) * of.head + row % queries * of.row;
    }
};

// A row of the workspace, (batch, kv_heads, splits, rows): O relative to its own sum, and the base-2 logarithm of that.
template <int D> struct Partial { static constexpr int LOG = D, SIZE = D + 4; };

// The sum of exponentials of one part, as a share of all: `log` is its logarithm, or largest exponent, and `top` the largest
// of all parts. A part that saw no keys has none.
__device__ __forceinline__ float weight(float log, float top) { return top == -infinity() ? 0 : exp2_approx(log - top); }

template <int D> __device__ __forceinline__ int place(int row, int chunk) { return row * D + ((chunk ^ row % 8) * 8); }

// Sixteen bytes; where nothing is to be read, zeros are written, as 0 * V must not be NaN.
__device__ __forceinline__ void copy_async(unsigned to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Returns once all but the last PENDING groups are there.
template <int PENDING> __device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
// Lets the next kernel of the stream be launched.
__device__ __forceinline__ void launch_next() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
// Returns once the kernel before has ended and what it wrote is there.
__device__ __forceinline__ void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Eight columns of a row of O.
template <typename T> __device__ __forceinline__ void store(T* to, const float (&value)[8]) {
    *reinterpret_cast<uint4*>(to) = make_uint4(pack<T>(value[0], value[1]), pack<T>(value[2], value[3]),
                                               pack<T>(value[4], value[5]), pack<T>(value[6], value[7]));
}
__device__ __forceinline__ void store(float* to, const float (&value)[8]) {
    reinterpret_cast<float4*>(to)[0] = make_float4(value[0], value[1], value[2], value[3]);
    reinterpret_cast<float4*>(to)[1] = make_float4(value[4], value[5], value[6], value[7]);
}

// The keys from `first` on, of which those before `end` are there.
template <int KEYS, int D, int THREADS, typename T>
__device__ __forceinline__ void load_keys(T* tile, const T* source, long long stride, int first, int end) {
    constexpr int CHUNKS = D / 8;
    static_assert(KEYS * CHUNKS % THREADS == 0 && THREADS % CHUNKS == 0, "a thread keeps its chunk from key to key");
    const int chunk = threadIdx.x % CHUNKS, top = threadIdx.x / CHUNKS;
    const T* from = source + (first + top) * stride + 8 * chunk;
#pragma unroll
    for (int key = 0; key < KEYS; key += THREADS / CHUNKS) {
        const bool there = first + top + key < end;
        copy_async(shared_address(tile + place<D>(top + key, chunk)), there ? from + key * stride : source, there);
    }
}

// q, k, v, o: (batch, heads, rows, D), with any strides; a CTA for each tile of rows, split and head of K and V
template <typename T, int D, bool CAUSAL, int ROWS, int WARPS, int KEYS, int STAGES, int CTAS>
__global__ void __launch_bounds__(32 * WARPS, CTAS)
few(const T* q, const T* k, const T* v, T* o, float* workspace, const int* kv_lens, const Packing problem) {
    constexpr int THREADS = 32 * WARPS, CHUNKS = D / 8, PARTS = 16 * WARPS / ROWS, OWN_KEYS = KEYS / PARTS;
    constexpr int WIDTH = D + 8;  // of a row of floats in shared memory, so that rows lie in different banks
    static_assert(PARTS * ROWS == 16 * WARPS && OWN_KEYS % 16 == 0, "warps share a tile evenly");
    static_assert(PARTS * ROWS * 4 * (WIDTH + 2) <= STAGES * 4 * KEYS * D, "results fit the ring");
    extern __shared__ __align__(128) unsigned char memory[];
    T* q_tile = reinterpret_cast<T*>(memory);  // (ROWS, D)
    T* ring = q_tile + ROWS * D;               // (STAGES, K and V, KEYS, D)
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int own = 16 * (warp % (ROWS / 16)), part = warp / (ROWS / 16);  // the warp's rows, and its part of the keys

    const int rows = problem.rows(), row_tiles = (rows + ROWS - 1) / ROWS;
    const int first = blockIdx.x % row_tiles * ROWS, split = blockIdx.x / row_tiles % problem.splits;
    const int head = blockIdx.x / row_tiles / problem.splits;  // of K and V, over all batches
    const int batch = head / problem.kv_heads, kv_head = head % problem.kv_heads;
    const int keys = problem.keys_of(kv_lens, batch);
    const int begin = split * problem.split_keys, end = min(keys, begin + problem.split_keys);
    if (problem.splits > 1 && begin >= end) return;  // `merge` doesn't look for it
    const int tiles = (end - begin + KEYS - 1) / KEYS;
    const T* k_head = k + batch * problem.k.batch + kv_head * problem.k.head;
    const T* v_head = v + batch * problem.v.batch + kv_head * problem.v.head;

    const auto load = [&](int tile) {
        if (tile < tiles) {
            T* to = ring + tile % STAGES * 2 * KEYS * D;
            load_keys<KEYS, D, THREADS>(to, k_head, problem.k.row, begin + tile * KEYS, end);
            load_keys<KEYS, D, THREADS>(to + KEYS * D, v_head, problem.v.row, begin + tile * KEYS, end);
        }
        commit_copies();
    };
    for (int i = threadIdx.x; i < ROWS * CHUNKS; i += THREADS) {
        const int row = i / CHUNKS, chunk = i % CHUNKS;
        const bool there = first + row < rows;
        const T* from = there ? q + problem.offset(problem.q, batch, kv_head, first + row) + 8 * chunk : q;
        copy_async(shared_address(q_tile + place<D>(row, chunk)), from, there);
    }
    for (int tile = 0; tile < STAGES - 1; ++tile) load(tile);
    if (problem.splits > 1) launch_next();  // once all CTAs run: what is launched waits by itself
    wait_for_copies<STAGES - 2>();
    __syncthreads();
    unsigned query[D / 16][4];
#pragma unroll
    for (int d = 0; d < D / 16; ++d)
        load_matrices(query[d], shared_address(q_tile + place<D>(own + lane % 16, 2 * d + lane / 16)));

    const float scale_log2 = problem.scale * LOG2_E;
    float out[D / 8][4] = {}, largest[2] = {-infinity(), -infinity()}, sum[2] = {};
    int seen[2];  // keys before this one are seen by the thread's rows; `all_see` by all rows
    const int all_see = CAUSAL ? min(end, keys - problem.queries + 1) : end;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int number = (first + own + lane / 4 + 8 * half) % problem.queries;
        seen[half] = CAUSAL ? min(end, keys - problem.queries + 1 + number) : end;
    }

    for (int tile = 0; tile < tiles; ++tile) {
        wait_for_copies<STAGES - 2>();
        __syncthreads();  // this tile is there for all, and the one before read by all
        load(tile + STAGES - 1);
        const T* k_tile = ring + tile % STAGES * 2 * KEYS * D + part * OWN_KEYS * D;
        const T* v_tile = k_tile + KEYS * D;

        float s[OWN_KEYS / 8][4] = {};
#pragma unroll
        for (int d = 0; d < D / 16; ++d)
#pragma unroll
            for (int n = 0; n < OWN_KEYS / 8; n += 2) {
                unsigned b[4];
                const int row = 8 * n + lane % 8 + lane / 16 * 8;
                load_matrices(b, shared_address(k_tile + place<D>(row, 2 * d + lane / 8 % 2)));
                multiply<T>(s[n], query[d], b[0], b[1]);
                multiply<T>(s[n + 1], query[d], b[2], b[3]);
            }
        const int first_key = begin + tile * KEYS + part * OWN_KEYS;
        if (first_key + OWN_KEYS > all_see) {
#pragma unroll
            for (int n = 0; n < OWN_KEYS / 8; ++n)
#pragma unroll
                for (int x = 0; x < 4; ++x)
                    if (first_key + 8 * n + lane % 4 * 2 + x % 2 >= seen[x / 2]) s[n][x] = -infinity();
        }

        float shrink[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float top = largest[half];
#pragma unroll
            for (int n = 0; n < OWN_KEYS / 8; ++n) top = fmaxf(top, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
            top = quad_max(top);
            const float offset = top == -infinity() ? 0 : top;  // a row that has seen no key yet
            shrink[half] = exp2_approx((largest[half] - offset) * scale_log2);
            largest[half] = top;
            sum[half] *= shrink[half];
#pragma unroll
            for (int n = 0; n < OWN_KEYS / 8; ++n)
#pragma unroll
                for (int x = 2 * half; x < 2 * half + 2; ++x) {
                    s[n][x] = exp2_approx(s[n][x] * scale_log2 - offset * scale_log2);
                    sum[half] += s[n][x];
                }
        }
        if (__any_sync(~0u, shrink[0] != 1 || shrink[1] != 1)) {
#pragma unroll
            for (int d = 0; d < D / 8; ++d)
#pragma unroll
                for (int x = 0; x < 4; ++x) out[d][x] *= shrink[x / 2];
        }

#pragma unroll
        for (int j = 0; j < OWN_KEYS / 16; ++j) {
            const float(&left)[4] = s[2 * j], (&right)[4] = s[2 * j + 1];
            const unsigned p[4] = {pack<T>(left[0], left[1]), pack<T>(left[2], left[3]), pack<T>(right[0], right[1]),
                                   pack<T>(right[2], right[3])};
#pragma unroll
            for (int d = 0; d < D / 8; d += 2) {
                unsigned b[4];
                load_matrices_transposed(b, shared_address(v_tile + place<D>(16 * j + lane % 16, d + lane / 16)));
                multiply<T>(out[d], p, b[0], b[1]);
                multiply<T>(out[d + 1], p, b[2], b[3]);
            }
        }
    }

    wait_for_copies<0>();
    __syncthreads();  // the ring is read by all, and now holds results
    float* parts = reinterpret_cast<float*>(ring);  // (PARTS, ROWS, WIDTH)
    float* tops = parts + PARTS * ROWS * WIDTH;     // (PARTS, ROWS)
    float* sums = tops + PARTS * ROWS;              // (PARTS, ROWS)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = part * ROWS + own + lane / 4 + 8 * half;
        const float row_sum = quad_sum(sum[half]);
        if (lane % 4 == 0) {
            tops[row] = largest[half] * scale_log2;
            sums[row] = row_sum;
        }
#pragma unroll
        for (int d = 0; d < D / 8; ++d)
            *reinterpret_cast<float2*>(parts + row * WIDTH + 8 * d + lane % 4 * 2) =
                make_float2(out[d][2 * half], out[d][2 * half + 1]);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < ROWS * CHUNKS; i += THREADS) {
        const int row = i / CHUNKS, chunk = i % CHUNKS;
        if (first + row >= rows) break;
        float top = -infinity(), row_sum = 0, value[8] = {};
#pragma unroll
        for (int p = 0; p < PARTS; ++p) top = fmaxf(top, tops[p * ROWS + row]);
#pragma unroll
        for (int p = 0; p < PARTS; ++p) {
            const float share = weight(tops[p * ROWS + row], top);
            row_sum += share * sums[p * ROWS + row];
#pragma unroll
            for (int x = 0; x < 8; ++x) value[x] += share * parts[(p * ROWS + row) * WIDTH + 8 * chunk + x];
        }
        const float inverse = row_sum == 0 ? 0 : 1 / row_sum;  // a row that sees no key is zero
#pragma unroll
        for (int x = 0; x < 8; ++x) value[x] *= inverse;
        if (problem.splits == 1) {
            store(o + problem.offset(problem.o, batch, kv_head, first + row) + 8 * chunk, value);
        } else {
            using P = Partial<D>;
            float* to = workspace + ((static_cast<long long>(head) * problem.splits + split) * rows + first + row) * P::SIZE;
            store(to + 8 * chunk, value);
            if (chunk == 0) to[P::LOG] = row_sum == 0 ? -infinity() : top + log2f(row_sum);
        }
    }
}

// The results of the splits of each row, a CTA for each row of each head of K and V.
template <typename T, int D>
__global__ void __launch_bounds__(128) merge(T* o, const float* workspace, const int* kv_lens, const Packing problem) {
    using P = Partial<D>;
    constexpr int WARPS = 4, COLUMNS = D / 32;  // columns of a lane
    __shared__ float parts[WARPS][D];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int rows = problem.rows(), row = blockIdx.x % rows, head = blockIdx.x / rows;
    const int batch = head / problem.kv_heads, kv_head = head % problem.kv_heads;
    wait_for_previous();
    const int written = (problem.keys_of(kv_lens, batch) + problem.split_keys - 1) / problem.split_keys;
    const float* from = workspace + (static_cast<long long>(head) * problem.splits * rows + row) * P::SIZE;
    const long long step = static_cast<long long>(rows) * P::SIZE;

    float top = -infinity(), sum = 0;
    for (int split = lane; split < written; split += 32) top = fmaxf(top, __ldcg(from + split * step + P::LOG));
#pragma unroll
    for (int apart = 16; apart; apart /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, apart));
    for (int split = lane; split < written; split += 32) sum += weight(__ldcg(from + split * step + P::LOG), top);
#pragma unroll
    for (int apart = 16; apart; apart /= 2) sum += __shfl_xor_sync(~0u, sum, apart);

    float value[COLUMNS] = {};
#pragma unroll 4
    for (int split = warp; split < written; split += WARPS) {
        const float* part = from + split * step;
        const float share = weight(__ldcg(part + P::LOG), top);
#pragma unroll
        for (int x = 0; x < COLUMNS; ++x) value[x] += share * __ldcg(part + lane + 32 * x);
    }
#pragma unroll
    for (int x = 0; x < COLUMNS; ++x) parts[warp][lane + 32 * x] = value[x];
    __syncthreads();
    if (threadIdx.x >= D / 8) return;
    const float inverse = sum == 0 ? 0 : 1 / sum;
    float all[8] = {};
#pragma unroll
    for (int x = 0; x < 8; ++x) {
#pragma unroll
        for (int w = 0; w < WARPS; ++w) all[x] += parts[w][8 * threadIdx.x + x];
        all[x] *= inverse;
    }
    store(o + problem.offset(problem.o, batch, kv_head, row) + 8 * threadIdx.x, all);
}
