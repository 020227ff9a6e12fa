// Jobs for the consumer warpgroups of a persistent CTA: a tile scheduler, a ring of K and V tiles, and a pipeline that
// runs on from job to job. What a kernel adds is its softmax.
//
// A job is 64 queries of one head, the work of one consumer. A pass is JOBS_PER_PASS consecutive jobs of one head, which
// share the tiles of K and V in the ring: a stage is free again when every job of the pass has used it. Of the producer's
// warps one loads the tiles; the others schedule the jobs of one or two consumers each, and load their Q. O leaves through
// the memory of Q. tests/measure/test_jobs.py runs all this without a GPU, with tiles that come late and out of order.
#pragma once
#include "hopper.cuh"

#define OPERANDS_68(c) OPERANDS_64(c), "+f"(c[64]), "+f"(c[65]), "+f"(c[66]), "+f"(c[67])
#define NAMES_68 NAMES_64 ", %64, %65, %66, %67"
template <int PENDING> __device__ __forceinline__ void finish_products(float (&c)[68]) {
    asm volatile("wgmma.wait_group.sync.aligned %68;" : OPERANDS_68(c) : "n"(PENDING) : "memory");
}
#define WGMMA_68(T, TYPE) \
    template <> \
    __device__ __forceinline__ void multiply<T, true, 68>(float (&c)[68], const unsigned (&a)[4], unsigned long long b, int add) { \
        asm volatile("{.reg .pred add; setp.ne.s32 add, %73, 0;" \
                     "wgmma.mma_async.sync.aligned.m64n136k16.f32." TYPE "." TYPE " {" NAMES_68 "}, " \
                     "{%68, %69, %70, %71}, %72, add, 1, 1, 1;}" \
                     : OPERANDS_68(c) \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add)); \
    }
WGMMA_68(__half, "f16")
WGMMA_68(__nv_bfloat16, "bf16")

// D = 256: tiles of 80 keys, and V whole.
#define OPERANDS_40(c) OPERANDS_32(c), EIGHT(c, 32)
#define NAMES_40 NAMES_36 ", %36, %37, %38, %39"
#define OPERANDS_128(c) \
    OPERANDS_64(c), EIGHT(c, 64), EIGHT(c, 72), EIGHT(c, 80), EIGHT(c, 88), EIGHT(c, 96), EIGHT(c, 104), EIGHT(c, 112), \
        EIGHT(c, 120)
#define NAMES_128 \
    NAMES_68 ", " \
    "%68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, " \
    "%88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, " \
    "%108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
template <int PENDING> __device__ __forceinline__ void finish_products(float (&c)[40]) {
    asm volatile("wgmma.wait_group.sync.aligned %40;" : OPERANDS_40(c) : "n"(PENDING) : "memory");
}
template <int PENDING> __device__ __forceinline__ void finish_products(float (&c)[128]) {
    asm volatile("wgmma.wait_group.sync.aligned %128;" : OPERANDS_128(c) : "n"(PENDING) : "memory");
}
#define WGMMA_256(T, TYPE) \
    template <> \
    __device__ __forceinline__ void multiply<T, false, 40>(float (&c)[40], unsigned long long a, unsigned long long b, int add) { \
        asm volatile("{.reg .pred add; setp.ne.s32 add, %42, 0;" \
                     "wgmma.mma_async.sync.aligned.m64n80k16.f32." TYPE "." TYPE " {" NAMES_40 "}, " \
                     "%40, %41, add, 1, 1, 0, 0;}" \
                     : OPERANDS_40(c) \
                     : "l"(a), "l"(b), "r"(add)); \
    } \
    template <> \
    __device__ __forceinline__ void multiply<T, true, 128>(float (&c)[128], const unsigned (&a)[4], unsigned long long b, int add) { \
        asm volatile("{.reg .pred add; setp.ne.s32 add, %133, 0;" \
                     "wgmma.mma_async.sync.aligned.m64n256k16.f32." TYPE "." TYPE " {" NAMES_128 "}, " \
                     "{%128, %129, %130, %131}, %132, add, 1, 1, 1;}" \
                     : OPERANDS_128(c) \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add)); \
    }
WGMMA_256(__half, "f16")
WGMMA_256(__nv_bfloat16, "bf16")

// How one instance works: tiles of KEYS keys, STAGES tiles of K and of V in the ring; with PING_PONG, consumers issue their
// products in turns. With ROUNDED, row sums add probabilities as the product rounds them: V has one column more, of ones. A
// wgmma has 256 columns at most, so at D = 256 registers add them, where the tensor cores leave the time. With LSE, which needs
// ROUNDED, the log-sum-exp of each row is written too.
template <int D_, int KEYS_, int STAGES_, int CONSUMERS_, int PING_PONG_, int JOBS_PER_PASS_, bool ROUNDED_ = false, bool LSE_ = false>
struct Plan {
    static constexpr int D = D_, KEYS = KEYS_, STAGES = STAGES_, CONSUMERS = CONSUMERS_, JOBS_PER_PASS = JOBS_PER_PASS_;
    static constexpr bool PING_PONG = PING_PONG_, ROUNDED = ROUNDED_, ONES = ROUNDED && D < 256, LSE = LSE_;
    // Memories of Q that a consumer has. With one, a job ends before the next one's Q is loaded.
    static constexpr int BUFFERS = D < 256 ? 2 : 1;
    // A consumer waits for its tiles before its turn: with four of them 2 % faster at 1,024 keys, with three 2 % slower.
    static constexpr bool WAIT_BEFORE_TURN = PING_PONG && CONSUMERS > 3;
    static constexpr int THREADS = 128 * (1 + CONSUMERS), COLUMNS = D / 64;  // tiles of 64 columns beside each other
    // Q in registers, where these hold it: products then read a fifth less of shared memory.
    static constexpr bool HOLDS_QUERY = CONSUMERS == 2 && D == 128 && ROUNDED;
    static constexpr int QUERY_BYTES = 64 * D * 2, TILE_BYTES = KEYS * D * 2;
    // Columns of ones follow V at the distance of its tiles of 64 columns: behind each V, or anywhere behind a single tile.
    static constexpr int STAGE_BYTES = 2 * TILE_BYTES + (ONES && COLUMNS > 1 ? KEYS * 128 : 0);
    // setmaxnreg: a warpgroup that asks for more than the others left of the CTA's registers waits for good.
    static constexpr int LAUNCH_REGISTERS = 65536 / THREADS / 8 * 8;
    static constexpr int PRODUCER_REGISTERS = CONSUMERS == 2 ? 40 : 32;
    static constexpr int CONSUMER_REGISTERS = CONSUMERS == 2 ? 232 : CONSUMERS == 3 ? 160 : 112;
    static_assert(PRODUCER_REGISTERS + CONSUMERS * CONSUMER_REGISTERS <= (1 + CONSUMERS) * LAUNCH_REGISTERS,
                  "more registers than the CTA has");
    static_assert(!PING_PONG || JOBS_PER_PASS == CONSUMERS, "consumers that take turns need one job each of every pass");
    // A consumer with two jobs of a pass needs its first tile again: all have to be in the ring at once. At other lengths
    // nothing is scheduled, since all would wait for good, and the gate finds O unwritten.
    __device__ __forceinline__ static bool serves(int keys) {
        return JOBS_PER_PASS <= CONSUMERS || (keys + KEYS - 1) / KEYS < STAGES;
    }
};

// Where the log-sum-exp of each row goes, dense, in heads of so many rows.
struct LogSums {
    float* at;
    int heads, rows;
};

// A job as its consumer finds it.
struct Job {
    static constexpr bool RAGGED = false;  // whether each job has keys of its own
    int head;            // and its batch, packed
    int diagonal;        // the last key that its first query may see
    int tiles;           // that it sees; none: the end
    int pipeline_state;  // of its first tile in the ring, packed
    int idle_turns;      // to be passed on before it
    int round;           // of its pass, counted from 0
    int drains;          // whether the job before has to be over first, so that it holds no stage meanwhile
};

// The last of the tiles of which so many keys are seen that is seen whole, or the first.
template <int KEYS> __device__ __forceinline__ int last_whole(int seen) { return max(seen / KEYS - 1, 0); }
// The tile at a place of a pass that begins with tile `first`, and goes on with the others in their order.
__device__ __forceinline__ int tile_at(int place, int first) { return place == 0 ? first : place - (place <= first); }

template <typename P, typename J = Job> struct SharedStorage {
    unsigned char query[P::CONSUMERS][P::BUFFERS][P::QUERY_BYTES];  // of a job and of the next; then their O
    unsigned char ring[P::STAGES][P::STAGE_BYTES];         // K, V and ones of a tile
    unsigned long long query_full[P::CONSUMERS][P::BUFFERS], query_empty[P::CONSUMERS][P::BUFFERS];
    unsigned long long full[P::STAGES][2], empty[P::STAGES][2];
    // The passes before whose tiles all earlier ones have come: until then, to a consumer that skips tiles, a stage's barrier
    // may be two phases behind.
    int passes_begun;
    unsigned char thread_ids[128];
    union {
        float row_sum[P::CONSUMERS][64];           // of a job that has ended
        alignas(128) unsigned short ones[16][64];  // behind a single tile: 16 rows, more columns than are read
    };
    J jobs[P::CONSUMERS][P::BUFFERS];  // whose Q is in `query`
};

__device__ __forceinline__ void arrive_times(unsigned barrier, int count) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

// Two elements times two others.
template <typename T> __device__ __forceinline__ unsigned multiplied(unsigned pair, unsigned by);
template <> __device__ __forceinline__ unsigned multiplied<__half>(unsigned pair, unsigned by) {
    asm("mul.rn.f16x2 %0, %0, %1;" : "+r"(pair) : "r"(by));
    return pair;
}
template <> __device__ __forceinline__ unsigned multiplied<__nv_bfloat16>(unsigned pair, unsigned by) {
    asm("mul.rn.bf16x2 %0, %0, %1;" : "+r"(pair) : "r"(by));
    return pair;
}

// The sum of two elements that pack() rounded.
template <typename T> __device__ __forceinline__ float sum_of_pair(unsigned both) {
    const T(&pair)[2] = reinterpret_cast<const T(&)[2]>(both);
    return to_float(pair[0]) + to_float(pair[1]);
}

// Returns once the number in shared memory is above `least`. It is written and read by atomics, since no barrier orders
// them. The loop is in assembly: one in C++ would make the compiler expect the lanes of a warp to diverge, and give up
// uniform registers.
__device__ __forceinline__ void wait_until_above(unsigned address, int least) {
    asm volatile("{\n"
                 ".reg .pred one, done;\n"
                 ".reg .b32 number;\n"
                 "elect.sync _|one, 0xffffffff;\n"
                 "mov.b32 number, 0x7fffffff;\n"
                 "again:\n"
                 "@one atom.shared.or.b32 number, [%0], 0;\n"
                 "setp.gt.s32 done, number, %1;\n"
                 "vote.sync.all.pred done, done, 0xffffffff;\n"
                 "@!done bra again;\n"
                 "}" ::"r"(address), "r"(least) : "memory");
}

// The thread's number in its warpgroup, from shared memory: where it is seldom needed, nothing made of it stays in a
// register meanwhile.
__device__ __forceinline__ unsigned reload_thread(unsigned thread_ids) {
    unsigned thread;
    asm volatile("ld.volatile.shared.u8 %0, [%1];" : "=r"(thread) : "r"(thread_ids + threadIdx.x % 128));
    return thread;
}

__device__ __forceinline__ float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// False, which the compiler doesn't know: no scale is such a NaN. Each place has its own, as ptxas remembers which it was not.
__device__ __forceinline__ bool never(float scale, int place = 0) { return __float_as_int(scale) == 0x7FC12345 + place; }

__device__ __forceinline__ void ping_pong_wait(int consumer) { synchronize(5 + consumer, 256); }
template <int CONSUMERS> __device__ __forceinline__ void ping_pong_signal(int consumer) {
    const int next = consumer + 1 == CONSUMERS ? 0 : consumer + 1;
    arrive_by_name(5 + next, 256);
}

// Which passes a CTA takes: CTAs take one each, round by round. Heads that share K and V and have one block of queries each
// count as one head with as many blocks, so that no consumer of a pass is left without a job. Without the mask, the passes of
// the last round are split into shares, as far as there are CTAs. Under the mask heads are scheduled in sections, the longest
// passes of each first.
template <typename P, bool CAUSAL> struct TileScheduler {
    static constexpr int UNROLLED = CAUSAL ? 1 : 2;  // loads of a tile: under the mask, registers don't last
    // A pass begins with the last tile that all its queries see whole: then the largest score rises seldom where scores rise along
    // the keys, and where they fall. Under the mask at D = 256 that gains nothing.
    static constexpr bool WHOLE_FIRST = P::ROUNDED && !(CAUSAL && P::D == 256);
    Problem problem;
    int heads, blocks, passes_per_head, passes;
    __device__ __forceinline__ TileScheduler(const Problem& problem)
        : problem(problem), heads(problem.batch * problem.heads.by), blocks((problem.queries + 63) / 64),
          passes_per_head(problem.items.by), passes(passes_per_head * heads) {
        if (!CAUSAL) passes = problem.whole + (passes - problem.whole) * problem.shares.by;
        if (!P::serves(problem.keys)) passes = 0;
    }
    // Whether a consumer may have less to do in a pass than another.
    __device__ __forceinline__ static bool skips(const Problem& problem) {
        return CAUSAL || P::JOBS_PER_PASS < P::CONSUMERS || (problem.queries + 63) / 64 % P::JOBS_PER_PASS;
    }
    // A head of all batches as one of its batch, with the batch above it: one register instead of two.
    __device__ __forceinline__ int packed(int head) const {
        return problem.heads.quotient(head) << 16 | problem.heads.remainder(head);
    }
    // The head, packed, and the first row of a block.
    __device__ __forceinline__ int head_of(int head, int block) const {
        return head + (head & 0xFFFF) * problem.joined + block * problem.head_step;
    }
    __device__ __forceinline__ int first_row(int block) const { return block * problem.row_step; }
    // The head of K and V for a packed one.
    __device__ __forceinline__ int packed_kv(int head) const {
        return (head & ~0xFFFF) | problem.sharing.quotient(head & 0xFFFF);
    }
    // The CTA's pass in a round, or -1 behind the end. Under the mask to and fro: the longest first, the shortest next.
    // Without it some steps further each time, so that nobody always has the passes with fewer jobs, or the same heads.
    __device__ __forceinline__ int pass(int round) const {
        const int fro = round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
        const int index = round * gridDim.x + (CAUSAL ? fro : problem.ctas.remainder(blockIdx.x + round * problem.step));
        return index < passes ? index : -1;
    }
    // The head of a pass, packed, and its first and last block of 64 queries. Under the mask, within a section of heads, the
    // longest first: groups of blocks end with the last one, and the shortest begins below 0 where they don't come out even.
    __device__ __forceinline__ void work_tile(int pass, int& head, int& first_block, int& last_block) const {
        if (CAUSAL) {
            const int section = problem.section_items.quotient(pass), index = problem.section_items.remainder(pass);
            const int begin = section * problem.section.by;
            int group = problem.section.quotient(index), section_heads = problem.section.by;
            if (begin + section_heads > heads) group = problem.rest.quotient(index), section_heads = problem.rest.by;
            head = packed(begin + index - group * section_heads);
            // Written otherwise, the same makes the compiler spill, where four consumers have no register to spare.
            first_block = blocks - (group + 1) * P::JOBS_PER_PASS;
            last_block = min(first_block + P::JOBS_PER_PASS, blocks) - 1;
        } else {
            int begin = 0, end = P::JOBS_PER_PASS;
            if (pass >= problem.whole) {
                const int share = problem.shares.remainder(pass - problem.whole);
                begin = problem.shares.quotient(P::JOBS_PER_PASS * share);
                end = problem.shares.quotient(P::JOBS_PER_PASS * (share + 1));
                pass = problem.whole + problem.shares.quotient(pass - problem.whole);
            }
            head = packed(problem.items.quotient(pass));
            first_block = problem.items.remainder(pass) * P::JOBS_PER_PASS;
            last_block = min(first_block + end, blocks) - 1;
            first_block += begin;
        }
    }
    // The tiles that a pass needs: those of its last block, if it has one.
    __device__ __forceinline__ int pass_tiles(int first_block, int last_block) const {
        return first_block > last_block ? 0 : block_tiles(last_block);
    }
    // The tile with which a pass begins.
    __device__ __forceinline__ int first_tile(int first_block) const {
        const int seen = CAUSAL ? problem.last_key + first_row(max(first_block, 0)) + 1 : problem.keys;
        return WHOLE_FIRST ? last_whole<P::KEYS>(seen) : 0;
    }
    // The tiles that a block sees.
    __device__ __forceinline__ int block_tiles(int block) const {
        const int keys = problem.keys;
        return ((CAUSAL ? min(keys, problem.earlier + 64 * (block + 1)) : keys) + P::KEYS - 1) / P::KEYS;
    }
    // Of the blocks from `first_block` on, the first that sees a tile.
    __device__ __forceinline__ int first_user(int tile, int first_block) const {
        return CAUSAL ? max(max(first_block, 0), (P::KEYS * tile - problem.earlier) >> 6) : first_block;
    }
    // Loads 64 columns of a tile of K or V.
    __device__ __forceinline__ void load_keys(unsigned to, const TensorMap& map, int column, int tile, int kv_head,
                                              unsigned barrier) const {
        load_box(to, map, column, P::KEYS * tile, kv_head & 0xFFFF, kv_head >> 16, barrier);
    }
    // Called when the tile at a place of a pass is under way.
    __device__ __forceinline__ void look_ahead(int, int) const {}
    // Which of a pass's jobs, from the longest on, is scheduled as number `index`: row by row of consumers, to and fro.
    __device__ __forceinline__ static int job_order(int index) {
        const int row = index / P::CONSUMERS;
        return row % 2 ? (2 * row + 1) * P::CONSUMERS - 1 - index : index;
    }
};

// `skips()`: whether a consumer may have less to do in a pass than another.
template <typename P, typename J, typename Skips>
__device__ __forceinline__ void init_barriers(SharedStorage<P, J>& smem, const Skips& skips) {
    if (threadIdx.x < 128) smem.thread_ids[threadIdx.x] = threadIdx.x;
    if (threadIdx.x == 0) {
        smem.passes_begun = skips() ? 0 : 0x7fffffff;
        for (int i = 0; i < 2 * P::BUFFERS * P::CONSUMERS; ++i) init_barrier(shared_address(smem.query_full) + 8 * i, 1);
        for (int i = 0; i < 2 * P::STAGES; ++i) {
            init_barrier(shared_address(smem.full) + 8 * i, 1);
            init_barrier(shared_address(smem.empty) + 8 * i, 4 * P::JOBS_PER_PASS);
        }
        publish_barriers();
    }
    __syncthreads();
}

template <typename P, bool CAUSAL>
__device__ __forceinline__ void init_barriers(SharedStorage<P>& smem, const Problem& problem) {
    init_barriers(smem, [&] { return TileScheduler<P, CAUSAL>::skips(problem); });
}

// Lets the consumers begin a pass whose first K is on its way, once all tiles before it have come: to a consumer that skipped
// them, the barrier of a stage that still waits for one of them would say that the tile after it is there.
template <typename P, typename J>
__device__ __forceinline__ void begin_pass(SharedStorage<P, J>& smem, const Stage<P::STAGES>& state, int round) {
#pragma unroll 1
    for (int stage = 0; stage < P::STAGES; ++stage) {
        const unsigned full = shared_address(smem.full[stage]), phase = state.phase() ^ (stage >= state.index());
        if (stage != state.index()) wait(full, phase);  // there the K under way may have come already
        wait(full + 8, phase);
    }
    atomicExch(&smem.passes_begun, round + 1);
}

// One thread of the producer loads K and V of all passes, tile after tile.
template <typename P, typename J, typename Scheduler>
__device__ __forceinline__ void load_tiles(SharedStorage<P, J>& smem, Scheduler& scheduler, const TensorMap& k,
                                           const TensorMap& v) {
    const unsigned full = shared_address(smem.full), empty = shared_address(smem.empty);
    const bool skips = scheduler.skips(scheduler.problem);
    Stage<P::STAGES> state;
    for (int round = 0, pass; (pass = scheduler.pass(round)) >= 0; ++round) {
        int head, first_block, last_block;
        scheduler.work_tile(pass, head, first_block, last_block);
        const int tiles = scheduler.pass_tiles(first_block, last_block), kv_head = scheduler.packed_kv(head);
        const int first = scheduler.first_tile(first_block);
#pragma unroll 1
        for (int place = 0; place < tiles; ++place) {
            const int tile = Scheduler::WHOLE_FIRST ? tile_at(place, first) : place;
            const int users = last_block + 1 - scheduler.first_user(tile, first_block);
#pragma unroll(Scheduler::UNROLLED)
            for (int i = 0; i < 2; ++i) {
                const TensorMap& map = i ? v : k;
                const unsigned barrier = 8 * (2 * state.index() + i);
                wait(empty + barrier, state.phase() ^ 1);
                arrive_expecting(full + barrier, P::TILE_BYTES);
                for (int c = 0; c < P::COLUMNS; ++c)
                    scheduler.load_keys(shared_address(smem.ring[state.index()]) + i * P::TILE_BYTES + c * P::KEYS * 128, map,
                                        64 * c, tile, kv_head, full + barrier);
                // In place of those that won't come.
                if (users < P::JOBS_PER_PASS) arrive_times(empty + barrier, 4 * (P::JOBS_PER_PASS - users));
                if (skips && place + i == 0) begin_pass<P>(smem, state, round);
            }
            state.advance();
            scheduler.look_ahead(place, tiles);
        }
    }
}

// Another thread schedules the jobs of one consumer, one by one, and loads their Q.
template <typename P, bool CAUSAL>
__device__ __forceinline__ void schedule_jobs(SharedStorage<P>& smem, const TileScheduler<P, CAUSAL>& scheduler,
                                              const TensorMap& q, int consumer) {
    const unsigned query_full = shared_address(smem.query_full[consumer]);
    const unsigned query_empty = shared_address(smem.query_empty[consumer]);
    Stage<P::STAGES> state;  // of the pass's first tile
    int index = consumer, idle_turns = 0, jobs = 0, round = 0;
    int tiles_since = 0;  // from the end of the job before to the beginning of this pass
    for (int pass; (pass = scheduler.pass(round)) >= 0; ++round) {
        int head, first_block, last_block;
        scheduler.work_tile(pass, head, first_block, last_block);
        const int pass_tiles = scheduler.pass_tiles(first_block, last_block);
        for (; index < P::JOBS_PER_PASS; index += P::CONSUMERS) {
            const int block = first_block + (CAUSAL ? P::JOBS_PER_PASS - 1 - scheduler.job_order(index) : index);
            const int tiles = (CAUSAL ? block >= 0 : block <= last_block) ? scheduler.block_tiles(block) : 0;
            if (tiles) {
                const int buffer = jobs % P::BUFFERS;
                const unsigned barrier = query_full + 8 * buffer;
                wait(query_empty + 8 * buffer, jobs / P::BUFFERS % 2 ^ 1);
                const bool drains = tiles_since >= P::STAGES || idle_turns + 2 > P::STAGES;
                auto& job = smem.jobs[consumer][buffer];
                job = {scheduler.head_of(head, block), scheduler.problem.last_key + scheduler.first_row(block), tiles,
                       state.packed, idle_turns, round, drains};
                tiles_since = 1 - tiles;
                idle_turns = 0;
                arrive_expecting(barrier, P::QUERY_BYTES);
                for (int c = 0; c < P::COLUMNS; ++c)
                    load_box(shared_address(smem.query[consumer][buffer]) + c * 64 * 128, q, 64 * c,
                             job.diagonal - scheduler.problem.last_key, job.head & 0xFFFF, job.head >> 16, barrier);
                ++jobs;
            }
            idle_turns += pass_tiles - tiles;
        }
        // To and fro from pass to pass too, where a consumer has one job of each.
        index = CAUSAL && P::JOBS_PER_PASS == P::CONSUMERS ? 2 * P::CONSUMERS - 1 - index : index - P::JOBS_PER_PASS;
        tiles_since += pass_tiles;
        state.advance(pass_tiles);
    }
    // Each consumer takes as many turns as the one with most jobs.
    const int most = (round * P::JOBS_PER_PASS + P::CONSUMERS - 1) / P::CONSUMERS;
    const int own = (round * P::JOBS_PER_PASS - consumer + P::CONSUMERS - 1) / P::CONSUMERS;
    idle_turns += (most - own) * scheduler.block_tiles(scheduler.blocks - 1);
    const int buffer = jobs % P::BUFFERS;
    wait(query_empty + 8 * buffer, jobs / P::BUFFERS % 2 ^ 1);
    smem.jobs[consumer][buffer].tiles = 0;
    smem.jobs[consumer][buffer].idle_turns = idle_turns;
    smem.jobs[consumer][buffer].drains = 1;
    arrive(query_full + 8 * buffer);
}

// The producer warpgroup.
template <typename P, bool CAUSAL>
__device__ __forceinline__ void produce(SharedStorage<P>& smem, const TensorMap& q, const TensorMap& k, const TensorMap& v,
                                        const Problem& problem) {
    give_registers<P::PRODUCER_REGISTERS>();
    const TileScheduler<P, CAUSAL> scheduler(problem);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) return load_tiles(smem, scheduler, k, v);
    const int consumer = warp - 1 + 3 * lane;  // three warps, and a second lane for a fourth consumer
    if (warp && lane < 2 && consumer < P::CONSUMERS) schedule_jobs(smem, scheduler, q, consumer);
}

// The scores of one tile in a warpgroup's registers, and which keys they belong to.
template <typename P, bool CAUSAL> struct Scores {
    float s[P::KEYS / 2];
    int tile, keys;  // the tile's place: if that isn't its number, all its keys are seen
    // Keys from `unmasked` on are not seen by every query of the job, the first of which sees keys up to `diagonal`.
    __device__ __forceinline__ int unmasked(int diagonal) const { return CAUSAL ? min(keys, diagonal + 1) : keys; }
    __device__ __forceinline__ void mask(int diagonal, unsigned thread) {
        const unsigned lane = thread % 32, warp = thread / 32;
#pragma unroll
        for (int n = 0; n < P::KEYS / 2; ++n) {
            const int key = P::KEYS * tile + n / 4 * 8 + lane % 4 * 2 + n % 2;
            const int last_key = diagonal + 16 * warp + lane / 4 + n / 2 % 2 * 8;
            if (key >= keys || (CAUSAL && key > last_key)) s[n] = -infinity();
        }
    }
};

// A thread's two rows: exponents are relative to `offset`, which is `row_max` or an earlier one; probabilities add up to
// `row_sum`; O is multiplied by `rescale`.
struct RowState {
    float offset[2] = {-infinity(), -infinity()}, row_sum[2], rescale[2];
    // Scores become probabilities, relative to the largest score so far.
    template <int N> __device__ __forceinline__ void exponentiate(float (&s)[N], float scale_log2) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float row_max = -infinity();
#pragma unroll
            for (int n = 2 * half; n < N; n += 4) row_max = fmaxf(row_max, fmaxf(s[n], s[n + 1]));
            row_max = fmaxf(offset[half], quad_max(row_max) * scale_log2 + 0);  // + 0: the machine code that was measured
            rescale[half] = exp2_approx(offset[half] - row_max);  // row_max is finite: key 0 came first
            offset[half] = row_max;
            row_sum[half] *= rescale[half];
#pragma unroll
            for (int n = 2 * half; n < N; n += 4) {
                s[n] = exp2_approx(s[n] * scale_log2 - row_max);
                s[n + 1] = exp2_approx(s[n + 1] * scale_log2 - row_max);
                row_sum[half] += s[n] + s[n + 1];
            }
        }
    }
};

// What a consumer asks of its problem. One of another type says the same in functions of the same names (15_ragged.cu).
// The tiles of the first job, where no job says its own.
template <typename P> __device__ __forceinline__ int tiles_of_all(const Problem& problem) {
    return (problem.keys + P::KEYS - 1) / P::KEYS;
}
// The keys of a job.
__device__ __forceinline__ int keys_of(const Problem& problem, const Job&) { return problem.keys; }
// Whether a row of a job sees no key.
template <bool CAUSAL> __device__ __forceinline__ bool sees_nothing(const Job&, int) { return false; }
// 64 columns of a job's O leave.
__device__ __forceinline__ void store_rows(const Problem& problem, const TensorMap& o, int column, const Job& job,
                                           unsigned from) {
    store_box(o, column, job.diagonal - problem.last_key, job.head & 0xFFFF, job.head >> 16, from);
}

template <typename Softmax> constexpr auto works_in_parts(int) -> decltype(Softmax::IN_PARTS) { return true; }
template <typename Softmax> constexpr bool works_in_parts(...) { return false; }

// A consumer warpgroup: while a tile's scores are computed, the tile before is multiplied by V, also where the two are of
// different jobs. `softmax(rows, scores, diagonal, begin, recompute)` makes probabilities of scores and says whether O has
// to be multiplied by `rescale`, TIMES times; `begin` is true for the first job's first tile, and `recompute()` computes the
// scores once more.
template <typename T, typename P, bool CAUSAL, int TIMES = 1, typename J, typename AnyProblem, typename Softmax, typename... Sums>
__device__ __forceinline__ void consume(SharedStorage<P, J>& smem, const TensorMap& o, const AnyProblem& problem,
                                        Softmax& softmax, const Sums&... log_sums) {
    constexpr bool RAGGED = J::RAGGED;
    constexpr int D = P::D, KEYS = P::KEYS, BUFFERS = P::BUFFERS, WIDTH = P::ROUNDED ? D / 2 + 4 : D / 2;
    take_registers<P::CONSUMER_REGISTERS>();
    const int consumer = __shfl_sync(~0u, threadIdx.x / 128 - 1, 0);
    const unsigned full = shared_address(smem.full), empty = shared_address(smem.empty);
    const unsigned query_full = shared_address(smem.query_full[consumer]);
    const unsigned queries = shared_address(smem.query[consumer][0]), ring = shared_address(smem.ring);
    if (P::PING_PONG && consumer == P::CONSUMERS - 1) ping_pong_signal<P::CONSUMERS>(consumer);

    Stage<P::STAGES> k_state, v_state;
    unsigned job = 0;  // counted from 0: its Q is in buffer `job % BUFFERS`
    RowState rows;
    Scores<P, CAUSAL> scores;
    scores.tile = 0, scores.keys = RAGGED ? 0 : keys_of(problem, smem.jobs[0][0]);
    float out[WIDTH];  // with ROUNDED, sums of the two rows in WIDTH - 4 and WIDTH - 2
    auto& product = reinterpret_cast<float(&)[P::ONES ? WIDTH : D / 2]>(out);
    unsigned p[KEYS / 16][4];

    unsigned q[P::HOLDS_QUERY ? D / 16 : 1][4];
    const auto hold_query = [&] {
        if (!P::HOLDS_QUERY) return;
        const unsigned thread = reload_thread(shared_address(smem.thread_ids)), lane = thread % 32, warp = thread / 32;
        const unsigned row = queries + job % BUFFERS * P::QUERY_BYTES + (16 * warp + lane % 16) * 128;
#pragma unroll
        for (unsigned d = 0; d < D / 16; ++d)
            load_matrices(q[d], row + d / 4 * 64 * 128 + ((2 * (d % 4) + lane / 16) ^ lane % 8) * 16);
    };
    int tiles = tiles_of_all<P>(problem);  // under the mask, those that the job sees
    const auto begin_job = [&] {
        const auto& scheduled = smem.jobs[consumer][job % BUFFERS];
        if (P::PING_PONG)
#pragma unroll 1
            for (int turns = scheduled.idle_turns; turns > 0; --turns)
                ping_pong_wait(consumer), ping_pong_signal<P::CONSUMERS>(consumer);
        scores.tile = 0;
        rows.row_sum[0] = rows.row_sum[1] = 0;
        k_state.packed = __shfl_sync(~0u, scheduled.pipeline_state, 0);
        if (CAUSAL || RAGGED) tiles = __shfl_sync(~0u, scheduled.tiles, 0);
        if (RAGGED && !CAUSAL) scores.keys = __shfl_sync(~0u, keys_of(problem, scheduled), 0);
        const bool begins = scheduled.tiles;
        if (begins) wait_until_above(shared_address(&smem.passes_begun), scheduled.round), hold_query();
        return begins;
    };
    const auto multiply_query_by_keys = [&] {
        const auto q_tile = descriptor(queries + job % BUFFERS * P::QUERY_BYTES, 16, 1024);
        const auto k_tile = descriptor(ring + k_state.index() * P::STAGE_BYTES, 16, 1024);
#pragma unroll
        for (int d = 0; d < D / 16; ++d)
            if constexpr (P::HOLDS_QUERY)
                multiply<T, false>(scores.s, q[d], advanced(k_tile, d / 4 * KEYS * 128 + d % 4 * 32), d);
            else
                multiply<T, false>(scores.s, advanced(q_tile, d / 4 * 64 * 128 + d % 4 * 32),
                                   advanced(k_tile, d / 4 * KEYS * 128 + d % 4 * 32), d);
        commit_products();
    };
    const auto multiply_probabilities_by_values = [&](int add) {
        constexpr bool SAME_ONES = P::ONES && P::COLUMNS == 1;  // for all rows of V
        const unsigned values = ring + v_state.index() * P::STAGE_BYTES + P::TILE_BYTES;
        const auto v_tile = descriptor(values, SAME_ONES ? shared_address(smem.ones) - values : KEYS * 128, 1024);
#pragma unroll
        for (int j = 0; j < KEYS / 16; ++j) {
            const int bytes = 16 * j * 128, back = SAME_ONES ? bytes << 16 : 0;
            multiply<T, true>(product, p[j], advanced(v_tile, bytes - back), j ? 1 : add);
        }
        commit_products();
    };
    // The tile's scores once more, by this warp alone.
    const auto recompute = [&] {
        const unsigned thread = reload_thread(shared_address(smem.thread_ids)), lane = thread % 32, warp = thread / 32;
#pragma unroll
        for (int n = 0; n < KEYS / 2; ++n) scores.s[n] = 0;
        const unsigned q_row = queries + job % BUFFERS * P::QUERY_BYTES + (16 * warp + lane % 16) * 128;
        const unsigned k_row = ring + k_state.index() * P::STAGE_BYTES + (lane / 16 * 8 + lane % 8) * 128;
#pragma unroll 1
        for (unsigned d = 0; d < D / 16; ++d) {
            unsigned a[4];
            load_matrices(a, q_row + d / 4 * 64 * 128 + ((2 * (d % 4) + lane / 16) ^ lane % 8) * 16);
            const unsigned from = k_row + d / 4 * KEYS * 128 + ((2 * (d % 4) + lane / 8 % 2) ^ lane % 8) * 16;
#pragma unroll
            for (int n = 0; n < KEYS / 8; n += 2) {
                unsigned b[4];
                load_matrices(b, from + 8 * n * 128);
                multiply<T>(reinterpret_cast<float(&)[4]>(scores.s[4 * n]), a, b[0], b[1]);
                multiply<T>(reinterpret_cast<float(&)[4]>(scores.s[4 * n + 4]), a, b[2], b[3]);
            }
        }
    };
    const auto find_diagonal = [&] {
        const auto& scheduled = smem.jobs[consumer][job % BUFFERS];
        if (RAGGED && CAUSAL) scores.keys = keys_of(problem, scheduled);
        return CAUSAL ? scheduled.diagonal : 0;
    };
    const auto exponentiate = [&](bool begin) { return softmax(rows, scores, find_diagonal(), begin, recompute); };
    const auto pack_probabilities = [&] {
#pragma unroll
        for (int n = 0; n < KEYS / 4; ++n) p[n / 4][n % 4] = pack<T>(scores.s[2 * n], scores.s[2 * n + 1]);
        if (P::ROUNDED && !P::ONES)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float& sum = out[WIDTH - 4 + 2 * half];
                if (scores.tile == 0) sum = 0;
#pragma unroll
                for (int n = half; n < KEYS / 4; n += 2) sum += sum_of_pair<T>(p[n / 4][n % 4]);
            }
    };
    const auto store_row_sums = [&] {
        const unsigned thread = reload_thread(shared_address(smem.thread_ids)), lane = thread % 32, warp = thread / 32;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float row_sum = quad_sum(rows.row_sum[half]);
            if (lane % 4 == 0) smem.row_sum[consumer][16 * warp + lane / 4 + 8 * half] = row_sum;
        }
        __syncwarp();
    };
    float ended_offset[2];  // with LSE, what the probabilities of the job that has ended are relative to
    const auto store_log_sum = [&](int buffer, unsigned row, float offset, float sum, const LogSums& sums) {
        if constexpr (P::LSE) {
            const auto& ended = smem.jobs[consumer][buffer];
            const int at = ended.diagonal - problem.last_key + row;
            if (at < sums.rows)
                sums.at[(static_cast<long long>(ended.head >> 16) * sums.heads + (ended.head & 0xFFFF)) * sums.rows + at] =
                    (offset + __log2f(sum)) / LOG2_E;
        }
    };
    // O of a job goes where its Q was, and out.
    const auto store_out = [&](int buffer) {
        const unsigned thread = reload_thread(shared_address(smem.thread_ids)), lane = thread % 32, warp = thread / 32;
        const unsigned out_tile = queries + buffer * P::QUERY_BYTES;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const unsigned row = 16 * warp + lane / 4 + 8 * half;
            const bool nothing = sees_nothing<CAUSAL>(smem.jobs[consumer][buffer], row);
            const float sum = P::ROUNDED ? out[WIDTH - 4 + 2 * half] : smem.row_sum[consumer][row];
            const float inverse = reciprocal(P::ROUNDED && !P::ONES ? quad_sum(sum) : sum);
            if constexpr (P::LSE)
                if (lane % 4 == 0) store_log_sum(buffer, row, ended_offset[half], reciprocal(inverse), log_sums...);
#pragma unroll
            for (int d = 0; d < D / 8; ++d) {
                unsigned both = pack<T>(out[4 * d + 2 * half] * inverse, out[4 * d + 2 * half + 1] * inverse);
                if (nothing) both = 0;
                const unsigned to = out_tile + d / 8 * 64 * 128 + swizzled_offset(row, d % 8) + lane % 4 * 4;
                asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(both) : "memory");
            }
        }
        publish_to_tma();
        synchronize(1 + consumer, 128);
        if (threadIdx.x % 128 == 0) {
            const auto& ended = smem.jobs[consumer][buffer];
            for (int c = 0; c < P::COLUMNS; ++c)
                store_rows(problem, o, 64 * c, ended, out_tile + c * 64 * 128);
            commit_stores();
        }
    };
    bool storing = false;  // O of the job before is on its way: its memory waits for the next job's Q
    const auto buffer_before = [&] { return BUFFERS == 1 ? 0 : job % 2 ^ 1; };
    const auto release_query = [&] {
        if (storing && threadIdx.x % 128 == 0) {
            wait_for_stores();
            arrive(shared_address(smem.query_empty[consumer]) + 8 * buffer_before());
        }
        storing = false;
    };
    const auto drains = [&] { return smem.jobs[consumer][job % BUFFERS].drains; };

    // A job's first tile, with no product beside it; false if there is no job.
    const auto first_tile = [&](bool begin) {
        wait(query_full + 8 * (job % BUFFERS), job / BUFFERS % 2);
        if (!begin_job()) return false;
        if (P::PING_PONG) ping_pong_wait(consumer);
        wait(full + 16 * k_state.index(), k_state.phase());
        begin_products();
        multiply_query_by_keys();
        finish_products<0>(scores.s);
        if (P::PING_PONG) ping_pong_signal<P::CONSUMERS>(consumer);
        exponentiate(begin);
        arrive_for_warp(empty + 16 * k_state.index());
        pack_probabilities();
        return true;
    };

    if (!first_tile(true)) return;
    for (;;) {
        const bool ends = scores.tile + 1 == tiles;  // the job of the probabilities at hand ends with them
        const int add = scores.tile > 0;
        v_state = k_state;
        const auto drain = [&] {
            wait(full + 16 * v_state.index() + 8, v_state.phase());
            begin_products();
            multiply_probabilities_by_values(add);
            finish_products<0>(product);
            arrive_for_warp(empty + 16 * v_state.index() + 8);
            store_out(buffer_before());
            storing = true;
        };
        if (P::LSE && ends) ended_offset[0] = rows.offset[0], ended_offset[1] = rows.offset[1];
        if (ends && BUFFERS == 1) {
            drain();
            release_query();
            ++job;
            if (!first_tile(false)) break;
            continue;
        }
        if (ends) {
            if (!P::ROUNDED) store_row_sums();
            release_query();
            ++job;
            wait(query_full + 8 * (job % 2), job / 2 % 2);
            if (drains()) drain();
            if (!begin_job()) break;
        } else {
            ++scores.tile;
            k_state.advance();
        }
        const auto wait_for_values = [&] {
            if (!ends || !drains()) wait(full + 16 * v_state.index() + 8, v_state.phase());
        };
        if (P::WAIT_BEFORE_TURN) wait_for_values();
        if (P::PING_PONG && !P::WAIT_BEFORE_TURN) ping_pong_wait(consumer);
        wait(full + 16 * k_state.index(), k_state.phase());
        if (P::WAIT_BEFORE_TURN) ping_pong_wait(consumer);
        begin_products();
        multiply_query_by_keys();
        if (!P::WAIT_BEFORE_TURN) wait_for_values();
        begin_products();
        multiply_probabilities_by_values(add);  // after a drain for nothing: no product may depend on a condition
        if (P::PING_PONG) ping_pong_signal<P::CONSUMERS>(consumer);
        release_query();
        finish_products<1>(scores.s);
        const auto rescale_out = [&] {
#pragma unroll
            for (int n = 0; n < WIDTH; ++n)
#pragma unroll
                for (int time = 0; time < TIMES; ++time) out[n] *= rows.rescale[n / 2 % 2];
        };
        if constexpr (works_in_parts<Softmax>(0))
            if (!ends) {
                const auto finish_values = [&] {
                    finish_products<0>(product);
                    arrive_for_warp(empty + 16 * v_state.index() + 8);
                };
                const auto release_keys = [&] { arrive_for_warp(empty + 16 * k_state.index()); };
                const auto rescale_packed = [&] {
                    const unsigned by[2] = {pack<T>(rows.rescale[0], rows.rescale[0]), pack<T>(rows.rescale[1], rows.rescale[1])};
#pragma unroll
                    for (int n = 0; n < KEYS / 4; ++n)
#pragma unroll
                        for (int time = 0; time < TIMES; ++time) p[n / 4][n % 4] = multiplied<T>(p[n / 4][n % 4], by[n % 2]);
                };
                softmax.in_parts(rows, scores, find_diagonal(), release_keys, finish_values, rescale_out, pack_probabilities,
                                 rescale_packed, recompute);
                continue;
            }
        // Once: ptxas would move the wait behind it to the beginning of a block that doesn't end here.
        // Three consumers at D = 64 would spill.
        constexpr bool ENDS_BLOCK = works_in_parts<Softmax>(0) && (RAGGED ? P::CONSUMERS == 2 : D > 64 || P::CONSUMERS != 3);
        bool rescale;
        do rescale = exponentiate(false);
        while (ENDS_BLOCK && never(problem.scale));
        arrive_for_warp(empty + 16 * k_state.index());
        finish_products<0>(product);
        if (!ends) {
            arrive_for_warp(empty + 16 * v_state.index() + 8);
        } else if (!drains()) {
            arrive_for_warp(empty + 16 * v_state.index() + 8);
            store_out(buffer_before());
            storing = true;
        }
        if (rescale) rescale_out();
        pack_probabilities();
    }
    if (threadIdx.x % 128 == 0) wait_for_stores();
}
