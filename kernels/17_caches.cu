// Rung 17: rung 12 for caches of unequal lengths, which may be paged.
//
// Does    each CTA reads all lengths and derives its part of the keys from them. `wanted` is the number of parts, about 3 for each
//         resident CTA. A part has at most the total of keys / `wanted`; the parts of a sequence are equally long. A sequence whose
//         keys fit in one part writes O directly. Others write partial results to the workspace, where `merge_caches` finds them by
//         the same rule. The host doesn't know the lengths: it launches as many CTAs as there can be parts, so that a graph may be
//         replayed with other lengths. The same lengths give the same bits. A page has a multiple of 16 keys. A row of
//         `block_table` has the page numbers of a sequence. Each lane looks up the page of 16 keys, one tile ahead. Without
//         a table a sequence is one page.
// Gained  over 32 caches of 129,000 keys together, lengths log-uniform, 32 heads on 8 at D = 128, in a trial: one query 134 us, 201 in
//         rung 12; 16 queries 168 us, 171 in rung 12. Over evenly drawn lengths one query 258 for 292, but 16 queries 300 for 272.
// Limits  each CTA reads all lengths, 32 at a time: with thousands of sequences that takes longer than 3 us. Other lengths in a
//         batch split a sequence elsewhere, so that its bits may differ. Results are always merged through the workspace: one short
//         cache takes about 2 us longer than in rung 12's clusters.
#include "12_few.cu"

constexpr int LEAST_TILES = 2;  // of a part, if its sequence has as many
constexpr int MERGED_ROWS = 4;  // that a warp merges, or a part of whose columns

// The pages of a sequence: each lane holds the page number of 16 keys of the next tile.
struct Pages {
    const int* table;  // the sequence's row; null if it is one page
    Divisor size;
    int last, number;
    __device__ __forceinline__ void look_up(int first) {
        number = table ? table[min(size.quotient(first + 16 * (threadIdx.x % 32)), last)] : 0;
    }
};
struct Apart { long long page, row; };

// As in rung 12, but pages that aren't needed aren't read: their numbers may be invalid.
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

// The problem for all sequences. `wanted` is about the number of parts for a head of K and V, over all sequences; each part is
// whole tiles of `tile_keys` keys. With a table, the first dimension of K and V is the page, and their batch stride is 0.
struct Caches : Packing {
    static constexpr bool BY_LENGTHS = true;
    long long k_page, v_page;
    int batch, wanted, tile_keys, last_page;  // index of the last page in a row of the table
    Divisor page;
    __device__ __forceinline__ int tiles_of(const int* kv_lens, int sequence) const {
        return sequence < batch ? (keys_of(kv_lens, sequence) + tile_keys - 1) / tile_keys : 0;
    }
    // The most tiles of a part. The warp's lanes read the lengths.
    __device__ __forceinline__ int most(const int* kv_lens) const {
        int tiles = 0;
#pragma unroll 1
        for (int sequence = threadIdx.x % 32; sequence < batch; sequence += 32) tiles += tiles_of(kv_lens, sequence);
        return max(LEAST_TILES, (__reduce_add_sync(~0u, tiles) + wanted - 1) / wanted);
    }
    __device__ __forceinline__ Part part(const int* kv_lens, const int* block_table, int item) const;
    __device__ __forceinline__ Part parts(const int* kv_lens, int head) const;
};

// One part, as rung 12's problem: its sequence has `clusters` parts for a head, each a CTA with `split_keys` keys.
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

// The part of work item `item`: parts go sequence by sequence, and each has one item per head. `clusters` is 0 beyond the last.
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

// The parts of a head, for the kernel that merges them.
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

// q, o: (batch, heads, rows, D), k, v: the same or (pages, heads, rows, D), with any strides. Each tile of rows and part of
// a head of K and V has a CTA; further CTAs end at once.
template <typename T, int D, bool CAUSAL, int ROWS, int WARPS, int KEYS, int STAGES, int CTAS, int TURNS>
__global__ void __launch_bounds__(32 * WARPS, CTAS)
caches(const T* q, const T* k, const T* v, T* o, float* workspace, const int* kv_lens, const int* block_table,
       const Caches problem) {
    wait_for_previous();
    const Part part = problem.part(kv_lens, block_table, blockIdx.x / ((problem.rows() + ROWS - 1) / ROWS));
    if (part.clusters == 0) return;
    attend_part<T, D, CAUSAL, ROWS, WARPS, KEYS, STAGES, CTAS, TURNS>(q, k, v, o, workspace, kv_lens, part);
}

// The merge of one row's partial results: a warp has up to 128 columns, each lane neighbouring ones.
template <int D> struct MergedRow {
    static constexpr int WARPS = D > 128 ? D / 128 : 1, COLUMNS = D / 32 / WARPS;
    float top = -infinity(), sum = 0, value[COLUMNS] = {};  // relative to 2^top
    // Adds partial results `first` to `end` - 1, N at most, all on their way at once.
    template <int N> __device__ __forceinline__ void add(const float* from, long long step, int column, int first, int end) {
        struct alignas(4 * COLUMNS) Columns { float x[COLUMNS]; } part[N];
        float log[N], higher = top;
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const float* at = from + (first + i) * step;
            const bool there = first + i < end;
            log[i] = there ? __ldcg(at + Partial<D>::LOG) : -infinity();
            if constexpr (COLUMNS == 4) {
                const float4 x = there ? __ldcg(reinterpret_cast<const float4*>(at + column)) : make_float4(0, 0, 0, 0);
                part[i] = {x.x, x.y, x.z, x.w};
            } else {
                const float2 x = there ? __ldcg(reinterpret_cast<const float2*>(at + column)) : make_float2(0, 0);
                part[i] = {x.x, x.y};
            }
        }
#pragma unroll
        for (int i = 0; i < N; ++i) higher = fmaxf(higher, log[i]);
        const float kept = weight(top, higher);
        top = higher;
        sum *= kept;
#pragma unroll
        for (int x = 0; x < COLUMNS; ++x) value[x] *= kept;
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const float share = weight(log[i], top);
            sum += share;
#pragma unroll
            for (int x = 0; x < COLUMNS; ++x) value[x] += share * part[i].x[x];
        }
    }
    template <typename T> __device__ __forceinline__ void store(T* to) const {
        const float inverse = sum == 0 ? 0 : 1 / sum;
        struct alignas(2 * COLUMNS) Packed { unsigned x[COLUMNS / 2]; } packed;
#pragma unroll
        for (int x = 0; x < COLUMNS; x += 2) packed.x[x / 2] = pack<T>(value[x] * inverse, value[x + 1] * inverse);
        *reinterpret_cast<Packed*>(to) = packed;
    }
};

// Merges the parts of sequences that have several. A warp merges MERGED_ROWS rows, since to find the parts takes more
// instructions than to merge a row. `caches` lets this kernel start once the lengths are there, so these are read at once.
template <typename T, int D>
__global__ void __launch_bounds__(128) merge_caches(T* o, const float* workspace, const int* kv_lens, const Caches problem) {
    using R = MergedRow<D>;
    const int rows = problem.rows(), warps = blockDim.x / 32, of_cta = warps * MERGED_ROWS;
    const int ctas = (R::WARPS * rows + of_cta - 1) / of_cta, head = blockIdx.x / ctas;
    const int share = blockIdx.x % ctas * warps + threadIdx.x / 32, step = ctas * warps / R::WARPS;  // of rows
    const int column = share % R::WARPS * 128 + threadIdx.x % 32 * R::COLUMNS;
    const int batch = head / problem.kv_heads, kv_head = head % problem.kv_heads;
    __threadfence();  // `caches` saw the lengths before this kernel began; the L1 may still have others
    const Part parts = problem.parts(kv_lens, head);
    const int keys = problem.keys_of(kv_lens, batch);
    int row = share / R::WARPS, query = row / problem.group, of_group = row % problem.group;
    const int step_queries = step / problem.group, step_heads = step % problem.group;
    const float* from = workspace + (parts.slot(head, 0) * rows + row) * Partial<D>::SIZE;
    T* const to = o + problem.offset(problem.o, batch, kv_head, 0) + column;
    launch_next();
    wait_for_previous();
    if (parts.clusters == 1) return;  // O is there
#pragma unroll 1
    for (; row < rows; row += step, from += static_cast<long long>(step) * Partial<D>::SIZE) {
        const int seen = problem.masked ? problem.seen(keys, row) : keys;
        const int written = (max(0, seen) + parts.split_keys - 1) / parts.split_keys;
        R merged;
        int first = 0;
#pragma unroll 1
        for (; first + 4 < written; first += 8)
            merged.template add<8>(from, static_cast<long long>(rows) * Partial<D>::SIZE, column, first, written);
        if (first < written) merged.template add<4>(from, static_cast<long long>(rows) * Partial<D>::SIZE, column, first, written);
        merged.store(to + of_group * problem.o.head + query * problem.o.row);
        query += step_queries, of_group += step_heads;
        if (of_group >= problem.group) of_group -= problem.group, ++query;
    }
}
