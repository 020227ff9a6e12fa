// Hopper's own: wgmma, the tensor memory accelerator (TMA), mbarriers (sm_90a).
//
// Shared memory that wgmma reads and TMA writes is in tiles of 64 columns, 128 bytes a row, with the 128-byte swizzle: the
// 16-byte chunk c of row r lies at chunk c ^ (r % 8). A tile begins at a multiple of 1024 bytes.
#pragma once
#include "mma.cuh"

struct alignas(64) TensorMap { unsigned char bytes[128]; };  // a CUtensorMap, which NVRTC's headers don't hold

// A number that is divided by often. For 0 <= n < 2^31 the quotient is exact (Granlund & Montgomery 1994), and takes a tenth of
// the time that a division takes.
struct Divisor {
    int by;
    unsigned factor, shift;  // factor = ceil(2^(31 + shift) / by), shift = ceil(log2(by))
    __device__ __forceinline__ int quotient(int n) const { return __umulhi(2u * n, factor) >> shift; }
    __device__ __forceinline__ int remainder(int n) const { return n - quotient(n) * by; }
};

// What a kernel with maps of (batch, heads, rows, D) computes: `items` work items a head; `sharing` heads have the same K and V.
// Under the mask, the last query sees all keys, and each one before it one key less: `earlier` keys, keys - queries, come
// before the first one's own; `last_key` is the last that a head's first query sees. Where heads that share K and V have one
// block of queries each, they count as one: its blocks are `joined` other heads', a `head_step` apart, and see all keys.
// Elsewhere blocks are a `row_step` of 64 apart.
struct Problem {
    int batch;
    Divisor heads, sharing, items;
    int queries, keys, earlier, last_key, joined, head_step, row_step;
    float scale;
    // The schedule of a persistent kernel: under the mask, in sections of so many heads, with `rest` in the last one;
    // without it, each item after the first `whole` is split into `shares`, and in each round a CTA moves on by `step`.
    Divisor section, section_items, rest, shares, ctas;
    int whole, step;
};

// Byte offset of a 16-byte chunk in a tile.
__device__ __forceinline__ int swizzled_offset(int row, int chunk) { return row * 128 + ((chunk ^ row % 8) * 16); }

// mbarriers, by their address in shared memory ------------------------------------------------------------------------

__device__ __forceinline__ void init_barrier(unsigned barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Makes the initialised barriers visible to TMA.
__device__ __forceinline__ void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ __forceinline__ void arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void arrive_expecting(unsigned barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// One elected thread of the warp arrives.
__device__ __forceinline__ void arrive_for_warp(unsigned barrier) {
    asm volatile("{\n"
                 ".reg .pred one;\n"
                 "elect.sync _|one, 0xffffffff;\n"
                 "@one mbarrier.arrive.shared::cta.b64 _, [%0];\n"
                 "}" ::"r"(barrier) : "memory");
}
// Returns once the phase of this parity is complete.
__device__ __forceinline__ void wait(unsigned barrier, unsigned parity) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}" ::"r"(barrier), "r"(parity) : "memory");
}

// The stage of a ring, and the parity of the phase in which it is filled, in one register.
template <int STAGES> struct Stage {
    int packed = 0;
    __device__ __forceinline__ int index() const { return packed >> 1; }
    __device__ __forceinline__ unsigned phase() const { return packed & 1; }
    __device__ __forceinline__ void advance() {
        packed += 2;
        if (packed >= 2 * STAGES) packed = (packed ^ 1) - 2 * STAGES;
    }
    __device__ __forceinline__ void advance(int count) {
        const int end = index() + count;
        packed = end % STAGES * 2 | (phase() ^ end / STAGES & 1);
    }
};

// TMA -----------------------------------------------------------------------------------------------------------------

// A box of (columns, rows, heads) comes into shared memory and counts its bytes on the barrier; past the end are zeros.
__device__ __forceinline__ void load_box(unsigned to, const TensorMap& map, int column, int row, int head, unsigned barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::
                     "r"(to), "l"(&map), "r"(column), "r"(row), "r"(head), "r"(barrier) : "memory");
}
// A box leaves shared memory; what lies past the end is dropped.
__device__ __forceinline__ void store_box(const TensorMap& map, int column, int row, int head, unsigned from) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::
                     "l"(&map), "r"(column), "r"(row), "r"(head), "r"(from) : "memory");
}
// The same of a tensor whose batches and heads lie apart, with any strides.
__device__ __forceinline__ void load_box(unsigned to, const TensorMap& map, int column, int row, int head, int batch,
                                         unsigned barrier) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6];" ::
                     "r"(to), "l"(&map), "r"(column), "r"(row), "r"(head), "r"(batch), "r"(barrier) : "memory");
}
__device__ __forceinline__ void store_box(const TensorMap& map, int column, int row, int head, int batch, unsigned from) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%1, %2, %3, %4}], [%5];" ::
                     "l"(&map), "r"(column), "r"(row), "r"(head), "r"(batch), "r"(from) : "memory");
}
__device__ __forceinline__ void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Returns once committed stores have read their shared memory.
__device__ __forceinline__ void wait_for_stores() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
// What this thread wrote to shared memory, TMA and wgmma may read after the next barrier.
__device__ __forceinline__ void publish_to_tma() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Launches that overlap (programmatic dependent launch) ---------------------------------------------------------------

// Lets the next kernel of the stream be launched.
__device__ __forceinline__ void launch_next() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
// Returns once the kernel before has ended and what it wrote is there.
__device__ __forceinline__ void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Warpgroups ----------------------------------------------------------------------------------------------------------

template <int REGISTERS> __device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS> __device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
// Named barrier 1, 2, ... among `threads` threads; 0 is __syncthreads.
__device__ __forceinline__ void synchronize(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
// The same without a wait.
__device__ __forceinline__ void arrive_by_name(int barrier, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// wgmma ---------------------------------------------------------------------------------------------------------------

// A 128-byte-swizzled operand in shared memory (PTX ISA, "Matrix Descriptor"): `stride` bytes from eight rows to the next
// eight, `leading` bytes from 64 columns to the next 64 where the operand is read transposed.
__device__ __forceinline__ unsigned long long descriptor(unsigned address, int leading, int stride) {
    return (address & 0x3FFFF) >> 4 | static_cast<unsigned long long>(leading >> 4) << 16 |
           static_cast<unsigned long long>(stride >> 4) << 32 | 1ull << 62;
}

// The descriptor of what lies `bytes` further: one addition, where descriptor() takes five dependent instructions.
__device__ __forceinline__ unsigned long long advanced(unsigned long long descriptor, int bytes) {
    unsigned low, high;
    unsigned long long sum;
    asm("mov.b64 {%0, %1}, %2;" : "=r"(low), "=r"(high) : "l"(descriptor));
    asm("mov.b64 %0, {%1, %2};" : "=l"(sum) : "r"(low + (bytes >> 4)), "r"(high));
    return sum;
}

// Before the first wgmma that reads registers which were written otherwise.
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

#define EIGHT(c, i) \
    "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), "+f"(c[i + 6]), "+f"(c[i + 7])
#define OPERANDS_32(c) EIGHT(c, 0), EIGHT(c, 8), EIGHT(c, 16), EIGHT(c, 24)
#define OPERANDS_36(c) OPERANDS_32(c), "+f"(c[32]), "+f"(c[33]), "+f"(c[34]), "+f"(c[35])
#define OPERANDS_64(c) OPERANDS_32(c), EIGHT(c, 32), EIGHT(c, 40), EIGHT(c, 48), EIGHT(c, 56)
#define NAMES_32 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_36 NAMES_32 ", %32, %33, %34, %35"
#define NAMES_64 \
    NAMES_32 ", " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// Returns once at most PENDING committed groups are unfinished. The accumulators are operands, so that nothing that
// reads them moves up here.
template <int PENDING> __device__ __forceinline__ void finish_products(float (&c)[32]) {
    asm volatile("wgmma.wait_group.sync.aligned %32;" : OPERANDS_32(c) : "n"(PENDING) : "memory");
}
template <int PENDING> __device__ __forceinline__ void finish_products(float (&c)[36]) {
    asm volatile("wgmma.wait_group.sync.aligned %36;" : OPERANDS_36(c) : "n"(PENDING) : "memory");
}
template <int PENDING> __device__ __forceinline__ void finish_products(float (&c)[64]) {
    asm volatile("wgmma.wait_group.sync.aligned %64;" : OPERANDS_64(c) : "n"(PENDING) : "memory");
}

// c (64 x 2N, held as 2N / 8 of mma.sync's C blocks) = a * b, plus c if `add`. A (64 x 16) comes from registers, or from
// rows in shared memory; B (16 x 2N) from shared memory, which holds rows of B^T or, with TRANSPOSED, rows of B.
template <typename T, bool TRANSPOSED, int N>
__device__ __forceinline__ void multiply(float (&c)[N], const unsigned (&a)[4], unsigned long long b, int add);
template <typename T, bool TRANSPOSED, int N>
__device__ __forceinline__ void multiply(float (&c)[N], unsigned long long a, unsigned long long b, int add);

#define WGMMA(T, TYPE, TRANSPOSED) \
    template <> \
    __device__ __forceinline__ void multiply<T, TRANSPOSED, 32>(float (&c)[32], const unsigned (&a)[4], unsigned long long b, \
                                                                int add) { \
        asm volatile("{.reg .pred add; setp.ne.s32 add, %37, 0;" \
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " {" NAMES_32 "}, " \
                     "{%32, %33, %34, %35}, %36, add, 1, 1, %38;}" \
                     : OPERANDS_32(c) \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(TRANSPOSED)); \
    } \
    template <> \
    __device__ __forceinline__ void multiply<T, TRANSPOSED, 36>(float (&c)[36], const unsigned (&a)[4], unsigned long long b, \
                                                                int add) { \
        asm volatile("{.reg .pred add; setp.ne.s32 add, %41, 0;" \
                     "wgmma.mma_async.sync.aligned.m64n72k16.f32." TYPE "." TYPE " {" NAMES_36 "}, " \
                     "{%36, %37, %38, %39}, %40, add, 1, 1, %42;}" \
                     : OPERANDS_36(c) \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(TRANSPOSED)); \
    } \
    template <> \
    __device__ __forceinline__ void multiply<T, TRANSPOSED, 64>(float (&c)[64], const unsigned (&a)[4], unsigned long long b, \
                                                                int add) { \
        asm volatile("{.reg .pred add; setp.ne.s32 add, %69, 0;" \
                     "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE " {" NAMES_64 "}, " \
                     "{%64, %65, %66, %67}, %68, add, 1, 1, %70;}" \
                     : OPERANDS_64(c) \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(TRANSPOSED)); \
    } \
    template <> \
    __device__ __forceinline__ void multiply<T, TRANSPOSED, 32>(float (&c)[32], unsigned long long a, unsigned long long b, \
                                                                int add) { \
        asm volatile("{.reg .pred add; setp.ne.s32 add, %34, 0;" \
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " {" NAMES_32 "}, " \
                     "%32, %33, add, 1, 1, 0, %35;}" \
                     : OPERANDS_32(c) \
                     : "l"(a), "l"(b), "r"(add), "n"(TRANSPOSED)); \
    } \
    template <> \
    __device__ __forceinline__ void multiply<T, TRANSPOSED, 64>(float (&c)[64], unsigned long long a, unsigned long long b, \
                                                                int add) { \
        asm volatile("{.reg .pred add; setp.ne.s32 add, %66, 0;" \
                     "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE " {" NAMES_64 "}, " \
                     "%64, %65, add, 1, 1, 0, %67;}" \
                     : OPERANDS_64(c) \
                     : "l"(a), "l"(b), "r"(add), "n"(TRANSPOSED)); \
    }
WGMMA(__half, "f16", false)
WGMMA(__half, "f16", true)
WGMMA(__nv_bfloat16, "bf16", false)
WGMMA(__nv_bfloat16, "bf16", true)
