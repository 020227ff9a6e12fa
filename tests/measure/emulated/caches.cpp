// Runs kernels/17_caches.cu on emulated.h, and prints how far O is from that in double precision, and a hash of its bits:
// D causal rows kv_heads group queries keys page wanted seed length... Numbers are always the same; the seed is that of the
// order in which threads and copies get on. NaN is behind all lengths, and anything behind those of a table of pages.
#include "device.h"
#define __shared__
inline void wait_for_turn(int consumer) { synchronize(2 + consumer, 256); }
template <int CONSUMERS> void pass_turn(int consumer) { arrive_by_name(2 + (consumer + 1) % CONSUMERS, 256); }
inline void synchronize_cluster() { abort(); } inline void leave_cluster() { abort(); }
inline unsigned address_in(int, unsigned) { abort(); }
inline float load_from_cluster(unsigned) { abort(); } inline float4 load_four_from_cluster(unsigned) { abort(); }
#include "17_caches.cu"

template <int D, bool CAUSAL, int ROWS, int WARPS, int KEYS, int STAGES, int CTAS, int TURNS> int test(const std::vector<int>& n, const std::vector<int>& lengths) {
    using T = __nv_bfloat16;
    const int kv_heads = n[3], group = n[4], queries = n[5], keys = n[6], page = n[7], wanted = n[8], batch = lengths.size(), heads = kv_heads * group;
    std::mt19937 r(n[6]); std::normal_distribution<float> normal;
    const int each = page ? keys / page : 1, size = page ? page : keys, pages = page ? batch * each + 3 : batch;
    const size_t of_page = (size_t)kv_heads * size * D, nq = (size_t)batch * heads * queries * D;
    std::vector<uint16_t> q(nq), k(pages * of_page + 8, 0x7fff), v(k), o(nq + 8, 0x7fff);
    for (size_t i = 0; i < nq; ++i) q[i] = bf16(2 * normal(r));
    std::vector<int> table(batch * each), filled(pages), order(pages);
    for (int i = 0; i < pages; ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), r);
    for (int b = 0; b < batch; ++b) for (int i = 0; i < each; ++i) {
        const int used = max(0, min(size, min(lengths[b], keys) - i * size)); int& its = table[b * each + i];
        its = page ? order[b * each + i] : b;
        const int other = i + b ? table[r() % (b * each + i)] : -1;
        if (page && r() % 4 == 0 && other >= 0 && other < pages && filled[other] >= used && used) { its = other; continue; }  // two sequences share it
        if (!used) { its = page ? int(r()) : b; continue; }
        for (int h = 0; h < kv_heads; ++h) for (size_t x = 0; x < (size_t)used * D; ++x) for (auto* to : {&k, &v}) (*to)[its * of_page + h * (size_t)size * D + x] = bf16(normal(r) * (to == &k ? 1 + x / D / 100. : 1));
        filled[its] = used;
    }
    Caches p{};
    p.q = p.o = {(long long)heads * queries * D, (long long)queries * D, D};
    p.k = p.v = {page ? 0 : (long long)of_page, (long long)size * D, D};
    p.k_page = p.v_page = of_page, p.queries = queries, p.keys = keys, p.group = group, p.kv_heads = kv_heads, p.cluster = 1, p.masked = CAUSAL, p.scale = 1 / sqrtf(D);
    p.batch = batch, p.wanted = wanted, p.tile_keys = KEYS, p.last_page = each - 1, p.page = divisor(size);
    const int rows = group * queries, parts = wanted + batch, slots = keys <= LEAST_TILES * KEYS ? 0 : min(parts, 2 * wanted);
    std::vector<float4> workspace((size_t)kv_heads * rows * slots * (D + 4) / 4 + 1, float4{NAN, NAN, NAN, NAN});
    float* partials = &workspace[0].x; const T *tq = (T*)q.data(), *tk = (T*)k.data(), *tv = (T*)v.data(); T* to = (T*)o.data();
    const int* pages_at = page ? table.data() : nullptr;
    emu::rng.seed(n[9]);
    emu::run((rows + ROWS - 1) / ROWS * kv_heads * parts, 32 * WARPS, 2 * D * (ROWS + 2 * STAGES * KEYS) + 1024, [&] { caches<T, D, CAUSAL, ROWS, WARPS, KEYS, STAGES, CTAS, TURNS>(tq, tk, tv, to, partials, lengths.data(), pages_at, p); });
    const int warps = D > 128 ? 2 : 1;
    if (slots) emu::run(batch * kv_heads * ((rows * warps + 3) / 4), 128, 16, [&] { merge_caches<T, D>(to, partials, lengths.data(), p); });
    for (int x = 0; x < 4; ++x) if (!std::isnan((&workspace.back().x)[x])) printf("written behind the workspace\n"), exit(3);
    const auto f = [](uint16_t x) { return (double)to_float(T{x}); };
    double error = 0, norm = 0; unsigned hash = 0; int blind = 0;
    for (int b = 0; b < batch; ++b) for (int h = 0; h < heads; ++h) for (int i = 0; i < queries; ++i) {
        const size_t at = (((size_t)b * heads + h) * queries + i) * D; const int length = max(0, min(lengths[b], keys)), seen = CAUSAL ? length - queries + 1 + i : length;
        const auto place = [&](int j) { return table[b * each + j / size] * of_page + ((size_t)h / group * size + j % size) * D; };
        std::vector<double> s(max(seen, 0)), out(D); double top = -1e30, sum = 0;
        for (int j = 0; j < seen; ++j) { double x = 0; for (int d = 0; d < D; ++d) x += f(q[at + d]) * f(k[place(j) + d]); s[j] = x * p.scale; top = std::max(top, s[j]); }
        for (auto& x : s) x = exp(x - top), sum += x;
        for (int j = 0; j < seen; ++j) for (int d = 0; d < D; ++d) out[d] += s[j] / sum * f(v[place(j) + d]);
        for (int d = 0; d < D; ++d) { const double off = f(o[at + d]) - out[d]; error += off * off, norm += out[d] * out[d]; hash = hash * 31 + o[at + d]; if (seen <= 0 && o[at + d] & 0x7fff) ++blind; }
    }
    for (int x = 0; x < 8; ++x) if (o[nq + x] != 0x7fff) printf("written behind O\n"), exit(3);
    printf("problem_bytes %zu\nblind %d\nerror %.6f\nhash %u\n", sizeof(Caches), blind, sqrt(error / max(norm, 1e-9)), hash);
    return 0;
}
int main(int count, char** words) {
    std::vector<int> n, lengths;
    for (int i = 1; i < count; ++i) (i < 11 ? n : lengths).push_back(atoi(words[i]));
    const auto run = [&](auto causal) {
        constexpr bool C = decltype(causal)::value;
        if (n[0] == 256) return test<256, C, 16, 4, 32, 3, 2, 0>(n, lengths);
        if (n[0] == 64) return test<64, C, 16, 4, 64, 6, 2, 0>(n, lengths);
        return n[2] == 16 ? test<128, C, 16, 4, 64, 3, 2, 0>(n, lengths) : n[2] == 64 ? test<128, C, 64, 8, 64, 3, 2, 0>(n, lengths) : test<128, C, 128, 12, 128, 3, 1, 1>(n, lengths);
    };
    return n[1] ? run(std::true_type{}) : run(std::false_type{});
}
