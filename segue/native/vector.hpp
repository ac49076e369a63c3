// Short vectors that the compiler turns into the processor's own (AVX2, AVX-512, NEON), and exp over them.
//
// GCC's and Clang's vector types: portable source, no intrinsics. Sums keep explicit accumulators, so that the order of
// additions is the source's and no -ffast-math is needed.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

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

// exp(x) for x <= 0, by a polynomial on [-ln 2 / 2, ln 2 / 2]: within 2 units in the last place; 0 below -87.
inline Vector<float> exp_of_negative(Vector<float> x) {
    typedef int32_t Integers __attribute__((vector_size(VECTOR_BYTES)));
    const Vector<float> least = all(-87.0f);
    const Integers vanishing = x < least;
    x = vanishing ? least : x;
    const float shift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, held in the lowest bits
    const Vector<float> shifted = x * 1.44269504088896341f + shift;
    const Vector<float> power = shifted - shift;
    x = x - power * 0.693359375f;
    x = x - power * -2.12194440e-4f;
    Vector<float> y = all(1.9875691500e-4f);
    y = y * x + 1.3981999507e-3f;
    y = y * x + 8.3334519073e-3f;
    y = y * x + 4.1665795894e-2f;
    y = y * x + 1.6666665459e-1f;
    y = y * x + 5.0000001201e-1f;
    y = y * (x * x) + x + 1.0f;
    Integers bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    bits = (bits - 0x4b400000 + 127) << 23;
    Vector<float> scale;
    std::memcpy(&scale, &bits, sizeof scale);
    return vanishing ? Vector<float>{} : y * scale;
}

// Replaces scores by exp(score - largest) and returns their sum. Some score must be finite.
inline float exponentials(float* scores, int64_t count) {
    constexpr int width = WIDTH<float>;
    float largest = -std::numeric_limits<float>::infinity();
    for (int64_t i = 0; i < count; i++) largest = scores[i] > largest ? scores[i] : largest;
    Vector<float> sums{};
    int64_t i = 0;
    for (; i + width <= count; i += width) {
        const Vector<float> weights = exp_of_negative(load(scores + i) - largest);
        store(scores + i, weights);
        sums += weights;
    }
    if (i < count) {
        float rest[width];
        for (int j = 0; j < width; j++) rest[j] = i + j < count ? scores[i + j] - largest : -1000.0f;
        const Vector<float> weights = exp_of_negative(load(rest));
        store(rest, weights);
        std::memcpy(scores + i, rest, (count - i) * sizeof(float));
        sums += weights;
    }
    return sum<float>(sums);
}

inline double exponentials(double* scores, int64_t count) {
    double largest = -std::numeric_limits<double>::infinity(), total = 0;
    for (int64_t i = 0; i < count; i++) largest = scores[i] > largest ? scores[i] : largest;
    for (int64_t i = 0; i < count; i++) total += scores[i] = std::exp(scores[i] - largest);
    return total;
}

}  // namespace segue
