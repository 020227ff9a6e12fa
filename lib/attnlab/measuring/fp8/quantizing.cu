// Q, K and V in 16 bits to e4m3, with a scale for each head, as quantize.py computes them, to the bit.
//
// Eight CTAs have a head. Each looks for the largest magnitude in its rows, they tell each other, and each divides its rows by the
// scale; what is read for the second time is in the L2 by then, as long as the heads that are under way fit it. Where no number is
// infinite and the scale isn't tiny, as nearly always, the instructions that other numbers need are left out.
// CuPy asks for subnormal numbers to be flushed; additions and divisions that may meet them are stated in PTX, which doesn't.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int CLUSTER = 8, VECTOR = 8;
template <bool ROTATED> constexpr int MOST_THREADS = ROTATED ? 256 : 512;
// A thread has VECTORS at a time: of as many rows, or, to rotate it, of one row, between which the other LANES have theirs.
constexpr int VECTORS = 4;
template <int D, bool ROTATED> constexpr int LANES = D / VECTOR / (ROTATED ? VECTORS : 1);
constexpr unsigned ALL = 0xFFFFFFFFu, INFINITY_BITS = 0x7F800000u, TINY_BITS = 0x00800000u, NAN_E4M3 = 0x7Fu;
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
    unsigned signs[4];  // of the columns that are negated before they are rotated, a bit for each: 32 of a lane (quantizing.py)
    int batches;
};

struct Yes { static constexpr bool value = true; };
struct No { static constexpr bool value = false; };

__device__ __forceinline__ float add(float a, float b) { float c; asm("add.rn.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b)); return c; }
__device__ __forceinline__ float multiply(float a, float b) { float c; asm("mul.rn.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b)); return c; }
__device__ __forceinline__ float divide(float a, float b) { float c; asm("div.rn.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b)); return c; }

__device__ __forceinline__ float widen(__half, unsigned bits) { return __half2float(__ushort_as_half(static_cast<unsigned short>(bits))); }
__device__ __forceinline__ float widen(__nv_bfloat16, unsigned bits) { return __uint_as_float(bits << 16); }

// Two columns become their sum and their difference.
__device__ __forceinline__ void rotate(float& left, float& right) {
    const float sum = add(left, right);
    right = add(left, -right);
    left = sum;
}

// Bit LANE of a thread's place in its row changes places with bit HALF of an element's in its vector: of half of the elements, a
// thread has those of both lanes, their sum and their difference.
template <int LANE, int HALF> __device__ __forceinline__ void rotate_lanes(float (&x)[VECTOR]) {
    const bool upper = threadIdx.x & LANE;
    #pragma unroll
    for (int i = 0; i < VECTOR; ++i)
        if (!(i & HALF)) {
            const float got = __shfl_xor_sync(ALL, upper ? x[i] : x[i + HALF], LANE);
            (upper ? x[i] : x[i + HALF]) = got;
            rotate(x[i], x[i + HALF]);
        }
}

// A thread's numbers. Rotated, and not yet divided by the root of D, they lie as `rotate_lanes` leaves them.
template <typename Element, int D, bool ROTATED>
__device__ __forceinline__ void numbers(float (&x)[VECTORS][VECTOR], const uint4 (&held)[VECTORS], unsigned signs) {
    #pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
        const unsigned words[4] = {held[v].x, held[v].y, held[v].z, held[v].w};
        #pragma unroll
        for (int i = 0; i < VECTOR; i += 2) {
            const int word = 4 * v + i / 2;
            const unsigned two = ROTATED ? words[i / 2] ^ (signs << (15 - word) & 0x80008000u) : words[i / 2];
            x[v][i] = widen(Element(), two & 0xFFFFu);
            x[v][i + 1] = widen(Element(), two >> 16);
        }
        if constexpr (ROTATED) {
            #pragma unroll
            for (int half = 1; half < VECTOR; half *= 2)
                #pragma unroll
                for (int i = 0; i < VECTOR; ++i)
                    if (!(i & half)) rotate(x[v][i], x[v][i + half]);
            rotate_lanes<1, 4>(x[v]);
            if constexpr (D == 128) rotate_lanes<2, 2>(x[v]);
        }
    }
    if constexpr (ROTATED)
        #pragma unroll
        for (int half = 1; half < VECTORS; half *= 2)
            #pragma unroll
            for (int v = 0; v < VECTORS; ++v)
                if (!(v & half))
                    #pragma unroll
                    for (int i = 0; i < VECTOR; ++i) rotate(x[v][i], x[v + half][i]);
}

// Eight bytes of a row that was rotated go where they belong.
template <int D> __device__ __forceinline__ uint2 in_order(uint2 bytes) {
    if constexpr (D == 128) {
        const bool upper = threadIdx.x & 2;
        const unsigned got = __shfl_xor_sync(ALL, __byte_perm(bytes.x, bytes.y, upper ? 0x5410 : 0x7632), 2);
        bytes = make_uint2(__byte_perm(bytes.x, got, upper ? 0x3254 : 0x5410), __byte_perm(bytes.y, got, upper ? 0x3276 : 0x7610));
    }
    const bool upper = threadIdx.x & 1;
    const unsigned got = __shfl_xor_sync(ALL, upper ? bytes.x : bytes.y, 1);
    return upper ? make_uint2(got, bytes.y) : make_uint2(bytes.x, got);
}

__device__ __forceinline__ unsigned magnitude(float x) { return __float_as_uint(x) & 0x7FFFFFFFu; }

// The larger of the largest so far and a thread's magnitudes, without the infinite ones if FINITE.
template <bool FINITE> __device__ __forceinline__ float larger(float largest, const float (&x)[VECTORS][VECTOR]) {
    #pragma unroll
    for (int n = 0; n < VECTORS * VECTOR; ++n) {
        const float one = fabsf(x[n / VECTOR][n % VECTOR]);
        largest = fmaxf(largest, FINITE && magnitude(one) >= INFINITY_BITS ? 0.f : one);  // never a NaN
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
        const float quotient = __fmul_rn(x, reciprocal);
        const float corrected = __fmaf_rn(__fmaf_rn(-quotient, scale, x), reciprocal, quotient);
        return __uint_as_float(__float_as_uint(corrected) | (__float_as_uint(x) & 0x80000000u));
    }
};

// A vector in e4m3; if not PLAIN, numbers may be infinite, and the scale tiny.
template <bool PLAIN> __device__ __forceinline__ uint2 rounded(const float (&x)[VECTOR], const Divisor& by) {
    unsigned words[2] = {0u, 0u};
    #pragma unroll
    for (int i = 0; i < VECTOR; i += 2) {
        const float left = PLAIN ? x[i] : multiply(x[i], by.lift), right = PLAIN ? x[i + 1] : multiply(x[i + 1], by.lift);
        unsigned short both;
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(by.of(right)), "f"(by.of(left)));
        unsigned two = both;
        if constexpr (!PLAIN) {
            if (magnitude(x[i]) >= INFINITY_BITS) two = (two & 0xFF00u) | NAN_E4M3;
            if (magnitude(x[i + 1]) >= INFINITY_BITS) two = (two & 0xFFu) | NAN_E4M3 << 8;
        }
        words[i / 4] |= two << i % 4 * 8;
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
__device__ __forceinline__ void quantize_head(const Side& side, int number, const unsigned (&all_signs)[4]) {
    constexpr int LANES = ::LANES<D, ROTATED>, APART = ROTATED ? LANES * VECTOR : 0, AT_ONCE = ROTATED ? 1 : VECTORS;
    __shared__ unsigned of_warps[MOST_THREADS<ROTATED> / 32], of_cta_most;
    const int rank = blockIdx.x % CLUSTER, share = (side.length + CLUSTER - 1) / CLUSTER;
    const int begin = min(rank * share, side.length), rows = min(begin + share, side.length) - begin, step = blockDim.x / LANES;
    const int lane = threadIdx.x % LANES, own = threadIdx.x / LANES, column = lane * VECTOR;
    const Element* given = static_cast<const Element*>(side.given) + number / side.heads * side.batch + number % side.heads * side.head +
                           begin * side.row + column;
    unsigned char* values = side.values + (static_cast<long long>(number) * side.length + begin) * D + column;
    const unsigned signs = ROTATED ? all_signs[lane] : 0u;
    const float unit = ROTATED ? D == 64 ? 0.125f : 0.08838834764831845f : 1.f;
    float x[VECTORS][VECTOR];
    const auto row_of = [&](int first, int v) { return first + own + (ROTATED ? 0 : v * step); };
    const auto read = [&](int first) {
        uint4 held[VECTORS];
        #pragma unroll
        for (int v = 0; v < VECTORS; ++v) {
            const int row = row_of(first, v);
            const Element* from = given + row * side.row + v * APART;
            held[v] = row < rows ? *reinterpret_cast<const uint4*>(from) : make_uint4(0u, 0u, 0u, 0u);
        }
        numbers<Element, D, ROTATED>(x, held, signs);
    };
    // The largest magnitude of the CTA, by its bits; rounding goes up with what is rounded, so that one multiplication is enough.
    const auto search = [&](auto finite) {
        float most = 0;
        #pragma unroll 1
        for (int first = 0; first < rows; first += AT_ONCE * step) {
            read(first);
            most = larger<decltype(finite)::value>(most, x);
        }
        if (ROTATED) most = multiply(most, unit);
        const unsigned of_warp = __reduce_max_sync(ALL, __float_as_uint(most));
        if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = of_warp;
        __syncthreads();
        const unsigned of_cta = __reduce_max_sync(ALL, threadIdx.x % 32 < blockDim.x / 32 ? of_warps[threadIdx.x % 32] : 0u);
        __syncthreads();
        return of_cta;
    };
    unsigned largest = search(No());
    const bool finite = largest < INFINITY_BITS;
    if (!finite) largest = search(Yes());
    if (threadIdx.x == 0) of_cta_most = largest;
    arrive();
    wait();
    largest = 0;
    #pragma unroll
    for (int other = 0; other < CLUSTER; ++other) largest = max(largest, of_cta(&of_cta_most, other));
    arrive();  // nobody ends before all have read

    const float scale = __uint_as_float(max(__float_as_uint(divide(__uint_as_float(largest), 448.f)), TINY_BITS));
    const Divisor by(scale);
    if (rank == 0 && threadIdx.x == 0) side.scales[number] = scale;
    const auto write = [&](auto plain) {
        // Backwards: what was read last is still in the L2.
        #pragma unroll 1
        for (int first = (rows - 1) / (AT_ONCE * step) * (AT_ONCE * step); first >= 0; first -= AT_ONCE * step) {
            read(first);
            #pragma unroll
            for (int v = 0; v < VECTORS; ++v) {
                if (ROTATED)
                    #pragma unroll
                    for (int i = 0; i < VECTOR; ++i) x[v][i] = multiply(x[v][i], unit);
                uint2 bytes = rounded<decltype(plain)::value>(x[v], by);
                if constexpr (ROTATED) bytes = in_order<D>(bytes);
                const int row = row_of(first, v);
                if (row < rows) *reinterpret_cast<uint2*>(values + row * D + v * APART) = bytes;
            }
        }
    };
    if (finite && scale >= SMALL) write(Yes());
    else write(No());
    wait();
}

// Heads of Q, then of K, then of V, over all batches.
template <typename Element, int D, bool ROTATED>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(MOST_THREADS<ROTATED>, ROTATED ? 3 : 2)
quantize(const __grid_constant__ Given given) {
    const int number = blockIdx.x / CLUSTER, queries = given.batches * given.q.heads, keys = given.batches * given.k.heads;
    const Side& side = number < queries ? given.q : number < queries + keys ? given.k : given.v;
    const int of_side = number - (number < queries ? 0 : number < queries + keys ? queries : queries + keys);
    if (ROTATED && number < queries + keys) quantize_head<Element, D, ROTATED>(side, of_side, given.signs);
    else quantize_head<Element, D, false>(side, of_side, given.signs);
}
