// Runs kernels/15_ragged.cu on emulated.h, and prints how far O is from that in double precision, and a hash of its bits:
// D causal box page kv_heads group queries keys grid seed tile_keys rise (length of Q, of K)... Without a box K and V are padded. Numbers are
// always the same; the seed is that of the order in which threads and copies get on. Scores rise by so many nats every 64 keys. NaN is behind
// all lengths, and anything behind those of a table of pages.
#include "device.h"
#define __shared__ static
struct int4 { int x, y, z, w; };
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline int atomicAdd(int* at, int x) { const int before = *at; *at += x; emu::pause(); return before; }
inline void store_row_box(const TensorMap& m, int column, int row, int head, int end, int rows, unsigned from) {
    auto* cta = emu::current->cta; auto data = std::make_shared<std::vector<unsigned char>>(m.box * 128); const TensorMap map = m;
    add_bulk([=] { for (int r = 0; r < map.box; ++r) for (int c = 0; c < 8; ++c) memcpy(&(*data)[r * 128 + 16 * c], cta->memory + from + swizzled_offset(r, c), 16); },
             [=] { for (int r = 0; r < map.box; ++r) if (auto* to = place_of(map, column, row + r, head, end, rows)) memcpy(to, &(*data)[r * 128], 128); });
}
#include "jobs.cuh"
#include "15_ragged.cu"

template <int D, bool CAUSAL, int KEYS, int STAGES, int CONSUMERS, int PING_PONG, int BOX> int test(const std::vector<int>& n, const std::vector<int>& lengths) {
    using T = __nv_bfloat16;
    using P = Plan<D, KEYS, STAGES, CONSUMERS, PING_PONG, CONSUMERS, true>;
    const int page = n[3], kv_heads = n[4], group = n[5], queries = n[6], keys = n[7], grid = n[8], batch = lengths.size() / 2, heads = kv_heads * group;
    const int each = page ? keys / page : 1, size = page ? page : keys, pages = page ? batch * each + 3 : batch;
    std::mt19937 r(n[7]); std::normal_distribution<float> normal;
    const size_t rows = (size_t)pages * size, nq = (size_t)batch * queries * heads * D;
    std::vector<uint16_t> q(nq, 0x7fff), k(rows * kv_heads * D, 0x7fff), v(k), o(nq, 0x7fff);
    std::vector<int> table(batch * each), order(pages), q_lens, kv_lens;
    for (int i = 0; i < pages; ++i) order[i] = i;
    if (page) std::shuffle(order.begin(), order.end(), r);
    for (auto& number : table) number = int(r());
    const auto f = [](uint16_t x) { return (double)to_float(T{x}); };
    std::vector<double> right(nq);
    std::mt19937 drawn(5); 
    for (int b = 0; b < batch; ++b) {
        const int own = max(0, min(lengths[2 * b], queries)), its = max(0, min(lengths[2 * b + 1], keys));
        q_lens.push_back(lengths[2 * b]), kv_lens.push_back(lengths[2 * b + 1]);
        const auto at = [&](int key, int head) { const int number = page ? order[b * each + key / size] : b; return (((size_t)number * size + key % size) * kv_heads + head) * D; };
        if (page) for (int i = 0; i < (its + page - 1) / page; ++i) table[b * each + i] = order[b * each + i];
        for (size_t i = 0; i < (size_t)own * heads * D; ++i) q[(size_t)b * queries * heads * D + i] = bf16(2 * normal(drawn));
        for (int j = 0; j < its; ++j) for (int h = 0; h < kv_heads; ++h) for (int d = 0; d < D; ++d) k[at(j, h) + d] = bf16(normal(drawn)), v[at(j, h) + d] = bf16(normal(drawn));
        for (int i = 0; n[11] && i < own * heads; ++i) q[((size_t)b * queries * heads + i) * D] = bf16(16);
        for (int j = 0; n[11] && j < its; ++j) for (int h = 0; h < kv_heads; ++h) k[at(j, h)] = bf16(n[11] * (j / 64) * sqrt(D) / 16);
        for (int i = 0; i < own; ++i) for (int h = 0; h < heads; ++h) {
            const size_t a = (((size_t)b * queries + i) * heads + h) * D; const int seen = CAUSAL ? min(its, i + 1 + its - own) : its;
            std::vector<double> s(max(seen, 0)); double most = -1e30, sum = 0;
            for (int j = 0; j < seen; ++j) { for (int d = 0; d < D; ++d) s[j] += f(q[a + d]) * f(k[at(j, h / group) + d]); most = max(most, s[j] /= sqrt(D)); }
            for (auto& x : s) sum += x = exp(x - most);
            for (int j = 0; j < seen; ++j) for (int d = 0; d < D; ++d) right[a + d] += s[j] / sum * f(v[at(j, h / group) + d]);
        }
    }
    const long row = (long)kv_heads * D, q_row = (long)heads * D;
    const auto map = [](std::vector<uint16_t>& x, int heads, int box) { return TensorMap{(unsigned char*)x.data(), D, 0, heads, (long)x.size(), (long)heads * D, D, 0, box}; };
    const int sharing = group, room = (queries + 64 * CONSUMERS - 1) / (64 * CONSUMERS) * batch * sharing;
    std::vector<int> memory((1 + room) * sizeof(Pass) / 4 + 4);
    auto* const schedule = (Schedule*)(((size_t)memory.data() + 15) / 16 * 16);
    Dealing dealing = {{q_lens.data(), 0, queries, queries}, {kv_lens.data(), 0, keys, page ? each : keys}, keys, queries, batch, kv_heads, sharing, CONSUMERS, KEYS, room, grid};
    emu::rng.seed(n[9]);
    emu::run(1, DEALERS, 16, [&] { deal<CAUSAL>(schedule, dealing); });
    int longest_first = 1;  // by what deal() knows of the time that a pass takes
    const auto time_of = [&](int i) {
        const Pass& pass = reinterpret_cast<Pass*>(schedule + 1)[i];
        const int blocks = !CAUSAL ? pass.blocks() : pass.member < 0 ? sharing : (pass.queries + 63) / 64;
        return (pass.keys + KEYS - 1) / KEYS * (1 + min(blocks, CONSUMERS)) / (1 + CONSUMERS);
    };
    for (int i = 1; i < schedule->passes / kv_heads; ++i) longest_first &= time_of(i - 1) >= time_of(i);
    typename ProblemOf<BOX>::Type problem{};
    static_cast<RaggedProblem&>(problem) = {schedule, divisor(kv_heads), sharing, float(1 / sqrt(D))};
    if constexpr (BOX) problem.table = table.data(), problem.page = divisor(page), problem.key_step = problem.value_step = page;
    const TensorMap mq = map(q, heads, 64), mk = map(k, kv_heads, BOX ? BOX : KEYS), mv = map(v, kv_heads, BOX ? BOX : KEYS), mo = map(o, heads, 64);
    emu::run(grid, P::THREADS, sizeof(RaggedStorage<P>), [&] { ragged<T, D, CAUSAL, KEYS, STAGES, CONSUMERS, PING_PONG, CONSUMERS, BOX>(mq, mk, mv, mo, problem); });
    double error = 0, norm = 0; unsigned hash = 0; int padding = 0;
    for (int b = 0; b < batch; ++b) for (int i = 0; i < queries; ++i) for (long c = 0; c < q_row; ++c) {
        const size_t a = ((size_t)b * queries + i) * q_row + c;
        if (i >= lengths[2 * b]) { padding += o[a] != 0x7fff; continue; }
        const double d = f(o[a]) - right[a]; error += d * d, norm += right[a] * right[a], hash = hash * 31 + o[a];
    }
    printf("error %.6f\nhash %u\npadding %d\nlongest_first %d\nshared_bytes %zu\nproblem_bytes %zu\n", sqrt(error / norm), hash, padding, longest_first, sizeof(RaggedStorage<P>), sizeof problem);
    return 0;
}
int main(int count, char** words) {
    std::vector<int> n, lengths;
    for (int i = 1; i < count; ++i) (i <= 12 ? n : lengths).push_back(atoi(words[i]));
#define CASE(D, CAUSAL, KEYS, STAGES, CONSUMERS, PING_PONG, BOX) \
    if (n[0] == D && n[1] == CAUSAL && n[2] == BOX && n[10] == KEYS) return test<D, CAUSAL, KEYS, STAGES, CONSUMERS, PING_PONG, BOX>(n, lengths);
    CASE(128, false, 128, 2, 2, 1, 0) CASE(128, false, 128, 2, 2, 1, 16) CASE(128, false, 128, 2, 2, 1, 128)
    CASE(128, true, 64, 3, 3, 0, 0)
    CASE(128, true, 128, 2, 2, 1, 0) CASE(128, true, 128, 2, 2, 1, 16) CASE(128, true, 128, 2, 2, 1, 128)
    CASE(64, false, 128, 5, 3, 1, 0) CASE(64, true, 128, 5, 3, 1, 0) CASE(64, true, 128, 5, 3, 1, 16) CASE(64, true, 128, 5, 3, 1, 64)
    return 4;
}
