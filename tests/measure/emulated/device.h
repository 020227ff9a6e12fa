// More of CUDA on a CPU: intrinsics, and small functions of mma.cuh and hopper.cuh.
#pragma once
#include "emulated.h"
#define blockDim (Dim{unsigned(cta_threads)})
struct uint2 { unsigned x, y; };
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline int __float_as_int(float x) { return int(__float_as_uint(x)); }
inline float __int_as_float(int x) { float f; memcpy(&f, &x, 4); return f; }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned long long)a * b >> 32; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
template <typename V> V __ldcg(const V* p) { return *p; }
inline int __reduce_add_sync(unsigned, int x) { for (int by = 16; by; by /= 2) x += __shfl_xor_sync(~0u, x, by); return x; }
inline float quad_max(float x) { x = fmaxf(x, __shfl_xor_sync(~0u, x, 1)); return fmaxf(x, __shfl_xor_sync(~0u, x, 2)); }
inline float quad_sum(float x) { x += __shfl_xor_sync(~0u, x, 1); return x + __shfl_xor_sync(~0u, x, 2); }
inline float exp2_approx(float x) { return exp2f(x); }
inline void launch_next() {} inline void wait_for_previous() {} inline void __threadfence() {}
struct Divisor {
    int by; unsigned factor, shift;
    int quotient(int n) const { return __umulhi(2u * n, factor) >> shift; }
    int remainder(int n) const { return n - quotient(n) * by; }
};
inline Divisor divisor(int by) { unsigned shift = 0; while ((1ll << shift) < by) ++shift; return {by, unsigned(((1ull << (31 + shift)) + by - 1) / by), shift}; }
