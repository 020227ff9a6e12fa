// Rung 17: rung 12 for caches of unequal lengths, which may be paged.
//
// Does    each CTA reads all lengths and derives its part of the keys from them. `wanted` is the number of parts, about 3 for each
//         resident CTA. A part has at most the total of keys / `wanted`; the parts of a sequence are equally long. A sequence whose
//         keys fit in one part writes O directly. Others write partial results to the workspace, and the CTA that ends last merges
//         them in the order of the parts. The host doesn't know the lengths: it launches as many CTAs as there can be parts, so
//         that a graph may be replayed with other lengths. The same lengths give the same bits. A page has a multiple of 16 keys.
//         A row of `block_table` has the page numbers of a sequence; without a table a sequence is one page. From 64 rows on, one
//         warp brings K by TMA, and another one V, in boxes that are in one page. With fewer rows, each lane looks up the page of
//         16 keys.
// Gained  over 32 caches of 129,000 keys together, lengths log-uniform, 32 heads on 8 at D = 128, in a trial: one query 133 us, 201 in
//         rung 12; 16 queries 145 us, 171 in rung 12. Over evenly drawn lengths one query 256 for 292, but 16 queries 280 for 278.
// Limits  16 queries in pages of 16 keys took 12 to 14 % longer than without pages while one warp brought K and V, each lane a box;
//         today's boxes are not timed yet (NOTES.md). Each CTA reads all lengths, 32 at a time: with thousands of sequences that
//         takes longer than 3 us. Other lengths in a batch split a sequence elsewhere, so that its bits may differ. Results are
//         always merged through the workspace: one short cache takes about 2 us longer than in rung 12's clusters. From 64 rows
//         on, sequences or pages of K and V have to be whole rows apart.
#include "12_few.cu"
#include "rows.cuh"

constexpr int LEAST_TILES = 2;  // of a part, if its sequence has as many
constexpr int LEAST_GROUP = 8;  // parts that the CTA that ends last merges

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
    long long k_page, v_page;
    unsigned long long mark;  // of counters in the workspace, which memory that nobody wrote doesn't hold by chance
    int batch, wanted, tile_keys, last_page;  // index of the last page in a row of the table
    Divisor page;
    int k_step, v_step, box;  // for TMA: rows from page to page, and of a box, which is in one page
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
};

// Rows of partial results that a CTA merges: `from` and `step` rows further that of the next part, `count` together. A thread has
// eight columns of two rows at once, and of four parts, so that 32 KB are on their way to a CTA.
template <int D, int THREADS, typename Deliver>
__device__ __forceinline__ void merge_rows(const float* from, long long step, int log_at, int count, int rows, Deliver deliver) {
    constexpr int CHUNKS = D / 8, STEP = THREADS / CHUNKS, PAIR = 2, AT_ONCE = 4;
    const int column = threadIdx.x % CHUNKS * 4;
#pragma unroll 1
    for (int row = threadIdx.x / CHUNKS; row < rows; row += PAIR * STEP) {
        float top[PAIR], sum[PAIR] = {}, value[PAIR][2][4] = {};
#pragma unroll
        for (int i = 0; i < PAIR; ++i) top[i] = -infinity();
#pragma unroll 1
        for (int first = 0; first < count; first += AT_ONCE) {
            float log[PAIR][AT_ONCE];
            float4 part[PAIR][AT_ONCE][2];
#pragma unroll
            for (int i = 0; i < PAIR; ++i)
#pragma unroll
                for (int p = 0; p < AT_ONCE; ++p) {
                    const bool there = row + i * STEP < rows && first + p < count;
                    const float* at = from + ((first + p) * step + row + i * STEP) * Partial<D>::SIZE;
                    log[i][p] = there ? __ldcg(at + log_at) : -infinity();
#pragma unroll
                    for (int half = 0; half < 2; ++half)
                        part[i][p][half] = there ? __ldcg(reinterpret_cast<const float4*>(at + column + half * D / 2))
                                                 : make_float4(0, 0, 0, 0);
                }
#pragma unroll
            for (int i = 0; i < PAIR; ++i) {
                float higher = top[i];
#pragma unroll
                for (int p = 0; p < AT_ONCE; ++p) higher = fmaxf(higher, log[i][p]);
                const float kept = weight(top[i], higher);
                top[i] = higher;
                sum[i] *= kept;
#pragma unroll
                for (int x = 0; x < 8; ++x) value[i][x / 4][x % 4] *= kept;
#pragma unroll
                for (int p = 0; p < AT_ONCE; ++p) {
                    const float share = weight(log[i][p], higher);
                    sum[i] += share;
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        const float4 x = part[i][p][half];
                        value[i][half][0] += share * x.x, value[i][half][1] += share * x.y;
                        value[i][half][2] += share * x.z, value[i][half][3] += share * x.w;
                    }
                }
            }
        }
#pragma unroll
        for (int i = 0; i < PAIR; ++i) {
            const float inverse = sum[i] == 0 ? 0 : 1 / sum[i];
#pragma unroll
            for (int x = 0; x < 8; ++x) value[i][x / 4][x % 4] *= inverse;
            if (row + i * STEP < rows) deliver(row + i * STEP, column, value[i], sum[i] == 0 ? -infinity() : top[i] + log2f(sum[i]));
        }
    }
}

// One part, as rung 12's problem: its sequence has `clusters` parts for a head, each a CTA with `split_keys` keys.
struct Part : Caches {
    static constexpr bool BY_LENGTHS = true;
    const TensorMap *k_map, *v_map;
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

    // Loads the boxes of a piece: COUNT, or a half of these, a quarter and so on. As their number and places in the piece are known
    // to the compiler, each has uniform registers of its own, and none waits until the one before has read them.
    template <int COUNT, int KEYS, int D, int N>
    __device__ __forceinline__ static void load_boxes(int boxes, unsigned to, const TensorMap& map, const int (&row)[N],
                                                      const int (&last)[N], int kv_head, unsigned barrier) {
        if constexpr (COUNT > 1)
            if (boxes < COUNT) return load_boxes<COUNT / 2, KEYS, D>(boxes, to, map, row, last, kv_head, barrier);
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
#pragma unroll
            for (int c = 0; c < D / 64; ++c)
                load_rows(to + 128 * (c * KEYS + i * KEYS / COUNT), map, 64 * c, row[i], kv_head, last[i], barrier);
    }

    // One warp loads K, and another one V, in boxes of 64 columns that are in one page. A lane has the place of one of the next 32
    // boxes, and the page of one behind these, so that no load waits for the table.
    template <typename R, int KEYS, int D>
    __device__ __forceinline__ void load(unsigned ring, unsigned full, unsigned empty, bool values, int sequence, int kv_head,
                                         int begin, int end, int tiles) const {
        constexpr int STAGES = R::PIECES / 2, MOST = KEYS / 16;
        const TensorMap& map = values ? *v_map : *k_map;
        const int step = values ? v_step : k_step, boxes = KEYS / box, tiles_held = 32 / boxes;
        const auto look_up = [&](int key) { return !table ? sequence : key < end ? table[page.quotient(key)] : 0; };
        int key = begin + threadIdx.x % 32 * box, next = look_up(key), row = 0, last = 0, slot = tiles_held;
#pragma unroll 1
        for (int tile = 0; tile < tiles; ++tile, ++slot) {
            if (slot == tiles_held) {
                const int rows = min(max(end - key, 0), box);
                slot = 0, row = MAP_ROWS - rows, last = next * step + page.remainder(key) + rows;
                key += tiles_held * KEYS, next = look_up(key);
            }
            int its_row[MOST], its_last[MOST];
#pragma unroll
            for (int i = 0; i < MOST; ++i)
                its_row[i] = __shfl_sync(~0u, row, slot * boxes + i), its_last[i] = __shfl_sync(~0u, last, slot * boxes + i);
            const int piece = tile % STAGES * 2 + values;
            wait(empty + 8 * piece, tile / STAGES % 2 ^ 1);
            if (elected()) {
                arrive_expecting(full + 8 * piece, 2 * R::PIECE);
                load_boxes<MOST, KEYS, D>(boxes, ring + 2 * piece * R::PIECE, map, its_row, its_last, kv_head, full + 8 * piece);
            }
            __syncwarp();
        }
    }

    // Whether this CTA is the last of so many to arrive. Their number is in the padding of a row of the workspace. Memory that nobody
    // wrote counts as 0, and the last one leaves that.
    template <int D, int THREADS> __device__ __forceinline__ bool arrives_last(float* row, int all, void* shared) const {
        int* const last = static_cast<int*>(shared);
        synchronize(1, THREADS);  // all have stored their results, and read those in shared memory
        if (threadIdx.x == 0) {
            auto* const counter = reinterpret_cast<unsigned long long*>(row + Partial<D>::LOG + 2);
            unsigned long long before, next, there = 0;
            order_memory();
            do {
                before = there;
                next = (before ^ mark) < 256 ? before + 1 : mark + 1;
            } while ((there = atomicCAS(counter, before, next)) != before);
            *last = next == mark + all;
            if (*last) {
                *counter = 0;
                order_memory();
            }
        }
        synchronize(1, THREADS);
        return *last;
    }

    // Merges the results of `written` parts, if this CTA ends last: always in the order of their numbers. Where they are more than a
    // group, each group's last CTA merges that first, and leaves the result in place of its first part's.
    template <typename T, int D, int THREADS>
    __device__ __forceinline__ void merge(const Output<T, D>& output, void* shared, int head, int number, int written, int first,
                                          int tile_rows) const {
        constexpr int SIZE = Partial<D>::SIZE, LOG = Partial<D>::LOG;
        const int rows = this->rows(), kv_head = head % kv_heads;
        const long long step = rows;
        float* const all = output.partials - number * step * SIZE;
        const auto to_output = [&](int row, int column, const auto& value, float) {
            const long long offset = this->offset(o, 0, 0, first + row);
            store(output.o + offset + column, value[0]);
            store(output.o + offset + column + D / 2, value[1]);
        };
        int group = LEAST_GROUP;
        while (group * group < written) group *= 2;
        const int begin = number / group * group, members = min(group, written - begin);
        float* const own = all + begin * step * SIZE;
        if (!arrives_last<D, THREADS>(own, members, shared)) return;
        if (members == written) return merge_rows<D, THREADS>(own, step, LOG, members, tile_rows, to_output);
        // Beside the first part's logarithm, which other threads read.
        merge_rows<D, THREADS>(own, step, LOG, members, tile_rows, [&](int row, int column, const auto& value, float log) {
            store(own + row * SIZE + column, value[0]);
            store(own + row * SIZE + column + D / 2, value[1]);
            if (column == 0) own[row * SIZE + LOG + 1] = log;
        });
        const int groups = (written + group - 1) / group;
        if (arrives_last<D, THREADS>(all + step * SIZE, groups, shared))
            merge_rows<D, THREADS>(all, group * step, LOG + 1, groups, tile_rows, to_output);
    }
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

// q, o: (batch, heads, rows, D), k, v: the same or (pages, heads, rows, D), with any strides. Each tile of rows and part of
// a head of K and V has a CTA; further CTAs end at once.
template <typename T, int D, bool CAUSAL, int ROWS, int WARPS, int KEYS, int STAGES, int CTAS, int TURNS>
__global__ void __launch_bounds__(32 * WARPS, CTAS)
caches(const T* q, const T* k, const T* v, T* o, float* workspace, const int* kv_lens, const int* block_table,
       const Caches problem, const __grid_constant__ TensorMap k_map, const __grid_constant__ TensorMap v_map) {
    if constexpr (ROWS >= 64)
        if (threadIdx.x == 0) prefetch(k_map), prefetch(v_map);
    wait_for_previous();
    Part part = problem.part(kv_lens, block_table, blockIdx.x / ((problem.rows() + ROWS - 1) / ROWS));
    if (part.clusters == 0) return;
    part.k_map = &k_map, part.v_map = &v_map;
    attend_part<T, D, CAUSAL, ROWS, WARPS, KEYS, STAGES, CTAS, TURNS>(q, k, v, o, workspace, kv_lens, part);
}
