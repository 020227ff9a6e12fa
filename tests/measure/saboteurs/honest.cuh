// An honest kernel, small rather than fast, with one place for each thing that a saboteur does otherwise.
//
// A block of 128 threads takes 128 queries of one head, a thread each, and walks over tiles of 64 keys in shared memory
// with the online softmax. head_dim 64 alone.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int ROWS = 128;
constexpr int KEYS = 64;

struct Honest {
    // What the softmax's running maximum starts from; `scratch` is shared memory, a word for each thread.
    __device__ static float first_maximum(const float* scratch) { return __int_as_float(0xff800000); }  // -infinity
    __device__ static float maximum(float largest, float score) { return fmaxf(largest, score); }
    __device__ static bool hidden(bool causal, int row, int key) { return causal && key > row; }
    __device__ static int keys(int seq_len) { return seq_len; }
    __device__ static bool writes(int row, int column, int seq_len) { return row < seq_len; }
    __device__ static void barrier() { __syncthreads(); }
    template <typename T> __device__ static float factor(const T* q) { return 1.f; }
};

// q, k, v, o: (heads, seq_len, D)
template <typename How, typename T, int D, bool CAUSAL>
__device__ void attend(const T* q, const T* k, const T* v, T* o, int seq_len, float scale) {
    extern __shared__ __align__(16) unsigned char memory[];
    T(&keys)[KEYS][D] = *reinterpret_cast<T(*)[KEYS][D]>(memory);
    T(&values)[KEYS][D] = *reinterpret_cast<T(*)[KEYS][D]>(memory + sizeof(keys));
    const float* scratch = reinterpret_cast<const float*>(memory + 2 * sizeof(keys));

    const int blocks = (seq_len + ROWS - 1) / ROWS;
    const int row = blockIdx.x % blocks * ROWS + threadIdx.x;
    const long long base = static_cast<long long>(blockIdx.x / blocks) * seq_len * D;
    float query[D], out[D] = {}, sum = 0.f, largest = How::first_maximum(scratch);
    for (int d = 0; d < D; ++d) query[d] = row < seq_len ? scale * float(q[base + row * D + d]) : 0.f;

    for (int start = 0; start < How::keys(seq_len); start += KEYS) {
        const int there = min(KEYS, How::keys(seq_len) - start);
        How::barrier();  // the last tile is read
        for (int i = threadIdx.x; i < there * D; i += ROWS) {
            keys[i / D][i % D] = k[base + start * D + i];
            values[i / D][i % D] = v[base + start * D + i];
        }
        How::barrier();  // this one is written
        for (int j = 0; j < there; ++j) {
            if (How::hidden(CAUSAL, row, start + j)) continue;
            float score = 0.f;
            for (int d = 0; d < D; ++d) score += query[d] * float(keys[j][d]);
            const float top = How::maximum(largest, score);
            const float shrink = expf(largest - top), weight = expf(score - top);
            largest = top;
            sum = sum * shrink + weight;
            for (int d = 0; d < D; ++d) out[d] = out[d] * shrink + weight * float(values[j][d]);
        }
    }
    for (int d = 0; d < D; ++d)
        if (How::writes(row, d, seq_len)) o[base + row * D + d] = T(out[d] / sum * How::factor(q));
}
