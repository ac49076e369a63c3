// Short vectors that the compiler turns into the processor's own (AVX2, AVX-512, NEON), and exp over them.
//
// GCC's and Clang's vector types: portable source, no intrinsics. Sums keep explicit accumulators, so that the order of
// additions is the source's and no -ffast-math is needed.

#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

namespace segue {

#ifdef __AVX512F__
constexpr int VECTOR_BYTES = 64;
#else
constexpr int VECTOR_BYTES = 32;  // NEON makes two of one: more sums at once
#endif

template <typename Real>
struct VectorOf;

template <>
struct VectorOf<float> {
    typedef float type __attribute__((vector_size(VECTOR_BYTES)));
};

template <>
struct VectorOf<double> {
    typedef double type __attribute__((vector_size(VECTOR_BYTES)));
};

template <typename Real>
using Vector = typename VectorOf<Real>::type;

template <typename Real>
constexpr int WIDTH = VECTOR_BYTES / sizeof(Real);

template <typename Real>
inline Vector<Real> load(const Real* from) {
    Vector<Real> loaded;
    std::memcpy(&loaded, from, sizeof loaded);
    return loaded;
}

template <typename Real>
inline void store(Real* into, Vector<Real> vector) {
    std::memcpy(into, &vector, sizeof vector);
}

template <typename Real>
inline Vector<Real> all(Real value) {
    return value - Vector<Real>{};
}

// The sum of a vector's numbers: by halves while they are vectors of the processor, then one by one.
template <typename Real, typename Some>
inline Real sum_of(Some vector) {
    constexpr int count = sizeof(Some) / sizeof(Real);
    if constexpr (sizeof(Some) > 16) {
        typedef Real Half __attribute__((vector_size(sizeof(Some) / 2)));
        Half halves[2];
        std::memcpy(halves, &vector, sizeof vector);
        return sum_of<Real>(halves[0] + halves[1]);
    } else if constexpr (count == 4) {
        return (vector[0] + vector[2]) + (vector[1] + vector[3]);
    } else {
        return vector[0] + vector[1];
    }
}

template <typename Real>
inline Real sum(Vector<Real> vector) {
    return sum_of<Real>(vector);
}

typedef float FourFloats __attribute__((vector_size(16)));

// A vector's halves added up, until four numbers are left.
template <typename Real, typename Some>
inline FourFloats four_of(Some vector) {
    if constexpr (sizeof(Some) > sizeof(FourFloats)) {
        typedef Real Half __attribute__((vector_size(sizeof(Some) / 2)));
        Half halves[2];
        std::memcpy(halves, &vector, sizeof vector);
        return four_of<Real>(halves[0] + halves[1]);
    } else {
        return vector;
    }
}

// The sums of four vectors, each added up as `sum` does it.
template <typename Real>
inline void sums_of_four(const Vector<Real> (&vectors)[4], Real* into) {
    if constexpr (std::is_same_v<Real, float>) {
        typedef int32_t Places __attribute__((vector_size(16)));
        FourFloats parts[4];
        for (int n = 0; n < 4; n++) parts[n] = four_of<Real>(vectors[n]);
        const auto halves = [](FourFloats first, FourFloats second) {  // (0 + 2 of both, 1 + 3 of both)
            return __builtin_shuffle(first, second, Places{0, 4, 1, 5}) +
                   __builtin_shuffle(first, second, Places{2, 6, 3, 7});
        };
        const FourFloats first = halves(parts[0], parts[1]), second = halves(parts[2], parts[3]);
        const FourFloats sums = __builtin_shuffle(first, second, Places{0, 1, 4, 5}) +
                          __builtin_shuffle(first, second, Places{2, 3, 6, 7});
        std::memcpy(into, &sums, sizeof sums);
    } else {
        for (int n = 0; n < 4; n++) into[n] = sum<Real>(vectors[n]);
    }
}

template <class T>
inline T largest_of(Vector<T> vector) {
    T largest = vector[0];
    for (int lane = 1; lane < WIDTH<T>; lane++) largest = vector[lane] > largest ? vector[lane] : largest;
    return largest;
}

// The bits of a float as an integer, and the constants of exp: ln 2 in two parts, and 1 / n!.
template <class T>
struct Exponential;

template <>
struct Exponential<float> {
    using Bits = int32_t;
    static constexpr int mantissa = 23, bias = 127, terms = 7;
    static constexpr float lowest = -87.0f, shift = 12582912.0f;  // 1.5 · 2^23: adding it rounds to an integer
    static constexpr float high = 0.693359375f, low = -2.12194440e-4f;
};

template <>
struct Exponential<double> {
    using Bits = int64_t;
    static constexpr int mantissa = 52, bias = 1023, terms = 13;
    static constexpr double lowest = -708.0, shift = 6755399441055744.0;
    static constexpr double high = 6.93147180369123816490e-01, low = 1.90821492927058770002e-10;
};

// e^x for x <= 88, to about one unit in the last place; zero where x is lower than the lowest normal number's log.
template <class T>
inline Vector<T> exponential(Vector<T> x) {
    using Table = Exponential<T>;
    typedef typename Table::Bits Integers __attribute__((vector_size(VECTOR_BYTES)));
    const Vector<T> floor = Table::lowest - Vector<T>{};
    const Integers vanishing = x < floor;
    x = vanishing ? floor : x;
    const Vector<T> shifted = x * T(1.4426950408889634074) + Table::shift;
    const Vector<T> whole = shifted - Table::shift;
    const Vector<T> rest = (x - whole * Table::high) - whole * Table::low;
    T factorial = 1;
    for (int n = 2; n <= Table::terms; n++) factorial *= T(n);
    Vector<T> sum = T(1) / factorial - Vector<T>{};
#pragma GCC unroll 16
    for (int n = Table::terms; n > 0; n--) {
        factorial /= T(n);
        sum = sum * rest + T(1) / factorial;
    }
    Integers bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + Table::bias) << Table::mantissa;  // the low bits of `shifted` hold the integer
    Vector<T> power;
    std::memcpy(&power, &bits, sizeof power);
    const Vector<T> result = sum * power;
    return vanishing ? Vector<T>{} : result;
}

// Replaces scores by exp(score - largest) and returns their sum. Some score must be finite.
template <class T>
inline T exponentials(T* scores, int64_t count) {
    constexpr int width = WIDTH<T>;
    Vector<T> most = all(-std::numeric_limits<T>::infinity()), sums{};
    int64_t i = 0;
    for (; i + width <= count; i += width) most = load(scores + i) > most ? load(scores + i) : most;
    T largest = largest_of<T>(most);
    for (; i < count; i++) largest = scores[i] > largest ? scores[i] : largest;
    for (i = 0; i + width <= count; i += width) {
        const Vector<T> weights = exponential<T>(load(scores + i) - largest);
        store(scores + i, weights);
        sums += weights;
    }
    if (i < count) {
        T rest[width];
        for (int j = 0; j < width; j++) rest[j] = i + j < count ? scores[i + j] - largest : T(-1000);
        const Vector<T> weights = exponential<T>(load(rest));
        store(rest, weights);
        std::memcpy(scores + i, rest, (count - i) * sizeof(T));
        sums += weights;
    }
    return sum<T>(sums);
}

}  // namespace segue
