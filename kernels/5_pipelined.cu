// Rung 5: copies that run beside the products, and tiles tuned for it.
//
// Does    cp.async brings the next tile of K and V into a second stage while this one is computed, past the registers
//         and with one barrier a tile. A warp keeps MTILES x 16 queries, so a fragment of K or V that was read from
//         shared memory serves MTILES products.
// Gained  1.9x over rung 4, 0.063 ms at (32, 8, 512, 64) on an H200. Tried there, in us: MTILES 2, 64 keys, two blocks a
//         multiprocessor 62.7; with 128 keys 66.6; with 32 keys 75.4; MTILES 1, three blocks 70.2; 256 queries a block
//         68.7. Under the mask MTILES 1 is faster (46.5 against 50.6), as less of the diagonal tile is thrown away.
// Limits  mma.sync takes its operands through registers and reaches about two thirds of what wgmma does on Hopper; with
//         two warps a scheduler, the tensor cores idle while both are in their softmax.
#include "mma.cuh"

template <int D> __device__ __forceinline__ int place(int row, int chunk) { return row * D + ((chunk ^ row % 8) * 8); }

// Sixteen bytes; where nothing is to be read, zeros are written, as 0 * V must not be NaN.
__device__ __forceinline__ void copy_async(unsigned to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }

template <int ROWS, int D, int THREADS, typename T>
__device__ __forceinline__ void load_tile(T* tile, const T* source, int first, int seq_len) {
    constexpr int CHUNKS = D / 8;
    static_assert(ROWS * CHUNKS % THREADS == 0 && THREADS % CHUNKS == 0, "a thread keeps its chunk from row to row");
    const int chunk = threadIdx.x % CHUNKS, top = threadIdx.x / CHUNKS;
    const T* from = source + static_cast<long long>(first + top) * D + 8 * chunk;
#pragma unroll
    for (int row = 0; row < ROWS; row += THREADS / CHUNKS) {
        const bool there = first + top + row < seq_len;
        copy_async(shared_address(tile + place<D>(top + row, chunk)), there ? from + row * D : source, there);
    }
}

// q, k, v, o: (heads, seq_len, D)
template <typename T, int D, bool CAUSAL, int WARPS, int MTILES, int KEYS, int CTAS>
__global__ void __launch_bounds__(32 * WARPS, CTAS)
pipelined(const T* q, const T* k, const T* v, T* o, int heads, int seq_len, float scale) {
    constexpr int THREADS = 32 * WARPS, ROWS = WARPS * MTILES * 16;
    extern __shared__ __align__(128) unsigned char memory[];
    T* q_tile = reinterpret_cast<T*>(memory);  // (ROWS, D), later O on its way out
    T* k_tiles = q_tile + ROWS * D;            // (2, KEYS, D)
    T* v_tiles = k_tiles + 2 * KEYS * D;       // (2, KEYS, D)
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int tiles = (seq_len + ROWS - 1) / ROWS;
    const int head = blockIdx.x / tiles;
    // Under the mask the last tiles have most to do: begin with them.
    const int first = (CAUSAL ? tiles - 1 - blockIdx.x % tiles : blockIdx.x % tiles) * ROWS;
    const long long base = static_cast<long long>(head) * seq_len * D;
    const int end = CAUSAL ? min(seq_len, first + ROWS) : seq_len;
    const int unmasked = CAUSAL ? min(seq_len, first + 1) : seq_len;  // keys before this one are seen by every query
    const float scale_log2 = scale * LOG2_E;
    const int own = 16 * MTILES * warp;

    load_tile<ROWS, D, THREADS>(q_tile, q + base, first, seq_len);
    load_tile<KEYS, D, THREADS>(k_tiles, k + base, 0, seq_len);
    load_tile<KEYS, D, THREADS>(v_tiles, v + base, 0, seq_len);
    commit_copies();

    unsigned query[MTILES][D / 16][4];
    float out[MTILES][D / 8][4] = {}, largest[MTILES][2], sum[MTILES][2] = {};
#pragma unroll
    for (int m = 0; m < MTILES; ++m) largest[m][0] = largest[m][1] = -infinity();

    for (int start = 0, stage = 0; start < end; start += KEYS, stage ^= 1) {
        wait_for_copies();
        __syncthreads();  // this stage is full for all, and the other one read by all
        if (start + KEYS < end) {
            load_tile<KEYS, D, THREADS>(k_tiles + (stage ^ 1) * KEYS * D, k + base, start + KEYS, seq_len);
            load_tile<KEYS, D, THREADS>(v_tiles + (stage ^ 1) * KEYS * D, v + base, start + KEYS, seq_len);
        }
        commit_copies();
        if (start == 0) {
#pragma unroll
            for (int m = 0; m < MTILES; ++m)
#pragma unroll
                for (int d = 0; d < D / 16; ++d)
                    load_matrices(query[m][d], shared_address(q_tile + place<D>(own + 16 * m + lane % 16, 2 * d + lane / 16)));
        }
        const T* k_tile = k_tiles + stage * KEYS * D;
        const T* v_tile = v_tiles + stage * KEYS * D;

        float s[MTILES][KEYS / 8][4] = {};
#pragma unroll
        for (int d = 0; d < D / 16; ++d) {
#pragma unroll
            for (int n = 0; n < KEYS / 8; n += 2) {
                unsigned b[4];
                const int row = 8 * n + lane % 8 + lane / 16 * 8;
                load_matrices(b, shared_address(k_tile + place<D>(row, 2 * d + lane / 8 % 2)));
#pragma unroll
                for (int m = 0; m < MTILES; ++m) {
                    multiply<T>(s[m][n], query[m][d], b[0], b[1]);
                    multiply<T>(s[m][n + 1], query[m][d], b[2], b[3]);
                }
            }
        }
        if (start + KEYS > unmasked) {
#pragma unroll
            for (int m = 0; m < MTILES; ++m)
#pragma unroll
                for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
                    for (int x = 0; x < 4; ++x) {
                        const int key = start + 8 * n + lane % 4 * 2 + x % 2;
                        const int row = first + own + 16 * m + lane / 4 + x / 2 * 8;
                        if (key >= seq_len || (CAUSAL && key > row)) s[m][n][x] = -infinity();
                    }
        }

#pragma unroll
        for (int m = 0; m < MTILES; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float top = largest[m][half];
#pragma unroll
                for (int n = 0; n < KEYS / 8; ++n) top = fmaxf(top, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
                top = quad_max(top);
                const float shrink = exp2_approx((largest[m][half] - top) * scale_log2);  // top is finite: key 0 came first
                const float shift = top * scale_log2;
                largest[m][half] = top;
                sum[m][half] *= shrink;
#pragma unroll
                for (int d = 0; d < D / 8; ++d) {
                    out[m][d][2 * half] *= shrink;
                    out[m][d][2 * half + 1] *= shrink;
                }
#pragma unroll
                for (int n = 0; n < KEYS / 8; ++n) {
#pragma unroll
                    for (int x = 2 * half; x < 2 * half + 2; ++x) {
                        s[m][n][x] = exp2_approx(s[m][n][x] * scale_log2 - shift);
                        sum[m][half] += s[m][n][x];
                    }
                }
            }
        }

#pragma unroll
        for (int j = 0; j < KEYS / 16; ++j) {
            unsigned p[MTILES][4];
#pragma unroll
            for (int m = 0; m < MTILES; ++m) {
                const float(&left)[4] = s[m][2 * j], (&right)[4] = s[m][2 * j + 1];
                p[m][0] = pack<T>(left[0], left[1]);
                p[m][1] = pack<T>(left[2], left[3]);
                p[m][2] = pack<T>(right[0], right[1]);
                p[m][3] = pack<T>(right[2], right[3]);
            }
#pragma unroll
            for (int d = 0; d < D / 8; d += 2) {
                unsigned b[4];
                load_matrices_transposed(b, shared_address(v_tile + place<D>(16 * j + lane % 16, d + lane / 16)));
#pragma unroll
                for (int m = 0; m < MTILES; ++m) {
                    multiply<T>(out[m][d], p[m], b[0], b[1]);
                    multiply<T>(out[m][d + 1], p[m], b[2], b[3]);
                }
            }
        }
    }

    // Through shared memory, so that rows leave in 16-byte pieces; the rows are a warp's own.
    __syncwarp();
#pragma unroll
    for (int m = 0; m < MTILES; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float inverse = 1.f / quad_sum(sum[m][half]);
            const int row = own + 16 * m + lane / 4 + 8 * half;
#pragma unroll
            for (int d = 0; d < D / 8; ++d)
                *reinterpret_cast<unsigned*>(q_tile + place<D>(row, d) + lane % 4 * 2) =
                    pack<T>(out[m][d][2 * half] * inverse, out[m][d][2 * half + 1] * inverse);
        }
    __syncwarp();
    constexpr int CHUNKS = D / 8;
#pragma unroll
    for (int i = lane; i < 16 * MTILES * CHUNKS; i += 32) {
        const int row = own + i / CHUNKS, chunk = i % CHUNKS;
        if (first + row < seq_len)
            *reinterpret_cast<uint4*>(o + base + static_cast<long long>(first + row) * D + 8 * chunk) =
                *reinterpret_cast<const uint4*>(q_tile + place<D>(row, chunk));
    }
}
