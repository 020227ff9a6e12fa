// What the kernels of the backward pass share: the problem, the schedule, and instructions that only they use.
//
// A task is the work of one CTA on one head of K and V: a block of KEYS keys, or two of them, with all tiles of queries that
// see them, of all query heads that share the head. CTA c of a grid of C has the tasks c, c + C, ...; those that begin
// together are a round. A CTA passes its tiles one by one, a step each. In a step it adds to dQ of one tile, and `visits`
// numbers the steps that add to a tile by the time at which they come if every step of every CTA took equally long. That is
// the order of addition: by round, by step, by task (without the mask the last task first). All CTAs are there at once, and
// each takes its steps in this order. So the first step that is not over waits for nobody, and none waits for good.
//
// Where heads are many and short, a CTA takes all tasks of a head, one after the other: `in_a_row` of them, and not one. Then it
// waits for no other CTA. Without this, turns take a sixth of the pass at (32, 8, 512, 64).
//
// Without the mask, the tasks of a head in a round begin apart and go round, so that no two want a tile at one step. Under
// it, a block begins with the tile on its diagonal. With `paired`, a task is the blocks p and blocks - 1 - p, so that all
// take equally long: the second from its diagonal up, then the first, from the first tile that any second block sees up, and
// from the one before it down. Two steps on one tile are then
// two steps apart at 64 queries a tile, and one at 128.
// tests/measure/backward.py is a model.
#pragma once
#include "hopper.cuh"

constexpr int KEYS = 128;
// The steps that a CTA takes from one block of keys to the next, as far as the order of addition knows.
constexpr int PAUSE = 2;

struct Strides { long long batch, head, row; };

// Queries are in `tiles` of M rows for each of `heads`, `all_tiles` over all batches, keys in `blocks`; `group` query heads share one of `kv_heads`. Under
// the mask query r sees keys up to r + earlier. A head of K and V has `tasks`, of `steps` at most; `all_tasks` are all heads'.
// `out`, `dout` and `dq` are rows of D elements, `lse` is dense. The others are the workspace: of each row the negated
// log-sum-exp in powers of two, and the row sum of O * dO; sums, which are dQ in floats, D * M of each tile; how many turns
// each tile has had; and the schedule as `prepare` writes it, two parts of each task, of which the first may have no step,
// and up to `steps` steps of a task.
struct Gradients {
    const void *out, *dout;
    const float* lse;
    void* dq;
    float *negated, *delta, *sums;
    int* turns;
    struct Part* parts;
    struct Step* order;
    Strides out_at, dout_at, dq_at;
    int batch, heads, kv_heads, group, queries, keys, earlier, tiles, all_tiles, blocks, tasks, all_tasks, steps, patterns, paired, in_a_row;
    float scale;
};

// What is in memory of a block of keys that a task goes through: its head of K and V with the batch above it, and where its
// first step stands. Of a step: its turn on its tile, and the tile's number among those of a query head, with the number of
// that head in its group above it. Heads whose tasks are at the same CTAs have the same steps: there are `patterns` of them.
struct alignas(16) Part {
    int steps;
    unsigned head;
    int first_key, order;
};
struct alignas(8) Step {
    int turn;
    unsigned place;
};

// The first task of a CTA, and the one that follows another.
__device__ __forceinline__ int first_task(const Gradients& problem) { return blockIdx.x * problem.in_a_row; }
__device__ __forceinline__ int task_after(const Gradients& problem, int task) {
    return task + 1 + ((task + 1) % problem.in_a_row ? 0 : (gridDim.x - 1) * problem.in_a_row);
}

// A block of keys and the first tile that sees it. A task goes through the tiles of a query head from `pivot` up to the last
// one, then from the one before it down to the first; without the mask it goes round.
struct Range {
    int block, first, pivot;
};

template <int M, bool CAUSAL> struct Schedule {
    const Gradients& problem;
    int grid;
    // The tasks of a head that are in one round with `member`: from `least` to before `most`.
    struct Round { int least, most; };
    __device__ __forceinline__ Round round(int head, int member) const {
        if (problem.in_a_row > 1) return {member, member + 1};
        const int begin = head * problem.tasks, first = (begin + member) / grid * grid - begin;
        return {max(0, first), min(problem.tasks, first + grid)};
    }
    // The first tile of which a query sees the block.
    __device__ __forceinline__ int first_tile(int block) const {
        return CAUSAL ? max(0, KEYS * block - problem.earlier) / M : 0;
    }
    __device__ __forceinline__ int parts(int member) const {
        return CAUSAL && problem.paired && problem.blocks - 1 - member != member ? 2 : 1;
    }
    __device__ __forceinline__ Range range(int member, int index) const {
        const bool second = index + 1 < parts(member);
        const int block = second ? problem.blocks - 1 - member : member, first = first_tile(block);
        return {block, first, problem.paired && !second ? min(problem.tiles, first_tile((problem.blocks + 1) / 2)) : first};
    }
    __device__ __forceinline__ int steps(const Range& range) const { return problem.group * (problem.tiles - range.first); }
    // Without the mask: the tile, over the query heads of the group, with which a task begins.
    __device__ __forceinline__ int offset(int head, int member) const {
        const Round its = round(head, member);
        return static_cast<long long>(member - its.least) * steps({}) / (its.most - its.least);
    }
    // How many steps add to a tile before the one that comes at `own`, counted from its task's begin.
    __device__ __forceinline__ int visits(int head, int member, int own, int of_group, int tile) const {
        const Round its = round(head, member);
        if (!CAUSAL) {  // those that began with this tile or before it, the last first, then the others
            const int together = its.most - its.least;
            const long long behind = of_group * problem.tiles + tile + 1;
            const int first = static_cast<int>((behind * together - 1) / steps({}));
            return its.least + (first - (member - its.least) + together) % together;
        }
        int count = 0;
        for (int other = 0; other < its.most; ++other)
            for (int index = 0, before = 0; index < parts(other); ++index) {
                const Range range = this->range(other, index);
                const int of_head = problem.tiles - range.first;
                const int of_tile = tile < range.pivot ? problem.tiles - 1 - tile : tile - range.pivot;
                const int at = before + of_group * of_head + of_tile;
                before += steps(range) + PAUSE;
                count += tile >= range.first && (other < its.least || at < own || (at == own && other < member));
            }
        return count;
    }
};

// dQ in floats: of each tile the part of one warpgroup after the other's, 64 rows of 64. At D = 128 a part is 64 columns, at
// D = 64 half of the queries. A row's 16-byte chunks are permuted, so that the floats that a warp stores at once lie in all
// banks.
__device__ __forceinline__ int permuted(int row, int chunk) { return chunk ^ row % 4 * 2; }

// wgmma ---------------------------------------------------------------------------------------------------------------

// An address with these bits changed, computed where it is needed: ptxas would hold 16 of them in registers.
__device__ __forceinline__ unsigned moved(unsigned address, int bits) {
    unsigned to;
    asm volatile("xor.b32 %0, %1, %2;" : "=r"(to) : "r"(address), "r"(bits));
    return to;
}
// Products that read these registers are over: until here the compiler keeps them.
template <int N> __device__ __forceinline__ void release(const unsigned (&rows)[N][4]) {
#pragma unroll
    for (int j = 0; j < N; ++j) asm volatile("" ::"r"(rows[j][0]), "r"(rows[j][1]), "r"(rows[j][2]), "r"(rows[j][3]));
}
// exp2_approx() that stays where it stands: the compiler would move it behind the wait for a product.
__device__ __forceinline__ float exp2_here(float x) {
    float y;
    asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x) : "memory");
    return y;
}

// pack() that stands behind what comes before it, and before what comes after.
template <typename T> __device__ __forceinline__ unsigned pack_here(float first, float second) {
    unsigned both = pack<T>(first, second);
    asm volatile("" : "+r"(both) : : "memory");
    return both;
}

// Shared and global memory --------------------------------------------------------------------------------------------

// Four 8 x 8 matrices go to shared memory transposed: lane l gives the address of column l % 8 of matrix l / 8.
__device__ __forceinline__ void store_matrices_transposed(unsigned address, const unsigned (&r)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]), "r"(r[1]),
                 "r"(r[2]), "r"(r[3]) : "memory");
}
__device__ __forceinline__ float2 load_pair(unsigned address) {
    float2 pair;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(pair.x), "=f"(pair.y) : "r"(address) : "memory");
    return pair;
}
__device__ __forceinline__ void store_pair(unsigned address, float x, float y) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(x), "f"(y) : "memory");
}
__device__ __forceinline__ void store_word(unsigned address, unsigned x) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}
// A box comes to the L2.
__device__ __forceinline__ void fetch_box(const TensorMap& map, int column, int row, int head, int batch) {
    asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(&map), "r"(column), "r"(row),
                 "r"(head), "r"(batch) : "memory");
}
// Dense memory comes, and counts its bytes on the barrier.
__device__ __forceinline__ void load_bytes(unsigned to, const void* from, int bytes, unsigned barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
                 "r"(bytes), "r"(barrier) : "memory");
}
// Floats leave shared memory, or are added to those in global memory.
__device__ __forceinline__ void store_floats(float* to, unsigned from, int bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void add_floats(float* to, unsigned from, int bytes) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
                 : "memory");
}
// Returns once all but the last PENDING groups of stores have read their shared memory, or once all are over.
template <int PENDING> __device__ __forceinline__ void wait_until_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
__device__ __forceinline__ void wait_until_stored() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// The number in shared memory, which grows by 1.
__device__ __forceinline__ int take_number(unsigned address) {
    int number;
    asm volatile("atom.shared.add.u32 %0, [%1], 1;" : "=r"(number) : "r"(address) : "memory");
    return number;
}

// Turns of a tile: whoever takes one sees what TMA stored before the turn was passed on.
__device__ __forceinline__ void wait_for_turn(const int* turns, int turn) {
    int now;
    do asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(now) : "l"(turns) : "memory");
    while (now != turn);
    asm volatile("fence.proxy.async;" ::: "memory");
}
__device__ __forceinline__ void pass_turn(int* turns, int next) {
    asm volatile("fence.proxy.async;" ::: "memory");
    asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(turns), "r"(next) : "memory");
}
// Returns once a tile has had all its turns; the others of the warp then see the sums, too.
__device__ __forceinline__ void wait_for_all_turns(const int* turns, int all) {
    for (;;) {
        int now;
        asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(now) : "l"(turns) : "memory");
        if (now == all) return;
        asm volatile("nanosleep.u32 1000;");
    }
}
// Not by way of L1, where nobody writes.
__device__ __forceinline__ float4 load_sums(const float* from) {
    float4 sums;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(sums.x), "=f"(sums.y), "=f"(sums.z), "=f"(sums.w) : "l"(from) : "memory");
    return sums;
}
