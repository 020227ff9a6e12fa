// The tensor cores of sm_90a by themselves: wgmma on operands that stay in shared memory.
//
// A block keeps 128 rows of A and 256 of B (the columns of the product), each of ROW_BYTES, in tiles of 128 bytes of each row
// with the 128-byte swizzle (PTX ISA, "Matrix Descriptor"). Each of its two warpgroups multiplies 64 rows of A by
// all of B, `rounds` times, and adds all up: nothing is loaded or stored in between. Sums that were begun anew in each round
// would be dead in all but the last, and ptxas drops the wgmma of a dead sum, volatile or not.

constexpr int WARPGROUPS = 2, ROWS = 64, COLUMNS = 256, ROW_BYTES = 512, TILES = ROW_BYTES / 128;
constexpr int A_TILE_BYTES = ROWS * 128, B_TILE_BYTES = COLUMNS * 128;

__device__ __forceinline__ unsigned long long descriptor(unsigned address) {
    // 1024 bytes from eight rows to the next eight; the other stride is not used with this swizzle.
    return (address & 0x3FFFF) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

#define FOUR(c, i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define SIXTEEN(c, i) FOUR(c, i), FOUR(c, i + 4), FOUR(c, i + 8), FOUR(c, i + 12)
#define SUMS(c) \
    SIXTEEN(c, 0), SIXTEEN(c, 16), SIXTEEN(c, 32), SIXTEEN(c, 48), SIXTEEN(c, 64), SIXTEEN(c, 80), SIXTEEN(c, 96), SIXTEEN(c, 112)
#define NAMES \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, " \
    "%26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, " \
    "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, " \
    "%74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, " \
    "%98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, " \
    "%118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// c (64 x 256) += A * B, of 32 bytes of each row. Only operands of 16 bits can be transposed, and say that they aren't.
#define MULTIPLY(DEPTH, TYPE, AS_THEY_ARE) \
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k" DEPTH ".f32." TYPE "." TYPE " {" NAMES "}, " \
                 "%128, %129, 1, 1, 1" AS_THEY_ARE ";" \
                 : SUMS(c) \
                 : "l"(a), "l"(b))
enum Element { FLOAT16, BFLOAT16, E4M3 };
template <Element ELEMENT>
__device__ __forceinline__ void multiply(float (&c)[128], unsigned long long a, unsigned long long b) {
    if constexpr (ELEMENT == E4M3) MULTIPLY("32", "e4m3", "");
    else if constexpr (ELEMENT == BFLOAT16) MULTIPLY("16", "bf16", ", 0, 0");
    else MULTIPLY("16", "f16", ", 0, 0");
}

template <Element ELEMENT>
__device__ __forceinline__ void product(const uint4* a, const uint4* b, float* out, int rounds) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(memory));
    constexpr int ALL_A_ROWS = WARPGROUPS * ROWS, CHUNKS = ROW_BYTES / 16;

    // Chunks of 16 bytes: first those of A, then those of B.
    for (int i = threadIdx.x; i < (ALL_A_ROWS + COLUMNS) * CHUNKS; i += blockDim.x) {
        const int row = i / CHUNKS, chunk = i % CHUNKS, tile = chunk / 8;
        const bool is_a = row < ALL_A_ROWS;
        const int within = is_a ? row % ROWS : row - ALL_A_ROWS;
        const int first = is_a ? (row / ROWS * TILES + tile) * A_TILE_BYTES
                               : WARPGROUPS * TILES * A_TILE_BYTES + tile * B_TILE_BYTES;
        const uint4 value = is_a ? a[i] : b[i - ALL_A_ROWS * CHUNKS];
        *reinterpret_cast<uint4*>(memory + first + within * 128 + (chunk % 8 ^ within % 8) * 16) = value;
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();

    const int warpgroup = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const unsigned long long rows = descriptor(shared + warpgroup * TILES * A_TILE_BYTES);
    const unsigned long long columns = descriptor(shared + WARPGROUPS * TILES * A_TILE_BYTES);
    float c[128] = {};
    #pragma unroll 1
    for (int round = 0; round < rounds; ++round) {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        #pragma unroll
        for (int k = 0; k < ROW_BYTES / 32; ++k)
            multiply<ELEMENT>(c, rows + (k / 4 * A_TILE_BYTES + k % 4 * 32) / 16,
                              columns + (k / 4 * B_TILE_BYTES + k % 4 * 32) / 16);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" : SUMS(c) : : "memory");

    if (blockIdx.x != 0) return;
    #pragma unroll
    for (int n = 0; n < 128; ++n) {
        const int row = warpgroup * ROWS + 16 * warp + lane / 4 + n / 2 % 2 * 8;
        out[row * COLUMNS + n / 4 * 8 + lane % 4 * 2 + n % 2] = c[n];
    }
}

// a: 128 and b: 256 rows of ROW_BYTES, out: (128, 256) = rounds * a * b^T, which the first block writes.
extern "C" __global__ void __launch_bounds__(128 * WARPGROUPS, 1)
wgmma_float16(const uint4* a, const uint4* b, float* out, int rounds) { product<FLOAT16>(a, b, out, rounds); }
extern "C" __global__ void __launch_bounds__(128 * WARPGROUPS, 1)
wgmma_bfloat16(const uint4* a, const uint4* b, float* out, int rounds) { product<BFLOAT16>(a, b, out, rounds); }
extern "C" __global__ void __launch_bounds__(128 * WARPGROUPS, 1)
wgmma_float8_e4m3fn(const uint4* a, const uint4* b, float* out, int rounds) { product<E4M3>(a, b, out, rounds); }
