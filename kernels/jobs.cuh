// Jobs for the consumer warpgroups of a persistent CTA: how work is dealt, how tiles are shared, and a pipeline that runs
// on from job to job. What a kernel adds is its softmax.
//
// A job is 64 queries of one head, the work of one consumer. A pass is PER_PASS consecutive jobs of one head, which share
// the tiles of K and V in a ring: a tile's memory is free again when every job of the pass has used it. Of the producer's
// warps one brings the tiles; the others deal one or two consumers each their jobs, with their Q. O leaves through the
// memory of Q. tests/measure/pipeline.py is a model of all this, in which tiles come late and out of order.
#pragma once
#include "hopper.cuh"

// How one instance works: tiles of KEYS keys, PAIRS tiles of K and of V in the ring; with TURNS, consumers issue their
// products in turns. With ONES, V has a 65th column of ones, and the product with it sums the rows of P.
template <int D_, int KEYS_, int PAIRS_, int CONSUMERS_, int TURNS_, int PER_PASS_, bool ONES_ = false> struct Plan {
    static constexpr int D = D_, KEYS = KEYS_, PAIRS = PAIRS_, CONSUMERS = CONSUMERS_, PER_PASS = PER_PASS_;
    static constexpr bool TURNS = TURNS_, ONES = ONES_;
    static_assert(!ONES || D == 64, "the columns of ones follow a single tile of 64 columns");
    // A consumer waits for its tiles before its turn: with four of them 2 % faster at 1,024 keys, with three 2 % slower.
    static constexpr bool SHORT_TURNS = TURNS && CONSUMERS > 3;
    static constexpr int THREADS = 128 * (1 + CONSUMERS), COLUMNS = D / 64;  // tiles of 64 columns beside each other
    static constexpr int QUERY_BYTES = 64 * D * 2, TILE_BYTES = KEYS * D * 2;
    // setmaxnreg: a warpgroup that asks for more than the others left of the CTA's registers waits for good.
    static constexpr int LAUNCHED = 65536 / THREADS / 8 * 8;
    static constexpr int GIVEN = CONSUMERS == 2 ? 40 : 32, TAKEN = CONSUMERS == 2 ? 232 : CONSUMERS == 3 ? 160 : 112;
    static_assert(GIVEN + CONSUMERS * TAKEN <= (1 + CONSUMERS) * LAUNCHED, "more registers than the CTA has");
    static_assert(!TURNS || PER_PASS == CONSUMERS, "consumers that take turns need one job each of every pass");
    // A consumer with two jobs of a pass needs its first tile again: all have to be in the ring at once. At other lengths
    // nothing is dealt, since all would wait for good, and the gate finds O unwritten.
    __device__ __forceinline__ static bool serves(int keys) {
        return PER_PASS <= CONSUMERS || (keys + KEYS - 1) / KEYS < PAIRS;
    }
};

template <typename P> struct Shared {
    unsigned char query[P::CONSUMERS][2][P::QUERY_BYTES];  // of a job and of the next; then their O
    unsigned char ring[P::PAIRS][2][P::TILE_BYTES];        // K and V of a tile
    unsigned long long query_full[P::CONSUMERS][2], query_empty[P::CONSUMERS][2], full[P::PAIRS][2], empty[P::PAIRS][2];
    // Before whose tiles all others have come: until then, to who skips tiles, a slot's barrier may be two phases behind.
    int passes_begun;
    unsigned char numbers[128];
    union {
        float sum[P::CONSUMERS][64];               // of the rows of a job that has ended
        alignas(128) unsigned short ones[16][64];  // with ONES: 16 rows, more columns than are read
    };
    // The job whose Q is in `query`.
    struct Job {
        int head;                // and its batch, packed
        int first;               // the last key that its first query may see
        int tiles;               // that it sees; none: the end
        int place;               // of its first tile in the ring
        int turns;               // to be passed on before it
        int pass;                // counted from 0
        int apart;               // whether the job before has to be over first, so that it holds no slot meanwhile
    } jobs[P::CONSUMERS][2];
};

// Where a ring of SLOTS stands, in one register: the slot, and the parity of the phase in which it is filled.
template <int SLOTS> struct Place {
    int at = 0;
    __device__ __forceinline__ int slot() const { return at >> 1; }
    __device__ __forceinline__ unsigned parity() const { return at & 1; }
    __device__ __forceinline__ void advance() {
        at += 2;
        if (at >= 2 * SLOTS) at = (at ^ 1) - 2 * SLOTS;
    }
    __device__ __forceinline__ void advance(int count) {
        const int further = slot() + count;
        at = further % SLOTS * 2 | (parity() ^ further / SLOTS & 1);
    }
};

__device__ __forceinline__ void arrive_times(unsigned barrier, int count) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

// One thread of the warp arrives; which, nobody has to keep in a register.
__device__ __forceinline__ void arrive_for_warp(unsigned barrier) {
    asm volatile("{\n"
                 ".reg .pred one;\n"
                 "elect.sync _|one, 0xffffffff;\n"
                 "@one mbarrier.arrive.shared::cta.b64 _, [%0];\n"
                 "}" ::"r"(barrier) : "memory");
}

// Returns once the number in shared memory is above `least`. Who writes and who reads it do so by atomics, since no barrier
// orders them. In one piece: a loop in C++ would make the compiler expect the lanes of a warp to part, and give up uniform
// registers.
__device__ __forceinline__ void wait_for_number(unsigned address, int least) {
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
__device__ __forceinline__ unsigned thread_again(unsigned numbers) {
    unsigned thread;
    asm volatile("ld.volatile.shared.u8 %0, [%1];" : "=r"(thread) : "r"(numbers + threadIdx.x % 128));
    return thread;
}

// The descriptor of what lies `bytes` further: one addition, where descriptor() takes five dependent instructions.
__device__ __forceinline__ unsigned long long further(unsigned long long descriptor, int bytes) {
    unsigned low, high;
    unsigned long long sum;
    asm("mov.b64 {%0, %1}, %2;" : "=r"(low), "=r"(high) : "l"(descriptor));
    asm("mov.b64 %0, {%1, %2};" : "=l"(sum) : "r"(low + (bytes >> 4)), "r"(high));
    return sum;
}

__device__ __forceinline__ float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ void take_turn(int consumer) { synchronize(5 + consumer, 256); }
template <int CONSUMERS> __device__ __forceinline__ void pass_turn(int consumer) {
    const int next = consumer + 1 == CONSUMERS ? 0 : consumer + 1;
    asm volatile("bar.arrive %0, 256;" ::"r"(5 + next) : "memory");
}

// How the work is dealt: CTAs take passes in turn. Without the mask, the passes of the last round are dealt in shares, as far
// as there are CTAs. Under the mask heads are dealt in sections, the longest passes of each first.
template <typename P, bool CAUSAL> struct Deal {
    Problem problem;
    int heads, blocks, groups, passes;
    __device__ __forceinline__ Deal(const Problem& problem)
        : problem(problem), heads(problem.batch * problem.heads.by), blocks((problem.queries + 63) / 64),
          groups(problem.items.by), passes(groups * heads) {
        if (!CAUSAL) passes = problem.whole + (passes - problem.whole) * problem.shares.by;
        if (!P::serves(problem.keys)) passes = 0;
    }
    // Whether a consumer may have less to do in a pass than another.
    __device__ __forceinline__ static bool skips(const Problem& problem) {
        return CAUSAL || P::PER_PASS < P::CONSUMERS || (problem.queries + 63) / 64 % P::PER_PASS;
    }
    // A head of all batches as one of its batch, with the batch above it: one register instead of two.
    __device__ __forceinline__ int packed(int head) const {
        return problem.heads.quotient(head) << 16 | problem.heads.remainder(head);
    }
    // The head of K and V for a packed one.
    __device__ __forceinline__ int packed_values(int head) const {
        return (head & ~0xFFFF) | problem.sharing.quotient(head & 0xFFFF);
    }
    // The CTA's pass number `turn`, or -1 behind the end. Under the mask to and fro: the longest first, the shortest next.
    // Without it some steps further each time, so that nobody always has the passes with fewer jobs, or the same heads.
    __device__ __forceinline__ int pass(int turn) const {
        const int fro = turn % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
        const int at = turn * gridDim.x + (CAUSAL ? fro : problem.ctas.remainder(blockIdx.x + turn * problem.step));
        return at < passes ? at : -1;
    }
    // The head of a pass, packed, and its first and last block of 64 queries. Under the mask, within a section of heads, the
    // longest first: groups of blocks end with the last one, and the shortest begins below 0 where they don't come out even.
    __device__ __forceinline__ void place(int pass, int& head, int& first, int& last) const {
        if (CAUSAL) {
            const int section = problem.section_items.quotient(pass), index = problem.section_items.remainder(pass);
            const int begin = section * problem.section.by;
            int group = problem.section.quotient(index), there = problem.section.by;
            if (begin + there > heads) group = problem.rest.quotient(index), there = problem.rest.by;
            head = packed(begin + index - group * there);
            // Written otherwise, the same makes the compiler spill, where four consumers have no register to spare.
            first = blocks - (group + 1) * P::PER_PASS;
            last = min(first + P::PER_PASS, blocks) - 1;
        } else {
            int begin = 0, end = P::PER_PASS;
            if (pass >= problem.whole) {
                const int share = problem.shares.remainder(pass - problem.whole);
                begin = problem.shares.quotient(P::PER_PASS * share), end = problem.shares.quotient(P::PER_PASS * (share + 1));
                pass = problem.whole + problem.shares.quotient(pass - problem.whole);
            }
            head = packed(problem.items.quotient(pass));
            first = problem.items.remainder(pass) * P::PER_PASS;
            last = min(first + end, blocks) - 1;
            first += begin;
        }
    }
    // The tiles that a pass needs: those of its last block, if it has one.
    __device__ __forceinline__ int rounds(int first, int last) const { return first > last ? 0 : tiles(last); }
    __device__ __forceinline__ int tiles(int block) const {  // that a block sees
        const int keys = problem.keys;
        return ((CAUSAL ? min(keys, problem.earlier + 64 * (block + 1)) : keys) + P::KEYS - 1) / P::KEYS;
    }
    // Of the blocks from `first` on, the first that sees a tile.
    __device__ __forceinline__ int first_of(int tile, int first) const {
        return CAUSAL ? max(max(first, 0), (P::KEYS * tile - problem.earlier) >> 6) : first;
    }
    // Which of a pass's jobs, from the longest on, is dealt as number `index`: round by round to and fro.
    __device__ __forceinline__ static int order(int index) {
        const int round = index / P::CONSUMERS;
        return round % 2 ? (2 * round + 1) * P::CONSUMERS - 1 - index : index;
    }
};

// Sets barriers up.
template <typename P, bool CAUSAL>
__device__ __forceinline__ void prepare(Shared<P>& shared, const Problem& problem) {
    if (threadIdx.x < 128) shared.numbers[threadIdx.x] = threadIdx.x;
    if (threadIdx.x == 0) {
        shared.passes_begun = Deal<P, CAUSAL>::skips(problem) ? 0 : 0x7fffffff;
        for (int i = 0; i < 4 * P::CONSUMERS; ++i) init_barrier(shared_address(shared.query_full) + 8 * i, 1);
        for (int i = 0; i < 2 * P::PAIRS; ++i) {
            init_barrier(shared_address(shared.full) + 8 * i, 1);
            init_barrier(shared_address(shared.empty) + 8 * i, 4 * P::PER_PASS);
        }
        publish_barriers();
    }
    __syncthreads();
}

// Lets the consumers begin a pass whose first K is on its way, once all tiles before it have come: to who skipped them, the
// barrier of a slot that still waits for one of them would say that the tile after it is there.
template <typename P> __device__ __forceinline__ void begin_pass(Shared<P>& shared, const Place<P::PAIRS>& ring, int turn) {
#pragma unroll 1
    for (int slot = 0; slot < P::PAIRS; ++slot) {
        const unsigned full = shared_address(shared.full[slot]), parity = ring.parity() ^ (slot >= ring.slot());
        if (slot != ring.slot()) wait(full, parity);  // there the K under way may have come already
        wait(full + 8, parity);
    }
    atomicExch(&shared.passes_begun, turn + 1);
}

// What one thread of the producer does: K and V of all passes, tile after tile.
template <typename P, bool CAUSAL>
__device__ __forceinline__ void bring_tiles(Shared<P>& shared, const Deal<P, CAUSAL>& deal, const TensorMap& k,
                                            const TensorMap& v) {
    const unsigned full = shared_address(shared.full), empty = shared_address(shared.empty);
    const bool skips = deal.skips(deal.problem);
    Place<P::PAIRS> ring;
    for (int turn = 0, pass; (pass = deal.pass(turn)) >= 0; ++turn) {
        int head, first, last;
        deal.place(pass, head, first, last);
        const int tiles = deal.rounds(first, last), from = deal.packed_values(head);
#pragma unroll 1
        for (int tile = 0; tile < tiles; ++tile) {
            const int users = last + 1 - deal.first_of(tile, first);
#pragma unroll(CAUSAL ? 1 : 2)  // under the mask, registers don't last
            for (int i = 0; i < 2; ++i) {
                const TensorMap& map = i ? v : k;
                const unsigned barrier = 8 * (2 * ring.slot() + i);
                wait(empty + barrier, ring.parity() ^ 1);
                arrive_expecting(full + barrier, P::TILE_BYTES);
                for (int c = 0; c < P::COLUMNS; ++c)
                    load_box(shared_address(shared.ring[ring.slot()][i]) + c * P::KEYS * 128, map, 64 * c, P::KEYS * tile,
                             from & 0xFFFF, from >> 16, full + barrier);
                if (users < P::PER_PASS) arrive_times(empty + barrier, 4 * (P::PER_PASS - users));  // for who won't come
                if (skips && tile + i == 0) begin_pass<P>(shared, ring, turn);
            }
            ring.advance();
        }
    }
}

// What another does for the consumer `dealt`: its jobs one by one, with their Q.
template <typename P, bool CAUSAL>
__device__ __forceinline__ void deal_jobs(Shared<P>& shared, const Deal<P, CAUSAL>& deal, const TensorMap& q, int dealt) {
    const unsigned query_full = shared_address(shared.query_full[dealt]);
    const unsigned query_empty = shared_address(shared.query_empty[dealt]);
    Place<P::PAIRS> start;
    int index = dealt, turns = 0, jobs = 0, turn = 0;
    int since = 0;  // tiles from the end of the job before to the beginning of this pass
    for (int pass; (pass = deal.pass(turn)) >= 0; ++turn) {
        int head, first, last;
        deal.place(pass, head, first, last);
        const int rounds = deal.rounds(first, last);
        for (; index < P::PER_PASS; index += P::CONSUMERS) {
            const int block = first + (CAUSAL ? P::PER_PASS - 1 - deal.order(index) : index);
            const int tiles = (CAUSAL ? block >= 0 : block <= last) ? deal.tiles(block) : 0;
            if (tiles) {
                const int half = jobs % 2;
                const unsigned barrier = query_full + 8 * half;
                wait(query_empty + 8 * half, jobs / 2 % 2 ^ 1);
                shared.jobs[dealt][half] = {head,  deal.problem.earlier + 64 * block, tiles, start.at,
                                            turns, turn, since >= P::PAIRS || turns + 2 > P::PAIRS};
                since = 1 - tiles;
                turns = 0;
                arrive_expecting(barrier, P::QUERY_BYTES);
                for (int c = 0; c < P::COLUMNS; ++c)
                    load_box(shared_address(shared.query[dealt][half]) + c * 64 * 128, q, 64 * c, 64 * block,
                             head & 0xFFFF, head >> 16, barrier);
                ++jobs;
            }
            turns += rounds - tiles;
        }
        // From pass to pass too, where each has one round.
        index = CAUSAL && P::PER_PASS == P::CONSUMERS ? 2 * P::CONSUMERS - 1 - index : index - P::PER_PASS;
        since += rounds;
        start.advance(rounds);
    }
    // Everybody takes as many turns as the one with most jobs.
    const int most = (turn * P::PER_PASS + P::CONSUMERS - 1) / P::CONSUMERS;
    const int own = (turn * P::PER_PASS - dealt + P::CONSUMERS - 1) / P::CONSUMERS;
    turns += (most - own) * deal.tiles(deal.blocks - 1);
    const int half = jobs % 2;
    wait(query_empty + 8 * half, jobs / 2 % 2 ^ 1);
    shared.jobs[dealt][half].tiles = 0;
    shared.jobs[dealt][half].turns = turns;
    shared.jobs[dealt][half].apart = 1;
    arrive(query_full + 8 * half);
}

// What the producer warpgroup does.
template <typename P, bool CAUSAL>
__device__ __forceinline__ void produce(Shared<P>& shared, const TensorMap& q, const TensorMap& k, const TensorMap& v,
                                        const Problem& problem) {
    give_registers<P::GIVEN>();
    const Deal<P, CAUSAL> deal(problem);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) return bring_tiles(shared, deal, k, v);
    const int dealt = warp - 1 + 3 * lane;  // three warps, and a second lane for a fourth consumer
    if (warp && lane < 2 && dealt < P::CONSUMERS) deal_jobs(shared, deal, q, dealt);
}

// Scores in a warpgroup's registers, those of one tile, and where they lie.
template <typename P, bool CAUSAL> struct Scores {
    float s[P::KEYS / 2];
    int tile, keys;
    // Keys from `unmasked` on are not seen by every query of the job, the first of which sees keys up to `first`.
    __device__ __forceinline__ int unmasked(int first) const { return CAUSAL ? min(keys, first + 1) : keys; }
    __device__ __forceinline__ void mask(int first, unsigned thread) {
        const unsigned lane = thread % 32, warp = thread / 32;
#pragma unroll
        for (int n = 0; n < P::KEYS / 2; ++n) {
            const int key = P::KEYS * tile + n / 4 * 8 + lane % 4 * 2 + n % 2;
            const int row = first + 16 * warp + lane / 4 + n / 2 % 2 * 8;
            if (key >= keys || (CAUSAL && key > row)) s[n] = -infinity();
        }
    }
};

// A thread's two rows: exponents are relative to `shift`, probabilities add up to `sum`, O shrinks by `shrink`.
struct Rows {
    float shift[2] = {-infinity(), -infinity()}, sum[2], shrink[2];
    // Scores become probabilities, at most 2^-headroom, relative to the largest score so far.
    template <int N> __device__ __forceinline__ void exponentiate(float (&s)[N], float scale_log2, float headroom = 0) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float top = -infinity();
#pragma unroll
            for (int n = 2 * half; n < N; n += 4) top = fmaxf(top, fmaxf(s[n], s[n + 1]));
            top = fmaxf(shift[half], quad_max(top) * scale_log2 + headroom);
            shrink[half] = exp2_approx(shift[half] - top);  // top is finite: key 0 came first
            shift[half] = top;
            sum[half] *= shrink[half];
#pragma unroll
            for (int n = 2 * half; n < N; n += 4) {
                s[n] = exp2_approx(s[n] * scale_log2 - top);
                s[n + 1] = exp2_approx(s[n + 1] * scale_log2 - top);
                sum[half] += s[n] + s[n + 1];
            }
        }
    }
};

// What a consumer warpgroup does: while a tile's scores are computed, the tile before is multiplied by V, also where the
// two are of different jobs. `softmax(rows, scores, first, begin, again)` makes probabilities of scores and says whether O
// has to shrink; `begin` is true for the first job's first tile, and `again()` computes the scores once more.
template <typename T, typename P, bool CAUSAL, typename Softmax>
__device__ __forceinline__ void consume(Shared<P>& shared, const TensorMap& o, const Problem& problem, const Softmax& softmax) {
    constexpr int D = P::D, KEYS = P::KEYS, WIDTH = P::ONES ? D / 2 + 4 : D / 2;
    take_registers<P::TAKEN>();
    const int consumer = __shfl_sync(~0u, threadIdx.x / 128 - 1, 0);
    const unsigned full = shared_address(shared.full), empty = shared_address(shared.empty);
    const unsigned query_full = shared_address(shared.query_full[consumer]);
    const unsigned queries = shared_address(shared.query[consumer][0]), tiles_begin = shared_address(shared.ring);
    if (P::TURNS && consumer == P::CONSUMERS - 1) pass_turn<P::CONSUMERS>(consumer);

    Place<P::PAIRS> ring, value_ring;
    unsigned job = 0;  // counted from 0: its Q is in half `job % 2`
    Rows rows;
    Scores<P, CAUSAL> scores;
    scores.tile = 0, scores.keys = problem.keys;
    float out[WIDTH];  // with ONES, sums of the two rows in WIDTH - 4 and WIDTH - 2
    unsigned p[KEYS / 16][4];

    int tiles = (problem.keys + KEYS - 1) / KEYS;  // under the mask, those that the job sees
    const auto begin_job = [&] {
        const auto& dealt = shared.jobs[consumer][job % 2];
        if (P::TURNS)
#pragma unroll 1
            for (int turns = dealt.turns; turns > 0; --turns) take_turn(consumer), pass_turn<P::CONSUMERS>(consumer);
        scores.tile = 0;
        rows.sum[0] = rows.sum[1] = 0;
        ring.at = __shfl_sync(~0u, dealt.place, 0);
        if (CAUSAL) tiles = __shfl_sync(~0u, dealt.tiles, 0);
        const bool begins = dealt.tiles;
        if (begins) wait_for_number(shared_address(&shared.passes_begun), dealt.pass);
        return begins;
    };
    const auto multiply_query_by_keys = [&] {
        const auto q_tile = descriptor(queries + job % 2 * P::QUERY_BYTES, 16, 1024);
        const auto k_tile = descriptor(tiles_begin + ring.slot() * 2 * P::TILE_BYTES, 16, 1024);
#pragma unroll
        for (int d = 0; d < D / 16; ++d)
            multiply<T, false>(scores.s, further(q_tile, d / 4 * 64 * 128 + d % 4 * 32),
                               further(k_tile, d / 4 * KEYS * 128 + d % 4 * 32), d);
        commit_products();
    };
    const auto multiply_probabilities_by_values = [&](int add) {
        const unsigned values = tiles_begin + (value_ring.slot() * 2 + 1) * P::TILE_BYTES;
        const auto v_tile = descriptor(values, P::ONES ? shared_address(shared.ones) - values : KEYS * 128, 1024);
#pragma unroll
        for (int j = 0; j < KEYS / 16; ++j) {
            const int rows = 16 * j * 128, back = P::ONES ? rows << 16 : 0;  // the same ones, for all rows of V
            multiply<T, true>(out, p[j], further(v_tile, rows - back), j ? 1 : add);
        }
        commit_products();
    };
    // The tile's scores once more, by this warp alone.
    const auto again = [&] {
        const unsigned thread = thread_again(shared_address(shared.numbers)), lane = thread % 32, warp = thread / 32;
#pragma unroll
        for (int n = 0; n < KEYS / 2; ++n) scores.s[n] = 0;
        const unsigned q_row = queries + job % 2 * P::QUERY_BYTES + (16 * warp + lane % 16) * 128;
        const unsigned k_row = tiles_begin + ring.slot() * 2 * P::TILE_BYTES + (lane / 16 * 8 + lane % 8) * 128;
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
    const auto exponentiate = [&](bool begin) {
        const int first = CAUSAL ? shared.jobs[consumer][job % 2].first : 0;
        return softmax(rows, scores, first, begin, again);
    };
    const auto pack_probabilities = [&] {
#pragma unroll
        for (int n = 0; n < KEYS / 4; ++n) p[n / 4][n % 4] = pack<T>(scores.s[2 * n], scores.s[2 * n + 1]);
    };
    const auto keep_sums = [&] {
        const unsigned thread = thread_again(shared_address(shared.numbers)), lane = thread % 32, warp = thread / 32;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float whole = quad_sum(rows.sum[half]);
            if (lane % 4 == 0) shared.sum[consumer][16 * warp + lane / 4 + 8 * half] = whole;
        }
        __syncwarp();
    };
    // O of a job goes where its Q was, and out.
    const auto finalise = [&](int of) {
        const unsigned thread = thread_again(shared_address(shared.numbers)), lane = thread % 32, warp = thread / 32;
        const unsigned out_tile = queries + of * P::QUERY_BYTES;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const unsigned row = 16 * warp + lane / 4 + 8 * half;
            const float inverse = reciprocal(P::ONES ? out[WIDTH - 4 + 2 * half] : shared.sum[consumer][row]);
#pragma unroll
            for (int d = 0; d < D / 8; ++d) {
                const unsigned both = pack<T>(out[4 * d + 2 * half] * inverse, out[4 * d + 2 * half + 1] * inverse);
                const unsigned to = out_tile + d / 8 * 64 * 128 + place(row, d % 8) + lane % 4 * 4;
                asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(both) : "memory");
            }
        }
        publish_to_tma();
        synchronize(1 + consumer, 128);
        if (threadIdx.x % 128 == 0) {
            const auto& ended = shared.jobs[consumer][of];
            for (int c = 0; c < P::COLUMNS; ++c)
                store_box(o, 64 * c, ended.first - problem.earlier, ended.head & 0xFFFF, ended.head >> 16,
                          out_tile + c * 64 * 128);
            commit_stores();
        }
    };
    bool stored = false;  // O of the job before is on its way: its memory waits for the next job's Q
    const auto refill = [&] {
        if (stored && threadIdx.x % 128 == 0) {
            wait_for_stores();
            arrive(shared_address(shared.query_empty[consumer]) + 8 * (job % 2 ^ 1));
        }
        stored = false;
    };
    const auto apart = [&] { return shared.jobs[consumer][job % 2].apart; };

    wait(query_full, 0);
    if (!begin_job()) return;
    if (P::TURNS) take_turn(consumer);
    wait(full + 16 * ring.slot(), ring.parity());
    begin_products();
    multiply_query_by_keys();
    finish_products<0>(scores.s);
    if (P::TURNS) pass_turn<P::CONSUMERS>(consumer);
    exponentiate(true);
    arrive_for_warp(empty + 16 * ring.slot());
    pack_probabilities();

    for (;;) {
        const bool over = scores.tile + 1 == tiles;  // the job of the probabilities at hand ends with them
        const int add = scores.tile > 0;
        value_ring = ring;
        if (over) {
            if (!P::ONES) keep_sums();
            refill();
            ++job;
            wait(query_full + 8 * (job % 2), job / 2 % 2);
            if (apart()) {
                wait(full + 16 * value_ring.slot() + 8, value_ring.parity());
                begin_products();
                multiply_probabilities_by_values(add);
                finish_products<0>(out);
                arrive_for_warp(empty + 16 * value_ring.slot() + 8);
                finalise(job % 2 ^ 1);
                stored = true;
            }
            if (!begin_job()) break;
        } else {
            ++scores.tile;
            ring.advance();
        }
        const auto wait_for_values = [&] {
            if (!over || !apart()) wait(full + 16 * value_ring.slot() + 8, value_ring.parity());
        };
        if (P::SHORT_TURNS) wait_for_values();
        if (P::TURNS && !P::SHORT_TURNS) take_turn(consumer);
        wait(full + 16 * ring.slot(), ring.parity());
        if (P::SHORT_TURNS) take_turn(consumer);
        begin_products();
        multiply_query_by_keys();
        if (!P::SHORT_TURNS) wait_for_values();
        begin_products();
        multiply_probabilities_by_values(add);  // if that is done already, for nothing: no product may depend on a condition
        if (P::TURNS) pass_turn<P::CONSUMERS>(consumer);
        refill();
        finish_products<1>(scores.s);
        const bool rescale = exponentiate(false);
        arrive_for_warp(empty + 16 * ring.slot());
        finish_products<0>(out);
        if (!over) {
            arrive_for_warp(empty + 16 * value_ring.slot() + 8);
        } else if (!apart()) {
            arrive_for_warp(empty + 16 * value_ring.slot() + 8);
            finalise(job % 2 ^ 1);
            stored = true;
        }
        if (rescale) {
#pragma unroll
            for (int n = 0; n < WIDTH; ++n) out[n] *= rows.shrink[n / 2 % 2];
        }
        pack_probabilities();
    }
    if (threadIdx.x % 128 == 0) wait_for_stores();
}
