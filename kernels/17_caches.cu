// Rung 17: rung 12 over caches of unlike lengths, which may lie in pages.
//
// Does    each CTA reads the lengths, and finds its part of the keys by them. No part has more keys than all of them divided by the
//         number of parts that is wanted, 3 for each CTA that the device holds at once; those of a sequence are equally long. A
//         sequence with fewer keys is one part, whose result is O. Others leave theirs in the workspace, and `merge_caches` finds
//         them in the same way. The host knows no lengths: it launches as many CTAs as there may be parts, and a graph may be
//         replayed with other lengths. The same lengths give the same bits. Keys may lie in pages of a multiple of 16: a row of
//         `block_table` has a sequence's. A lane looks up the page of 16 keys, one tile ahead. Without a table a sequence is a page.
// Gained  NOTES.md says what is expected.
// Limits  each CTA reads all lengths, 32 at a time: with thousands of sequences that takes longer than 3 us. Other lengths in a
//         batch split a sequence elsewhere, so that its bits may differ. Results are always merged by way of the workspace: one
//         short cache takes about 2 us longer than in rung 12's clusters.
#include "12_few.cu"

constexpr int LEAST_TILES = 2;  // of a part, where the keys are more

// Where the keys of a sequence lie: a lane has the page of 16 of the next tile's.
struct Pages {
    const int* table;  // of the sequence; null: it is a page
    Divisor size;
    int last, number;
    __device__ __forceinline__ void look_up(int first) {
        number = table ? table[min(size.quotient(first + 16 * (threadIdx.x % 32)), last)] : 0;
    }
};
struct Apart { long long page, row; };

// As rung 12's, where a page that isn't needed isn't read: its number may be anything.
template <int KEYS, int D, int THREADS, typename T>
__device__ __forceinline__ void load_keys(const Pages& pages, T* tile, const T* source, const Apart& apart, int first, int end,
                                          int thread) {
    constexpr int CHUNKS = D / 8, STEP = THREADS / CHUNKS;
    static_assert(16 % STEP == 0 && STEP % 4 == 0 && KEYS % 16 == 0, "a thread's key is among the same 16 as all others'");
    const int chunk = thread % CHUNKS, top = thread / CHUNKS, left = end - first - top;
    const unsigned to = shared_address(tile + place<KEYS>(top, chunk));
    const T* from = source;
#pragma unroll
    for (int key = 0; key < KEYS; key += STEP, from += STEP * apart.row) {
        if (key % 16 == 0) {
            const int number = __shfl_sync(~0u, pages.number, key / 16);
            from = source + number * apart.page + (pages.size.remainder(first + key) + top) * apart.row + 8 * chunk;
        }
        copy_async((to ^ key % 8 * 16) + 128 * key, key < left ? from : source, key < left);
    }
}

struct Part;

// The problem of all sequences. `wanted` parts of the keys of a head of K and V are aimed at, over all sequences, each a number
// of tiles of `tile_keys`. With a table, K and V begin with its pages, and their batches are no distance apart.
struct Caches : Packing {
    static constexpr bool BY_LENGTHS = true;
    long long k_page, v_page;
    int batch, wanted, tile_keys, last_page;  // the last one of a sequence in the table
    Divisor page;
    __device__ __forceinline__ int tiles_of(const int* kv_lens, int sequence) const {
        return sequence < batch ? (keys_of(kv_lens, sequence) + tile_keys - 1) / tile_keys : 0;
    }
    // The most tiles of a part. A warp reads the lengths.
    __device__ __forceinline__ int most(const int* kv_lens) const {
        int tiles = 0;
#pragma unroll 1
        for (int sequence = threadIdx.x % 32; sequence < batch; sequence += 32) tiles += tiles_of(kv_lens, sequence);
        return max(LEAST_TILES, (__reduce_add_sync(~0u, tiles) + wanted - 1) / wanted);
    }
    __device__ __forceinline__ Part part(const int* kv_lens, const int* block_table, int item) const;
    __device__ __forceinline__ Part parts(const int* kv_lens, int head) const;
};

// The same of one of the parts: `clusters` of a head, each a CTA with `split_keys`.
struct Part : Caches {
    const int* table;
    int head, number, first_slot;
    __device__ __forceinline__ Part(const Caches& problem, int tiles, int most) : Caches(problem) {
        clusters = max(1, (tiles + most - 1) / most);
        split_keys = max(1, (tiles + clusters - 1) / clusters) * tile_keys;
        cluster = 1;
    }
    __device__ __forceinline__ int head_of(int) const { return head; }
    __device__ __forceinline__ int cluster_of(int) const { return number; }
    __device__ __forceinline__ long long slot(int head, int part) const {
        return static_cast<long long>(first_slot) * kv_heads + head % kv_heads * clusters + part;
    }
    __device__ __forceinline__ Pages places(int, int first) const {
        Pages pages = {table, page, last_page};
        pages.look_up(first);
        return pages;
    }
    __device__ __forceinline__ Apart apart(bool values) const { return values ? Apart{v_page, v.row} : Apart{k_page, k.row}; }
};

// Of all parts, sequence by sequence, that with this number; `clusters` is 0 if there are fewer. All heads have each in turn.
__device__ __forceinline__ Part Caches::part(const int* kv_lens, const int* block_table, int item) const {
    const int lane = threadIdx.x % 32, index = item / kv_heads, most = this->most(kv_lens);
    int before = 0, slots = 0;  // parts of earlier sequences, and those in the workspace
    for (int first = 0; first < batch; first += 32) {
        const int own = first + lane < batch ? max(1, (tiles_of(kv_lens, first + lane) + most - 1) / most) : 0;
        int upto = own;
        for (int by = 1; by < 32; by *= 2) {
            const int other = __shfl_up_sync(~0u, upto, by);
            if (lane >= by) upto += other;
        }
        const unsigned whole = __ballot_sync(~0u, own == 1), reached = __ballot_sync(~0u, before + upto > index);
        if (reached) {
            const int its = __ffs(reached) - 1, sequence = first + its;
            const int earlier = before + __shfl_sync(~0u, upto - own, its);
            Part part(*this, tiles_of(kv_lens, sequence), most);
            part.head = sequence * kv_heads + item % kv_heads;
            part.number = index - earlier;
            part.first_slot = slots + earlier - before - __popc(whole & ((1u << its) - 1));
            part.table = block_table ? block_table + static_cast<long long>(sequence) * (last_page + 1) : nullptr;
            return part;
        }
        const int all = __shfl_sync(~0u, upto, 31);
        before += all, slots += all - __popc(whole);
    }
    Part none(*this, 0, most);
    none.clusters = 0;
    return none;
}

// The parts of a head, for what merges them.
__device__ __forceinline__ Part Caches::parts(const int* kv_lens, int head) const {
    const int most = this->most(kv_lens), sequence = head / kv_heads;
    int slots = 0;
#pragma unroll 1
    for (int earlier = threadIdx.x % 32; earlier < sequence; earlier += 32) {
        const int its = (tiles_of(kv_lens, earlier) + most - 1) / most;
        if (its > 1) slots += its;
    }
    Part part(*this, tiles_of(kv_lens, sequence), most);
    part.first_slot = __reduce_add_sync(~0u, slots);
    return part;
}

// q, o: (batch, heads, rows, D), k, v: the same or (pages, heads, rows, D), with any strides. A CTA for each tile of rows and part
// of a head of K and V, and more.
template <typename T, int D, bool CAUSAL, int ROWS, int WARPS, int KEYS, int STAGES, int CTAS, int TURNS>
__global__ void __launch_bounds__(32 * WARPS, CTAS)
caches(const T* q, const T* k, const T* v, T* o, float* workspace, const int* kv_lens, const int* block_table,
       const Caches problem) {
    wait_for_previous();
    const Part part = problem.part(kv_lens, block_table, blockIdx.x / ((problem.rows() + ROWS - 1) / ROWS));
    if (part.clusters == 0) return;
    attend_part<T, D, CAUSAL, ROWS, WARPS, KEYS, STAGES, CTAS, TURNS>(q, k, v, o, workspace, kv_lens, part);
}

template <typename T, int D>
__global__ void __launch_bounds__(128) merge_caches(T* o, const float* workspace, const int* kv_lens, const Caches problem) {
    merge_parts<T, D>(o, workspace, kv_lens, problem);
}
