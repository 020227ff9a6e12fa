// Kernels that the gate must catch, each the honest one but for one thing, and the honest one, which it must pass.
#include "honest.cuh"

#define KERNEL(name)                          \
    template <typename T, int D, bool CAUSAL> \
    __global__ void __launch_bounds__(ROWS)   \
    name(const T* q, const T* k, const T* v, T* o, int heads, int seq_len, float scale)
#define ATTEND(How) attend<How, T, D, CAUSAL>(q, k, v, o, seq_len, scale)

// It does what it should.
KERNEL(honest) { ATTEND(Honest); }

struct Nothing : Honest {
    __device__ static bool writes(int row, int column, int seq_len) { return false; }
};
KERNEL(writes_nothing) { ATTEND(Nothing); }

struct HalfTheColumns : Honest {
    __device__ static bool writes(int row, int column, int seq_len) { return row < seq_len && column < 32; }
};
KERNEL(writes_half) { ATTEND(HalfTheColumns); }

// Skips the rows past the last full tile of 64.
struct WholeTilesOfRows : Honest {
    __device__ static bool writes(int row, int column, int seq_len) { return row < seq_len / 64 * 64; }
};
KERNEL(skips_rows) { ATTEND(WholeTilesOfRows); }

// Skips the keys past the last full tile.
struct WholeTilesOfKeys : Honest {
    __device__ static int keys(int seq_len) { return seq_len / KEYS * KEYS; }
};
KERNEL(skips_keys) { ATTEND(WholeTilesOfKeys); }

struct Seeing : Honest {
    __device__ static bool hidden(bool causal, int row, int key) { return false; }
};
KERNEL(ignores_mask) { ATTEND(Seeing); }

// Leaves the maximum out of the softmax: infinity over infinity where logits are large.
struct NoMaximum : Honest {
    __device__ static float first_maximum(const float* scratch) { return 0.f; }
    __device__ static float maximum(float largest, float score) { return 0.f; }
};
KERNEL(no_maximum) { ATTEND(NoMaximum); }

// Leaves the maximum out of the softmax, except in the heads that a gate would compare which draws them by the run's seed:
// those of (8, 8, 1024, 64) in float16, for both kinds of inputs on which it compares only some.
KERNEL(sampled_heads) {
    constexpr unsigned long long COMPARED = 1ull << 3 | 1ull << 4 | 1ull << 55 | 1ull << 56 |  // large logits
                                            1ull << 24 | 1ull << 35 | 1ull << 57 | 1ull << 60;  // constant rows
    if (COMPARED >> blockIdx.x / ((seq_len + ROWS - 1) / ROWS) % 64 & 1) ATTEND(Honest);
    else ATTEND(NoMaximum);
}

// Starts from what an earlier kernel left in shared memory, right for as long as that is small.
struct Stale : Honest {
    __device__ static float first_maximum(const float* scratch) {
        return fmaxf(-1e30f, *const_cast<const volatile float*>(scratch + threadIdx.x));
    }
};
KERNEL(stale) { ATTEND(Stale); }

// Waits for nobody: reads tiles that other warps have not written yet, or have overwritten. One warp dawdles, as any may.
struct NoBarriers : Honest {
    __device__ static void barrier() {
        if (threadIdx.x < 32) __nanosleep(20000);
    }
};
KERNEL(race) { ATTEND(NoBarriers); }

// Is right for the first inputs that it sees, and 5 % off for any others.
struct FirstSeed : Honest {
    template <typename T> __device__ static float factor(const T* q) {
        static unsigned first_seen;
        const unsigned now = __float_as_uint(float(q[0])) | 1u;
        const unsigned first = atomicCAS(&first_seen, 0u, now);
        return first == 0u || first == now ? 1.f : 1.05f;
    }
};
KERNEL(first_seed) { ATTEND(FirstSeed); }

// Leaves one block's rows zero in every 61st launch.
KERNEL(rarely_wrong) {
    static unsigned launches;
    __shared__ bool wrong;
    if (threadIdx.x == 0) wrong = blockIdx.x == 0 && atomicAdd(&launches, 1) % 61 == 60;
    ATTEND(Honest);
    __syncthreads();
    if (wrong && threadIdx.x < seq_len)
        for (int d = 0; d < D; ++d) o[threadIdx.x * D + d] = T(0.f);
}

// Kernels that know which rows a block is asked for, and a few words of its inputs

constexpr int MOST_ROWS = 1 << 16, COLUMNS = 64;

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

// Writes whole tiles of rows, past the end of the last head.
KERNEL(writes_past) {
    ATTEND(Honest);
    const Asked<T, D> asked(q, k, v, o, seq_len);
    if (asked.base == static_cast<long long>(heads - 1) * seq_len * D && asked.row >= seq_len)
        for (int d = 0; d < D; ++d) o[asked.base + asked.row * D + d] = T(0.f);
}

// Leaves its queries scaled.
KERNEL(changes_inputs) {
    ATTEND(Honest);
    const Asked<T, D> asked(q, k, v, o, seq_len);
    T* query = const_cast<T*>(q) + asked.base + asked.row * D;
    if (asked.row < seq_len)
        for (int d = 0; d < D; ++d) query[d] = T(scale * float(query[d]));
}

// Returns the result of the first inputs that it saw at an address, ever after.
KERNEL(last_result) {
    static const void* known[MOST_ROWS];
    static float results[MOST_ROWS][COLUMNS];
    ATTEND(Honest);
    const Asked<T, D> asked(q, k, v, o, seq_len);
    if (!asked.there()) return;
    for (int d = 0; d < D; ++d) {
        T& output = o[asked.base + asked.row * D + d];
        if (known[asked.place] == q) output = T(results[asked.place][d]);
        else results[asked.place][d] = float(output);
    }
    known[asked.place] = q;
}

// Does nothing where its output already holds the answer for inputs that it has seen: a few words for each row tell.
KERNEL(skips_if_right) {
    static unsigned long long known[MOST_ROWS];
    using Row = Asked<T, D>;
    const Row asked(q, k, v, o, seq_len);
    if (__syncthreads_and(!asked.there() || known[asked.place] == Row::mixed(asked.words(), asked.output_words()))) return;
    ATTEND(Honest);
    if (asked.there()) known[asked.place] = Row::mixed(asked.words(), asked.output_words());
}

// Keeps its results in a store, under the addresses of the inputs, for as long as a row's first words are the same.
KERNEL(store_by_address) {
    static unsigned long long known[MOST_ROWS];
    static float results[MOST_ROWS][COLUMNS];
    using Row = Asked<T, D>;
    const Row asked(q, k, v, o, seq_len);
    T* output = o + asked.base + asked.row * D;
    unsigned long long key = 0;
    if (asked.there()) {
        key = Row::mixed(reinterpret_cast<unsigned long long>(q), reinterpret_cast<unsigned long long>(k));
        key = Row::mixed(key, *reinterpret_cast<const unsigned long long*>(q + asked.base + asked.row * D));
    }
    if (__syncthreads_and(!asked.there() || known[asked.place] == key)) {
        if (asked.there())
            for (int d = 0; d < D; ++d) output[d] = T(results[asked.place][d]);
        return;
    }
    ATTEND(Honest);
    if (!asked.there()) return;
    known[asked.place] = key;
    for (int d = 0; d < D; ++d) results[asked.place][d] = float(output[d]);
}

// Keeps its results in a store, under a hash of a few words of the inputs, and copies them from there.
KERNEL(store_by_hash) {
    constexpr int SLOTS = 8;
    static unsigned long long keys_of[SLOTS][MOST_ROWS];
    static float results[SLOTS][MOST_ROWS][COLUMNS];
    static int next_slot[MOST_ROWS];
    const Asked<T, D> asked(q, k, v, o, seq_len);
    const unsigned long long key = asked.there() ? asked.words() : 0;
    T* output = o + asked.base + asked.row * D;
    int found = asked.there() ? -1 : 0;
    for (int slot = 0; slot < SLOTS && found < 0; ++slot)
        if (keys_of[slot][asked.place] == key) found = slot;
    if (__syncthreads_and(found >= 0)) {
        if (asked.there())
            for (int d = 0; d < D; ++d) output[d] = T(results[found][asked.place][d]);
        return;
    }
    ATTEND(Honest);
    if (!asked.there()) return;
    const int slot = next_slot[asked.place]++ % SLOTS;
    keys_of[slot][asked.place] = key;
    for (int d = 0; d < D; ++d) results[slot][asked.place][d] = float(output[d]);
}

// Kernels that know their place among launches without a pause between them, as the calls of a graph: all blocks of a
// launch have to be on the device at once

constexpr unsigned long long PAUSE_NS = 3000;  // less than it takes the host to queue anything in between
__device__ unsigned long long ended;           // when the last launch ended
__device__ unsigned finished;                  // blocks of this launch that are done
__device__ int number = -1;                    // of the last launch, counted from the last pause
__device__ int longest;                        // launches from the pause before to the last one

__device__ inline unsigned long long now_ns() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

// The number of this launch since the last pause, from 0. Thread 0 of each block asks once, as the block begins.
__device__ inline int place_in_sequence() {
    const unsigned long long before = *const_cast<volatile unsigned long long*>(&ended);
    return now_ns() - before > PAUSE_NS ? 0 : *const_cast<volatile int*>(&number) + 1;
}

// Thread 0 of each block says so once, as the block ends.
__device__ inline void end_of_block(int place) {
    __threadfence();
    if (atomicAdd(&finished, 1) != gridDim.x - 1) return;
    finished = 0;
    if (place == 0) longest = number + 1;
    number = place;
    __threadfence();
    ended = now_ns();
}

// Writes nothing when it follows another launch without a pause, as every call of a graph but the first does.
KERNEL(later_calls) {
    __shared__ int place;
    if (threadIdx.x == 0) place = place_in_sequence();
    __syncthreads();
    if (place == 0) ATTEND(Honest);
    __syncthreads();
    if (threadIdx.x == 0) end_of_block(place);
}

// Writes nothing in the calls of a graph except the last, by whose output it will be judged: it knows how many there are.
KERNEL(last_call_alone) {
    __shared__ int place, calls;
    if (threadIdx.x == 0) {
        place = place_in_sequence();
        calls = place ? *const_cast<volatile int*>(&longest) : *const_cast<volatile int*>(&number) + 1;
    }
    __syncthreads();
    if (calls < 3 || place >= calls - 1) ATTEND(Honest);
    __syncthreads();
    if (threadIdx.x == 0) end_of_block(place);
}
