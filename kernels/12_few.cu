// Rung 12: few queries over many keys: decoding, speculative decoding, and chunks of a prompt that don't fill the device.
//
// Does    the query heads that share a head of K and V are packed with their queries into the rows of one tile, so that K and
//         V are read once for all of them. Keys are split over as many CTAs as fill the device. With few rows, the warps of a
//         CTA share the keys of each tile and merge their results in shared memory; from 64 rows on warpgroups multiply
//         (wgmma), two of which may share the keys of 64 rows as well, and another one brings K and V. Their softmax is lazy,
//         as rung 11's: after a row's first tile, O is rescaled only where fp16 would overflow. The CTAs of a cluster merge
//         theirs from each other's shared memory, each thread with all its loads on their way at once. Where
//         one cluster is too small for all splits, each one's results, O and the logarithm of the sum of its exponentials, go
//         to a workspace, and a second kernel merges them. Both are launched while what is before them still runs. Sequences
//         may differ in length: `kv_lens`. A CTA's shared memory holds Q and a ring of K and V, D * (ROWS + 2 * STAGES * KEYS)
//         elements. At D = 256, a tile of 32 keys leaves room for two CTAs on a multiprocessor, and two warps that have the
//         same 16 keys share the columns of V; warpgroups have 64 keys with 64 rows, and 80 with 128.
// Gained  in h200-2026-11-28-decode, over the fastest of SDPA's backends and the peers: with one query at 8192 keys 1.17x for one
//         sequence, 1.06x for 8 and 1.00x for 32; with 4 queries 1.30x, 1.12x and 1.01x, with 16 1.15x, 1.22x and 0.99x; with 64
//         1.51x for one, and 0.91 to 0.94x for 8 and 32, where flash-attn-4 is faster.
// Limits  memory up to 16 queries of 4 heads at 8 sequences (DRAM 84 to 88 % by the counters); with 64 the way from the L2 (76 %), on
//         which two tiles of rows each pull K and V, and the products (67 %). A byte of K and V then takes 256 FLOPs: at the 904
//         TFLOP/s of wgmma by itself 3.5 TB/s, at the 673 that flash-attn-4 reaches there 2.6. Where caches are short, the
//         launch, the first bytes and the merge, one after the other: of one sequence 6 us with 16 queries, 11 with 64 (NOTES.md).
#include "jobs.cuh"

struct Strides { long long batch, head, row; };  // in elements; rows are queries or keys
struct Dense { __device__ __forceinline__ void look_up(int) {} };  // keys are not in pages

// `group` query heads share each of the `kv_heads`; together their queries are rows, numbered query by query. A head's keys
// are split over `clusters` of `cluster` CTAs, with `split_keys` each. Under the mask, if `masked`, the last query sees all
// keys of its sequence.
struct Packing {
    // Whether parts go by the lengths (rung 17). Warpgroups then have K and V from TMA, and the CTA that ends last merges.
    static constexpr bool BY_LENGTHS = false;
    Strides q, k, v, o;
    int queries, keys, group, kv_heads, clusters, cluster, split_keys, masked;
    float scale;
    __device__ __forceinline__ int rows() const { return group * queries; }
    // The head of K and V of a cluster, over all batches, and its number among that head's.
    __device__ __forceinline__ int head_of(int item) const { return item / clusters; }
    __device__ __forceinline__ int cluster_of(int item) const { return item % clusters; }
    // Where its results are in the workspace.
    __device__ __forceinline__ long long slot(int head, int cluster) const {
        return static_cast<long long>(head) * clusters + cluster;
    }
    // Where keys are, as `load_keys` takes it.
    __device__ __forceinline__ Dense places(int, int) const { return {}; }
    __device__ __forceinline__ long long apart(bool values) const { return values ? v.row : k.row; }
    // The keys of a sequence, of which the tensors hold `keys` at most.
    __device__ __forceinline__ int keys_of(const int* kv_lens, int batch) const {
        return kv_lens ? min(max(kv_lens[batch], 0), keys) : keys;
    }
    // Of the keys of a sequence, those that a row sees under the mask; none or less where it sees none.
    __device__ __forceinline__ int seen(int keys, int row) const { return keys - max(0, queries - 1 - row / group); }
    // Where a row of Q or O begins.
    __device__ __forceinline__ long long offset(const Strides& of, int batch, int kv_head, int row) const {
        return batch * of.batch + (kv_head * group + row % group) * of.head + row / group * of.row;
    }
};

// A row of the workspace, (batch, kv_heads, clusters, rows): O relative to its own sum, and the base-2 logarithm of that.
template <int D> struct Partial { static constexpr int LOG = D, SIZE = D + 4; };

// The sum of exponentials of one part, as a share of all: `log` is its logarithm, or largest exponent, and `top` the largest
// of all parts. A part that saw no keys has none.
__device__ __forceinline__ float weight(float log, float top) { return top == -infinity() ? 0 : exp2_approx(log - top); }

// The exponent, to base 2, that a row's largest probability begins with, and the one that it may rise to before O is rescaled.
constexpr int HEADROOM = 4;
template <typename T> __device__ constexpr float most_exponent();
template <> __device__ constexpr float most_exponent<__half>() { return 15; }
template <> __device__ constexpr float most_exponent<__nv_bfloat16>() { return 30; }

// Brings a map before it is used.
__device__ __forceinline__ void prefetch(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Warpgroups issue their products in turns: each waits for its own, and then lets the next one.
__device__ __forceinline__ void wait_for_turn(int consumer) { synchronize(2 + consumer, 256); }
template <int CONSUMERS> __device__ __forceinline__ void pass_turn(int consumer) {
    const int next = consumer + 1 == CONSUMERS ? 0 : consumer + 1;
    arrive_by_name(2 + next, 256);
}

// Where a chunk of eight elements lies in a tile of so many rows, as wgmma reads it.
template <int ROWS> __device__ __forceinline__ int place(int row, int chunk) {
    return chunk / 8 * ROWS * 64 + swizzled_offset(row, chunk % 8) / 2;
}

// Sixteen bytes; where nothing is to be read, zeros are written, as 0 * V must not be NaN.
__device__ __forceinline__ void copy_async(unsigned to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Returns once all but the last PENDING groups are there.
template <int PENDING> __device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// The CTAs of a cluster wait for each other; what each wrote to its shared memory is there for all.
__device__ __forceinline__ void synchronize_cluster() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
// They wait once more, with nothing to show: what was read is read, and what was written to global memory may be under way.
__device__ __forceinline__ void leave_cluster() {
    asm volatile("barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
// What this thread saw is there for those who see what it writes next, on the whole device.
__device__ __forceinline__ void order_memory() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
// The address, in the cluster, of what lies at an address of each CTA's shared memory.
__device__ __forceinline__ unsigned address_in(int cta, unsigned address) {
    unsigned there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(cta));
    return there;
}
__device__ __forceinline__ float load_from_cluster(unsigned address) {
    float x;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(address) : "memory");
    return x;
}
__device__ __forceinline__ float4 load_four_from_cluster(unsigned address) {
    float4 x;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "r"(address) : "memory");
    return x;
}

// Four columns of a row of O, or of a workspace.
template <typename T> __device__ __forceinline__ void store(T* to, const float (&value)[4]) {
    *reinterpret_cast<uint2*>(to) = make_uint2(pack<T>(value[0], value[1]), pack<T>(value[2], value[3]));
}
__device__ __forceinline__ void store(float* to, const float (&value)[4]) {
    *reinterpret_cast<float4*>(to) = make_float4(value[0], value[1], value[2], value[3]);
}

// A block of C among those that a warp holds.
template <int N> __device__ __forceinline__ float (&block(float (&c)[N], int number))[4] {
    return *reinterpret_cast<float(*)[4]>(c + 4 * number);
}

// The keys from `first` on, of which those before `end` are there; `thread` is one of THREADS.
template <int KEYS, int D, int THREADS, typename T>
__device__ __forceinline__ void load_keys(const Dense&, T* tile, const T* source, long long stride, int first, int end,
                                          int thread) {
    constexpr int CHUNKS = D / 8, STEP = THREADS / CHUNKS;
    static_assert(KEYS % STEP == 0 && THREADS % CHUNKS == 0, "a thread keeps its chunk from key to key");
    static_assert(STEP % 4 == 0, "the swizzle has the chunk at one place of all these keys' rows, or of every other one's");
    const int chunk = thread % CHUNKS, top = thread / CHUNKS, left = end - first - top;
    const T* from = source + (first + top) * stride + 8 * chunk;
    const unsigned to = shared_address(tile + place<KEYS>(top, chunk));
#pragma unroll
    for (int key = 0; key < KEYS; key += STEP, from += STEP * stride) copy_async((to ^ key % 8 * 16) + 128 * key, from, key < left);
}

// The rows of a tile that a thread loads or stores, STEP rows apart, 16 bytes of Q or O in each. Which query and which head of
// the group the first one is takes divisions, so these are worked out once, and the other rows by steps from there.
template <int ROWS, int D, int THREADS> struct OwnRows {
    static constexpr int CHUNKS = D / 8, STEP = THREADS / CHUNKS;
    static_assert(ROWS % STEP == 0 && THREADS % CHUNKS == 0, "threads share the rows evenly");
    int group, query, head, step_queries, step_heads;
    __device__ __forceinline__ OwnRows(int first, int group) : group(group) {
        const int row = first + threadIdx.x / CHUNKS;
        query = row / group, head = row % group;
        step_queries = STEP / group, step_heads = STEP % group;
    }
    // Works it out here: ptxas would put it off until it is used, behind the wait for the kernel before.
    __device__ __forceinline__ void now() { asm volatile("" : "+r"(query), "+r"(head), "+r"(step_queries), "+r"(step_heads)); }
    // Visits each with its number in the tile, and where it begins, from where the group's first query does. By trial, where much
    // is done for a row, more than two at a time lose, and else all at once gain.
    template <int UNROLLED = ROWS / STEP, typename Visit>
    __device__ __forceinline__ void each(const Strides& strides, Visit visit) const {
        int of_query = query, of_head = head;
#pragma unroll UNROLLED
        for (int top = 0; top < ROWS; top += STEP) {
            visit(top + threadIdx.x / CHUNKS, of_head * strides.head + of_query * strides.row);
            of_query += step_queries, of_head += step_heads;
            if (of_head >= group) of_head -= group, ++of_query;
        }
    }
    // Begins to load a tile of Q, in blocks of so many rows; `q` is where the group's first query begins.
    template <int BLOCK, typename T>
    __device__ __forceinline__ void load(T* tile, const T* q, const Strides& strides, int rows) const {
        const int chunk = threadIdx.x % CHUNKS;
        each(strides, [&](int row, long long offset) {
            const unsigned to = shared_address(tile + row / BLOCK * BLOCK * D + place<BLOCK>(row % BLOCK, chunk));
            copy_async(to, row < rows ? q + offset + 8 * chunk : q, row < rows);
        });
    }
};

// A CTA's results in shared memory, in rows of floats that lie in different banks: O, and behind it the logarithm of the sum.
template <int D> struct Result {
    static constexpr int LOG = D, WIDTH = D + 8;
    // Adds four columns of a row, and as many of the other half.
    static __device__ __forceinline__ void add(float (&value)[2][4], const float* columns, float times) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float4 x = *reinterpret_cast<const float4*>(columns + half * D / 2);
            value[half][0] += times * x.x, value[half][1] += times * x.y;
            value[half][2] += times * x.z, value[half][3] += times * x.w;
        }
    }
};

// Where the results of a CTA's tile go: to O, or of one of several clusters to the workspace.
template <typename T, int D> struct Output {
    T* o;             // where the group's first query begins
    float* partials;  // where the tile's first row begins in the workspace; null if O takes the results
    template <typename P>
    __device__ __forceinline__ Output(T* o, float* workspace, const P& problem, int head, int cluster, int first)
        : o(o + problem.offset(problem.o, head / problem.kv_heads, head % problem.kv_heads, 0)) {
        const long long row = problem.slot(head, cluster) * problem.rows() + first;
        partials = problem.clusters > 1 ? workspace + row * Partial<D>::SIZE : nullptr;
    }
    // Four columns of a row of the tile, which begins so far from the group's first query.
    __device__ __forceinline__ void take(int row, long long offset, int column, const float (&value)[4], float log) const {
        if (!partials) return store(o + offset + column, value);
        float* to = partials + row * Partial<D>::SIZE;
        store(to + column, value);
        if (column == 0) to[Partial<D>::LOG] = log;
    }
    // Four neighbouring columns of a row, and as many of the other half, so that neighbouring threads read neighbouring banks.
    __device__ __forceinline__ void take(int row, long long offset, int column, const float (&value)[2][4], float log) const {
        take(row, offset, column, value[0], log);
        take(row, offset, column + D / 2, value[1], log);
    }
};

template <int N> struct Size { static constexpr int value = N; };

// Merges a CTA's share of the results of SIZE CTAs, which lie in each one's shared memory. A thread has some of the columns of
// one row. All its loads are on their way at once, as a round trip takes 0.3 us.
template <int SIZE, int ROWS, int D, int THREADS, typename Deliver>
__device__ __forceinline__ void merge_cluster(const float* results, int rank, int rows, Deliver deliver) {
    using R = Result<D>;
    constexpr int EACH = ROWS * D / (SIZE * THREADS), FOURS = EACH > 4 ? EACH / 4 : 1, STEP = D / FOURS;  // of columns
    const int items = rows * (STEP / 4), share = (items + SIZE - 1) / SIZE, item = rank * share + threadIdx.x;
    if (threadIdx.x >= share || item >= items) return;
    const int row = item / (STEP / 4), column = item % (STEP / 4) * 4;
    const unsigned at = shared_address(results + row * R::WIDTH);
    float log[SIZE], top = -infinity(), sum = 0;
    float4 part[SIZE][FOURS];
#pragma unroll
    for (int cta = 0; cta < SIZE; ++cta) {
        const unsigned there = address_in(cta, at);
        log[cta] = load_from_cluster(there + 4 * R::LOG);
#pragma unroll
        for (int i = 0; i < FOURS; ++i) part[cta][i] = load_four_from_cluster(there + 4 * (column + STEP * i));
    }
#pragma unroll
    for (int cta = 0; cta < SIZE; ++cta) top = fmaxf(top, log[cta]);
#pragma unroll
    for (int cta = 0; cta < SIZE; ++cta) {
        log[cta] = weight(log[cta], top);
        sum += log[cta];
    }
    const float inverse = sum == 0 ? 0 : 1 / sum, log_of_sum = sum == 0 ? -infinity() : top + log2f(sum);
#pragma unroll
    for (int i = 0; i < FOURS; ++i) {
        float value[4] = {};
#pragma unroll
        for (int cta = 0; cta < SIZE; ++cta) {
            const float4 columns = part[cta][i];
            value[0] += log[cta] * columns.x, value[1] += log[cta] * columns.y;
            value[2] += log[cta] * columns.z, value[3] += log[cta] * columns.w;
        }
#pragma unroll
        for (int x = 0; x < 4; ++x) value[x] *= inverse;
        deliver(row, column + STEP * i, value, log_of_sum);
    }
}

// How the warps of a CTA share the work. With less than 64 rows warps multiply, and share the keys of a tile. From then on
// warpgroups do, and one more loads K and V, one piece after the other, into a ring of PIECES.
template <int D, int ROWS, int WARPS, int KEYS, int STAGES, int CTAS, int TURNS> struct Roles {
    static constexpr bool BY_WARPGROUPS = ROWS >= 64, IN_TURNS = TURNS && ROWS > 64;
    static constexpr int CONSUMERS = WARPS - 4 * BY_WARPGROUPS, THREADS = 32 * CONSUMERS;  // warps and threads that multiply
    // A warp multiplies with 16 keys at least: where a tile has fewer for each warp, its warps share the columns of V too.
    static constexpr int SHARES = 16 * CONSUMERS / ROWS, COLUMN_PARTS = KEYS < 16 * SHARES ? 16 * SHARES / KEYS : 1;
    static constexpr int PARTS = SHARES / COLUMN_PARTS, OWN_KEYS = KEYS / PARTS, OWN_COLUMNS = D / COLUMN_PARTS;
    static constexpr int PIECES = 2 * STAGES, PIECE = KEYS * D;
    // Pieces that are on their way beside the one that is waited for: 64 KiB, or as many as the ring holds while both pieces
    // that are multiplied and one more stay there.
    static constexpr int WANTED = 32 * 1024 / PIECE, BEHIND = WANTED < PIECES - 3 ? WANTED : PIECES - 3;
    // setmaxnreg: a warpgroup that asks for more than the others left of the CTA's registers waits for good.
    static constexpr int LAUNCH_REGISTERS = 65536 / (32 * WARPS * CTAS) / 8 * 8;
    static constexpr int PRODUCER_REGISTERS = ROWS > 128 ? 32 : 40;
    static constexpr int LEFT = (WARPS / 4 * LAUNCH_REGISTERS - PRODUCER_REGISTERS) / (CONSUMERS / 4) / 8 * 8;
    static constexpr int CONSUMER_REGISTERS = LEFT < 240 ? LEFT : 240;
    // A warpgroup that is launched with more registers than that keeps them.
    static constexpr bool MOVES_REGISTERS = CONSUMER_REGISTERS > LAUNCH_REGISTERS;
    static_assert(PARTS * COLUMN_PARTS * ROWS == 16 * CONSUMERS && OWN_KEYS % 16 == 0, "warps share a tile evenly");
    static_assert(COLUMN_PARTS == 1 || (!BY_WARPGROUPS && OWN_COLUMNS % 64 == 0), "warps share whole blocks of columns");
    static_assert(!BY_WARPGROUPS || (ROWS % 64 == 0 && (OWN_KEYS == 64 || OWN_KEYS == 80 || OWN_KEYS == 128)),
                  "a warpgroup has 64 rows, and keys that a wgmma is declared for");
    static_assert(!BY_WARPGROUPS || BEHIND > 0, "the ring holds a tile that is multiplied and one that comes");
};

// A CTA of `few`, or of another kernel with a problem of its own.
template <typename T, int D, bool CAUSAL, int ROWS, int WARPS, int KEYS, int STAGES, int CTAS, int TURNS, typename P>
__device__ __forceinline__ void attend_part(const T* q, const T* k, const T* v, T* o, float* workspace, const int* kv_lens,
                                            const P& problem) {
    using R = Roles<D, ROWS, WARPS, KEYS, STAGES, CTAS, TURNS>;
    constexpr int THREADS = R::THREADS, CHUNKS = D / 8, PARTS = R::PARTS, OWN_KEYS = R::OWN_KEYS;
    constexpr int COLUMN_PARTS = R::COLUMN_PARTS, OWN_COLUMNS = R::OWN_COLUMNS;
    constexpr bool BY_WARPGROUPS = R::BY_WARPGROUPS, BY_MAPS = BY_WARPGROUPS && P::BY_LENGTHS;
    constexpr int BLOCK = BY_WARPGROUPS ? 64 : ROWS;  // rows of a tile of Q in shared memory
    constexpr int WIDTH = Result<D>::WIDTH, LOG = Result<D>::LOG;
    static_assert(4 * ROWS * PARTS * (WIDTH + 2) <= 2 * D * (ROWS + 2 * STAGES * KEYS), "results fit the memory");
    extern __shared__ __align__(1024) unsigned char memory[];
    T* q_tile = reinterpret_cast<T*>(memory);  // (ROWS / BLOCK, D / 64, BLOCK, 64)
    T* ring = q_tile + ROWS * D;               // (STAGES, K and V, D / 64, KEYS, 64)
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    // The warp's rows, its part of the keys, and its first column of O.
    const int own = 16 * (warp % (ROWS / 16)), share = warp / (ROWS / 16);
    const int part = COLUMN_PARTS == 1 ? share : share % PARTS, own_column = COLUMN_PARTS == 1 ? 0 : share / PARTS * OWN_COLUMNS;

    const int rows = problem.rows(), row_tiles = (rows + ROWS - 1) / ROWS;
    const int rank = blockIdx.x % problem.cluster, item = blockIdx.x / problem.cluster;
    const int first = item % row_tiles * ROWS, cluster = problem.cluster_of(item / row_tiles);
    const int head = problem.head_of(item / row_tiles);  // of K and V, over all batches
    const int tile_rows = min(ROWS, rows - first);
    const int batch = head / problem.kv_heads, kv_head = head % problem.kv_heads;
    unsigned full = 0, empty = 0;  // where the mbarriers of the pieces lie
    if constexpr (BY_WARPGROUPS) {
        __shared__ unsigned long long barriers[2][R::PIECES];
        full = shared_address(barriers[0]), empty = shared_address(barriers[1]);
        if (threadIdx.x == 0)
            for (int piece = 0; piece < R::PIECES; ++piece) {
                init_barrier(full + 8 * piece, BY_MAPS ? 1 : 4);
                init_barrier(empty + 8 * piece, R::CONSUMERS);
            }
        if constexpr (BY_MAPS) publish_barriers();
        __syncthreads();
    }
    OwnRows<ROWS, D, THREADS> own_rows(first, problem.group);
    own_rows.now();
    wait_for_previous();
    const int keys = problem.keys_of(kv_lens, batch);
    const int tile_keys = CAUSAL ? problem.seen(keys, first + ROWS - 1) : keys;  // that any row of the tile sees
    const int cluster_begin = cluster * problem.cluster * problem.split_keys;
    if ((P::BY_LENGTHS ? cluster > 0 : problem.clusters > 1) && cluster_begin >= tile_keys) return;  // `merge` doesn't look for it
    const int begin = cluster_begin + rank * problem.split_keys, end = min(tile_keys, begin + problem.split_keys);
    const int tiles = max(0, end - begin + KEYS - 1) / KEYS;
    const T* k_head = k + batch * problem.k.batch + kv_head * problem.k.head;
    const T* v_head = v + batch * problem.v.batch + kv_head * problem.v.head;
    auto places = problem.places(batch, begin);

    if constexpr (BY_WARPGROUPS)
        if (warp >= R::CONSUMERS) {
            if constexpr (R::MOVES_REGISTERS) give_registers<R::PRODUCER_REGISTERS>();
            launch_next();
            if constexpr (BY_MAPS) {
                const int loader = __shfl_sync(~0u, warp - R::CONSUMERS, 0);  // uniform: saves registers
                if (loader < 2)
                    problem.template load<R, KEYS, D>(shared_address(ring), full, empty, loader, batch, kv_head, begin, end, tiles);
                return;
            }
            const auto publish = [&](int piece) {  // all lanes' copies of it have come
                publish_to_tma();
                __syncwarp();
                if (lane == 0) arrive(full + 8 * (piece % R::PIECES));
            };
#pragma unroll 1
            for (int piece = 0; piece < 2 * tiles; ++piece) {
                wait(empty + 8 * (piece % R::PIECES), piece / R::PIECES % 2 ^ 1);
                load_keys<KEYS, D, 128>(places, ring + piece % R::PIECES * R::PIECE, piece % 2 ? v_head : k_head,
                                        problem.apart(piece % 2), begin + piece / 2 * KEYS, end, threadIdx.x - THREADS);
                if (piece % 2) places.look_up(begin + (piece / 2 + 1) * KEYS);
                commit_copies();
                wait_for_copies<R::BEHIND>();
                if (piece >= R::BEHIND) publish(piece - R::BEHIND);
            }
            wait_for_copies<0>();
#pragma unroll 1
            for (int piece = max(0, 2 * tiles - R::BEHIND); piece < 2 * tiles; ++piece) publish(piece);
            return;
        } else {
            if constexpr (R::MOVES_REGISTERS) take_registers<R::CONSUMER_REGISTERS>();
        }
    const auto load = [&](int tile) {
        if constexpr (!BY_WARPGROUPS)
            if (tile < tiles) {
                T* to = ring + tile % STAGES * 2 * KEYS * D;
                const int from = begin + tile * KEYS;
                load_keys<KEYS, D, THREADS>(places, to, k_head, problem.apart(false), from, end, threadIdx.x);
                load_keys<KEYS, D, THREADS>(places, to + KEYS * D, v_head, problem.apart(true), from, end, threadIdx.x);
                places.look_up(from + KEYS);
            }
        commit_copies();
    };
    own_rows.template load<BLOCK>(q_tile, q + problem.offset(problem.q, batch, kv_head, 0), problem.q, tile_rows);
    if constexpr (!BY_WARPGROUPS)
        for (int tile = 0; tile < STAGES - 1; ++tile) load(tile);
    launch_next();  // once all CTAs run: what is launched waits by itself
    unsigned query[BY_WARPGROUPS ? 1 : D / 16][4];
    if constexpr (!BY_WARPGROUPS) {
        wait_for_copies<STAGES - 2>();
        __syncthreads();
#pragma unroll
        for (int d = 0; d < D / 16; ++d)
            load_matrices(query[d], shared_address(q_tile + place<BLOCK>(own + lane % 16, 2 * d + lane / 16)));
    }

    const float scale_log2 = problem.scale * LOG2_E;
    float out[OWN_COLUMNS / 2] = {}, largest[2] = {-infinity(), -infinity()}, sum[2] = {};
    int seen[2];  // keys before this one are seen by the thread's rows; `all_see` by all rows
    const int all_see = CAUSAL ? min(end, problem.seen(keys, first)) : end;
#pragma unroll
    for (int half = 0; half < 2; ++half)
        seen[half] = CAUSAL ? min(end, problem.seen(keys, first + own + lane / 4 + 8 * half)) : end;

    float s[OWN_KEYS / 2] = {}, shrink[2];
    unsigned p[OWN_KEYS / 16][4];
    const auto mask = [&](int tile) {
        const int first_key = begin + tile * KEYS + part * OWN_KEYS;
        if (first_key + OWN_KEYS > all_see) {
#pragma unroll
            for (int n = 0; n < OWN_KEYS / 2; ++n)
                if (first_key + n / 4 * 8 + lane % 4 * 2 + n % 2 >= seen[n / 2 % 2]) s[n] = -infinity();
        }
    };
    // A tile's scores become probabilities relative to the largest score so far, and the sum is put right; O is by `rescale`.
    const auto exponentiate = [&](int tile) {
        mask(tile);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float top = largest[half];
#pragma unroll
            for (int n = 2 * half; n < OWN_KEYS / 2; n += 4) top = fmaxf(top, fmaxf(s[n], s[n + 1]));
            top = quad_max(top);
            const float offset = top == -infinity() ? 0 : top;  // a row that has seen no key yet
            shrink[half] = exp2_approx((largest[half] - offset) * scale_log2);
            largest[half] = top;
            sum[half] *= shrink[half];
#pragma unroll
            for (int n = 2 * half; n < OWN_KEYS / 2; n += 4)
#pragma unroll
                for (int x = n; x < n + 2; ++x) {
                    s[x] = exp2_approx(s[x] * scale_log2 - offset * scale_log2);
                    sum[half] += s[x];
                }
        }
    };
    // The same for warpgroups, relative to an offset that stays as long as no exponent of the warp's rows is above the most.
    float offset[2] = {};
    const auto exponentiate_lazily = [&](int tile) {
        mask(tile);
        if (tile == 0)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float top = -infinity();
#pragma unroll
                for (int n = 2 * half; n < OWN_KEYS / 2; n += 4) top = fmaxf(top, fmaxf(s[n], s[n + 1]));
                top = quad_max(top);
                // A row that doesn't see the first key sees none.
                offset[half] = top == -infinity() ? 0 : top * scale_log2 + HEADROOM;
            }
        int highest[2] = {};  // above 0, floats are ordered as their bits are, and one instruction compares three of these
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int n = 2 * half; n < OWN_KEYS / 2; n += 4) {
                s[n] = s[n] * scale_log2 - offset[half];
                s[n + 1] = s[n + 1] * scale_log2 - offset[half];
                highest[half] = max(max(__float_as_int(s[n]), __float_as_int(s[n + 1])), highest[half]);
            }
        const bool rises = __any_sync(~0u, max(highest[0], highest[1]) > __float_as_int(most_exponent<T>()));
        if (rises) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float high = quad_max(__int_as_float(highest[half])), by = high > 0 ? ceilf(high) + HEADROOM : 0;
                offset[half] += by;
                shrink[half] = exp2_approx(-by);
                sum[half] *= shrink[half];
#pragma unroll
                for (int n = 2 * half; n < OWN_KEYS / 2; n += 4) s[n] -= by, s[n + 1] -= by;
            }
        }
#pragma unroll
        for (int n = 0; n < OWN_KEYS / 2; ++n) {
            s[n] = exp2_approx(s[n]);
            sum[n / 2 % 2] += s[n];
        }
        return rises;
    };
    const auto rescale = [&] {
        if (__any_sync(~0u, shrink[0] != 1 || shrink[1] != 1)) {
#pragma unroll
            for (int d = 0; d < OWN_COLUMNS / 2; ++d) out[d] *= shrink[d / 2 % 2];
        }
    };
    const auto pack_probabilities = [&] {
#pragma unroll
        for (int n = 0; n < OWN_KEYS / 4; ++n) p[n / 4][n % 4] = pack<T>(s[2 * n], s[2 * n + 1]);
    };
    const int consumer = __shfl_sync(~0u, warp / 4, 0);  // of a warpgroup
    const int own_keys = PARTS == 1 ? 0 : consumer * 64 / ROWS * OWN_KEYS * 64;  // where they begin in a tile of K or V
    const auto multiply_query_by_keys = [&](const T* k_tile) {
        if constexpr (BY_WARPGROUPS) {
            const auto of_q = descriptor(shared_address(q_tile + consumer % (ROWS / 64) * 64 * D), 16, 1024);
            const auto of_k = descriptor(shared_address(k_tile + own_keys), 16, 1024);
            begin_products();
#pragma unroll
            for (int d = 0; d < D / 16; ++d)
                multiply<T, false>(s, of_q + ((d / 4 * 64 * 128 + d % 4 * 32) >> 4),
                                   of_k + ((d / 4 * KEYS * 128 + d % 4 * 32) >> 4), d);
            commit_products();
        }
    };
    const auto multiply_probabilities_by_values = [&](const T* v_tile) {
        if constexpr (BY_WARPGROUPS) {
            const auto of_v = descriptor(shared_address(v_tile + own_keys), KEYS * 128, 1024);
            begin_products();
#pragma unroll
            for (int j = 0; j < OWN_KEYS / 16; ++j) multiply<T, true>(out, p[j], of_v + (16 * j * 128 >> 4), 1);
            commit_products();
        }
    };

    if constexpr (BY_WARPGROUPS) {
        // Of tile t, K is piece 2t and V piece 2t + 1.
        const auto await = [&](int piece) { wait(full + 8 * (piece % R::PIECES), piece / R::PIECES % 2); };
        const auto release = [&](int piece) {
            __syncwarp();
            if (lane == 0) arrive(empty + 8 * (piece % R::PIECES));
        };
        const auto at = [&](int piece) { return ring + piece % R::PIECES * R::PIECE; };
        commit_copies();
        wait_for_copies<0>();  // Q
        publish_to_tma();
        synchronize(1, THREADS);
        const auto wait_turn = [&] {
            if constexpr (R::IN_TURNS) wait_for_turn(consumer);
        };
        const auto end_turn = [&] {
            if constexpr (R::IN_TURNS) pass_turn<R::CONSUMERS / 4>(consumer);
        };
        if (consumer == R::CONSUMERS / 4 - 1) end_turn();  // the first one's begins
        if (tiles > 0) {
            wait_turn();
            await(0);
            multiply_query_by_keys(at(0));
            finish_products<0>(s);
            end_turn();
            release(0);
            exponentiate_lazily(0);
            pack_probabilities();
        }
        // The scores of a tile are computed beside O of the one before, and its softmax runs beside that.
#pragma unroll 1
        for (int tile = 1; tile < tiles; ++tile) {
            wait_turn();
            await(2 * tile);
            multiply_query_by_keys(at(2 * tile));
            await(2 * tile - 1);
            multiply_probabilities_by_values(at(2 * tile - 1));
            end_turn();
            finish_products<1>(s);
            release(2 * tile);
            // ptxas moves the wait for O up before the exponentials, but not out of a branch.
            if (exponentiate_lazily(tile)) {
                finish_products<0>(out);
                release(2 * tile - 1);
#pragma unroll
                for (int d = 0; d < OWN_COLUMNS / 2; ++d) out[d] *= shrink[d / 2 % 2];
            } else {
                finish_products<0>(out);
                release(2 * tile - 1);
            }
            pack_probabilities();
        }
        if (tiles > 0) {
            await(2 * tiles - 1);
            multiply_probabilities_by_values(at(2 * tiles - 1));
            finish_products<0>(out);
        }
    } else {
        for (int tile = 0; tile < tiles; ++tile) {
            wait_for_copies<STAGES - 2>();
            __syncthreads();  // this tile is there for all, and the one before read by all
            const T* k_tile = ring + tile % STAGES * 2 * KEYS * D;
            const T* v_tile = k_tile + KEYS * D + own_column * KEYS;

#pragma unroll
            for (int n = 0; n < OWN_KEYS / 2; ++n) s[n] = 0;
            load(tile + STAGES - 1);
#pragma unroll
            for (int d = 0; d < D / 16; ++d)
#pragma unroll
                for (int n = 0; n < OWN_KEYS / 8; n += 2) {
                    unsigned b[4];
                    const int row = part * OWN_KEYS + 8 * n + lane % 8 + lane / 16 * 8;
                    load_matrices(b, shared_address(k_tile + place<KEYS>(row, 2 * d + lane / 8 % 2)));
                    multiply<T>(block(s, n), query[d], b[0], b[1]);
                    multiply<T>(block(s, n + 1), query[d], b[2], b[3]);
                }
            exponentiate(tile);
            rescale();
            pack_probabilities();
#pragma unroll
            for (int j = 0; j < OWN_KEYS / 16; ++j)
#pragma unroll
                for (int d = 0; d < OWN_COLUMNS / 8; d += 2) {
                    unsigned b[4];
                    const int row = part * OWN_KEYS + 16 * j + lane % 16;
                    load_matrices_transposed(b, shared_address(v_tile + place<KEYS>(row, d + lane / 16)));
                    multiply<T>(block(out, d), p[j], b[0], b[1]);
                    multiply<T>(block(out, d + 1), p[j], b[2], b[3]);
                }
        }
    }

    wait_for_copies<0>();
    synchronize(1, THREADS);  // all tiles are read by all, and their memory now holds results
    float* parts = reinterpret_cast<float*>(memory);  // (PARTS, ROWS, WIDTH), of which the first then holds the CTA's
    float* tops = parts + PARTS * ROWS * WIDTH;       // (PARTS, ROWS)
    float* sums = tops + PARTS * ROWS;                // (PARTS, ROWS)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = part * ROWS + own + lane / 4 + 8 * half;
        const float row_sum = quad_sum(sum[half]), top = BY_WARPGROUPS ? offset[half] : largest[half] * scale_log2;
        float factor = 1;
        if constexpr (PARTS == 1) {
            factor = row_sum == 0 ? 0 : 1 / row_sum;  // a row that sees no key is zero
            if (lane % 4 == 0) parts[row * WIDTH + LOG] = row_sum == 0 ? -infinity() : top + log2f(row_sum);
        } else if (lane % 4 == 0 && own_column == 0) {
            tops[row] = row_sum == 0 ? -infinity() : top;
            sums[row] = row_sum;
        }
#pragma unroll
        for (int d = 0; d < OWN_COLUMNS / 8; ++d)
            *reinterpret_cast<float2*>(parts + row * WIDTH + own_column + 8 * d + lane % 4 * 2) =
                make_float2(out[4 * d + 2 * half] * factor, out[4 * d + 2 * half + 1] * factor);
    }
    synchronize(1, THREADS);
    // Visits eight columns of each of the thread's rows, merged over the parts, as `Output` takes them.
    const auto each_result = [&](auto visit) {
        using Rows = OwnRows<ROWS, D, THREADS>;
        constexpr int UNROLLED = PARTS == 1 ? ROWS / Rows::STEP : 2;
        Rows(first, problem.group).template each<UNROLLED>(problem.o, [&](int row, long long offset) {
            if (row >= tile_rows) return;
            const int column = threadIdx.x % CHUNKS * 4;
            const float* columns = parts + row * WIDTH + column;
            float value[2][4] = {};
            if constexpr (PARTS == 1) {
                Result<D>::add(value, columns, 1);
                visit(row, offset, column, value, parts[row * WIDTH + LOG]);
            } else {
                float top = -infinity(), row_sum = 0;
#pragma unroll
                for (int p = 0; p < PARTS; ++p) top = fmaxf(top, tops[p * ROWS + row]);
#pragma unroll
                for (int p = 0; p < PARTS; ++p) {
                    const float share = weight(tops[p * ROWS + row], top);
                    row_sum += share * sums[p * ROWS + row];
                    Result<D>::add(value, columns + p * ROWS * WIDTH, share);
                }
                const float inverse = row_sum == 0 ? 0 : 1 / row_sum;  // a row that sees no key is zero
#pragma unroll
                for (int x = 0; x < 8; ++x) value[x / 4][x % 4] *= inverse;
                visit(row, offset, column, value, row_sum == 0 ? -infinity() : top + log2f(row_sum));
            }
        });
    };
    if constexpr (P::BY_LENGTHS) {
        const int written = max(1, (tile_keys + problem.split_keys - 1) / problem.split_keys);  // parts of these rows
        Output<T, D> output(o, workspace, problem, head, cluster, first);
        if (written == 1) output.partials = nullptr;
        each_result([&](int row, long long offset, int column, const auto& value, float log) {
            output.take(row, offset, column, value, log);
        });
        if (written > 1) problem.template merge<T, D, THREADS>(output, memory, head, cluster, written, first, tile_rows);
        return;
    }
    const Output<T, D> output(o, workspace, problem, head, cluster, first);
    if (problem.cluster == 1)
        return each_result([&](int row, long long offset, int column, const auto& value, float log) {
            output.take(row, offset, column, value, log);
        });
    if constexpr (PARTS > 1) {
        each_result([&](int row, long long, int column, const auto& value, float log) {
            store(parts + row * WIDTH + column, value[0]);
            store(parts + row * WIDTH + column + D / 2, value[1]);
            if (column == 0) parts[row * WIDTH + LOG] = log;
        });
    }
    synchronize_cluster();
    const auto merge_results = [&](auto size) {
        merge_cluster<decltype(size)::value, ROWS, D, THREADS>(
            parts, rank, tile_rows, [&](int row, int column, const auto& value, float log) {
                output.take(row, problem.offset(problem.o, 0, 0, first + row), column, value, log);
            });
    };
    if (problem.cluster == 2) merge_results(Size<2>());
    else if (problem.cluster == 4) merge_results(Size<4>());
    else if (problem.cluster == 8) merge_results(Size<8>());
    else merge_results(Size<16>());
    leave_cluster();  // nobody ends whose memory is still read
}

// q, k, v, o: (batch, heads, rows, D), with any strides; a CTA for each tile of rows, split and head of K and V.
template <typename T, int D, bool CAUSAL, int ROWS, int WARPS, int KEYS, int STAGES, int CTAS, int TURNS>
__global__ void __launch_bounds__(32 * WARPS, CTAS)
few(const T* q, const T* k, const T* v, T* o, float* workspace, const int* kv_lens, const Packing problem) {
    attend_part<T, D, CAUSAL, ROWS, WARPS, KEYS, STAGES, CTAS, TURNS>(q, k, v, o, workspace, kv_lens, problem);
}

// The results of the clusters of each row: a warp for 128 columns of a row at most, a CTA for as many of a head of K and V as it
// has warps.
template <typename T, int D>
__global__ void __launch_bounds__(128) merge(T* o, const float* workspace, const int* kv_lens, const Packing problem) {
    using P = Partial<D>;
    // Warps of a row; neighbouring columns of a lane; results that are on their way.
    constexpr int WARPS = D > 128 ? D / 128 : 1, COLUMNS = D / 32 / WARPS, AT_ONCE = 8;
    struct Columns { float x[COLUMNS]; };
    const int lane = threadIdx.x % 32, warps = blockDim.x / 32, rows = problem.rows(), ctas = (WARPS * rows + warps - 1) / warps;
    const int share = blockIdx.x % ctas * warps + threadIdx.x / 32, row = share / WARPS, head = blockIdx.x / ctas;
    const int column = share % WARPS * 128;  // the warp's first one
    const int batch = head / problem.kv_heads, kv_head = head % problem.kv_heads;
    launch_next();
    wait_for_previous();
    if (row >= rows) return;
    const int cluster_keys = problem.cluster * problem.split_keys;
    const int keys = problem.keys_of(kv_lens, batch), seen = problem.masked ? problem.seen(keys, row) : keys;
    const int written = (max(0, seen) + cluster_keys - 1) / cluster_keys;
    const float* from = workspace + (problem.slot(head, 0) * rows + row) * P::SIZE;
    const long long step = static_cast<long long>(rows) * P::SIZE;

    float top = -infinity(), sum = 0, value[COLUMNS] = {};  // relative to 2^top
    for (int first = 0; first < written; first += AT_ONCE) {
        float log[AT_ONCE];
        Columns part[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const float* at = from + (first + i) * step;
            const bool there = first + i < written;
            log[i] = there ? __ldcg(at + P::LOG) : -infinity();
            if constexpr (COLUMNS == 4) {
                const float4 x = there ? __ldcg(reinterpret_cast<const float4*>(at + column) + lane) : make_float4(0, 0, 0, 0);
                part[i] = {x.x, x.y, x.z, x.w};
            } else {
                const float2 x = there ? __ldcg(reinterpret_cast<const float2*>(at) + lane) : make_float2(0, 0);
                part[i] = {x.x, x.y};
            }
        }
        float higher = top;
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) higher = fmaxf(higher, log[i]);
        const float kept = weight(top, higher);
        top = higher;
        sum *= kept;
#pragma unroll
        for (int x = 0; x < COLUMNS; ++x) value[x] *= kept;
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const float share = weight(log[i], top);
            sum += share;
#pragma unroll
            for (int x = 0; x < COLUMNS; ++x) value[x] += share * part[i].x[x];
        }
    }
    const float inverse = sum == 0 ? 0 : 1 / sum;
    struct alignas(2 * COLUMNS) Packed { unsigned x[COLUMNS / 2]; } packed;
#pragma unroll
    for (int x = 0; x < COLUMNS; x += 2) packed.x[x / 2] = pack<T>(value[x] * inverse, value[x + 1] * inverse);
    reinterpret_cast<Packed*>(o + problem.offset(problem.o, batch, kv_head, row) + column)[lane] = packed;
}
