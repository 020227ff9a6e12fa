// What those need that remember: a few words of what a block is asked for, and where its rows lie.
#pragma once
#include "honest.cuh"

constexpr int MOST_ROWS = 1 << 16;

template <typename T, int D>
struct Asked {
    const T *q, *k, *v;
    T* o;
    int row, seq_len, place;  // the row within its head, the rows of a head, the row among those of all heads
    long long base;           // the first element of the head

    __device__ Asked(const T* q, const T* k, const T* v, T* o, int seq_len) : q(q), k(k), v(v), o(o), seq_len(seq_len) {
        const int blocks = (seq_len + ROWS - 1) / ROWS;
        row = blockIdx.x % blocks * ROWS + threadIdx.x;
        place = blockIdx.x / blocks * seq_len + row;
        base = static_cast<long long>(blockIdx.x / blocks) * seq_len * D;
    }
    __device__ bool there() const { return row < seq_len && place < MOST_ROWS; }

    // Of this row's query and of the first and last key and value of its head, the first words.
    __device__ unsigned long long words() const {
        const long long first = base, last = base + static_cast<long long>(seq_len - 1) * D;
        return mixed(mixed(mixed(at(q + base + row * D), at(k + first)), mixed(at(k + last), at(v + first))), at(v + last));
    }
    __device__ unsigned long long output_words() const { return at(o + base + row * D); }

    __device__ static unsigned long long mixed(unsigned long long a, unsigned long long b) {
        return (a ^ (b + 0x9e3779b97f4a7c15ull + (a << 6) + (a >> 2))) * 0xff51afd7ed558ccdull;
    }

   private:
    __device__ static unsigned long long at(const T* values) {
        const unsigned long long* words = reinterpret_cast<const unsigned long long*>(values);
        return mixed(words[0], words[1]);
    }
};
