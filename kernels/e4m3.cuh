// e4m3 on Hopper: products of 8-bit numbers by wgmma, four probabilities in a register, V transposed.
//
// Rows of an operand are 128 or 64 bytes, with the swizzle of that width: the 16-byte chunk c of row r lies at chunk
// c ^ (r % 8), or at c ^ (r / 2 % 4). Both operands have their products' dimension along the rows: V comes transposed.
//
// The accumulator of Q.K^T has keys 2t, 2t + 1 of each eight in lane 4g + t; the operand of P.V has four consecutive bytes
// there. Four bytes of a lane are therefore keys 2t, 2t + 1, 8 + 2t, 9 + 2t of sixteen, and V^T has its keys in that order,
// in which ldmatrix and byte permutations leave them. Rows of V^T are columns 0, 2, ..., 14, 1, 3, ..., 15 of each sixteen,
// so that eight consecutive ones are stored at once, and a lane has four consecutive columns of O.
#pragma once
#include "hopper.cuh"

// How rows of so many bytes lie in shared memory.
template <int ROW_BYTES> struct Swizzle {
    static constexpr int PITCH = ROW_BYTES <= 64 ? 64 : 128;
    __device__ __forceinline__ static int offset(int row, int chunk) {
        return row * PITCH + (PITCH == 128 ? chunk ^ row % 8 : chunk ^ row / 2 % 4) * 16;
    }
    __device__ __forceinline__ static unsigned long long descriptor(unsigned address) {
        return (address & 0x3FFFF) >> 4 | 1ull << 16 | static_cast<unsigned long long>(8 * PITCH >> 4) << 32 |
               (PITCH == 128 ? 1ull : 2ull) << 62;
    }
};

// An element, where a template asks for its type.
struct E4M3 { unsigned char bits; };

// Four elements in one register, the first in the lowest byte; beyond 448 they are 448.
__device__ __forceinline__ unsigned pack_e4m3(float a, float b, float c, float d) {
    unsigned four;
    asm("{.reg .b16 low, high;\n"
        "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
        "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
        "mov.b32 %0, {low, high};}" : "=r"(four) : "f"(a), "f"(b), "f"(c), "f"(d));
    return four;
}

__device__ __forceinline__ void store_matrices(unsigned address, const unsigned (&r)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]), "r"(r[1]),
                 "r"(r[2]), "r"(r[3]) : "memory");
}

// Two matrices of eight keys by sixteen columns, transposed: the even columns, and the odd ones.
__device__ __forceinline__ void interleave(unsigned first, unsigned second, unsigned& even, unsigned& odd) {
    even = __byte_perm(first, second, 0x6420);
    odd = __byte_perm(first, second, 0x7531);
}

#define OPERANDS_48(c) OPERANDS_32(c), EIGHT(c, 32), EIGHT(c, 40)
#define OPERANDS_80(c) OPERANDS_64(c), EIGHT(c, 64), EIGHT(c, 72)
#define OPERANDS_96(c) OPERANDS_80(c), EIGHT(c, 80), EIGHT(c, 88)
#define NAMES_48 NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define NAMES_80 NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define NAMES_96 NAMES_80 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"

// The same of other sizes as in hopper.cuh, c (64 x 2N) = a * b, plus c if `add`, in steps of 32; B^T in rows.
template <int N> __device__ __forceinline__ void multiply_e4m3(float (&c)[N], const unsigned (&a)[4], unsigned long long b, int add);
template <int N> __device__ __forceinline__ void multiply_e4m3(float (&c)[N], unsigned long long a, unsigned long long b, int add);

#define WGMMA_E4M3(N, COLUMNS, I0, I1, I2, I3, I4, I5) \
    template <> \
    __device__ __forceinline__ void multiply_e4m3<N>(float (&c)[N], const unsigned (&a)[4], unsigned long long b, int add) { \
        asm volatile("{.reg .pred add; setp.ne.s32 add, %" #I5 ", 0;" \
                     "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k32.f32.e4m3.e4m3 {" NAMES_##N "}, " \
                     "{%" #I0 ", %" #I1 ", %" #I2 ", %" #I3 "}, %" #I4 ", add, 1, 1;}" \
                     : OPERANDS_##N(c) \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add)); \
    } \
    template <> \
    __device__ __forceinline__ void multiply_e4m3<N>(float (&c)[N], unsigned long long a, unsigned long long b, int add) { \
        asm volatile("{.reg .pred add; setp.ne.s32 add, %" #I2 ", 0;" \
                     "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k32.f32.e4m3.e4m3 {" NAMES_##N "}, " \
                     "%" #I0 ", %" #I1 ", add, 1, 1;}" \
                     : OPERANDS_##N(c) \
                     : "l"(a), "l"(b), "r"(add)); \
    }
WGMMA_E4M3(32, 64, 32, 33, 34, 35, 36, 37)
WGMMA_E4M3(48, 96, 48, 49, 50, 51, 52, 53)
WGMMA_E4M3(64, 128, 64, 65, 66, 67, 68, 69)
WGMMA_E4M3(96, 192, 96, 97, 98, 99, 100, 101)

#define FINISH(N) \
    template <int PENDING> __device__ __forceinline__ void finish_products(float (&c)[N]) { \
        asm volatile("wgmma.wait_group.sync.aligned %" #N ";" : OPERANDS_##N(c) : "n"(PENDING) : "memory"); \
    }
FINISH(48)
FINISH(96)
