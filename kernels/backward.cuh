// What the kernels of the backward pass share: the problem, the schedule, and wgmma shapes that only they use.
//
// A task is the work of one CTA on one head of K and V: a block of KEYS keys, or two of them, with all tiles of queries that
// see them, of all query heads that share the head. CTA c of a grid of C has the tasks c, c + C, ...; those that begin together
// are a round. A CTA passes its tiles one by one, a step each. In a step it adds to dQ of one tile, and `visits` numbers the
// steps that add to a tile by the time at which they come if every step of every CTA took equally long. That is the order of
// addition: by round, by step, by task. All CTAs are there at once, and each takes its steps in this order. So the first
// step that is not over waits for nobody, and none waits for good.
//
// Without the mask, the tasks of a head in a round begin apart and go round, so that no two want a tile at one step. Under it,
// a block begins with the tile on its diagonal. With `paired`, a task is the blocks p and blocks - 1 - p, so that all take
// equally long: the second from its diagonal to the last tile, then the first from the last tile down. Then steps on a tile
// of 64 queries never meet: the times of one are even, those of the other odd. tests/measure/backward.py is a model.
#pragma once
#include "hopper.cuh"

constexpr int KEYS = 128;

struct Strides { long long batch, head, row; };

// Queries are in `tiles` of M rows for each of `heads`, keys in `blocks`; `group` query heads share one of `kv_heads`. Under the
// mask query r sees keys up to r + earlier. A head of K and V has `tasks`, of `steps` at most. `out`, `dout` and `dq` are
// rows of D elements, `lse` is dense. The others are the workspace: of each row the negated log-sum-exp in powers of two, and
// the row sum of O * dO; sums, which are dQ in floats, D * M of each tile; the turn of each step on its tile, tasks * steps of
// each head of K and V; and how many turns each tile has had.
struct Gradients {
    const void *out, *dout;
    const float* lse;
    void* dq;
    float *negated, *delta, *sums;
    int *order, *turns;
    Strides out_at, dout_at, dq_at;
    int batch, heads, kv_heads, group, queries, keys, earlier, tiles, blocks, tasks, steps, paired;
    float scale;
};

// The keys of a task that a CTA goes through at once: a block, the first tile that sees it, and how it goes through the
// tiles of a query head: from the first one up, from the last one down, or, without the mask, from any one round.
struct Part {
    int block, first, descending;
};

template <int M, bool CAUSAL> struct Schedule {
    const Gradients& problem;
    __device__ __forceinline__ explicit Schedule(const Gradients& problem) : problem(problem) {}
    __device__ __forceinline__ int tasks() const { return problem.batch * problem.kv_heads * problem.tasks; }
    // The first tile of which a query sees the block.
    __device__ __forceinline__ int first_tile(int block) const {
        return CAUSAL ? max(0, KEYS * block - problem.earlier) / M : 0;
    }
    __device__ __forceinline__ int parts(int member) const {
        return CAUSAL && problem.paired && problem.blocks - 1 - member != member ? 2 : 1;
    }
    __device__ __forceinline__ Part part(int member, int index) const {
        const bool short_one = index + 1 < parts(member);
        const int block = short_one ? problem.blocks - 1 - member : member;
        return {block, first_tile(block), CAUSAL && problem.paired && !short_one};
    }
    __device__ __forceinline__ int steps(const Part& part) const { return problem.group * (problem.tiles - part.first); }
    // Without the mask: the tile, over the query heads of the group, with which a task begins.
    __device__ __forceinline__ int offset(int head, int member, int grid) const {
        if (CAUSAL) return 0;
        const int begin = head * problem.tasks, round = (begin + member) / grid * grid;
        const int least = max(0, round - begin), most = min(problem.tasks, round + grid - begin);
        return static_cast<int>(static_cast<long long>(member - least) * problem.group * problem.tiles / (most - least));
    }
    // The step of a part, counted from its task's begin, at which it has a tile of a query head; -1 if it never has.
    __device__ __forceinline__ int time(const Part& part, int before, int of_group, int tile, int offset) const {
        if (tile < part.first) return -1;
        if (!CAUSAL) {
            const int at = of_group * problem.tiles + tile - offset;
            return at < 0 ? at + problem.group * problem.tiles : at;
        }
        const int count = problem.tiles - part.first;
        return before + of_group * count + (part.descending ? problem.tiles - 1 - tile : tile - part.first);
    }
    // How many steps of other tasks, or earlier ones of this task, add to a tile before the one at `own` of a task.
    __device__ __forceinline__ int visits(int head, int member, int own, int of_group, int tile, int grid) const {
        const int begin = head * problem.tasks, round = (begin + member) / grid;
        int count = 0;
        for (int other = 0; other < problem.tasks; ++other) {
            const int later = (begin + other) / grid - round;
            if (later > 0) break;
            int before = 0;
            const int start = offset(head, other, grid);
            for (int index = 0; index < parts(other); ++index) {
                const Part its = part(other, index);
                const int at = time(its, before, of_group, tile, start);
                before += steps(its);
                count += at >= 0 && (later < 0 || at < own || (at == own && other < member));
            }
        }
        return count;
    }
};

// The tile of a step, and the next one's.
template <bool CAUSAL> struct Walk {
    int of_group, tile;
    __device__ __forceinline__ Walk(const Gradients& problem, const Part& part, int offset) {
        of_group = CAUSAL ? 0 : offset / problem.tiles;
        tile = CAUSAL ? part.descending ? problem.tiles - 1 : part.first : offset % problem.tiles;
    }
    __device__ __forceinline__ void advance(const Gradients& problem, const Part& part) {
        if (CAUSAL && part.descending) {
            if (--tile < part.first) tile = problem.tiles - 1, ++of_group;
        } else if (++tile == problem.tiles) {
            tile = part.first;
            if (++of_group == problem.group) of_group = 0;
        }
    }
};

// dQ in floats: of each tile the part of one warpgroup after the other's, in rows of 64. A row's 16-byte chunks are permuted,
// so that the floats of a warp's accumulators lie in all banks. Where queries are the columns of the product, its neighbours
// in memory are two rows apart.
template <bool SWAPPED> __device__ __forceinline__ int permuted(int row, int chunk) {
    return chunk ^ (SWAPPED ? row / 2 % 4 : row % 4) * 2;
}

// wgmma ---------------------------------------------------------------------------------------------------------------

#define OPERANDS_40(c) OPERANDS_32(c), EIGHT(c, 32)
#define NAMES_40 NAMES_36 ", %36, %37, %38, %39"
template <int PENDING> __device__ __forceinline__ void finish_products(float (&c)[40]) {
    asm volatile("wgmma.wait_group.sync.aligned %40;" : OPERANDS_40(c) : "n"(PENDING) : "memory");
}
// Products that read these registers are over: until here the compiler keeps them.
template <int N> __device__ __forceinline__ void release(const unsigned (&rows)[N][4]) {
#pragma unroll
    for (int j = 0; j < N; ++j) asm volatile("" ::"r"(rows[j][0]), "r"(rows[j][1]), "r"(rows[j][2]), "r"(rows[j][3]));
}
// to = from, by an instruction that ptxas can't leave out. Registers that a product reads must be written while no other
// product reads registers, or ptxas (13.0) lets each wgmma wait for the one before.
template <int N> __device__ __forceinline__ void copy_registers(unsigned (&to)[N][4], const unsigned (&from)[N][4], int zero) {
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) asm volatile("or.b32 %0, %1, %2;" : "=r"(to[j][i]) : "r"(from[j][i]), "r"(zero) : "memory");
}
// A is read transposed: its 64 rows are columns in shared memory.
template <typename T, int N>
__device__ __forceinline__ void multiply_columns(float (&c)[N], unsigned long long a, unsigned long long b, int add);
#define WGMMA_40(T, TYPE) \
    template <> \
    __device__ __forceinline__ void multiply<T, false, 40>(float (&c)[40], unsigned long long a, unsigned long long b, int add) { \
        asm volatile("{.reg .pred add; setp.ne.s32 add, %42, 0;" \
                     "wgmma.mma_async.sync.aligned.m64n80k16.f32." TYPE "." TYPE " {" NAMES_40 "}, " \
                     "%40, %41, add, 1, 1, 0, 0;}" \
                     : OPERANDS_40(c) \
                     : "l"(a), "l"(b), "r"(add)); \
    } \
    template <> \
    __device__ __forceinline__ void multiply_columns<T, 40>(float (&c)[40], unsigned long long a, unsigned long long b, int add) { \
        asm volatile("{.reg .pred add; setp.ne.s32 add, %42, 0;" \
                     "wgmma.mma_async.sync.aligned.m64n80k16.f32." TYPE "." TYPE " {" NAMES_40 "}, " \
                     "%40, %41, add, 1, 1, 1, 0;}" \
                     : OPERANDS_40(c) \
                     : "l"(a), "l"(b), "r"(add)); \
    }
WGMMA_40(__half, "f16")
WGMMA_40(__nv_bfloat16, "bf16")

// The descriptor of what lies `bytes` further.
__device__ __forceinline__ unsigned long long advanced(unsigned long long descriptor, int bytes) {
    unsigned low, high;
    unsigned long long sum;
    asm("mov.b64 {%0, %1}, %2;" : "=r"(low), "=r"(high) : "l"(descriptor));
    asm("mov.b64 %0, {%1, %2};" : "=l"(sum) : "r"(low + (bytes >> 4)), "r"(high));
    return sum;
}

// exp2_approx() that stays where it stands: the compiler would move it behind the wait for a product.
__device__ __forceinline__ float exp2_here(float x) {
    float y;
    asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x) : "memory");
    return y;
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
__device__ __forceinline__ void store_one(unsigned address, float x) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(x) : "memory");
}
// One elected thread of the warp arrives.
__device__ __forceinline__ void arrive_for_warp(unsigned barrier) {
    asm volatile("{\n"
                 ".reg .pred one;\n"
                 "elect.sync _|one, 0xffffffff;\n"
                 "@one mbarrier.arrive.shared::cta.b64 _, [%0];\n"
                 "}" ::"r"(barrier) : "memory");
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

// Turns of a tile: whoever takes one sees what was stored before the turn was passed on, also by TMA.
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
