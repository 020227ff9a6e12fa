// Q, K and V in 16 bits to e4m3, with a scale for each head, as quantize.py computes them, to the bit.
//
// Eight CTAs have a head. Each looks for the largest magnitude in its rows, they tell each other, and each divides its rows by the
// scale. What a thread reads first it keeps in registers; the rest it reads again, which by then is in the L2.
// CuPy asks for subnormal numbers to be flushed; additions and divisions that may meet them are stated in PTX, which doesn't.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int CLUSTER = 8, THREADS = 512, HELD = 4, VECTOR = 8;
constexpr unsigned INFINITY_BITS = 0x7F800000u, TINY_BITS = 0x00800000u, NAN_E4M3 = 0x7Fu;
// Below 2^-90, by which remainders might become subnormal, scales and numbers are multiplied by 2^100 before they are divided.
constexpr float SMALL = 0x1p-90f, LIFT = 0x1p100f;

// One of Q, K and V: strides in elements, and where values, contiguous, and scales are written to.
struct Side {
    const void* given;
    unsigned char* values;
    float* scales;
    long long batch, head, row;
    int heads, length;
};
struct Given {
    Side q, k, v;
    unsigned signs[4];  // of the columns that are negated before they are rotated, a bit for each
    int batches;
};

__device__ __forceinline__ float add(float a, float b) { float c; asm("add.rn.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b)); return c; }
__device__ __forceinline__ float multiply(float a, float b) { float c; asm("mul.rn.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b)); return c; }
__device__ __forceinline__ float divide(float a, float b) { float c; asm("div.rn.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b)); return c; }

__device__ __forceinline__ float widen(__half, unsigned bits) { return __half2float(__ushort_as_half(static_cast<unsigned short>(bits))); }
__device__ __forceinline__ float widen(__nv_bfloat16, unsigned bits) { return __uint_as_float(bits << 16); }

// Eight elements of a row as numbers. Rotated, all threads of a row take part.
template <typename Element, int D, bool ROTATED>
__device__ __forceinline__ void numbers(float (&x)[VECTOR], uint4 held, const unsigned (&signs)[4]) {
    const unsigned words[4] = {held.x, held.y, held.z, held.w};
    #pragma unroll
    for (int i = 0; i < VECTOR; ++i) x[i] = widen(Element(), words[i / 2] >> 16 * (i % 2) & 0xFFFFu);
    if constexpr (ROTATED) {
        const int place = threadIdx.x % (D / VECTOR);
        const unsigned negated = signs[place / 4] >> place % 4 * VECTOR;
        #pragma unroll
        for (int i = 0; i < VECTOR; ++i) x[i] = __uint_as_float(__float_as_uint(x[i]) ^ (negated >> i & 1u) << 31);
        #pragma unroll
        for (int half = 1; half < VECTOR; half *= 2)
            #pragma unroll
            for (int i = 0; i < VECTOR; ++i)
                if (!(i & half)) {
                    const float left = x[i], right = x[i + half];
                    x[i] = add(left, right);
                    x[i + half] = add(left, -right);
                }
        #pragma unroll
        for (int lanes = 1; lanes < D / VECTOR; lanes *= 2)
            #pragma unroll
            for (int i = 0; i < VECTOR; ++i) {
                const float other = __shfl_xor_sync(0xFFFFFFFFu, x[i], lanes);
                x[i] = place & lanes ? add(other, -x[i]) : add(x[i], other);
            }
        #pragma unroll
        for (int i = 0; i < VECTOR; ++i) x[i] = multiply(x[i], D == 64 ? 0.125f : 0.08838834764831845f);
    }
}

__device__ __forceinline__ unsigned magnitude(float x) { return __float_as_uint(x) & 0x7FFFFFFFu; }

// The larger of the largest so far and the finite magnitudes of eight numbers, as bits.
__device__ __forceinline__ unsigned larger(unsigned largest, const float (&x)[VECTOR]) {
    #pragma unroll
    for (int i = 0; i < VECTOR; ++i) {
        const unsigned bits = magnitude(x[i]);
        largest = max(largest, bits < INFINITY_BITS ? bits : 0u);
    }
    return largest;
}

// How numbers are divided by a scale.
struct Divisor {
    float lift, scale, reciprocal;
    __device__ __forceinline__ explicit Divisor(float by) : lift(by < SMALL ? LIFT : 1.f), scale(multiply(by, lift)), reciprocal(divide(1.f, scale)) {}
    // With a reciprocal that is rounded once, this correction makes the quotient that of a division (Markstein 1990), but for the
    // sign of a zero.
    __device__ __forceinline__ float of(float x) const {
        x = multiply(x, lift);
        const float quotient = __fmul_rn(x, reciprocal);
        const float corrected = __fmaf_rn(__fmaf_rn(-quotient, scale, x), reciprocal, quotient);
        return __uint_as_float(__float_as_uint(corrected) | (__float_as_uint(x) & 0x80000000u));
    }
};

__device__ __forceinline__ uint2 rounded(const float (&x)[VECTOR], const Divisor& by) {
    unsigned words[2] = {0u, 0u};
    #pragma unroll
    for (int i = 0; i < VECTOR; i += 2) {
        const bool first = magnitude(x[i]) < INFINITY_BITS, second = magnitude(x[i + 1]) < INFINITY_BITS;
        unsigned short two;
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(by.of(x[i + 1])), "f"(by.of(x[i])));
        const unsigned low = first ? two & 0xFFu : NAN_E4M3, high = second ? two >> 8 : NAN_E4M3;
        words[i / 4] |= (low | high << 8) << i % 4 * 8;
    }
    return make_uint2(words[0], words[1]);
}

__device__ __forceinline__ void arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// What a CTA of the cluster has where this one has `own`, in shared memory.
__device__ __forceinline__ unsigned of_cta(const unsigned* own, int rank) {
    unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(own)), found;
    asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(address) : "r"(rank));
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(found) : "r"(address) : "memory");
    return found;
}

template <typename Element, int D, bool ROTATED>
__device__ __forceinline__ void quantize_head(const Side& side, int number, const unsigned (&signs)[4]) {
    __shared__ unsigned of_warps[THREADS / 32], of_cta_most;
    const int rank = blockIdx.x % CLUSTER, rows = (side.length + CLUSTER - 1) / CLUSTER, begin = min(rank * rows, side.length);
    const int count = (min(begin + rows, side.length) - begin) * (D / VECTOR);
    const Element* given = static_cast<const Element*>(side.given) + number / side.heads * side.batch + number % side.heads * side.head +
                           begin * side.row;
    uint2* values = reinterpret_cast<uint2*>(side.values + (static_cast<long long>(number) * side.length + begin) * D);
    const auto read = [&](int index) {
        if (index >= count) return make_uint4(0u, 0u, 0u, 0u);
        return *reinterpret_cast<const uint4*>(given + index / (D / VECTOR) * side.row + index % (D / VECTOR) * VECTOR);
    };

    uint4 held[HELD];
    float x[VECTOR];
    unsigned largest = 0;
    #pragma unroll
    for (int i = 0; i < HELD; ++i) held[i] = read(i * THREADS + threadIdx.x);
    #pragma unroll
    for (int i = 0; i < HELD; ++i) {
        numbers<Element, D, ROTATED>(x, held[i], signs);
        largest = larger(largest, x);
    }
    #pragma unroll 4
    for (int first = HELD * THREADS; first < count; first += THREADS) {
        numbers<Element, D, ROTATED>(x, read(first + threadIdx.x), signs);
        largest = larger(largest, x);
    }

    largest = __reduce_max_sync(0xFFFFFFFFu, largest);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = largest;
    __syncthreads();
    if (threadIdx.x < 32) {
        largest = __reduce_max_sync(0xFFFFFFFFu, threadIdx.x < THREADS / 32 ? of_warps[threadIdx.x] : 0u);
        if (threadIdx.x == 0) of_cta_most = largest;
    }
    arrive();
    wait();
    largest = 0;
    #pragma unroll
    for (int other = 0; other < CLUSTER; ++other) largest = max(largest, of_cta(&of_cta_most, other));
    arrive();  // nobody ends before all have read

    const float scale = __uint_as_float(max(__float_as_uint(divide(__uint_as_float(largest), 448.f)), TINY_BITS));
    const Divisor by(scale);
    if (rank == 0 && threadIdx.x == 0) side.scales[number] = scale;
    #pragma unroll
    for (int i = 0; i < HELD; ++i) {
        const int index = i * THREADS + threadIdx.x;
        numbers<Element, D, ROTATED>(x, held[i], signs);
        if (index < count) values[index] = rounded(x, by);
    }
    #pragma unroll 4
    for (int first = HELD * THREADS; first < count; first += THREADS) {
        const int index = first + threadIdx.x;
        numbers<Element, D, ROTATED>(x, read(index), signs);
        if (index < count) values[index] = rounded(x, by);
    }
    wait();
}

// Heads of Q, then of K, then of V, over all batches.
template <typename Element, int D, bool ROTATED>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 2) quantize(const __grid_constant__ Given given) {
    const int number = blockIdx.x / CLUSTER, queries = given.batches * given.q.heads, keys = given.batches * given.k.heads;
    if (number < queries)
        quantize_head<Element, D, ROTATED>(given.q, number, given.signs);
    else if (number < queries + keys)
        quantize_head<Element, D, ROTATED>(given.k, number - queries, given.signs);
    else
        quantize_head<Element, D, false>(given.v, number - queries - keys, given.signs);
}
