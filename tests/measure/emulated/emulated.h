// What a kernel for Hopper needs, on a CPU: threads as fibers that take turns at random, mbarriers, TMA that comes late and out
// of order, bulk stores and additions, and wgmma that reads its operands as late as it may. Only what kernels/11_lazy.cu, 15_ragged.cu,
// 16_backward.cu and 17_caches.cu use, in bfloat16. Generic proxies and the order of memory are not modelled.
#pragma once
#include <cassert>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <algorithm>
#include <random>
#include <vector>
#include <ucontext.h>
#define __device__
#define __forceinline__ inline
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __restrict__
using std::max; using std::min;
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct uint4 { unsigned x, y, z, w; };
struct Dim { unsigned x; };
inline unsigned __float_as_uint(float f) { unsigned u; memcpy(&u, &f, 4); return u; }
struct __nv_bfloat16 { uint16_t bits; };
struct __half { uint16_t bits; };
inline float to_float(__nv_bfloat16 x) { unsigned u = unsigned(x.bits) << 16; float f; memcpy(&f, &u, 4); return f; }
inline uint16_t bf16(float f) { unsigned u = __float_as_uint(f); if ((u & 0x7fffffff) > 0x7f800000) return 0x7fff; u += 0x7fff + (u >> 16 & 1); return u >> 16; }
constexpr float LOG2_E = 1.4426950408889634f;
inline float infinity() { return INFINITY; }
template <typename T> unsigned pack(float a, float b) { return bf16(a) | unsigned(bf16(b)) << 16; }
template <typename T> unsigned pack_here(float a, float b) { return pack<T>(a, b); }
inline float exp2_here(float x) { return exp2f(x); }
inline unsigned moved(unsigned address, int bits) { return address ^ bits; }

namespace emu {
inline std::mt19937 rng;
struct Barrier { int expected = 0, arrived = 0; long tx = 0; unsigned phase = 0; };
struct Warp { long gen[32] = {}; long done = 0; unsigned address[2][32]; float value[2][32]; struct { unsigned a[4], b[2]; } fragments[2][32]; int count = 0; };
struct Op { int seen = 0; float* c[128]; int n; bool regs, tb; const unsigned* a[128]; unsigned long long da, db; int add; bool done = false; int committed = 0; };
struct Group { std::deque<Op> ops; size_t first = 0; long next[128] = {}; long commits[128] = {}; std::vector<std::vector<long>> ends; std::vector<long> end_of; long executed = 0; };
constexpr int GROUPS = 5;  // warpgroups of a CTA at most
struct Cta {
    unsigned char* memory; int index;
    std::map<unsigned, Barrier> barriers;
    std::map<int, std::pair<int, long>> named;
    Warp warps[32]; Group groups[GROUPS];
};
struct Bulk { int stage = 0; std::function<void()> read, write; };
struct Fiber {
    ucontext_t context; std::unique_ptr<char[]> stack; Cta* cta; Dim tid; bool over = false; std::function<bool()> ready; std::function<void()> body;
    std::vector<std::vector<std::shared_ptr<Bulk>>> groups; std::vector<std::shared_ptr<Bulk>> open;
};
inline Fiber* current; inline ucontext_t main_context; inline Dim grid;
inline std::vector<std::function<void()>> loads; inline std::vector<std::shared_ptr<Bulk>> bulks;
inline void wait_for(std::function<bool()> ready) {
    if (rng() % 4 && ready()) return;
    current->ready = ready; swapcontext(&current->context, &main_context);
}
inline void pause() { if (rng() % 8 == 0) wait_for([] { return true; }); }
inline unsigned char* at(unsigned address) { return current->cta->memory + address; }
}
#define threadIdx (emu::current->tid)
#define blockIdx (Dim{unsigned(emu::current->cta->index)})
#define gridDim (emu::grid)
inline unsigned shared_address(const void* p) { return unsigned((const unsigned char*)p - emu::current->cta->memory); }
struct alignas(64) TensorMap { unsigned char* base; long cols, rows, heads, batch, srow, shead, sbatch; int box; };
inline int swizzled_offset(int row, int chunk) { return row * 128 + ((chunk ^ row % 8) * 16); }
inline void end_phase(emu::Barrier& b) { if (b.arrived == b.expected && b.tx == 0) { b.phase ^= 1; b.arrived = 0; } }
inline emu::Barrier& barrier_at(unsigned a) { auto i = emu::current->cta->barriers.find(a); assert(i != emu::current->cta->barriers.end()); return i->second; }
inline void init_barrier(unsigned a, int n) { assert(a % 8 == 0); emu::current->cta->barriers[a].expected = n; }
inline void publish_barriers() {}
inline void arrive(unsigned a) { auto& b = barrier_at(a); ++b.arrived; assert(b.arrived <= b.expected); end_phase(b); emu::pause(); }
inline void arrive_expecting(unsigned a, int bytes) { auto& b = barrier_at(a); b.tx += bytes; ++b.arrived; assert(b.arrived <= b.expected); end_phase(b); emu::pause(); }
inline void wait(unsigned a, unsigned parity) { auto* b = &barrier_at(a); emu::wait_for([b, parity] { return b->phase != parity; }); }
inline void rendezvous(emu::Warp& w) {
    int lane = threadIdx.x % 32; long g = ++w.gen[lane]; emu::Warp* p = &w; if (++w.count == 32) { w.count = 0; w.done++; }
    emu::wait_for([p, g] { return p->done >= g; });
}
inline emu::Warp& my_warp() { return emu::current->cta->warps[threadIdx.x / 32]; }
inline void __syncwarp() { rendezvous(my_warp()); }
inline void arrive_for_warp(unsigned a) { __syncwarp(); if (threadIdx.x % 32 == 0) arrive(a); }
template <typename V> V shuffle(V x, int from) { auto& w = my_warp(); int b = w.gen[threadIdx.x % 32] % 2; static_assert(sizeof(V) == 4); memcpy(&w.value[b][threadIdx.x % 32], &x, 4); rendezvous(w); V y; memcpy(&y, &w.value[b][from % 32], 4); return y; }
template <typename V> V __shfl_sync(unsigned, V x, int from) { return shuffle(x, from); }
template <typename V> V __shfl_up_sync(unsigned, V x, int by) { return shuffle(x, max(int(threadIdx.x % 32) - by, 0)); }
inline unsigned __ballot_sync(unsigned, int x) {
    auto& w = my_warp(); int b = w.gen[threadIdx.x % 32] % 2; w.value[b][threadIdx.x % 32] = x != 0; rendezvous(w);
    unsigned bits = 0; for (int i = 0; i < 32; ++i) bits |= unsigned(w.value[b][i] != 0) << i; return bits;
}
inline int __any_sync(unsigned mask, int x) { return __ballot_sync(mask, x) != 0; }
template <typename V> V __shfl_xor_sync(unsigned, V x, int by) { return shuffle(x, int(threadIdx.x % 32) ^ by); }
inline void synchronize(int id, int threads) {
    auto& b = emu::current->cta->named[id]; long g = b.second; if (++b.first == threads) b.first = 0, ++b.second;
    auto* p = &b; emu::wait_for([p, g] { return p->second > g; });
}
inline void arrive_by_name(int id, int threads) { auto& b = emu::current->cta->named[id]; if (++b.first == threads) b.first = 0, ++b.second; }
inline int cta_threads;
inline void __syncthreads() { synchronize(0, cta_threads); }
template <int N> void give_registers() {} template <int N> void take_registers() {}
inline void publish_to_tma() { emu::pause(); }
inline void load_box(unsigned to, const TensorMap& m, int col, int row, int head, int batch, unsigned bar) {
    auto* cta = emu::current->cta; assert(to % 1024 == 0); const TensorMap* map = &m;
    assert(head < m.heads && batch < m.batch);
    emu::loads.push_back([=] {
        for (int r = 0; r < map->box; ++r) for (int c = 0; c < 64; ++c) {
            uint16_t x = 0; if (row + r < map->rows && col + c < map->cols) memcpy(&x, map->base + 2 * (batch * map->sbatch + head * map->shead + (row + r) * map->srow + col + c), 2);
            memcpy(cta->memory + to + swizzled_offset(r, c / 8) + c % 8 * 2, &x, 2);
        }
        auto& b = cta->barriers[bar]; b.tx -= map->box * 128; end_phase(b);
    });
}
inline void fetch_box(const TensorMap& m, int col, int row, int head, int batch) {
    assert(col % 64 == 0 && col < m.cols && row < m.rows && head < m.heads && batch < m.batch);
}
inline void load_bytes(unsigned to, const void* from, int bytes, unsigned bar) {
    auto* cta = emu::current->cta; assert(to % 16 == 0 && (size_t)from % 16 == 0 && bytes % 16 == 0);
    emu::loads.push_back([=] { memcpy(cta->memory + to, from, bytes); auto& b = cta->barriers[bar]; b.tx -= bytes; end_phase(b); });
}
inline void add_bulk(std::function<void()> r, std::function<void()> w) { auto b = std::make_shared<emu::Bulk>(); b->read = r; b->write = w; emu::bulks.push_back(b); emu::current->open.push_back(b); }
inline void store_box(const TensorMap& m, int col, int row, int head, int batch, unsigned from) {
    auto* cta = emu::current->cta; auto data = std::make_shared<std::vector<uint16_t>>(m.box * 64); const TensorMap* map = &m;
    add_bulk([=] { for (int r = 0; r < map->box; ++r) for (int c = 0; c < 64; ++c) memcpy(&(*data)[r * 64 + c], cta->memory + from + swizzled_offset(r, c / 8) + c % 8 * 2, 2); },
             [=] { for (int r = 0; r < map->box; ++r) for (int c = 0; c < 64; ++c) if (row + r < map->rows) memcpy(map->base + 2 * (batch * map->sbatch + head * map->shead + (row + r) * map->srow + col + c), &(*data)[r * 64 + c], 2); });
}
inline void floats_out(float* to, unsigned from, int bytes, bool add) {
    auto* cta = emu::current->cta; auto data = std::make_shared<std::vector<float>>(bytes / 4); assert((size_t)to % 16 == 0 && from % 16 == 0);
    add_bulk([=] { memcpy(data->data(), cta->memory + from, bytes); },
             [=] { for (int i = 0; i < bytes / 4; ++i) to[i] = add ? to[i] + (*data)[i] : (*data)[i]; });
}
inline void store_floats(float* to, unsigned from, int bytes) { floats_out(to, from, bytes, false); }
inline void add_floats(float* to, unsigned from, int bytes) { floats_out(to, from, bytes, true); }
inline void commit_stores() { emu::current->groups.push_back(emu::current->open); emu::current->open.clear(); }
inline void wait_bulk(int pending, int stage) {
    auto* f = emu::current;
    emu::wait_for([=] { for (int i = 0; i + pending < (int)f->groups.size(); ++i) for (auto& b : f->groups[i]) if (b->stage < stage) return false; return true; });
}
template <int P> void wait_until_read() { wait_bulk(P, 1); }
inline void wait_for_stores() { wait_bulk(0, 1); }
inline void wait_until_stored() { wait_bulk(0, 2); }
inline void wait_for_turn(const int* turns, int turn) { emu::wait_for([=] { assert(*turns <= turn); return *turns == turn; }); }
inline void wait_for_all_turns(const int* turns, int all) { emu::wait_for([=] { assert(*turns <= all); return *turns == all; }); }
inline float4 load_sums(const float* from) { float4 x; memcpy(&x, from, 16); return x; }
inline int take_number(unsigned a) { int x, y; memcpy(&x, emu::at(a), 4); y = x + 1; memcpy(emu::at(a), &y, 4); emu::pause(); return x; }
inline void pass_turn(int* turns, int next) { assert(*turns == next - 1); *turns = next; }
inline float2 load_pair(unsigned a) { float2 p; assert(a % 8 == 0); memcpy(&p, emu::at(a), 8); return p; }
inline void store_pair(unsigned a, float x, float y) { assert(a % 8 == 0); memcpy(emu::at(a), &x, 4); memcpy(emu::at(a + 4), &y, 4); }
inline void store_word(unsigned a, unsigned x) { memcpy(emu::at(a), &x, 4); }
inline void store_matrices_transposed(unsigned address, const unsigned (&r)[4]) {
    auto& w = my_warp(); int lane = threadIdx.x % 32, b = w.gen[lane] % 2; w.address[b][lane] = address; assert(address % 16 == 0); rendezvous(w);
    for (int m = 0; m < 4; ++m) for (int e = 0; e < 2; ++e) { uint16_t x = r[m] >> 16 * e; memcpy(emu::at(w.address[b][8 * m + lane % 4 * 2 + e] + lane / 4 * 2), &x, 2); }
}
inline unsigned long long descriptor(unsigned address, int leading, int stride) {
    return (address & 0x3FFFF) >> 4 | (unsigned long long)(leading >> 4) << 16 | (unsigned long long)(stride >> 4) << 32 | 1ull << 62;
}
inline unsigned long long advanced(unsigned long long d, int bytes) { return (d & ~0xffffffffull) | unsigned(unsigned(d) + (bytes >> 4)); }
inline void begin_products() { emu::pause(); }
inline void wgmma(float* c, int n, bool regs, bool tb, const unsigned* a, unsigned long long da, unsigned long long db, int add) {
    auto& g = emu::current->cta->groups[threadIdx.x / 128]; int t = threadIdx.x % 128; size_t i = g.next[t]++;
    while (g.ops.size() <= i) g.ops.emplace_back();
    auto& o = g.ops[i];
    if (o.seen) assert(o.n == n && o.regs == regs && o.tb == tb && o.da == da && o.db == db && o.add == add);
    o.n = n, o.regs = regs, o.tb = tb, o.da = da, o.db = db, o.add = add, o.c[t] = c, o.a[t] = a; ++o.seen;
}
template <typename T, bool TR, int N> void multiply(float (&c)[N], const unsigned (&a)[4], unsigned long long b, int add) { wgmma(c, N, true, TR, a, 0, b, add); }
template <typename T, bool TR, int N> void multiply(float (&c)[N], unsigned long long a, unsigned long long b, int add) { wgmma(c, N, false, TR, nullptr, a, b, add); }
inline void commit_products() {
    auto& g = emu::current->cta->groups[threadIdx.x / 128]; int t = threadIdx.x % 128; size_t k = g.commits[t]++;
    if (g.end_of.size() <= k) g.end_of.push_back(g.next[t]); assert(g.end_of[k] == g.next[t]);
    for (long i = k ? g.end_of[k - 1] : 0; i < g.next[t]; ++i) ++g.ops[i].committed;
}
template <int P, int N> void finish_products(float (&)[N]) {
    auto& g = emu::current->cta->groups[threadIdx.x / 128]; int t = threadIdx.x % 128; long k = g.commits[t] - P; if (k <= 0) return; long end = g.end_of[k - 1]; auto* p = &g;
    emu::wait_for([p, end] { return p->executed >= end; });
}
template <int N> void release(const unsigned (&)[N][4]) {}
// Copies of 16 bytes by a thread, in groups; and a warp's products by mma.sync with what ldmatrix loads.
inline void copy_async(unsigned to, const void* from, bool there) {
    auto* cta = emu::current->cta; auto b = std::make_shared<emu::Bulk>(); emu::current->open.push_back(b); assert(to % 16 == 0 && (size_t)from % 16 == 0);
    emu::loads.push_back([=] { if (there) memcpy(cta->memory + to, from, 16); else memset(cta->memory + to, 0, 16); b->stage = 2; });
}
inline void commit_copies() { commit_stores(); }
template <int P> void wait_for_copies() { wait_bulk(P, 2); }
inline void load_matrices(unsigned (&r)[4], unsigned address, bool transposed = false) {
    auto& w = my_warp(); int lane = threadIdx.x % 32, b = w.gen[lane] % 2; w.address[b][lane] = address; assert(address % 16 == 0); rendezvous(w);
    for (int m = 0; m < 4; ++m) for (int e = 0; e < 2; ++e) {
        uint16_t x; int row = lane / 4, column = lane % 4 * 2 + e; if (transposed) std::swap(row, column);
        memcpy(&x, emu::at(w.address[b][8 * m + row] + 2 * column), 2); r[m] = e ? r[m] | unsigned(x) << 16 : x;
    }
}
inline void load_matrices_transposed(unsigned (&r)[4], unsigned address) { load_matrices(r, address, true); }
template <typename T> void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    auto& w = my_warp(); int lane = threadIdx.x % 32, now = w.gen[lane] % 2; auto* all = w.fragments[now];
    memcpy(all[lane].a, a, 16), all[lane].b[0] = b0, all[lane].b[1] = b1; rendezvous(w);
    const auto half = [](unsigned x, int k) { return to_float(__nv_bfloat16{uint16_t(x >> 16 * (k % 2))}); };
    for (int i = 0; i < 4; ++i) for (int k = 0; k < 16; ++k)
        c[i] += half(all[lane / 4 * 4 + k % 8 / 2].a[i / 2 + 2 * (k / 8)], k) * half(all[(lane % 4 * 2 + i % 2) * 4 + k % 8 / 2].b[k / 8], k);
}
namespace emu {
inline float element(const unsigned char* mem, unsigned address) { address ^= (address >> 7 & 7) << 4; uint16_t x; memcpy(&x, mem + address, 2); return to_float(__nv_bfloat16{x}); }
inline float operand(const unsigned char* mem, unsigned long long d, bool transposed, int row, int k) {
    unsigned base = (d & 0x3fff) << 4, leading = (d >> 16 & 0x3fff) << 4, stride = (d >> 32 & 0x3fff) << 4;
    return transposed ? element(mem, base + row / 64 * leading + k / 8 * stride + k % 8 * 128 + row % 64 * 2) : element(mem, base + row / 8 * stride + row % 8 * 128 + k * 2);
}
inline void execute(Cta& cta, Group& g) {
    Op& o = g.ops[g.executed++]; static float A[64][16], B[256][16];
    for (int r = 0; r < 64; ++r) for (int k = 0; k < 16; ++k) {
        if (o.regs) { int t = r / 16 * 32 + r % 8 * 4 + k % 8 / 2; unsigned x = o.a[t][(r % 16 >= 8) + 2 * (k >= 8)]; A[r][k] = to_float(__nv_bfloat16{uint16_t(x >> 16 * (k % 2))}); }
        else A[r][k] = operand(cta.memory, o.da, false, r, k);
    }
    int cols = 2 * o.n;
    for (int n = 0; n < cols; ++n) for (int k = 0; k < 16; ++k) B[n][k] = operand(cta.memory, o.db, o.tb, n, k);
    for (int r = 0; r < 64; ++r) for (int n = 0; n < cols; ++n) {
        float sum = 0; for (int k = 0; k < 16; ++k) sum += A[r][k] * B[n][k];
        float& c = o.c[r / 16 * 32 + r % 8 * 4 + n % 8 / 2][n / 8 * 4 + (r % 16 >= 8) * 2 + n % 2];
        c = o.add ? c + sum : sum;
    }
}
inline void trampoline() { current->body(); current->over = true; swapcontext(&current->context, &main_context); abort(); }
// Runs a grid of CTAs, all at once.
inline void run(int ctas, int threads, size_t smem_bytes, std::function<void()> kernel) {
    cta_threads = threads; grid = {unsigned(ctas)};
    std::vector<std::unique_ptr<Cta>> all; std::vector<std::unique_ptr<Fiber>> fibers;
    for (int c = 0; c < ctas; ++c) {
        all.emplace_back(new Cta); all[c]->index = c; all[c]->memory = (unsigned char*)aligned_alloc(1024, (smem_bytes + 1023) / 1024 * 1024 + 1024); memset(all[c]->memory, 0xff, smem_bytes);
        for (int t = 0; t < threads; ++t) {
            fibers.emplace_back(new Fiber); auto& f = *fibers.back(); f.cta = all[c].get(); f.tid = {unsigned(t)}; f.body = kernel; f.ready = [] { return true; };
            getcontext(&f.context); f.stack.reset(new char[48 << 10]); f.context.uc_stack.ss_sp = f.stack.get(); f.context.uc_stack.ss_size = 48 << 10; f.context.uc_link = nullptr; makecontext(&f.context, (void (*)())trampoline, 0);
        }
    }
    std::vector<Fiber*> live; for (auto& f : fibers) live.push_back(f.get());
    // Loads, bulk stores and products are each eager, casual, or done only when no thread can get on; a CTA falls behind at times.
    const unsigned patience[3] = {rng() % 3, rng() % 3, rng() % 3};
    const auto now = [&](int engine) { return patience[engine] && rng() % (patience[engine] == 1 ? 16 : 2) == 0; };
    int slow = -1;
    while (!live.empty()) {
        bool ran = false;
        if (rng() % 8192 == 0) slow = int(rng() % (ctas + 1)) - 1;
        const auto do_load = [&] { if (loads.empty()) return false; size_t i = rng() % loads.size(); auto f = loads[i]; loads[i] = loads.back(); loads.pop_back(); f(); return true; };
        const auto do_bulk = [&] { if (bulks.empty()) return false; size_t i = rng() % bulks.size(); auto b = bulks[i]; if (b->stage == 0) b->read(), b->stage = 1; else { b->write(), b->stage = 2; bulks[i] = bulks.back(); bulks.pop_back(); } return true; };
        const auto do_op = [&](bool any) { const size_t n = all.size() * GROUPS, s = rng() % n; for (size_t i = 0; i < n; ++i) { size_t j = (s + i) % n; auto& g = all[j / GROUPS]->groups[j % GROUPS]; if (g.executed < (long)g.ops.size() && g.ops[g.executed].committed == 128) { execute(*all[j / GROUPS], g); return true; } if (!any) return false; } return false; };
        if (now(0)) do_load();
        if (now(1)) do_bulk();
        if (now(2)) do_op(false);
        size_t start = rng() % live.size();
        for (size_t i = 0; i < 2 * live.size(); ++i) {
            size_t j = (start + i) % live.size(); Fiber* f = live[j];
            if ((i < live.size() && f->cta->index == slow) || !f->ready()) continue;
            current = f; swapcontext(&main_context, &f->context); ran = true;
            if (f->over) { live[j] = live.back(); live.pop_back(); }
            break;
        }
        const unsigned first = rng() % 3;
        const auto any = [&](unsigned engine) { return engine == 0 ? do_load() : engine == 1 ? do_bulk() : do_op(true); };
        if (!ran && !any(first) && !any((first + 1) % 3) && !any((first + 2) % 3)) { printf("DEADLOCK: %zu threads wait\n", live.size()); for (auto* f : live) if (f->tid.x % 32 == 0) printf("cta %d thread %u\n", f->cta->index, f->tid.x); exit(2); }
    }
    while (!bulks.empty()) { auto b = bulks.back(); if (b->stage == 0) b->read(), b->stage = 1; else b->write(), bulks.pop_back(); }
    for (auto& c : all) free(c->memory);
}
}
