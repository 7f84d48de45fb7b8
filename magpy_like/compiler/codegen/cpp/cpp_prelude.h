// Prelude of generated C++ kernels: types, math functions, reductions, memory operations. It
// includes no header: parsing headers would dominate a kernel's compile time.
#pragma once

#if defined(__GNUC__) && !defined(__clang__)
// A loop that copies a strip must become a vector loop, not memcpy: memcpy writes in other pieces
// than those read back, which defeats store-to-load forwarding.
#pragma GCC optimize("no-tree-loop-distribute-patterns")
#endif

typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;
struct bf16 { u16 bits; };
struct f16 { u16 bits; };

#define MEMBER inline __attribute__((always_inline))
#define INLINE static MEMBER

// --- the part of CPython's stable interface that a kernel's entry needs ----------------------
extern "C" {
struct PyObject;
void* PyLong_AsVoidPtr(PyObject*);
long long PyLong_AsLongLong(PyObject*);
PyObject* PyLong_FromLong(long);
double PyFloat_AsDouble(PyObject*);
void PyErr_SetString(PyObject*, const char*);
void* PyEval_SaveThread();
void PyEval_RestoreThread(void*);
extern PyObject* PyExc_IndexError;
extern PyObject* PyExc_RuntimeError;
struct PyMethodDef { const char* name; void* function; int flags; const char* doc; };
extern PyMethodDef magpy_kernels[];  // one row per kernel, in order

int omp_get_max_threads();
int omp_get_num_threads();
int omp_get_thread_num();
void* aligned_alloc(unsigned long, unsigned long);
void free(void*);

// libmvec has vector versions of these. const: no side effects, the result depends on arguments
// only.
#define VECTOR __attribute__((simd("notinbranch"), const))
#define FLOATS(name) VECTOR double name(double); VECTOR float name##f(float);
FLOATS(exp) FLOATS(log) FLOATS(exp2) FLOATS(expm1) FLOATS(log2)
FLOATS(log10) FLOATS(log1p) FLOATS(tan) FLOATS(asin) FLOATS(acos) FLOATS(atan) FLOATS(sinh)
FLOATS(cosh) FLOATS(tanh) FLOATS(asinh) FLOATS(acosh) FLOATS(atanh) FLOATS(erf) FLOATS(erfc)
VECTOR double pow(double, double); VECTOR float powf(float, float);
VECTOR double atan2(double, double); VECTOR float atan2f(float, float);
VECTOR double hypot(double, double); VECTOR float hypotf(float, float);
double lgamma_r(double, int*); float lgammaf_r(float, int*);
double fmod(double, double); float fmodf(float, float);
double nextafter(double, double); float nextafterf(float, float);
#undef FLOATS
// Names unknown to the compiler: it would merge a sine and a cosine of the same argument into one
// call without a vector version.
VECTOR double sine(double) __asm__("sin"); VECTOR float sinef(float) __asm__("sinf");
VECTOR double cosine(double) __asm__("cos"); VECTOR float cosinef(float) __asm__("cosf");
}

template <class To, class From> INLINE To bitcast(From x) {
    static_assert(sizeof(To) == sizeof(From), "same size");
    To y;
    __builtin_memcpy(&y, &x, sizeof y);
    return y;
}

// One name per function for both widths.
#define BOTH1(name) INLINE f32 m_##name(f32 x) { return name##f(x); } \
                    INLINE f64 m_##name(f64 x) { return name(x); }
#define BOTH2(name) INLINE f32 m_##name(f32 x, f32 y) { return name##f(x, y); } \
                    INLINE f64 m_##name(f64 x, f64 y) { return name(x, y); }
BOTH1(exp2) BOTH1(expm1) BOTH1(log2) BOTH1(log10)
BOTH1(log1p) BOTH1(tan) BOTH1(asin) BOTH1(acos) BOTH1(atan) BOTH1(sinh) BOTH1(cosh)
BOTH1(asinh) BOTH1(acosh) BOTH1(atanh) BOTH1(erfc)
BOTH2(pow) BOTH2(atan2) BOTH2(hypot) BOTH2(fmod) BOTH2(nextafter)
#define BUILTIN1(name) INLINE f32 m_##name(f32 x) { return __builtin_##name##f(x); } \
                       INLINE f64 m_##name(f64 x) { return __builtin_##name(x); }
BUILTIN1(sqrt) BUILTIN1(floor) BUILTIN1(ceil) BUILTIN1(trunc)
INLINE f32 m_sin(f32 x) { return sinef(x); }
INLINE f64 m_sin(f64 x) { return sine(x); }
INLINE f32 m_cos(f32 x) { return cosinef(x); }
INLINE f64 m_cos(f64 x) { return cosine(x); }
INLINE f32 m_round(f32 x) { return __builtin_nearbyintf(x); }
INLINE f64 m_round(f64 x) { return __builtin_nearbyint(x); }
INLINE f32 m_abs(f32 x) { return __builtin_fabsf(x); }
INLINE f64 m_abs(f64 x) { return __builtin_fabs(x); }
INLINE f32 m_copysign(f32 x, f32 y) { return __builtin_copysignf(x, y); }
INLINE f64 m_copysign(f64 x, f64 y) { return __builtin_copysign(x, y); }
INLINE f32 m_fma(f32 x, f32 y, f32 z) { return __builtin_fmaf(x, y, z); }
INLINE f64 m_fma(f64 x, f64 y, f64 z) { return __builtin_fma(x, y, z); }
INLINE f32 m_lgamma(f32 x) { int sign; return lgammaf_r(x, &sign); }
INLINE f64 m_lgamma(f64 x) { int sign; return lgamma_r(x, &sign); }
// From the bits: GCC 12 fails on vectors of its own function over a widened bfloat16.
INLINE bool m_signbit(f32 x) { return bitcast<u32>(x) >> 31; }
INLINE bool m_signbit(f64 x) { return bitcast<u64>(x) >> 63; }
template <class T> INLINE T m_abs(T x) { return x < T(0) ? T(-x) : x; }
// To an integer, towards 0. Out-of-range values convert as by the processor's instruction: C++
// leaves them undefined, and a compiler that knows the value chooses another result.
template <class I, class T> INLINE I to_integer(T x) {
#if defined(__x86_64__)
    const I lowest = I(u64(1) << (8 * sizeof(I) - 1));
    return m_abs(x) < -T(lowest) ? I(x) : lowest;
#else
    return I(x);
#endif
}
template <class T> INLINE T m_sign(T x) { return T((T(0) < x) - (x < T(0))); }

// --- exp, log, erf and tanh of float32, without branches -----------------------------------------
// Calls into libmvec spill every vector register and stall the surrounding code. The polynomials
// are minimax fits for the relative error of the result; errors are below 1.1, 1, 1.3 and 1.5 units
// in the last place. Selecting among results costs less than clamping floats by comparison.
INLINE f64 m_exp(f64 x) { return exp(x); }
INLINE f64 m_erf(f64 x) { return erf(x); }
INLINE f64 m_tanh(f64 x) { return tanh(x); }
// e^x as p * 2^n, with n + bias in the exponent field of a float. Adding 1.5 * 2^23 rounds.
INLINE f32 exp_parts(f32 x, i32& n, f32 bias = 0) {
    const f32 rounding = 0x1.8p+23f + bias;
    f32 shifted = m_fma(x, 0x1.715476p+0f, rounding), whole = shifted - rounding;
    n = bitcast<i32>(shifted) << 23;
    f32 r = m_fma(whole, -0x1.7f7d1cp-20f, m_fma(whole, -0x1.62e4p-1f, x));  // x - whole * ln 2
    f32 s = r * r;
    f32 p = m_fma(0x1.6a5456p-10f, r, 0x1.123b0cp-7f);
    p = m_fma(p, s, m_fma(0x1.5558acp-5f, r, 0x1.55549p-3f));
    p = m_fma(p, r, 0x1.fffffcp-2f);
    return m_fma(p, s, r) + 1.f;
}
INLINE f32 m_exp(f32 x) {
    i32 n;
    f32 p = exp_parts(x, n);
    i32 half = (n >> 1) & 0xff800000;  // two factors: one alone would overflow or be subnormal
    p = p * bitcast<f32>(half + 0x3f800000) * bitcast<f32>(n - half + 0x3f800000);
    p = x > 89.f ? __builtin_inff() : p;
    return x < -104.f ? 0.f : p;
}
// For x <= 0 or NaN: one factor that leaves room for 2^-150, and one that undoes it.
INLINE f32 m_exp_nonpositive(f32 x) {
    i32 n;
    f32 p = exp_parts(x, n, 127 + 64);
    p = p * bitcast<f32>(n) * 0x1p-64f;
    return x < -104.f ? 0.f : p;
}
INLINE f64 m_exp_nonpositive(f64 x) { return exp(x); }
// For terms of a sum of which one is 1: subnormal results count as 0, and an error of two units in
// the last place does not matter.
INLINE f32 m_exp_addend(f32 x) {
    const f32 rounding = 0x1.8p+23f + 127;
    f32 shifted = m_fma(x, 0x1.715476p+0f, rounding), whole = shifted - rounding;
    f32 r = m_fma(whole, -0x1.62e43p-1f, x);
    f32 p = m_fma(0x1.1060e6p-7f, r, 0x1.572a3cp-5f);
    p = m_fma(p, r, 0x1.5557b2p-3f);
    p = m_fma(p, r, 0x1.fffdfcp-2f);
    p = m_fma(p, r, 1.f);
    p = m_fma(p, r, 1.f);
    p = p * bitcast<f32>(bitcast<i32>(shifted) << 23);
    return x < -88.f ? 0.f : p;  // beyond, the exponent field no longer holds the factor
}
INLINE f64 m_exp_addend(f64 x) { return exp(x); }
// For results that are neither subnormal nor infinite.
INLINE f32 exp_normal(f32 x) {
    i32 n;
    f32 p = exp_parts(x, n, 127);
    return p * bitcast<f32>(n);
}
// The lesser of |x| and a positive bound; the bound for NaN. Positive floats sort as their bits.
INLINE f32 bounded(f32 x, f32 bound) {
    i32 a = bitcast<i32>(m_abs(x)), b = bitcast<i32>(bound);
    return bitcast<f32>(a < b ? a : b);
}
// x + x p(x^2) near 0, else 1 - exp(q(|x|)). The latency of a chain of multiplications dominates,
// so these polynomials are evaluated in pairs.
INLINE f32 m_erf(f32 x) {
    f32 s = x * x, s2 = s * s;
    f32 p = m_fma(-0x1.4ec0ccp-11f, s, 0x1.4bd38ap-8f);
    p = m_fma(p, s2, m_fma(-0x1.b741e4p-6f, s, 0x1.ce25fep-4f));
    p = m_fma(p, s2, m_fma(-0x1.812728p-2f, s, 0x1.06eba8p-3f));
    f32 near = m_fma(p, x, x);
    f32 t = bounded(x, 4.f), t2 = t * t;
    f32 q = m_fma(0x1.af78ap-13f, t, -0x1.9b379ap-9f);
    q = m_fma(q, t2, m_fma(0x1.722c1ep-6f, t, -0x1.acbe3p-4f));
    f32 low = m_fma(-0x1.45d0dp-1f, t2, m_fma(-0x1.20ce86p+0f, t, -0x1.5fb25p-14f));
    f32 far = 1.f - exp_normal(m_fma(q, t2 * t, low));
    return m_abs(x) >= 0.84f ? m_copysign(far, x) : near;
}
// 1/2 + x/2 p(x^2) / q(x^2): less exact than erf and a third cheaper. The absolute error matters,
// and of it a quarter of a unit in the last place of 1 comes from the fit, the rest from rounding.
// At the bound the quotient rounds to 1, and up to there it never exceeds 1.
INLINE f32 m_normal_cdf(f32 x) {
    const f32 bound = 0x1.4e7cf6p+2f;
    f32 a = m_abs(x);
    a = a > bound ? bound : a;
    f32 s = a * a;
    f32 p = m_fma(0x1.85915ap-25f, s, 0x1.a67b4ep-17f);
    p = m_fma(p, s, 0x1.5cacfap-12f);
    p = m_fma(p, s, 0x1.317d88p-7f);
    p = m_fma(p, s, 0x1.1398e4p-4f);
    p = m_fma(p, s, 0x1.988452p-1f);
    f32 q = m_fma(0x1.3fbb4p-20f, s, 0x1.3092a4p-14f);
    q = m_fma(q, s, 0x1.ea4608p-10f);
    q = m_fma(q, s, 0x1.d33bf4p-6f);
    q = m_fma(q, s, 0x1.0104ccp-2f);
    q = m_fma(q, s, 1.f);
    return m_fma(m_copysign(a * p / q, x), 0.5f, 0.5f);
}
INLINE f64 m_normal_cdf(f64 x) { return 0.5 + 0.5 * erf(x * 0.70710678118654752); }
// x + x^3 p(x^2) near 0, else 1 - 2 / (e^|2x| + 1).
INLINE f32 m_tanh(f32 x) {
    f32 s = x * x;
    f32 p = m_fma(-0x1.9921ap-8f, s, 0x1.58e518p-6f);
    p = m_fma(p, s, -0x1.b91e7ep-5f);
    p = m_fma(p, s, 0x1.110ceep-3f);
    p = m_fma(p, s, -0x1.55554ap-2f);
    f32 near = m_fma(p * s, x, x);
    f32 t = bounded(x, 10.f);
    f32 far = 1.f - 2.f / (exp_normal(t + t) + 1.f);
    return m_copysign(m_abs(x) >= 0.55f ? far : near, x);  // near -0, near is +0
}
// x = 2^n m with m from sqrt(1/2) to sqrt(2): n ln 2 + f - f^2 / 2 + f^3 p(f), with f = m - 1.
INLINE f64 m_log(f64 x) { return log(x); }
INLINE f32 m_log(f32 x) {
    const bool small = x < 0x1p-126f;  // subnormal: scaled up
    const i32 least = 0x3f3504f3, bits = bitcast<i32>(small ? x * 0x1p23f : x) - least;
    const f32 n = f32((bits >> 23) - (small ? 23 : 0));
    f32 f = bitcast<f32>((bits & 0x7fffff) + least) - 1.f, s = f * f;
    f32 p = m_fma(-0x1.38b41p-4f, f, 0x1.055b2p-3f);
    p = m_fma(p, s, m_fma(-0x1.0d8564p-3f, f, 0x1.22da2ap-3f));
    p = m_fma(p, s, m_fma(-0x1.547242p-3f, f, 0x1.99a008p-3f));
    p = m_fma(p, s, m_fma(-0x1.000228p-2f, f, 0x1.555554p-2f));
    p = m_fma(p * f, s, m_fma(n, 0x1.7f7d1cp-20f, s * -0.5f));
    p = m_fma(n, 0x1.62e4p-1f, f + p);  // the product is exact
    p = x < __builtin_inff() ? p : x;  // infinite, or NaN
    p = x > 0 || x != x ? p : x < 0 ? __builtin_nanf("") : -__builtin_inff();
    return p;
}
template <class T> INLINE T m_sigmoid(T x) { return T(1) / (T(1) + m_exp(-x)); }

// Eager's maximum and minimum: NaN if either is.
template <class T> INLINE T m_maximum(T a, T b) { return (a > b) | (a != a) ? a : b; }
template <class T> INLINE T m_minimum(T a, T b) { return (a < b) | (a != a) ? a : b; }
template <class T> INLINE T m_fmax(T a, T b) { return (a >= b) | (b != b) ? a : b; }
template <class T> INLINE T m_fmin(T a, T b) { return (a <= b) | (b != b) ? a : b; }
template <class T> INLINE T log_add_exp(T a, T b) {
    T low = m_minimum(a, b), high = m_maximum(a, b);
    bool same_infinity = (low == high) & (high - high != 0);
    return same_infinity ? high : high + m_log1p(m_exp(low - high));
}
// True if (a, i) is a better extremum than (b, j): NaN is best; ties go to the smaller index.
template <class T> INLINE bool greater_first(T a, i64 i, T b, i64 j) {
    bool an = a != a, bn = b != b;
    return an != bn ? an : (a > b) | (((a == b) | an) & (i < j));
}
template <class T> INLINE bool less_first(T a, i64 i, T b, i64 j) {
    bool an = a != a, bn = b != b;
    return an != bn ? an : (a < b) | (((a == b) | an) & (i < j));
}

// For elements in order: true if a is better than b, which came before it.
template <bool largest, class T> INLINE bool exceeds(T a, T b) {
    return (largest ? a > b : a < b) | ((a != a) & (b == b));
}

// --- reductions along a row ----------------------------------------------------------------------
// Partial results side by side, one per lane of a strip of sixteen 4-byte elements. They are
// combined as a tree at the end: in sequence, each would wait for the previous one.
#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif
struct Add { template <class V> MEMBER static void into(V& a, const V& b) { a += b; } };
struct Times { template <class V> MEMBER static void into(V& a, const V& b) { a *= b; } };
struct Or { template <class V> MEMBER static void into(V& a, const V& b) { a |= b; } };
template <bool largest> struct Better {
    template <class V> MEMBER static void into(V& a, const V& b) {
        a = largest ? (b > a ? b : a) : (b < a ? b : a);
    }
};
// Reduce the elements of a vector to one.
template <class Take, int width, class V> INLINE auto fold(const V& v) {
    if constexpr (width == 16) {
        auto low = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7);
        Take::into(low, __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
        return fold<Take, 8>(low);
    } else if constexpr (width == 8) {
        auto low = __builtin_shufflevector(v, v, 0, 1, 2, 3);
        Take::into(low, __builtin_shufflevector(v, v, 4, 5, 6, 7));
        return fold<Take, 4>(low);
    } else {
        auto a = v[0], b = v[1], c = v[2], d = v[3];
        Take::into(a, c);
        Take::into(b, d);
        Take::into(a, b);
        return a;
    }
}
// As many vectors as the processor needs for a strip: compilers keep wider vectors, and arrays of
// vectors, in memory.
template <class T> struct Strip {
    typedef T Lanes __attribute__((vector_size(4 * LANES), may_alias));
    Lanes a, b, c, d;
    MEMBER void fill(T x) { a = b = c = d = x - Lanes{}; }
    MEMBER static Strip of(const T* from) {
        const Lanes* part = (const Lanes*)from;
        Strip s;
        s.fill(0);
        s.a = part[0];
        if constexpr (LANES < 16) s.b = part[1];
        if constexpr (LANES < 8) s.c = part[2], s.d = part[3];
        return s;
    }
    template <class Take> MEMBER void take(const Strip& x) {
        Take::into(a, x.a);
        if constexpr (LANES < 16) Take::into(b, x.b);
        if constexpr (LANES < 8) Take::into(c, x.c), Take::into(d, x.d);
    }
    template <class Take> MEMBER T folded() const {
        Lanes all = a;
        if constexpr (LANES < 16) Take::into(all, b);
        if constexpr (LANES < 8) Take::into(all, c), Take::into(all, d);
        return fold<Take, LANES>(all);
    }
};
template <class T, class Take> struct Folded {
    Strip<T> lanes;
    MEMBER Folded(T start) { lanes.fill(start); }
    MEMBER void add(const T* strip) { lanes.template take<Take>(Strip<T>::of(strip)); }
    MEMBER void join(const Folded& other) { lanes.template take<Take>(other.lanes); }
    MEMBER T result() const { return lanes.template folded<Take>(); }
};
template <class T> struct Sum : Folded<T, Add> { MEMBER Sum() : Folded<T, Add>(0) {} };
#if defined(__AVX512DQ__) && defined(__GNUC__) && !defined(__clang__)
#define POWERS_512
typedef Strip<f32>::Lanes Floats;
INLINE Floats fused(const Floats& x, const Floats& y, const Floats& z) {
    return __builtin_ia32_vfmaddps512_mask(x, y, z, -1, 4);
}
// sum + e^x. With t = x log2(e) = k / 32 + f, one instruction yields f, the last bits of k select a
// power of 2 from a table, another instruction multiplies it by 2^floor(t), and the polynomial in f
// multiplies the product as it is added. Infinity needs no special case: its f is 0. The fit's
// error is a unit in the last place of 1/2, and the table's that much times 2^(i / 32). As t is
// rounded, the error grows with -x; but since one power is 1, n others matter as much only if -x <=
// log(n).
INLINE Floats add_powers(const Floats& sum, const Floats& x) {
    alignas(64) static const f32 powers[32] = {
        0x1p+0f, 0x1.059b0ep+0f, 0x1.0b5588p+0f, 0x1.11301ep+0f, 0x1.172b84p+0f,
        0x1.1d4874p+0f, 0x1.2387a8p+0f, 0x1.29e9ep+0f, 0x1.306fe2p+0f, 0x1.371a74p+0f,
        0x1.3dea66p+0f, 0x1.44e088p+0f, 0x1.4bfdaep+0f, 0x1.5342b6p+0f, 0x1.5ab08p+0f,
        0x1.6247ecp+0f, 0x1.6a09e8p+0f, 0x1.71f76p+0f, 0x1.7a1148p+0f, 0x1.82589ap+0f,
        0x1.8ace56p+0f, 0x1.93737cp+0f, 0x1.9c491ap+0f, 0x1.a5503cp+0f, 0x1.ae89fcp+0f,
        0x1.b7f77p+0f, 0x1.c199cp+0f, 0x1.cb721p+0f, 0x1.d5819p+0f, 0x1.dfc974p+0f,
        0x1.ea4afcp+0f, 0x1.f50768p+0f};
    const Floats zero = {}, t = x * 0x1.715476p+0f;
    const int all = -1, to_32nds_down = 0x51, down = 9, as_set = 4;
    const Floats f = __builtin_ia32_reduceps512_mask(t, to_32nds_down, zero, all);
    // The last bit of so large a float is 1 / 32.
    const Floats k = __builtin_ia32_addps512_mask(t, zero + 0x1.8p18f, zero, all, down);
    const Floats part = __builtin_shuffle(
        *(const Floats*)powers, *(const Floats*)(powers + 16), (Strip<i32>::Lanes)k);
    const Floats power = __builtin_ia32_scalefps512_mask(part, t, zero, all, as_set);
    const Floats p = fused(zero + 0x1.f15848p-3f, f, zero + 0x1.62e028p-1f);
    return fused(fused(p, f, zero + 1), power, sum);
}
#endif
// The sum of powers from their exponents, where the accuracy of m_exp_addend suffices.
struct PowerSum : Sum<f32> {
    MEMBER void add(const f32* exponents) {
#if defined(POWERS_512)
        lanes.a = add_powers(lanes.a, *(const Floats*)exponents);
#else
        alignas(64) f32 powers[16];
#pragma omp simd
        for (int lane = 0; lane < 16; ++lane) powers[lane] = m_exp_addend(exponents[lane]);
        Sum<f32>::add(powers);
#endif
    }
};
template <class T> struct Product : Folded<T, Times> {
    MEMBER Product(T start) : Folded<T, Times>(start) {}
};
// The maximum or minimum. The processor's instruction ignores NaN, and is four times as fast as one
// that does not: so NaN is detected separately.
template <class T, bool largest> struct Extremum {
    typedef Better<largest> Best;
    Strip<T> lanes;
    Strip<i32> unordered;
    MEMBER Extremum(T start) {
        lanes.fill(start);
        unordered.fill(0);
    }
    MEMBER void add(const T* strip) {
        const Strip<T> x = Strip<T>::of(strip);
        unordered.template take<Or>({x.a != x.a, x.b != x.b, x.c != x.c, x.d != x.d});
        lanes.template take<Best>(x);
    }
    MEMBER void join(const Extremum& other) {
        unordered.template take<Or>(other.unordered);
        lanes.template take<Best>(other.lanes);
    }
    MEMBER T result() const {
        const T best = lanes.template folded<Best>();
        return unordered.template folded<Or>() ? T(__builtin_nan("")) : best;
    }
};
// The maximum of the elements that are not NaN.
template <class T> struct Largest : Folded<T, Better<true>> {
    MEMBER Largest(T start) : Folded<T, Better<true>>(start) {}
};
// The extremum of each lane and its strip; among equal ones the first.
template <class T, bool largest> struct Place {
    Strip<T> lanes;
    Strip<i32> strips;
    MEMBER Place(T start) {
        lanes.fill(start);
        strips.fill(0);
    }
    template <class V, class I> MEMBER static void choose(V& best, I& at, const V& x, i32 strip) {
        const I ahead = largest ? x > best : x < best;
        const I better = ahead | ((x != x) & (best == best));
        best = better ? x : best;
        at = better ? strip - I{} : at;
    }
    MEMBER void add(const T* from, i64 strip) {
        const Strip<T> x = Strip<T>::of(from);
        choose(lanes.a, strips.a, x.a, i32(strip));
        if constexpr (LANES < 16) choose(lanes.b, strips.b, x.b, i32(strip));
        if constexpr (LANES < 8) {
            choose(lanes.c, strips.c, x.c, i32(strip));
            choose(lanes.d, strips.d, x.d, i32(strip));
        }
    }
    template <class V, class I>
    MEMBER static void choose_first(V& best, I& at, const V& x, const I& strip) {
        const I same = (x == best) | ((x != x) & (best != best));
        const I earlier = same & (strip < at);
        const I ahead = largest ? x > best : x < best;
        const I better = ahead | ((x != x) & (best == best)) | earlier;
        best = better ? x : best;
        at = better ? strip : at;
    }
    MEMBER void join(const Place& other) {
        choose_first(lanes.a, strips.a, other.lanes.a, other.strips.a);
        if constexpr (LANES < 16) choose_first(lanes.b, strips.b, other.lanes.b, other.strips.b);
        if constexpr (LANES < 8) {
            choose_first(lanes.c, strips.c, other.lanes.c, other.strips.c);
            choose_first(lanes.d, strips.d, other.lanes.d, other.strips.d);
        }
    }
    MEMBER static Strip<i32> where(const Strip<i32>& is, const Strip<i32>& x) {
        const i32 none = 0x7fffffff;
        return {is.a ? x.a : none - x.a * 0, is.b ? x.b : none - x.b * 0,
                is.c ? x.c : none - x.c * 0, is.d ? x.d : none - x.d * 0};
    }
    // Among the lanes with the extremum, take those of the first strip, and among these the first.
    MEMBER void merge_into(T& best, i64& at, i64 from) const {
        alignas(64) const i32 order[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        const T top = lanes.template folded<Better<largest>>();
        Strip<i32> is = {lanes.a != lanes.a, lanes.b != lanes.b, lanes.c != lanes.c,
                         lanes.d != lanes.d};
        const bool nan = is.template folded<Or>();
        if (!nan) is = {lanes.a == top, lanes.b == top, lanes.c == top, lanes.d == top};
        const i32 strip = where(is, strips).template folded<Better<false>>();
        is = {is.a & (strips.a == strip), is.b & (strips.b == strip), is.c & (strips.c == strip),
              is.d & (strips.d == strip)};
        const i32 lane = where(is, Strip<i32>::of(order)).template folded<Better<false>>();
        const T value = nan ? T(__builtin_nan("")) : top;
        const i64 place = from + 16 * i64(strip) + lane;
        if (largest ? greater_first(value, place, best, at) : less_first(value, place, best, at)) {
            best = value;
            at = place;
        }
    }
};
// Merge the sum of n elements, and of their squared differences from their mean, into the total of
// count elements (Chan, Golub and LeVeque: the parallel form of Welford's recurrence). It keeps a
// sum, not a mean: it stays infinite where an element is.
INLINE void merge_spread(f64& sum, f64& m2, f64& count, f64 part, f64 spread, f64 n) {
    f64 delta = part / n - sum / (count > 0 ? count : 1);
    m2 += spread + delta * delta * (count * n / (count + n));
    sum += part;
    count += n;
}
// The same from sums of n differences from a finite number, and of their squares. The differences
// yield a more exact sum of the elements than adding them up.
INLINE void merge_shifted(
    f64& sum, f64& m2, f64& count, f64 from, f64 off, f64 squares, i64 n) {
    merge_spread(sum, m2, count, from * f64(n) + off, squares - off * off / f64(n), f64(n));
}
// True if a sum of squares in float32 is reliable: it has not overflowed, and no relevant square
// may have underflowed; a sum of 0 may hide such squares.
INLINE bool in_range(f32 squares) { return squares > 0x1p-90f && squares < __builtin_inff(); }
// The same from stored elements, in float64, as in eager. Out of line, as it is rare.
__attribute__((noinline, cold, unused)) static void merge_wide(
    f64& sum, f64& m2, f64& count, const f32* kept, i64 n) {
    f64 part = 0, off = 0, squares = 0;
#pragma omp simd reduction(+ : part)
    for (i64 k = 0; k < n; ++k) part += kept[k];
    const f64 mean = part / f64(n), center = mean - mean == 0 ? mean : 0;
#pragma omp simd reduction(+ : off, squares)
    for (i64 k = 0; k < n; ++k) {
        const f64 d = kept[k] - center;
        off += d;
        squares = m_fma(d, d, squares);
    }
    merge_shifted(sum, m2, count, center, off, squares, n);
}
// The same from elements that a loop has stored and summed; there is room for a multiple of 32.
INLINE void merge_kept(f64& sum, f64& m2, f64& count, f32 part, f32* kept, i64 n) {
    const f32 center = part / f32(n);
    for (i64 k = n; k & 31; ++k) kept[k] = center;
    Sum<f32> off[2], squares[2];
    for (i64 k = 0; k < n; k += 32) {
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
            alignas(64) f32 distance[16], square[16];
#pragma omp simd
            for (int lane = 0; lane < 16; ++lane) {
                distance[lane] = kept[k + 16 * half + lane] - center;
                square[lane] = distance[lane] * distance[lane];
            }
            off[half].add(distance);
            squares[half].add(square);
        }
    }
    off[0].join(off[1]);
    squares[0].join(squares[1]);
    const f32 spread = squares[0].result();
    if (in_range(spread)) {
        merge_shifted(sum, m2, count, center, off[0].result(), spread, n);
    } else {
        merge_wide(sum, m2, count, kept, n);
    }
}
INLINE void merge_kept(f64& sum, f64& m2, f64& count, f64 part, const f64* kept, i64 n) {
    const f64 mean = part / f64(n), center = mean - mean == 0 ? mean : 0;
    f64 off = 0, squares = 0;
#pragma omp simd reduction(+ : off, squares)
    for (i64 k = 0; k < n; ++k) {
        const f64 d = kept[k] - center;
        off = off + d;
        squares = m_fma(d, d, squares);
    }
    merge_shifted(sum, m2, count, center, off, squares, n);
}
// Sums of elements, of their differences from a number, and of the squares of these. The number is
// the mean of all earlier blocks. If a block's own mean is far from it, the squares are large
// compared with the block's spread, and inexact; but so is then the contribution of the difference
// of the means.
struct Spread {
    Strip<f32> sum, off, squares;
    f32 from;
    MEMBER Spread(f32 from) : from(from) {
        sum.fill(0);
        off.fill(0);
        squares.fill(0);
    }
    MEMBER void add(const f32* strip) {
        const Strip<f32> x = Strip<f32>::of(strip);
        const Strip<f32> d = {x.a - from, x.b - from, x.c - from, x.d - from};
        sum.take<Add>(x);
        off.take<Add>(d);
        squares.take<Add>({d.a * d.a, d.b * d.b, d.c * d.c, d.d * d.d});
    }
    MEMBER void join(const Spread& other) {
        sum.take<Add>(other.sum);
        off.take<Add>(other.off);
        squares.take<Add>(other.squares);
    }
    // The first block has no earlier mean: its elements are read again.
    MEMBER void merge_into(f64& total, f64& m2, f64& count, f32* kept, i64 n) const {
        const f32 part = sum.folded<Add>();
        if (count == 0) {
            merge_kept(total, m2, count, part, kept, n);
            return;
        }
        const f32 distance = off.folded<Add>(), spread = squares.folded<Add>();
        if (in_range(spread)) {
            merge_shifted(total, m2, count, from, distance, spread, n);
        } else {
            merge_wide(total, m2, count, kept, n);
        }
    }
};

// Integer division without the processor's traps: x / -1 wraps around, x / 0 is an arbitrary
// number; code that may divide by 0 checks for it.
template <class T> INLINE T int_truncdiv(T a, T b) {
    return (T(-1) < T(0)) & (b == T(-1)) ? T(0 - u64(a)) : T(a / (b == 0 ? T(1) : b));
}
template <class T> INLINE T int_fmod(T a, T b) { return T(a - u64(int_truncdiv(a, b)) * b); }
// Floor division, and the remainder with the divisor's sign.
template <class T> INLINE T int_floordiv(T a, T b) {
    T q = int_truncdiv(a, b), r = T(a - u64(q) * b);
    return T(q - ((r != 0) & ((a < 0) != (b < 0))));
}
template <class T> INLINE T int_remainder(T a, T b) {
    T r = int_fmod(a, b);
    return T(r + ((r != 0) & ((r < 0) != (b < 0)) ? b : T(0)));
}
template <class T> INLINE T int_pow(T a, T b) {
    if (b < 0) return a == 1 ? T(1) : T(-1) < T(0) && a == T(-1) ? (b & 1 ? T(-1) : T(1)) : T(0);
    u64 base = u64(a), result = 1;
    for (u64 n = u64(b); n; n >>= 1, base *= base)
        if (n & 1) result *= base;
    return T(result);
}
template <class T> INLINE T float_floordiv(T a, T b) {
    if (b == 0) return a / b;
    T mod = m_fmod(a, b);
    T div = (a - mod) / b;
    if ((mod != 0) & ((b < 0) != (mod < 0))) div -= 1;
    if (div != 0) {
        T floored = m_floor(div);
        return div - floored > T(0.5) ? floored + 1 : floored;
    }
    return m_copysign(T(0), a / b);
}
template <class T> INLINE T float_remainder(T a, T b) {
    T mod = m_fmod(a, b);
    return (mod != 0) & ((b < 0) != (mod < 0)) ? mod + b : mod;
}
template <class T> INLINE T m_gcd(T a, T b) {
    a = m_abs(a);
    b = m_abs(b);
    while (a != 0) {
        T c = a;
        a = b % a;
        b = c;
    }
    return b;
}
template <class T> INLINE T m_lcm(T a, T b) {
    T g = m_gcd(a, b);
    return g == 0 ? T(0) : T(m_abs(a / g * b));  // narrow integers are multiplied as ints
}
// Shifts by a negative or too large amount yield 0, or the sign.
template <class T> INLINE T shift_left(T a, T b) {
    const T bits = sizeof(T) * 8;
    return (b < 0) | (b >= bits) ? T(0) : T(u64(a) << b);
}
template <class T> INLINE T shift_right(T a, T b) {
    const T top = sizeof(T) * 8 - (T(-1) < T(0) ? 1 : 0);
    return (b < 0) | (b >= top) ? (T(-1) < T(0) ? T(a >> (sizeof(T) * 8 - 1)) : T(0)) : T(a >> b);
}

// --- memory types to values and back -------------------------------------------------------------
template <int size> struct Bits;
template <> struct Bits<1> { typedef u8 type; };
template <> struct Bits<2> { typedef u16 type; };
template <> struct Bits<4> { typedef u32 type; };
template <> struct Bits<8> { typedef u64 type; };
// A loop-invariant selection, by bits.
INLINE u64 mask_of(bool condition) {
    u64 mask = -u64(condition);
    __asm__("" : "+r"(mask));  // keeps the compiler from recognising a condition, and branching
    return mask;
}
template <class T> INLINE T blend(u64 mask, T a, T b) {
    typedef typename Bits<sizeof(T)>::type U;
    return bitcast<T>(U((bitcast<U>(a) & U(mask)) | (bitcast<U>(b) & ~U(mask))));
}
// Square tiles as wide as a vector, transposed in registers: log2(side) times, rows k and k + side
// / 2 are interleaved.
template <class T> struct Tile {
    static constexpr int side = 4 * LANES / sizeof(T) < 16 ? 4 * LANES / sizeof(T) : 16;
    typedef T row __attribute__((vector_size(side * sizeof(T))));
    typedef T loose __attribute__((vector_size(side * sizeof(T)), aligned(sizeof(T)), may_alias));
    INLINE void interleave(const row* a, row* b) {
#pragma GCC unroll 8
        for (int k = 0; k < side / 2; ++k) {
            const row x = a[k], y = a[k + side / 2];
            if constexpr (side == 16) {
                b[2 * k] = __builtin_shufflevector(
                    x, y, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
                b[2 * k + 1] = __builtin_shufflevector(
                    x, y, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
            } else if constexpr (side == 8) {
                b[2 * k] = __builtin_shufflevector(x, y, 0, 8, 1, 9, 2, 10, 3, 11);
                b[2 * k + 1] = __builtin_shufflevector(x, y, 4, 12, 5, 13, 6, 14, 7, 15);
            } else if constexpr (side == 4) {
                b[2 * k] = __builtin_shufflevector(x, y, 0, 4, 1, 5);
                b[2 * k + 1] = __builtin_shufflevector(x, y, 2, 6, 3, 7);
            } else {
                b[2 * k] = __builtin_shufflevector(x, y, 0, 2);
                b[2 * k + 1] = __builtin_shufflevector(x, y, 1, 3);
            }
        }
    }
    INLINE void transpose(T* out, const T* in, i64 step) {
        row a[side], b[side];
#pragma GCC unroll 16
        for (int k = 0; k < side; ++k) a[k] = *(const loose*)(in + k * step);
        interleave(a, b);
        if constexpr (side >= 4) interleave(b, a);
        if constexpr (side >= 8) interleave(a, b);
        if constexpr (side >= 16) interleave(b, a);
        const row* done = side == 4 || side == 16 ? a : b;
#pragma GCC unroll 16
        for (int k = 0; k < side; ++k) *(loose*)(out + 16 * k) = done[k];
    }
};
// out[16 i + j] = in[i + step j] for i below rows and j below columns.
template <class T> INLINE void transpose(T* out, const T* in, i64 step, i64 rows, i64 columns) {
    typedef typename Bits<sizeof(T)>::type U;
    constexpr int side = Tile<U>::side;
    if (rows == 16 && columns == 16) {
        for (int i = 0; i < 16; i += side)
            for (int j = 0; j < 16; j += side)
                Tile<U>::transpose((U*)out + 16 * i + j, (const U*)in + i + step * j, step);
        return;
    }
    for (i64 j = 0; j < columns; ++j)
        for (i64 i = 0; i < rows; ++i) out[16 * i + j] = in[i + step * j];
}
// A row gather: the positions of a strip of 16 elements in a row, as a permutation of one or two
// vectors of the row that hold them all, or anywhere (vectors = 0).
struct alignas(64) Taking { i32 lane[16]; i32 from, vectors; };
INLINE void find_takings(Taking* strips, const i64* at, i64 count, i64 extent) {
    for (i64 start = 0; start < count; start += 16) {
        Taking& strip = strips[start / 16];
        i64 low = at[start], high = low;
        for (i64 k = start; k < start + 16 && k < count; ++k) {
            low = at[k] < low ? at[k] : low;
            high = at[k] > high ? at[k] : high;
        }
        i64 from = 0;
        strip.vectors = 0;
        for (i64 vectors = 1; vectors <= 2 && strip.vectors == 0; ++vectors) {
            const i64 first = low + 16 * vectors <= extent ? low : extent - 16 * vectors;
            if (first < 0 || high - first >= 16 * vectors) continue;
            from = first;
            strip.vectors = i32(vectors);
        }
        strip.from = i32(from);
        for (i64 k = 0; k < 16; ++k) strip.lane[k] = start + k < count ? i32(at[start + k] - from) : 0;
    }
}
template <class T> INLINE void take(T* out, const T* row, const Taking& strip) {
#if defined(__AVX512F__) && defined(__GNUC__) && !defined(__clang__)
    typedef u32 full __attribute__((vector_size(64), may_alias));
    typedef u32 loose __attribute__((vector_size(64), may_alias, aligned(4)));
    const full lane = *(const full*)strip.lane;
    const T* from = row + strip.from;
    if (strip.vectors == 1) {
        *(full*)out = __builtin_shuffle(*(const loose*)from, lane);
        return;
    }
    if (strip.vectors == 2) {
        *(full*)out = __builtin_shuffle(*(const loose*)from, *(const loose*)(from + 16), lane);
        return;
    }
#endif
    for (i64 k = 0; k < 16; ++k) out[k] = row[strip.from + strip.lane[k]];
}
// Prefetch n elements into a core's second-level cache; the address may be unreadable. The
// first-level cache has few line fill buffers, which computation needs.
template <class T> INLINE void fetch(const T* from, i64 n) {
    for (i64 k = 0; k < n; k += 64 / sizeof(T)) __builtin_prefetch(from + k, 0, 2);
}
// The same for rows of n elements at a distance of step.
template <int rows, int n, class T> INLINE void fetch_rows(const T* from, i64 step) {
#pragma GCC unroll 4
    for (i64 k = 0; k < rows; ++k)
#pragma GCC unroll 8
        for (i64 l = 0; l < n; l += 64 / sizeof(T)) __builtin_prefetch(from + k * step + l, 0, 2);
}
// The begin of a part of n elements that are divided among `parts`.
INLINE i64 part_begin(i64 n, i64 part, i64 parts) { return n * part / parts; }
// The rows of a thread, alternating between the two halves of its part of all rows.
struct Halves {
    i64 first, count, half;
    MEMBER Halves(i64 rows) {
        const i64 team = omp_get_num_threads(), own = omp_get_thread_num();
        first = part_begin(rows, own, team);
        count = part_begin(rows, own + 1, team) - first;
        half = (count + 1) / 2;
    }
    MEMBER i64 row(i64 turn) const { return first + turn / 2 + turn % 2 * half; }
};
// Streaming store of 16 elements, where the address is aligned. (clang has no such builtin.)
#if defined(__AVX512F__) && __has_builtin(__builtin_ia32_movntps512)
#define STREAM_512
#endif
#if defined(__AVX__) && __has_builtin(__builtin_ia32_movntps256)
#define STREAM_256
#endif
template <class T> INLINE void stream(T* to, const T* from) {
#if defined(STREAM_512)
    constexpr int width = sizeof(T) == 2 ? 32 : 64;
#elif defined(STREAM_256)
    constexpr int width = 32;
#else
    constexpr int width = 0;
#endif
    typedef f32 half __attribute__((vector_size(32), may_alias));
    typedef f32 full __attribute__((vector_size(64), may_alias));
    if (width == 0 || ((u64)to & (width - 1))) {
        __builtin_memcpy(to, from, 16 * sizeof(T));
        return;
    }
#if defined(STREAM_512)
    if (width == 64)
        for (unsigned k = 0; k < 16 * sizeof(T) / 64; ++k)
            __builtin_ia32_movntps512((f32*)((full*)to + k), ((const full*)from)[k]);
#endif
#if defined(STREAM_256)
    if (width == 32)
        for (unsigned k = 0; k < 16 * sizeof(T) / 32; ++k)
            __builtin_ia32_movntps256((f32*)((half*)to + k), ((const half*)from)[k]);
#endif
}
INLINE void streamed() {
#if defined(__AVX__)
    __builtin_ia32_sfence();
#endif
}
template <class T> INLINE T widen(T x) { return x; }
INLINE f32 widen(bf16 x) { return bitcast<f32>(u32(x.bits) << 16); }
INLINE f32 widen(f16 h) {
    u32 sign = u32(h.bits & 0x8000) << 16, rest = h.bits & 0x7fff;
    f32 small = f32(rest) * 5.9604644775390625e-08f;  // subnormal: multiples of 2^-24
    u32 normal = (rest << 13) + ((rest >= 0x7c00 ? 255 - 31 : 127 - 15) << 23);
    u32 bits = rest < 0x400 ? bitcast<u32>(small) : normal;
    return bitcast<f32>(bits | sign);
}
template <class M, class T> struct Narrow { INLINE M of(T x) { return M(x); } };
template <class T> struct Narrow<bf16, T> {
    INLINE bf16 of(T y) {
        u32 x = bitcast<u32>(f32(y));
        u32 rounded = (x + 0x7fff + ((x >> 16) & 1)) >> 16;
        return {u16((x & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded)};
    }
};
template <class T> struct Narrow<f16, T> {
    INLINE f16 of(T y) {
        u32 x = bitcast<u32>(f32(y)), sign = (x >> 16) & 0x8000, rest = x & 0x7fffffff;
        // Subnormal results: adding 0.5 lets the hardware round at the right bit.
        u32 small = bitcast<u32>(bitcast<f32>(rest) + 0.5f) - 0x3f000000;
        u32 normal = (rest + 0xfff + ((rest >> 13) & 1) - ((127 - 15) << 23)) >> 13;
        u32 special = rest > 0x7f800000 ? 0x7e00 : 0x7c00;
        u32 bits = rest >= 0x47800000 ? special : rest < 0x38800000 ? small : normal;
        return {u16(bits | sign)};
    }
};
template <class M, class T> INLINE M narrow(T x) { return Narrow<M, T>::of(x); }
// A float32 rounded to the values of a low precision type; ``keep`` then stores it unchanged. The
// arithmetic on bits stays 32 wide: narrowing and widening again costs several times more.
template <class M> struct Rounded;
template <> struct Rounded<bf16> {
    INLINE f32 of(f32 y) {
        u32 x = bitcast<u32>(y);
        u32 rounded = (x + 0x7fff + ((x >> 16) & 1)) & 0xffff0000;
        return y != y ? __builtin_nanf("") : bitcast<f32>(rounded);
    }
    INLINE bf16 keep(f32 y) { return {u16(bitcast<u32>(y) >> 16)}; }
};
template <> struct Rounded<f16> {
    // Adding and subtracting a number 2^13 times as large leaves the bits that float16 has, for
    // subnormals too. Values too large then overflow when scaled up.
    INLINE f32 of(f32 y) {
        i32 x = bitcast<i32>(y), power = (x & 0x7f800000) + (13 << 23) + 0x400000;
        const i32 smallest = ((127 - 1) << 23) + 0x400000, largest = ((127 + 30) << 23) + 0x400000;
        power = power - smallest;  // one bound becomes 0: no unsigned comparison
        power = power > 0 ? power : 0;
        power = power < largest - smallest ? power : largest - smallest;
        f32 large = bitcast<f32>(power + smallest);
        f32 r = (y + large) - large;
        r = bitcast<f32>(bitcast<i32>(r) | (x & (i32)0x80000000));  // -0
        return r * 0x1p112f * 0x1p-112f;
    }
    INLINE f16 keep(f32 y) { return Narrow<f16, f32>::of(y); }
};
// Conversion of n contiguous elements, by instructions that the compiler does not find itself.
INLINE void widen_row(f32* out, const f16* in, i64 n) {
    i64 k = 0;
#if defined(__AVX512F__)
    typedef long long bits __attribute__((vector_size(32), aligned(2), may_alias));
    typedef short words __attribute__((vector_size(32)));
    typedef f32 floats __attribute__((vector_size(64), aligned(4), may_alias));
    typedef f32 full __attribute__((vector_size(64)));
    for (; k + 16 <= n; k += 16)
        *(floats*)(out + k) = (floats)__builtin_ia32_vcvtph2ps512_mask(
            (words)*(const bits*)(in + k), full{}, (u16)-1, 4);
#endif
    for (; k < n; ++k) out[k] = widen(in[k]);
}
INLINE void narrow_row(f16* out, const f32* in, i64 n) {
    i64 k = 0;
#if defined(__AVX512F__)
    typedef short words __attribute__((vector_size(32)));
    typedef short loose __attribute__((vector_size(32), aligned(2), may_alias));
    typedef f32 floats __attribute__((vector_size(64), aligned(4), may_alias));
    typedef f32 full __attribute__((vector_size(64)));
    for (; k + 16 <= n; k += 16)
        *(loose*)(out + k) = (loose)__builtin_ia32_vcvtps2ph512_mask(
            (full)*(const floats*)(in + k), 0, words{}, (u16)-1);
#endif
    for (; k < n; ++k) out[k] = Narrow<f16, f32>::of(in[k]);
}
template <class M> INLINE f32 rounded(f32 x) { return Rounded<M>::of(x); }
template <class M> INLINE M keep(f32 x) { return Rounded<M>::keep(x); }
template <class T> INLINE T clip(T x, T low, T high) { return x < low ? low : x > high ? high : x; }
