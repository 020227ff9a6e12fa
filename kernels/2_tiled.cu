// Rung 2: tiles in shared memory and the online softmax, in fp32.
//
// Does    one pass. A block keeps 64 queries and walks over tiles of keys; each thread keeps 4 x (KEYS / 8) scores and
//         4 x (D / 8) outputs in registers. When a tile raises a row's largest score, what was summed before is scaled
//         down (Milakov and Gimelshein 2018, algorithm 3).
// Gained  10.9x over rung 1, 0.76 ms at (32, 8, 512, 64) on an H200: K and V are read once for 64 queries, the scores
//         computed once, and no shuffle is left inside a dot product.
// Limits  issue slots, 63 % taken; the fp32 units are 47 % busy. 17 GFLOP are 0.26 ms of them on an H200 however well they
//         are fed, and twelve loads from shared memory stand beside every 128 fused multiply-adds.
#include "element.cuh"

// Rows are padded by one float4, so that eight threads reading one column of eight rows touch all banks.
template <int ROWS, int D, typename T>
__device__ __forceinline__ void load_tile(float (&tile)[ROWS][D + 4], const T* source, int first, int seq_len) {
    for (int i = threadIdx.x; i < ROWS * D; i += 128) {
        const int row = i / D, column = i % D;
        const bool there = first + row < seq_len;
        tile[row][column] = there ? to_float(source[static_cast<long long>(first + row) * D + column]) : 0.f;
    }
}

__device__ __forceinline__ float4 four(const float* p) { return *reinterpret_cast<const float4*>(p); }

template <typename T, int D, int KEYS> struct Shared {
    float q[64][D + 4];
    float k[KEYS][D + 4];
    float v[KEYS][D + 4];
    float p[64][KEYS + 4];
};

// q, k, v, o: (heads, seq_len, D); thread (r, c) of 16 x 8 holds rows 4r to 4r + 3, keys c + 8j and columns 4c + 32j
template <typename T, int D, bool CAUSAL, int KEYS>
__global__ void __launch_bounds__(128)
tiled(const T* q, const T* k, const T* v, T* o, int heads, int seq_len, float scale) {
    extern __shared__ __align__(16) unsigned char memory[];
    auto& tile = *reinterpret_cast<Shared<T, D, KEYS>*>(memory);
    const int r = threadIdx.x / 8, c = threadIdx.x % 8;
    const int tiles = (seq_len + 63) / 64;
    const int head = blockIdx.x / tiles;
    const int first = blockIdx.x % tiles * 64;
    const long long base = static_cast<long long>(head) * seq_len * D;
    const int end = CAUSAL ? min(seq_len, first + 64) : seq_len;

    load_tile<64, D>(tile.q, q + base, first, seq_len);
    float out[4][D / 8] = {}, largest[4], sum[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) largest[i] = -infinity();

    for (int start = 0; start < end; start += KEYS) {
        __syncthreads();
        load_tile<KEYS, D>(tile.k, k + base, start, seq_len);
        load_tile<KEYS, D>(tile.v, v + base, start, seq_len);
        __syncthreads();

        float s[4][KEYS / 8] = {};
#pragma unroll 4
        for (int d = 0; d < D; d += 4) {
            float4 a[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) a[i] = four(&tile.q[4 * r + i][d]);
#pragma unroll
            for (int j = 0; j < KEYS / 8; ++j) {
                const float4 b = four(&tile.k[c + 8 * j][d]);
#pragma unroll
                for (int i = 0; i < 4; ++i) s[i][j] += a[i].x * b.x + a[i].y * b.y + a[i].z * b.z + a[i].w * b.w;
            }
        }

#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int row = first + 4 * r + i;
            float top = largest[i];
#pragma unroll
            for (int j = 0; j < KEYS / 8; ++j) {
                const int key = start + c + 8 * j;
                s[i][j] = key < seq_len && (!CAUSAL || key <= row) ? s[i][j] * scale : -infinity();
                top = fmaxf(top, s[i][j]);
            }
#pragma unroll
            for (int step = 4; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
            const float shrink = expf(largest[i] - top);  // the first tile holds key 0, so top is finite
            largest[i] = top;
            sum[i] *= shrink;
#pragma unroll
            for (int j = 0; j < D / 8; ++j) out[i][j] *= shrink;
#pragma unroll
            for (int j = 0; j < KEYS / 8; ++j) {
                const float p = expf(s[i][j] - top);
                sum[i] += p;
                tile.p[4 * r + i][c + 8 * j] = p;
            }
        }
        __syncwarp();  // the rows of p are a warp's own

#pragma unroll 2
        for (int j = 0; j < KEYS; j += 4) {
            float4 p[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) p[i] = four(&tile.p[4 * r + i][j]);
#pragma unroll
            for (int n = 0; n < D / 32; ++n) {
                float4 b[4];
#pragma unroll
                for (int x = 0; x < 4; ++x) b[x] = four(&tile.v[j + x][4 * c + 32 * n]);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    float* y = &out[i][4 * n];
                    y[0] += p[i].x * b[0].x + p[i].y * b[1].x + p[i].z * b[2].x + p[i].w * b[3].x;
                    y[1] += p[i].x * b[0].y + p[i].y * b[1].y + p[i].z * b[2].y + p[i].w * b[3].y;
                    y[2] += p[i].x * b[0].z + p[i].y * b[1].z + p[i].z * b[2].z + p[i].w * b[3].z;
                    y[3] += p[i].x * b[0].w + p[i].y * b[1].w + p[i].z * b[2].w + p[i].w * b[3].w;
                }
            }
        }
    }

#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int step = 4; step > 0; step /= 2) sum[i] += __shfl_xor_sync(~0u, sum[i], step);
        const int row = first + 4 * r + i;
        if (row >= seq_len) continue;
#pragma unroll
        for (int n = 0; n < D / 8; ++n)
            o[base + static_cast<long long>(row) * D + 4 * c + 32 * (n / 4) + n % 4] = from_float<T>(out[i][n] / sum[i]);
    }
}
