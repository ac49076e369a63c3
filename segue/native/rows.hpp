// Rows of memory as they are stored: in the model's own precision, as float16, or as int8 with a scale behind each row.
//
// The arithmetic is that of segue/nn/kv_precision.py. Letters: D numbers in a row.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "vector.hpp"

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace segue {

// As `STORED` of segue/nn/native_step.py.
enum class Stored : int64_t { EXACT, FLOAT16, INT8 };

struct Float16 {
    uint16_t bits;
};

template <typename To, typename From>
inline To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

// The nearest float16, of two the even one. What is too large becomes the largest.
inline Float16 float16_of(float number) {
    const uint32_t sign = bits_as<uint32_t>(number) >> 16 & 0x8000;
    if (number != number) return {uint16_t(sign | 0x7e00)};
    const float size = std::min(std::abs(number), 65504.0f);
    uint32_t bits = bits_as<uint32_t>(size);
    if (bits < 113u << 23)  // below 2^-14: multiples of 2^-24, which is the step of floats around one half
        return {uint16_t(sign | (bits_as<uint32_t>(size + 0.5f) - bits_as<uint32_t>(0.5f)))};
    bits += 0xfff + (bits >> 13 & 1);
    return {uint16_t(sign | ((bits >> 13) - (112u << 10)))};
}

inline float float_of(Float16 half) {
    const uint32_t bits = uint32_t(half.bits & 0x7fff) << 13;
    const uint32_t exponent = bits < 31u << 23 ? 112u << 23 : 224u << 23;  // infinities and what is no number
    const float small = bits_as<float>(bits + (113u << 23)) - 0x1p-14f;
    const uint32_t size = bits < 1u << 23 ? bits_as<uint32_t>(small) : bits + exponent;
    return bits_as<float>(size | uint32_t(half.bits & 0x8000) << 16);
}

// A stored number; of int8, a number of steps.
template <typename Real, typename Cell>
inline Real number(Cell cell) {
    if constexpr (std::is_same_v<Cell, Float16>)
        return Real(float_of(cell));
    else
        return Real(cell);
}

// A vector of them. The intrinsics were measured to be needed: GCC 12 takes vectors of bytes apart, one by one, and
// int8 was then no faster than float32, which has four times as many bytes to read.
template <typename Real, typename Cell>
inline Vector<Real> numbers(const Cell* from) {
    if constexpr (std::is_same_v<Real, Cell>) {
        return load(from);
#ifdef __AVX512F__
    } else if constexpr (std::is_same_v<Real, float> && std::is_same_v<Cell, int8_t>) {
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
    } else if constexpr (std::is_same_v<Real, float> && std::is_same_v<Cell, Float16>) {
        return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#else
#ifdef __AVX2__
    } else if constexpr (std::is_same_v<Real, float> && std::is_same_v<Cell, int8_t>) {
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#endif
#ifdef __F16C__
    } else if constexpr (std::is_same_v<Real, float> && std::is_same_v<Cell, Float16>) {
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#endif
#endif
    } else {
        Vector<Real> all_of_them;
        for (int l = 0; l < WIDTH<Real>; l++) all_of_them[l] = number<Real>(from[l]);
        return all_of_them;
    }
}

// How rows of cells lie in memory, and what a row is multiplied by.
template <typename Cell>
struct Rows {
    static int64_t pitch(int64_t size) { return size; }
    static Cell scale(const Cell*, int64_t) { return Cell(1); }
    static void write(const Cell* row, int64_t size, Cell* into) { std::memcpy(into, row, size * sizeof(Cell)); }
};

template <>
struct Rows<Float16> {
    static int64_t pitch(int64_t size) { return size; }
    static float scale(const Float16*, int64_t) { return 1; }

    template <typename Real>
    static void write(const Real* row, int64_t size, Float16* into) {
        for (int64_t i = 0; i < size; i++) into[i] = float16_of(float(row[i]));
    }
};

template <>
struct Rows<int8_t> {
    static int64_t pitch(int64_t size) { return size + int64_t(sizeof(float)); }

    static float scale(const int8_t* row, int64_t size) {
        float scale;
        std::memcpy(&scale, row + size, sizeof scale);
        return scale;
    }

    template <typename Real>
    static void write(const Real* row, int64_t size, int8_t* into) {
        float largest = 1e-30f;
        bool finite = true;  // what is no number makes the scale none
        for (int64_t i = 0; i < size; i++) {
            const float one = std::abs(float(row[i]));
            finite &= one <= std::numeric_limits<float>::max();
            largest = std::max(largest, one);
        }
        for (int64_t i = 0; i < size; i++)
            into[i] = finite ? int8_t(std::rint(float(row[i]) / largest * 127.0f)) : int8_t(0);
        const float scale = finite ? largest / 127.0f : std::numeric_limits<float>::quiet_NaN();
        std::memcpy(into + size, &scale, sizeof scale);
    }
};

}  // namespace segue
