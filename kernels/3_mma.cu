// Rung 3: both products on the tensor cores, by mma.sync and ldmatrix.
//
// Does    four warps with 16 queries each walk over tiles of 64 keys. Q, K and V lie in shared memory row by row as they
//         lie in memory; the probabilities go to shared memory as well, to come back as the A operand of the second
//         product.
// Gained  1.7x over rung 2, 0.44 ms at (32, 8, 512, 64) on an H200, where 2.3x was expected.
// Limits  eight rows of a matrix lie 128 or 256 bytes apart, in the same banks: each ldmatrix is served eight times, which
//         costs more than was expected. The probabilities make a round trip through shared memory. Loads, products and
//         softmax wait for one another.
#include "mma.cuh"

constexpr int ROWS = 64, KEYS = 64;

// Sixteen bytes a thread and step; rows past the end become zeros, as 0 * V must not be NaN.
template <int D, typename T>
__device__ __forceinline__ void load_tile(T* tile, const T* source, int first, int seq_len) {
    for (int i = threadIdx.x; i < 64 * D / 8; i += 128) {
        const int row = i / (D / 8), chunk = i % (D / 8);
        uint4 eight = make_uint4(0, 0, 0, 0);
        if (first + row < seq_len)
            eight = *reinterpret_cast<const uint4*>(source + static_cast<long long>(first + row) * D + 8 * chunk);
        *reinterpret_cast<uint4*>(tile + row * D + 8 * chunk) = eight;
    }
}

// q, k, v, o: (heads, seq_len, D)
template <typename T, int D, bool CAUSAL>
__global__ void __launch_bounds__(128)
mma(const T* q, const T* k, const T* v, T* o, int heads, int seq_len, float scale) {
    extern __shared__ __align__(16) unsigned char memory[];
    T* q_tile = reinterpret_cast<T*>(memory);  // (64, D)
    T* k_tile = q_tile + ROWS * D;             // (64, D)
    T* v_tile = k_tile + KEYS * D;             // (64, D)
    T* p_tile = v_tile + KEYS * D;             // (64, 64), 16 rows for each warp
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int tiles = (seq_len + ROWS - 1) / ROWS;
    const int head = blockIdx.x / tiles;
    const int first = blockIdx.x % tiles * ROWS;
    const long long base = static_cast<long long>(head) * seq_len * D;
    const int end = CAUSAL ? min(seq_len, first + ROWS) : seq_len;

    load_tile<D>(q_tile, q + base, first, seq_len);
    float out[D / 8][4] = {}, largest[2] = {-infinity(), -infinity()}, sum[2] = {};

    for (int start = 0; start < end; start += KEYS) {
        __syncthreads();
        load_tile<D>(k_tile, k + base, start, seq_len);
        load_tile<D>(v_tile, v + base, start, seq_len);
        __syncthreads();

        float s[KEYS / 8][4] = {};
#pragma unroll
        for (int d = 0; d < D; d += 16) {
            unsigned a[4];
            load_matrices(a, shared_address(q_tile + (16 * warp + lane % 16) * D + d + lane / 16 * 8));
#pragma unroll
            for (int n = 0; n < KEYS; n += 16) {
                unsigned b[4];
                load_matrices(b, shared_address(k_tile + (n + lane % 8 + lane / 16 * 8) * D + d + lane / 8 % 2 * 8));
                multiply<T>(s[n / 8], a, b[0], b[1]);
                multiply<T>(s[n / 8 + 1], a, b[2], b[3]);
            }
        }

#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = first + 16 * warp + lane / 4 + 8 * half;
            float top = largest[half];
#pragma unroll
            for (int n = 0; n < KEYS / 8; ++n) {
#pragma unroll
                for (int x = 2 * half; x < 2 * half + 2; ++x) {
                    const int key = start + 8 * n + lane % 4 * 2 + x % 2;
                    s[n][x] = key < seq_len && (!CAUSAL || key <= row) ? s[n][x] * scale : -infinity();
                    top = fmaxf(top, s[n][x]);
                }
            }
            top = quad_max(top);
            const float shrink = __expf(largest[half] - top);  // the first tile holds key 0, so top is finite
            largest[half] = top;
            sum[half] *= shrink;
#pragma unroll
            for (int n = 0; n < D / 8; ++n) {
                out[n][2 * half] *= shrink;
                out[n][2 * half + 1] *= shrink;
            }
            T* p = p_tile + (16 * warp + lane / 4 + 8 * half) * KEYS + lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < KEYS / 8; ++n) {
                const float p0 = __expf(s[n][2 * half] - top), p1 = __expf(s[n][2 * half + 1] - top);
                sum[half] += p0 + p1;
                *reinterpret_cast<unsigned*>(p + 8 * n) = pack<T>(p0, p1);
            }
        }
        __syncwarp();  // the rows of p are a warp's own

#pragma unroll
        for (int j = 0; j < KEYS; j += 16) {
            unsigned a[4];
            load_matrices(a, shared_address(p_tile + (16 * warp + lane % 16) * KEYS + j + lane / 16 * 8));
#pragma unroll
            for (int d = 0; d < D; d += 16) {
                unsigned b[4];
                load_matrices_transposed(b, shared_address(v_tile + (j + lane % 16) * D + d + lane / 16 * 8));
                multiply<T>(out[d / 8], a, b[0], b[1]);
                multiply<T>(out[d / 8 + 1], a, b[2], b[3]);
            }
        }
    }

#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = first + 16 * warp + lane / 4 + 8 * half;
        const float inverse = 1.f / quad_sum(sum[half]);
        if (row >= seq_len) continue;
#pragma unroll
        for (int n = 0; n < D / 8; ++n)
            *reinterpret_cast<unsigned*>(o + base + static_cast<long long>(row) * D + 8 * n + lane % 4 * 2) =
                pack<T>(out[n][2 * half] * inverse, out[n][2 * half + 1] * inverse);
    }
}
