// Runs kernels/11_lazy.cu or 8_jobs.cu on emulated.h, and prints how far O and the log-sum-exps are from those in double precision, and a hash of
// O: the problem's bytes in hexadecimal, then whether it is rung 11, D causal tile_keys consumers jobs_per_pass batch heads kv_heads queries keys grid seed
// rise low. Numbers are always the same; the seed is that of the order in which threads and copies get on. Scores rise by so many nats every
// 64 keys, and are lower by so many.
#include "device.h"
#define __shared__ static
#include "11_lazy.cu"
#include "8_jobs.cu"

template <bool LAZY, int D, bool CAUSAL, int KEYS, int STAGES, int CONSUMERS, int PING_PONG, int JOBS> int test(const Problem& problem, const std::vector<int>& n) {
    using T = __nv_bfloat16;
    const int batch = n[6], heads = n[7], kv_heads = n[8], queries = n[9], keys = n[10], grid = n[11], rise = n[13], low = n[14], group = heads / kv_heads;
    const size_t rows = (size_t)batch * heads * queries, key_rows = (size_t)batch * kv_heads * keys;
    std::mt19937 drawn(5); std::normal_distribution<float> normal;
    const auto draw = [&](size_t count, float factor) { std::vector<uint16_t> x(count); for (auto& each : x) each = bf16(factor * normal(drawn)); return x; };
    auto q = draw(rows * D, 2), k = draw(key_rows * D, 1), v = draw(key_rows * D, 1);
    std::vector<uint16_t> o(rows * D, 0x7fff); std::vector<float> lse(rows, NAN);
    for (size_t i = 0; (rise || low) && i < rows; ++i) q[i * D] = bf16(16);
    for (size_t j = 0; (rise || low) && j < key_rows; ++j) k[j * D] = bf16((rise * int(j % keys / 64) - low) * sqrt(D) / 16);
    const auto map = [](std::vector<uint16_t>& x, int batch, int heads, int rows, int box) { return TensorMap{(unsigned char*)x.data(), D, rows, heads, batch, D, (long)rows * D, (long)heads * rows * D, box}; };
    const TensorMap mq = map(q, batch, heads, queries, 64), mk = map(k, batch, kv_heads, keys, KEYS), mv = map(v, batch, kv_heads, keys, KEYS), mo = map(o, batch, heads, queries, 64);
    using P = Plan<D, KEYS, STAGES, CONSUMERS, PING_PONG, JOBS, LAZY, LAZY>;
    emu::rng.seed(n[12]);
    emu::run(grid, P::THREADS, sizeof(SharedStorage<P>), [&] {
        if constexpr (LAZY) lazy<T, D, CAUSAL, KEYS, STAGES, CONSUMERS, PING_PONG, JOBS>(mq, mk, mv, mo, problem, LogSums{lse.data(), heads, queries});
        else jobs<T, D, CAUSAL, KEYS, STAGES, CONSUMERS, PING_PONG, JOBS>(mq, mk, mv, mo, problem);
    });
    const auto f = [](uint16_t x) { return (double)to_float(T{x}); };
    double error = 0, norm = 0, worst = 0; unsigned hash = 0;
    for (size_t row = 0; row < rows; ++row) {
        const int i = row % queries, h = row / queries % heads, b = row / queries / heads, seen = CAUSAL ? i + 1 + keys - queries : keys;
        const size_t first = ((size_t)b * kv_heads + h / group) * keys;
        std::vector<double> s(seen), right(D); double most = -1e30, sum = 0;
        for (int j = 0; j < seen; ++j) { for (int d = 0; d < D; ++d) s[j] += f(q[row * D + d]) * f(k[(first + j) * D + d]); most = max(most, s[j] *= problem.scale); }
        for (auto& x : s) sum += x = exp(x - most);
        for (int j = 0; j < seen; ++j) for (int d = 0; d < D; ++d) right[d] += s[j] / sum * f(v[(first + j) * D + d]);
        for (int d = 0; d < D; ++d) { const double apart = f(o[row * D + d]) - right[d]; error += apart * apart, norm += right[d] * right[d], hash = hash * 31 + o[row * D + d]; }
        const double apart = fabs(lse[row] - (most + log(sum))); worst = apart <= worst ? worst : apart;
    }
    printf("error %.6f\nhash %u\nlog_sum %.6f\nshared_bytes %zu\nproblem_bytes %zu\n", sqrt(error / norm), hash, LAZY ? worst : 0, sizeof(SharedStorage<P>), sizeof problem);
    return 0;
}
int main(int count, char** words) {
    Problem problem; std::vector<int> n;
    begins_early = getenv("BEGINS_EARLY");
    for (size_t i = 0; i < sizeof problem; ++i) { unsigned byte = 0; sscanf(words[1] + 2 * i, "%2x", &byte); ((unsigned char*)&problem)[i] = byte; }
    for (int i = 2; i < count; ++i) n.push_back(atoi(words[i]));
#define CASE(LAZY, D, CAUSAL, KEYS, STAGES, CONSUMERS, PING_PONG, JOBS) \
    if (n[0] == LAZY && n[1] == D && n[2] == CAUSAL && n[3] == KEYS && n[4] == CONSUMERS && n[5] == JOBS) return test<LAZY, D, CAUSAL, KEYS, STAGES, CONSUMERS, PING_PONG, JOBS>(problem, n);
    CASE(true, 64, false, 64, 10, 4, 1, 4) CASE(true, 64, true, 64, 10, 4, 0, 9) CASE(true, 64, true, 64, 10, 4, 0, 4)
    CASE(true, 64, false, 128, 5, 3, 1, 3) CASE(true, 64, true, 128, 5, 3, 1, 3)
#ifndef NARROW
    CASE(true, 128, false, 128, 2, 2, 1, 2) CASE(true, 128, true, 128, 2, 2, 1, 2) CASE(true, 128, true, 64, 4, 2, 1, 2)
    CASE(true, 128, false, 64, 3, 3, 0, 3) CASE(true, 128, true, 64, 3, 3, 0, 3)
    CASE(false, 64, false, 128, 5, 3, 1, 3) CASE(false, 64, true, 128, 5, 3, 1, 3) CASE(false, 128, false, 128, 2, 2, 1, 2) CASE(false, 128, true, 128, 2, 2, 1, 2)
#endif
    return 4;
}
