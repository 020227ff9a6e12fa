// Rung 15: sequences of unlike lengths, packed or padded.
//
// Does    rung 11's loop over passes of any sequence. A first kernel of one CTA, `deal`, reads the lengths and lists the passes:
//         sequences with most keys first, so that a CTA's last passes are the shortest ones, and under the mask each one's longest
//         first; all heads of K and V take one in turn. Without it a sequence's passes are equally long, and its heads follow each
//         other, so that K and V of few heads are in use at once. Whoever is done takes the next pass from a counter (a static deal
//         leaves 10 to 30 % of the time under the mask, by simulation; this one 1 %). With 2 consumers a thread does nothing else, as
//         taking a pass keeps the one that loads K and V for 2,000 cycles. Where it stays within a sequence, K and V come from the
//         L2. The main kernel is launched while `deal` runs, and nothing waits for the host: a graph may be replayed
//         with other lengths. Rows behind a length are out of bounds for TMA: their K and V read as 0, whatever is there, and their
//         O isn't written. One map of each tensor does that for all sequences: it has 2^30 rows, and row r of n is row 2^30 - n +
//         r; a dimension with the same stride leads to the sequence's end, and another one's stride takes 2^30 rows back, modulo
//         2^64 (as Triton's ragged descriptors). Maps made on the device would have to be fetched for every sequence anew.
//         Where a pass has fewer blocks of 64 queries than the CTA has consumers, they take turns, so that passes of one block each
//         keep all of them busy. Heads that share K and V and have one block each are blocks of one pass, as in rung 11.
//         K and V may be in pages of a multiple of 16 keys: a warp for K and one for V then look pages up, a tile ahead, and
//         load boxes that don't cross one, by the same maps.
//         A query that sees no key gives 0: its block takes one tile, all of it masked.
//         Under the mask at D = 128 prompts take tiles of 64 keys: with 128, sequences of an odd number of blocks leave a consumer
//         idle for a tile in each pass. Caches have fewer such tiles for their keys, and take those of 128 (`for_caches`).
// Gained  in run h200-2026-12-01-ragged, over flash-attn-4 by the slowest and fastest values: 1.20 to 1.36x at 32 sequences of 73 to
//         1,886 tokens (D = 128, bf16), 1.45 to 1.73x at 64 of 10 to 2,048 (D = 64, fp16); over FlashInfer 1.17 to 1.20x, and 1.3 to
//         1.5x.
// Limits  equal lengths: 0.98 to 1.01 of rung 11's time at D = 128 without the mask. Under it 0.98 to 1.06, and 1.11 to 1.14 at
//         128 to 512 tokens. At D = 64 without it 1.06 to 1.22, under it 0.96 to 1.18, and 1.40 at 512. Pages of 16 keys cost 16 %,
//         larger ones 11 %.
//         A sequence with few queries and many keys is one CTA's for each head of K and V: rung 12 splits them.
#include "lazy.cuh"
#include "rows.cuh"

// So many blocks of 64 queries of one head, or of all heads that share K and V, as a CTA takes them. Sequences end at those
// rows, counted from where a tensor begins.
struct alignas(16) Pass {
    int queries, keys, query_end, key_end, value_end, out_end;
    int first_block, last_block;  // the first one below 0 where blocks don't come out even
    int member;                   // which of the heads that share K and V; -1: a block of each
    int kv_head;                  // -1: there is no pass
    int sequence_begin, sequence_passes;  // in the list: those of the same sequence (parts of 16 bytes are read at once)
    __device__ __forceinline__ int blocks() const { return last_block + 1 - max(first_block, 0); }
    // The key behind the last one that the first query sees, and that of the first block.
    __device__ __forceinline__ int earlier() const { return member < 0 ? keys : keys - queries; }
    // The tile with which the pass begins (jobs.cuh).
    template <typename P, bool CAUSAL> __device__ __forceinline__ int first_tile() const {
        const int seen = CAUSAL ? keys - queries + (member < 0 ? 0 : 64 * max(first_block, 0)) + 1 : keys;
        return last_whole<P::KEYS>(seen);
    }
    // The tiles that a block sees, at least one: without keys it is masked.
    template <typename P, bool CAUSAL> __device__ __forceinline__ int tiles(int block) const {
        return max(((CAUSAL ? min(keys, earlier() + 64 * (block + 1)) : keys) + P::KEYS - 1) / P::KEYS, 1);
    }
};

// Of the blocks from `first_block` on, the first that sees a tile; all see tile 0, which may be masked.
template <typename P, bool CAUSAL> __device__ __forceinline__ int first_to_see(int tile, int first_block, const int& earlier) {
    const int first = max(first_block, 0);
    return CAUSAL && tile ? max(first, (P::KEYS * tile - earlier) >> 6) : first;
}

// The passes of a call in memory: behind one pass's worth of bytes, that begin with their number and with a counter of those
// that are taken, there is one for all heads of K and V.
struct Schedule { int passes, taken, unused[10]; };
static_assert(sizeof(Schedule) == sizeof(Pass), "passes begin behind the schedule");

// What the lengths of one tensor's sequences are: those of a packed one begin at the elements of `at`, and end where the next
// one begins; those of a padded one are `step` rows apart, and `at` has their lengths, or is null.
struct Lengths {
    const int* at;
    int packed, rows, step;  // rows: of the tensor, or of each sequence
    __device__ __forceinline__ int of(int sequence, int& end) const {
        if (packed) {
            const int begin = min(max(at[sequence], 0), rows);
            end = min(max(at[sequence + 1], begin), rows);
            return end - begin;
        }
        const int length = at ? min(max(at[sequence], 0), rows) : rows;
        end = sequence * step + length;
        return length;
    }
};

struct Dealing {
    Lengths queries, keys;
    int value_step, out_step;  // of padded sequences, where they aren't those of K and of Q
    int sequences, kv_heads, sharing;
    int pass_blocks, tile_keys;
    int room;  // for so many passes, each for all heads of K and V
    int ctas;
};

constexpr int DEALERS = 1024, LONGEST = 1023;

// By how many tiles sequences are sorted: one by one below 512, then in 32 steps from power to power.
__device__ __forceinline__ int rank(int tiles) {
    const int power = 31 - __clz(max(tiles, 1));
    return LONGEST - (tiles < 512 ? tiles : min(512 + (power - 9) * 32 + (tiles >> (power - 5) & 31), LONGEST));
}

// One CTA.
template <bool CAUSAL> __global__ void __launch_bounds__(DEALERS) deal(Schedule* schedule, Dealing dealing) {
    constexpr int PARTS = CAUSAL ? 1 : 2;
    __shared__ int begins[DEALERS], sums[32];  // where the passes of a rank begin
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    launch_next();
    Pass* const passes = reinterpret_cast<Pass*>(schedule + 1);
    // One of the sequences, and how many passes it has; none for a number that is no sequence's. Without the mask an incomplete
    // pass takes less time than others: it is a `part` of its own.
    const auto read = [&](int sequence, int part, Pass& pass) {
        pass.queries = 0;
        if (sequence < dealing.sequences) {
            pass.queries = dealing.queries.of(sequence, pass.query_end);
            pass.keys = dealing.keys.of(sequence, pass.key_end);
            pass.out_end = pass.query_end + (dealing.queries.packed ? 0 : sequence * (dealing.out_step - dealing.queries.step));
            pass.value_end = pass.key_end + (dealing.keys.packed ? 0 : sequence * (dealing.value_step - dealing.keys.step));
        }
        if (!pass.queries) return 0;
        const bool joined = pass.queries <= 64 && dealing.sharing > 1;
        const int blocks = joined ? dealing.sharing : (pass.queries + 63) / 64;
        const int whole = blocks / dealing.pass_blocks, rest = blocks - whole * dealing.pass_blocks;
        pass.member = joined ? -1 : 0;
        pass.first_block = part ? blocks - rest : 0;
        pass.last_block = CAUSAL || part ? blocks : blocks - rest;
        return (part ? rest > 0 : whole + (CAUSAL && rest)) * (joined ? 1 : dealing.sharing);
    };
    // By the time that a pass takes: a block alone takes about half of what a whole pass does.
    const auto rank_of = [&](const Pass& pass) {
        const int tiles = (pass.keys + dealing.tile_keys - 1) / dealing.tile_keys;
        return rank(tiles * (1 + min(pass.last_block - pass.first_block, dealing.pass_blocks)) / (1 + dealing.pass_blocks));
    };
    begins[threadIdx.x] = 0;
    __syncthreads();
    const unsigned own = lane * 32 + warp;  // so that few sequences are all warps' work
    for (int sequence = own; sequence < PARTS * dealing.sequences; sequence += DEALERS) {
        Pass pass;
        if (const int count = read(sequence / PARTS, sequence % PARTS, pass)) atomicAdd(&begins[rank_of(pass)], count);
    }
    __syncthreads();
    const int count = begins[threadIdx.x];
    int sum = count;
    for (int by = 1; by < 32; by *= 2) {
        const int before = __shfl_up_sync(~0u, sum, by);
        if (lane >= by) sum += before;
    }
    if (lane == 31) sums[warp] = sum;
    __syncthreads();
    sum += __reduce_add_sync(~0u, lane < warp ? sums[lane] : 0);
    begins[threadIdx.x] = sum - count;
    if (threadIdx.x == DEALERS - 1) {
        schedule->passes = min(sum, dealing.room) * dealing.kv_heads;
        schedule->taken = dealing.ctas;  // each has one to begin with
    }
    __syncthreads();
    for (int first = 0; first < PARTS * dealing.sequences; first += DEALERS) {
        Pass pass = {};
        const int own_count = read((first + own) / PARTS, (first + own) % PARTS, pass);
        const int begin = own_count ? atomicAdd(&begins[rank_of(pass)], own_count) : 0;
        for (unsigned having = __ballot_sync(~0u, own_count); having; having &= having - 1) {
            const int of = __ffs(having) - 1;
            Pass listed;
            for (int i = 0; i < 9; ++i)  // fields; the others are not known yet
                reinterpret_cast<int*>(&listed)[i] = __shfl_sync(~0u, reinterpret_cast<const int*>(&pass)[i], of);
            listed.kv_head = -1;
            const int its = __shfl_sync(~0u, own_count, of), at = __shfl_sync(~0u, begin, of);
            const int blocks = listed.last_block, members = listed.member < 0 ? 1 : dealing.sharing;
            listed.sequence_begin = at, listed.sequence_passes = its;
            for (int i = lane; i < its && at + i < dealing.room; i += 32) {
                const int group = i / members;
                if (listed.member >= 0) listed.member = i - group * members;
                Pass& to = passes[at + i];
                to = listed;
                to.first_block = CAUSAL ? blocks - (group + 1) * dealing.pass_blocks
                                        : listed.first_block + group * dealing.pass_blocks;
                to.last_block = min(to.first_block + dealing.pass_blocks, blocks) - 1;
            }
        }
    }
}

struct RaggedProblem {
    Schedule* schedule;
    Divisor kv_heads;
    int sharing;
    float scale;
};

// The same with K and V in pages, as tensors (pages, heads, rows, D). A row of the table has the numbers of a sequence's pages.
struct PagedProblem : RaggedProblem {
    const int* table;
    Divisor page;              // its keys
    int key_step, value_step;  // rows from page to page
};

struct RaggedJob {
    static constexpr bool RAGGED = true;
    int head, diagonal, tiles, pipeline_state, idle_turns, round, drains;  // as Job
    int keys, row, end;                                                    // of O in its map
};

// A consumer without a job in a pass finds out only by looking at the passes behind it. Meanwhile it may hold a stage, or others
// wait for its turns, so that passes are taken until each consumer has got a job: one more than there are consumers.
template <typename P> constexpr int SLOTS = P::CONSUMERS + 1;
// The named barrier of both warps that load pages.
constexpr int PASS_BARRIER = 15;

template <typename P> struct RaggedStorage : SharedStorage<P, RaggedJob> {
    Pass passes[SLOTS<P>];
    unsigned long long pass_full[SLOTS<P>], pass_empty[SLOTS<P>], asked;
};

// What a consumer asks of its problem (jobs.cuh).
template <typename P> __device__ __forceinline__ int tiles_of_all(const RaggedProblem&) { return 1; }
__device__ __forceinline__ int keys_of(const RaggedProblem&, const RaggedJob& job) { return job.keys; }
template <bool CAUSAL> __device__ __forceinline__ bool sees_nothing(const RaggedJob& job, int row) {
    return (CAUSAL ? job.diagonal + row : job.keys - 1) < 0;
}
__device__ __forceinline__ void store_rows(const RaggedProblem&, const TensorMap& o, int column, const RaggedJob& job,
                                           unsigned from) {
    asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%1, %2, %3, %4, %5}], [%6];" ::
                     "l"(&o), "r"(column), "r"(job.row), "r"(job.head), "r"(job.end), "r"(MAP_ROWS), "r"(from) : "memory");
}

// Without the mask all passes of a part are as long: the heads of K and V follow each other, so that few of them are in use at
// once.
template <typename P> __device__ __forceinline__ void order_by_heads(const RaggedProblem& problem, Pass& pass, int index) {
    const unsigned number = index - pass.sequence_begin * problem.kv_heads.by, own = number % pass.sequence_passes;
    const bool joined = pass.member < 0;
    const unsigned members = joined ? 1 : problem.sharing;
    pass.kv_head = number / pass.sequence_passes;
    if (!joined) pass.member = own % members;
    if (pass.blocks() < P::CONSUMERS) return;  // the one of its head
    pass.first_block = own / members * P::CONSUMERS;
    pass.last_block = pass.first_block + P::CONSUMERS - 1;
}

// Takes the CTA's next pass of all `passes`, and hands it to the others. Returns whether it has no job for a consumer.
template <typename P, bool CAUSAL>
__device__ __forceinline__ bool take_pass(RaggedStorage<P>& smem, const RaggedProblem& problem, int number, int passes) {
    const int slot = number % SLOTS<P>;
    wait(shared_address(smem.pass_empty) + 8 * slot, number / SLOTS<P> % 2 ^ 1);
    const int index = number ? atomicAdd(&problem.schedule->taken, 1) : blockIdx.x;
    Pass& pass = smem.passes[slot];
    bool open = index < passes;
    if (open) {
        const int of_all = problem.kv_heads.quotient(index);
        const int4* const from = reinterpret_cast<const int4*>(problem.schedule + 1 + of_all);
        const int4 lengths = __ldcg(from), blocks = __ldcg(from + 1), more = __ldcg(from + 2);
        Pass taken = {lengths.x, lengths.y, lengths.z, lengths.w, blocks.x, blocks.y, blocks.z, blocks.w, more.x,
                      index - of_all * problem.kv_heads.by, more.z, more.w};
        if (!CAUSAL) order_by_heads<P>(problem, taken, index);
        pass = taken;
        open = taken.blocks() < P::CONSUMERS;
    } else {
        pass.kv_head = -1;
    }
    arrive(shared_address(smem.pass_full) + 8 * slot);
    return open;
}

// A pass is taken in 2,000 cycles, in which the thread that loads K and V would be late. So another thread takes passes, where a
// warp has nothing else to do. In a warp whose other threads wait, it would be later still.
template <typename P, int BOX> constexpr bool APART = P::CONSUMERS == 2 && BOX == 0;

template <typename P, bool CAUSAL>
__device__ __forceinline__ void take_passes(RaggedStorage<P>& smem, const RaggedProblem& problem) {
    wait_for_previous();
    const int passes = __ldcg(&problem.schedule->passes);
    bool open = false;
#pragma unroll 1
    for (int number = 0;; ++number) {
        if (number && !open) wait(shared_address(&smem.asked), (number - 1) % 2);
        open = take_pass<P, CAUSAL>(smem, problem, number, passes);
        if (smem.passes[number % SLOTS<P>].kv_head < 0) return;
    }
}

// What the thread that loads K and V asks for (jobs.cuh). It takes the CTA's passes, unless another thread does.
template <typename P, bool CAUSAL, bool TAKES> struct PassReader {
    static constexpr int UNROLLED = P::CONSUMERS == 2 ? 2 : 1;
    static constexpr bool WHOLE_FIRST = true;
    RaggedStorage<P>& smem;
    const RaggedProblem& problem;
    const TensorMap* const values;
    int dealt = 0, round = 0;
    bool open = false;  // whether the last one has no job for a consumer
    int passes = 0;     // of all heads
    int keys = 0, key_end = 0, value_end = 0, earlier = 0;

    __device__ __forceinline__ PassReader(RaggedStorage<P>& smem, const RaggedProblem& problem, const TensorMap& v)
        : smem(smem), problem(problem), values(&v) {
        if (!TAKES) return;
        wait_for_previous();
        passes = __ldcg(&problem.schedule->passes);
    }
    __device__ __forceinline__ static bool skips(const RaggedProblem&) { return true; }
    // Takes passes until there are so many, and goes on until each consumer has a job.
    __device__ __forceinline__ void deal(int least) {
#pragma unroll 1
        while (dealt < least || (open && dealt < round + SLOTS<P>)) {
            open = take_pass<P, CAUSAL>(smem, problem, dealt, passes);
            ++dealt;
        }
    }
    __device__ __forceinline__ int pass(int number) {
        round = number;
        if (TAKES)
            deal(number + 1);
        else
            wait(shared_address(smem.pass_full) + 8 * (number % SLOTS<P>), number / SLOTS<P> % 2);
        return smem.passes[number % SLOTS<P>].kv_head;
    }
    __device__ __forceinline__ void work_tile(int kv_head, int& head, int& first_block, int& last_block) {
        const Pass& pass = smem.passes[round % SLOTS<P>];
        head = kv_head, first_block = pass.first_block, last_block = pass.last_block;
        keys = pass.keys, key_end = pass.key_end, value_end = pass.value_end, earlier = pass.earlier();
    }
    __device__ __forceinline__ int pass_tiles(int, int last_block) const {
        return smem.passes[round % SLOTS<P>].template tiles<P, CAUSAL>(last_block);
    }
    // The last that is read of a pass.
    __device__ __forceinline__ int first_tile(int) const {
        const int first = smem.passes[round % SLOTS<P>].template first_tile<P, CAUSAL>();
        if (!TAKES) arrive(shared_address(smem.pass_empty) + 8 * (round % SLOTS<P>));
        return first;
    }
    __device__ __forceinline__ static int packed_kv(int head) { return head; }
    __device__ __forceinline__ int first_user(int tile, int first_block) const {
        return first_to_see<P, CAUSAL>(tile, first_block, earlier);
    }
    __device__ __forceinline__ void load_keys(unsigned to, const TensorMap& map, int column, int tile, int kv_head,
                                              unsigned barrier) const {
        load_rows(to, map, column, MAP_ROWS - keys + P::KEYS * tile, kv_head, &map == values ? value_end : key_end, barrier);
    }
    // The next pass is taken late, as others may be done before, and early enough for its Q to be there.
    __device__ __forceinline__ void look_ahead(int place, int tiles) {
        if (place != max(tiles - 3, 0)) return;
        if (TAKES)
            deal(round + 2);
        else
            arrive(shared_address(&smem.asked));
    }
};

// What one elected thread of a warp does; all lanes have the same arguments, so that these are in uniform registers.
__device__ __forceinline__ void expect_for_warp(unsigned barrier, int bytes) {
    asm volatile("{\n"
                 ".reg .pred one;\n"
                 "elect.sync _|one, 0xffffffff;\n"
                 "@one mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n"
                 "}" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void load_rows_for_warp(unsigned to, const TensorMap& map, int column, int row, int head, int end,
                                                   unsigned barrier) {
    asm volatile(
        "{\n"
        ".reg .pred one;\n"
        "elect.sync _|one, 0xffffffff;\n"
        "@one cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5, %6}], [%7];\n"
        "}" ::"r"(to), "l"(&map), "r"(column), "r"(row), "r"(head), "r"(end), "r"(MAP_ROWS), "r"(barrier) : "memory");
}
__device__ __forceinline__ int uniform(int x) { return __shfl_sync(~0u, x, 0); }
// The compiler would compute the address of a parameter again and again, by 10 dependent instructions.
__device__ __forceinline__ const TensorMap& once(const TensorMap& map) {
    const unsigned long long at = reinterpret_cast<unsigned long long>(&map);
    const unsigned low = __shfl_sync(~0u, static_cast<unsigned>(at), 0);
    const unsigned high = __shfl_sync(~0u, static_cast<unsigned>(at >> 32), 0);
    return *reinterpret_cast<const TensorMap*>(static_cast<unsigned long long>(high) << 32 | low);
}

// With pages a warp loads K, and another one V. A box of BOX keys and 64 columns is in one page. Lane i has the page of box i,
// modulo their number, and looks up that of the next tile before its stage is free. Rows behind a sequence's last key are out of
// bounds, as without pages, and the table isn't read for these. Lane 0 of K's warp takes the passes. It lets a pass begin once V's
// warp has asked for all tiles before it, and V's warp waits for that.
template <typename P, bool CAUSAL, int BOX>
__device__ __forceinline__ void load_pages(RaggedStorage<P>& smem, const PagedProblem& problem, const TensorMap& k,
                                           const TensorMap& v, bool values) {
    constexpr int BOXES = P::KEYS / BOX;
    static_assert(BOXES <= 32, "a lane has one box");
    const unsigned full = shared_address(smem.full), empty = shared_address(smem.empty), ring = shared_address(smem.ring);
    const unsigned pass_full = shared_address(smem.pass_full), pass_empty = shared_address(smem.pass_empty);
    const int lane = threadIdx.x % 32, top = lane % BOXES * BOX, step = values ? problem.value_step : problem.key_step;
    const TensorMap& map = once(values ? v : k);
    PassReader<P, CAUSAL, true> reader(smem, problem, v);
    Stage<P::STAGES> state;
    int next = 0;  // the lane's page of the next tile
    const auto look_up = [&](int row, int key, int keys) { return key < keys ? problem.table[row + problem.page.quotient(key)] : 0; };
    const auto look_up_first = [&](const Pass& pass) {
        const int key = P::KEYS * pass.template first_tile<P, CAUSAL>() + top;
        return pass.kv_head < 0 ? 0 : look_up(pass.key_end - pass.keys, key, pass.keys);
    };
#pragma unroll 1
    for (int round = 0;; ++round) {
        const int slot = round % SLOTS<P>;
        if (values)
            wait(pass_full + 8 * slot, round / SLOTS<P> % 2);
        else if (lane == 0)
            reader.pass(round);
        __syncwarp();
        const Pass& pass = smem.passes[slot];
        const int kv_head = uniform(pass.kv_head);
        if (kv_head < 0) break;
        if (values || round == 0) next = look_up_first(pass);
        const int keys = uniform(pass.keys), row = uniform(pass.key_end - pass.keys), its_first_block = uniform(pass.first_block);
        const int last_block = uniform(pass.last_block), earlier = uniform(pass.earlier());
        const int tiles = uniform(pass.template tiles<P, CAUSAL>(pass.last_block));
        const int its_first = uniform(pass.template first_tile<P, CAUSAL>());
        if (values) {
            if (lane == 0) arrive(pass_empty + 8 * slot);
            wait_until_above(shared_address(&smem.passes_begun), round);
        }
#pragma unroll 1
        for (int place = 0; place < tiles; ++place) {
            const int tile = tile_at(place, its_first), key = P::KEYS * tile + top, rows = min(max(keys - key, 0), BOX);
            const int end = next * step + problem.page.remainder(key) + rows;
            const int users = last_block + 1 - first_to_see<P, CAUSAL>(tile, its_first_block, earlier);
            const unsigned barrier = 8 * (2 * state.index() + values);
            const unsigned to = ring + state.index() * P::STAGE_BYTES + values * P::TILE_BYTES;
            wait(empty + barrier, state.phase() ^ 1);
            expect_for_warp(full + barrier, P::TILE_BYTES);
#pragma unroll
            for (int box = 0; box < BOXES; ++box) {
                const int from = MAP_ROWS - __shfl_sync(~0u, rows, box), its_end = __shfl_sync(~0u, end, box);
#pragma unroll
                for (int c = 0; c < P::COLUMNS; ++c)
                    load_rows_for_warp(to + (c * P::KEYS + box * BOX) * 128, map, 64 * c, from, kv_head, its_end, full + barrier);
            }
            if (users < P::JOBS_PER_PASS && lane == 0) arrive_times(empty + barrier, 4 * (P::JOBS_PER_PASS - users));
            if (!values && place == 0 && round) synchronize(PASS_BARRIER, 64);
            if (!values && lane == 0) {
                if (place == 0) begin_pass<P>(smem, state, round);
                reader.look_ahead(place, tiles);
            }
            __syncwarp();
            if (place + 1 < tiles)
                next = look_up(row, P::KEYS * tile_at(place + 1, its_first) + top, keys);
            else if (!values)
                next = look_up_first(smem.passes[(round + 1) % SLOTS<P>]);
            state.advance();
        }
        if (values) arrive_by_name(PASS_BARRIER, 64);
    }
}

// Another thread hands one consumer its jobs, and loads their Q. Blocks of a pass go to the consumers, the longest first; where
// there are fewer, the next pass goes on with the consumer behind; where not, the next one begins at the other end.
template <typename P, bool CAUSAL>
__device__ __forceinline__ void schedule_ragged_jobs(RaggedStorage<P>& smem, const RaggedProblem& problem, const TensorMap& q,
                                                     int consumer) {
    const unsigned query_full = shared_address(smem.query_full[consumer]);
    const unsigned query_empty = shared_address(smem.query_empty[consumer]);
    Stage<P::STAGES> state;  // of the pass's first tile
    int place = consumer, idle_turns = 0, jobs = 0, tiles_since = 0;
    bool turned = false;
#pragma unroll 1
    for (int round = 0;; ++round) {
        const int slot = round % SLOTS<P>;
        wait(shared_address(smem.pass_full) + 8 * slot, round / SLOTS<P> % 2);
        const Pass pass = smem.passes[slot];
        arrive(shared_address(smem.pass_empty) + 8 * slot);
        if (pass.kv_head < 0) break;
        const int blocks = pass.blocks(), pass_tiles = pass.template tiles<P, CAUSAL>(pass.last_block);
        int order = place, tiles = 0;
        if (blocks == P::CONSUMERS) {
            if (turned) order = P::CONSUMERS - 1 - place;
            turned = !turned;
        } else {
            place -= blocks;
            if (place < 0) place += P::CONSUMERS;
        }
        if (order < blocks) {
            const int buffer = jobs % P::BUFFERS;
            const unsigned barrier = query_full + 8 * buffer;
            const int block = CAUSAL ? pass.last_block - order : pass.first_block + order;
            const int first_row = pass.member < 0 ? 0 : 64 * block;
            const int head = pass.kv_head * problem.sharing + (pass.member < 0 ? block : pass.member);
            const int row = MAP_ROWS - pass.queries + first_row;
            tiles = pass.template tiles<P, CAUSAL>(block);
            wait(query_empty + 8 * buffer, jobs / P::BUFFERS % 2 ^ 1);
            const bool drains = tiles_since >= P::STAGES || idle_turns + 2 > P::STAGES;
            smem.jobs[consumer][buffer] = {head, pass.keys - pass.queries + first_row, tiles, state.packed, idle_turns, round,
                                           drains, pass.keys, row, pass.out_end};
            tiles_since = 1 - tiles;
            idle_turns = 0;
            arrive_expecting(barrier, P::QUERY_BYTES);
            for (int c = 0; c < P::COLUMNS; ++c)
                load_rows(shared_address(smem.query[consumer][buffer]) + c * 64 * 128, q, 64 * c, row, head, pass.query_end,
                          barrier);
            ++jobs;
        }
        idle_turns += pass_tiles - tiles;
        tiles_since += pass_tiles;
        state.advance(pass_tiles);
    }
    const int buffer = jobs % P::BUFFERS;
    wait(query_empty + 8 * buffer, jobs / P::BUFFERS % 2 ^ 1);
    smem.jobs[consumer][buffer].tiles = 0;
    smem.jobs[consumer][buffer].idle_turns = idle_turns;
    smem.jobs[consumer][buffer].drains = 1;
    arrive(query_full + 8 * buffer);
}

template <int BOX> struct ProblemOf { using Type = PagedProblem; };
template <> struct ProblemOf<0> { using Type = RaggedProblem; };

// q, k, v, o: maps of (MAP_ROWS, heads, ends of sequences, MAP_ROWS, D), with any strides. With BOX, K and V are in pages, and their boxes
// have so many rows, which divide those of a page and of a tile. Rows then end where those of a box do.
template <typename T, int D, bool CAUSAL, int KEYS, int STAGES, int CONSUMERS, int PING_PONG, int JOBS_PER_PASS, int BOX = 0>
__global__ void __launch_bounds__(128 * (1 + CONSUMERS), 1)
ragged(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
       const __grid_constant__ TensorMap o, typename ProblemOf<BOX>::Type problem) {
    using P = Plan<D, KEYS, STAGES, CONSUMERS, PING_PONG, JOBS_PER_PASS, true>;
    static_assert(JOBS_PER_PASS == CONSUMERS, "a consumer has one job of a pass, or none");
    // Until the next pass is taken, a consumer that is done holds the stage of its last V, or its turns: the thread that takes
    // it must not wait for either before.
    static_assert((64 * (CONSUMERS - 1) + KEYS - 1) / KEYS <= STAGES, "a job may end too many tiles before its pass");
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& smem = *reinterpret_cast<RaggedStorage<P>*>(memory);
    write_ones<T>(smem);
    if (threadIdx.x == 0) {
        init_barrier(shared_address(&smem.asked), 1);
        for (int i = 0; i < SLOTS<P>; ++i) {
            init_barrier(shared_address(smem.pass_full) + 8 * i, 1);
            init_barrier(shared_address(smem.pass_empty) + 8 * i, CONSUMERS + APART<P, BOX> + (BOX > 0));
        }
    }
    init_barriers(smem, [] { return true; });
    if (threadIdx.x < 128) {
        give_registers<P::PRODUCER_REGISTERS>();
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        if constexpr (BOX) {
            if (warp % 3 == 0) return load_pages<P, CAUSAL, BOX>(smem, problem, k, v, uniform(warp) == 3);
        } else if (threadIdx.x == 0) {
            PassReader<P, CAUSAL, !APART<P, BOX>> reader(smem, problem, v);
            return load_tiles(smem, reader, k, v);
        }
        const int consumer = warp - 1 + (BOX ? 2 : 3) * lane;
        if (APART<P, BOX> && threadIdx.x == 96) return take_passes<P, CAUSAL>(smem, problem);
        if (warp && lane < 2 && consumer < CONSUMERS) schedule_ragged_jobs<P, CAUSAL>(smem, problem, q, consumer);
        return;
    }
    consume_lazily<T, P, CAUSAL>(smem, o, problem);
}
