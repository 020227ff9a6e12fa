// Runs kernels/16_backward.cu on emulated.h, and prints the turn of each step and how far the gradients are from those in
// double precision: D causal M batch heads kv_heads queries keys ctas paired whole seed stages. Numbers are always the same; the seed
// is that of the order in which threads and copies get on.
#include "emulated.h"
#include "16_backward.cu"

template <int D, bool CAUSAL, int M, int STAGES> int test(int batch, int heads, int kv_heads, int queries, int keys, int ctas, int paired, int whole, int seed) {
    using T = __nv_bfloat16;
    emu::rng.seed(seed);
    std::mt19937 r(73); std::normal_distribution<float> nd;
    int G = heads / kv_heads, tiles = (queries + M - 1) / M, blocks = (keys + 127) / 128, padded = tiles * M;
    const auto draw = [&](size_t n) { std::vector<uint16_t> v(n); for (auto& x : v) x = bf16(nd(r)); return v; };
    const auto f = [](uint16_t x) { return (double)to_float(T{x}); };
    size_t nq = (size_t)batch * heads * queries * D, nk = (size_t)batch * kv_heads * keys * D;
    auto q = draw(nq), k = draw(nk), v = draw(nk), dout = draw(nq); std::vector<uint16_t> out(nq), dq(nq, 0x7fff), dk(nk, 0x7fff), dv(nk, 0x7fff);
    std::vector<float> lse((size_t)batch * heads * queries), negated((size_t)batch * heads * padded + 4), delta(negated.size()), sums((size_t)batch * heads * padded * D + 4, NAN); 
    float scale = 1 / sqrtf(D);
    // reference
    std::vector<double> rq(nq), rk(nk), rv(nk);
    for (int b = 0; b < batch; ++b) for (int h = 0; h < heads; ++h) for (int i = 0; i < queries; ++i) {
        size_t a = ((size_t)b * heads + h) * queries + i, kb = ((size_t)b * kv_heads + h / G) * keys; int seen = CAUSAL ? min(keys, i + keys - queries + 1) : keys;
        std::vector<double> s(seen); double mx = -1e30, sum = 0, dl = 0;
        for (int j = 0; j < seen; ++j) { double x = 0; for (int d = 0; d < D; ++d) x += f(q[a * D + d]) * f(k[(kb + j) * D + d]); s[j] = x * scale; mx = std::max(mx, s[j]); }
        for (auto& x : s) x = exp(x - mx), sum += x; for (auto& x : s) x /= sum; lse[a] = mx + log(sum);
        std::vector<double> o(D); for (int j = 0; j < seen; ++j) for (int d = 0; d < D; ++d) o[d] += s[j] * f(v[(kb + j) * D + d]);
        for (int d = 0; d < D; ++d) out[a * D + d] = bf16(o[d]), dl += o[d] * f(dout[a * D + d]);
        for (int j = 0; j < seen; ++j) { double dp = 0; for (int d = 0; d < D; ++d) dp += f(v[(kb + j) * D + d]) * f(dout[a * D + d]); double ds = s[j] * (dp - dl) * scale;
            for (int d = 0; d < D; ++d) { rq[a * D + d] += ds * f(k[(kb + j) * D + d]); rk[(kb + j) * D + d] += ds * f(q[a * D + d]); rv[(kb + j) * D + d] += s[j] * f(dout[a * D + d]); } }
    }
    Gradients p{}; p.out = out.data(), p.dout = dout.data(), p.lse = lse.data(), p.dq = dq.data();
    const auto align = [](std::vector<float>& x) { return (float*)(((size_t)x.data() + 15) / 16 * 16); };
    p.negated = align(negated), p.delta = align(delta), p.sums = align(sums);
    p.batch = batch, p.heads = heads, p.kv_heads = kv_heads, p.group = G, p.queries = queries, p.keys = keys, p.earlier = keys - queries, p.tiles = tiles, p.all_tiles = batch * heads * tiles, p.blocks = blocks, p.paired = paired;
    p.tasks = paired ? (blocks + 1) / 2 : blocks; p.all_tasks = p.tasks * batch * kv_heads;
    const auto first = [&](int b) { return CAUSAL ? max(0, 128 * b - p.earlier) / M : 0; };
    p.steps = 0; for (int m = 0; m < p.tasks; ++m) p.steps = max(p.steps, G * (tiles - first(m)) + (paired && blocks - 1 - m != m ? G * (tiles - first(blocks - 1 - m)) : 0));
    p.scale = scale; p.out_at = p.dout_at = p.dq_at = {(long long)heads * queries * D, (long long)queries * D, D};
    std::vector<int> turns((size_t)batch * heads * tiles, 7); std::vector<Part> parts(2 * p.all_tasks); const auto gcd = [](int a, int b) { while (b) std::swap(a %= b, b); return a; };
    p.in_a_row = whole ? p.tasks : 1;
    const int grid = min(ctas, p.all_tasks / p.in_a_row);
    p.patterns = whole ? 1 : min(batch * kv_heads, grid / gcd(grid, p.tasks));
    std::vector<Step> order((size_t)p.patterns * p.tasks * p.steps);
    p.turns = turns.data(), p.parts = parts.data(), p.order = order.data();
    int rows = 256 / (D / 8), before = batch * heads * (padded / rows) + (max(p.all_tasks, (int)order.size()) + 255) / 256;
    { // CTAs one after another: they don't depend on each other
        emu::run(before, 256, 16, [&] { prepare<T, D, CAUSAL, M>(p, grid); }); }
    const auto map = [&](std::vector<uint16_t>& x, int h, int s, int box) { return TensorMap{(unsigned char*)x.data(), D, s, h, batch, D, (long)s * D, (long)h * s * D, box}; };
    TensorMap mq = map(q, heads, queries, M), mk = map(k, kv_heads, keys, 128), mv = map(v, kv_heads, keys, 128), mo = map(dout, heads, queries, M), mdk = map(dk, kv_heads, keys, 64), mdv = map(dv, kv_heads, keys, 64);
    emu::run(grid, THREADS<D>, sizeof(SharedStorage<D, M, STAGES>), [&] { backward<T, D, CAUSAL, M, STAGES, true>(mq, mk, mv, mo, mdk, mdv, p); });
    auto fused = dq;
    std::fill(dq.begin(), dq.end(), 0x7fff);
    emu::run(batch * heads * tiles, 256, 16, [&] { finish<T, D, M>(p); });
    if (fused != dq) printf("not finished alike\n"), exit(3);
    const auto check = [&](const char* name, std::vector<uint16_t>& got, std::vector<double>& want) {
        double e = 0, n = 0; for (size_t i = 0; i < got.size(); ++i) { double d = f(got[i]) - want[i]; e += d * d, n += want[i] * want[i]; }
        double rel = sqrt(e / n); unsigned hash = 0;
        for (auto x : got) hash = hash * 31 + x;
        printf("%s %.6f %u\n", name, rel, hash);
    };
    printf("shared_bytes %zu\nproblem_bytes %zu\n", sizeof(SharedStorage<D, M, STAGES>), sizeof(Gradients));
    for (int task = 0, at = 0; task < p.all_tasks; ++task)
        for (int step = 0; step < parts[2 * task].steps + parts[2 * task + 1].steps; ++step) {
            const Part& part = parts[2 * task];
            const Step its = order[part.order + step];
            printf("turn %d %d %d %d %d %d\n", task, step, part.head >> 16, (part.head & 0xFFFF) * G + (its.place >> 16), its.place & 0xFFFF, its.turn);
        }
    check("dq", dq, rq), check("dk", dk, rk), check("dv", dv, rv);
    return 0;
}
int main(int count, char** words) {
    int n[13];
    for (int i = 0; i < 13; ++i) n[i] = atoi(words[1 + i]);
    const auto run = [&](auto test) { return test(n[3], n[4], n[5], n[6], n[7], n[8], n[9], n[10], n[11]); };
#define CASE(D, M, STAGES) \
    if (n[0] == D && n[2] == M && n[12] == STAGES) return run(n[1] ? test<D, true, M, STAGES> : test<D, false, M, STAGES>);
    CASE(128, 64, 3) CASE(64, 128, 2)
    return 4;
}
