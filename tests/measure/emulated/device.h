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
inline float __log2f(float x) { return log2f(x); }
inline int atomicExch(int* at, int x) { const int before = *at; *at = x; emu::pause(); return before; }
inline bool begins_early;  // whether a pass begins before all tiles before it have come, which is wrong
inline void launch_next() {} inline void wait_for_previous() {}
struct Divisor {
    int by; unsigned factor, shift;
    int quotient(int n) const { return __umulhi(2u * n, factor) >> shift; }
    int remainder(int n) const { return n - quotient(n) * by; }
};
inline Divisor divisor(int by) { unsigned shift = 0; while ((1ll << shift) < by) ++shift; return {by, unsigned(((1ull << (31 + shift)) + by - 1) / by), shift}; }
// Where a row is, of a map as `maps.ragged` makes it; null if it is out of bounds. `batch` is the size of the tensor.
inline unsigned char* place_of(const TensorMap& m, int column, long row, int head, int end, int rows) {
    if (row >= rows) return nullptr;
    const long at = (row - rows + end) * m.srow + head * m.shead + column;
    assert(head < m.heads && at >= 0 && at + 64 <= m.batch);
    return m.base + 2 * at;
}
inline void load_row_box(unsigned to, const TensorMap& m, int column, int row, int head, int end, int rows, unsigned bar) {
    auto* cta = emu::current->cta; const TensorMap map = m; assert(to % 1024 == 0);
    emu::loads.push_back([=] {
        for (int r = 0; r < map.box; ++r) for (int c = 0; c < 8; ++c) {
            auto* from = place_of(map, column, row + r, head, end, rows); auto* at = cta->memory + to + swizzled_offset(r, c);
            from ? memcpy(at, from + 16 * c, 16) : memset(at, 0, 16);
        }
        auto& b = cta->barriers[bar]; b.tx -= map.box * 128; end_phase(b);
    });
}
