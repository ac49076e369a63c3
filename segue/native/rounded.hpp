// Linear layers with 8-bit weights and inputs: the arithmetic of segue/nn/int8.py, whose sums of integers are exact.
//
// Letters: B lanes, P places for them (`linear.hpp`). A row of inputs is divided by its largest number and rounded to
// steps, which are counted from the lowest: none is negative.

#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "native.hpp"
#include "vector.hpp"

#ifdef __AVX512VNNI__
#include <immintrin.h>
#endif

namespace segue {

// VNNI multiplies bytes without sign by bytes with one and adds four products in one instruction, and GCC finds it for
// plain loops. Other processors have something like it for 16 bits.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
using Step = uint8_t;
#else
using Step = int16_t;
#endif

#ifdef __AVX512VNNI__
constexpr bool BY_LANES = true;  // steps of several lanes lie beside each other
#else
constexpr bool BY_LANES = false;
#endif

constexpr int64_t LINE_BYTES = 64;  // of the caches

// As many as an instruction adds.
constexpr int64_t FOUR = 4;

typedef int32_t Integers __attribute__((vector_size(VECTOR_BYTES)));

inline Vector<float> nearest(Vector<float> x) {  // whole numbers, of two the even one, for sizes below 2^22
    return (x + Exponential<float>::shift) - Exponential<float>::shift;
}

// Inputs as steps, and the largest number of each lane; of a lane with what is no number, that is none either.
struct RoundedInputs {
    Step* steps;     // (B, inputs); (inputs / 4, P, 4) of several lanes if BY_LANES, the last four filled up with 0
    float* largest;  // (P)

    // From inputs (inputs, P), of which the first B are lanes.
    void round(const float* inputs, int64_t lanes, int64_t places, int64_t size, float step, int64_t zero) const {
        if (places == 1) return round_lane(inputs, size, step, int32_t(zero));
        for (int64_t lane = 0; lane < places; lane += WIDTH<float>) {
            const Vector<float> most = largest_of_lanes(inputs + lane, places, size);
            store(largest + lane, most);
            for (int64_t i = 0; i < size; i += FOUR) {
                Integers four[FOUR] = {};
                for (int64_t j = 0; j < std::min(FOUR, size - i); j++) {
                    const Vector<float> share = load(inputs + (i + j) * places + lane) / most;
                    const Vector<float> whole = nearest(share == share ? share * (1 / step) : Vector<float>{});
                    four[j] = __builtin_convertvector(whole, Integers) + int32_t(zero);
                }
                if (BY_LANES) {
                    const Integers word = four[0] | four[1] << 8 | four[2] << 16 | four[3] << 24;
                    std::memcpy(steps + (i * places + lane * FOUR), &word, sizeof word);
                } else {
                    for (int64_t j = 0; j < std::min(FOUR, size - i); j++)
                        for (int64_t l = 0; l < std::min<int64_t>(WIDTH<float>, lanes - lane); l++)
                            steps[(lane + l) * size + i + j] = Step(four[j][l]);
                }
            }
        }
    }

   private:
    void round_lane(const float* inputs, int64_t size, float step, int32_t zero) const {
        const float most = 1e-30f, endless = std::numeric_limits<float>::infinity();
        Vector<float> mosts = all(most);
        Integers finite = ~Integers{};
        const auto include = [&](Vector<float> some) {
            const Vector<float> sizes = some < 0 ? -some : some;
            finite &= sizes < endless;
            mosts = sizes > mosts ? sizes : mosts;
        };
        int64_t i = 0;
        for (; i + WIDTH<float> <= size; i += WIDTH<float>) include(load(inputs + i));
        float rest[WIDTH<float>] = {};
        std::copy(inputs + i, inputs + size, rest);
        include(load(rest));
        bool all_finite = true;
        for (int l = 0; l < WIDTH<float>; l++) all_finite &= finite[l] != 0;
        largest[0] = all_finite ? largest_of<float>(mosts) : std::numeric_limits<float>::quiet_NaN();
        const float per_step = 1 / step, of = all_finite ? largest[0] : endless;
        for (i = 0; i < size; i++) {
            const float share = inputs[i] / of;
            steps[i] = Step(int32_t(std::rint(share == share ? share * per_step : 0.0f)) + zero);
        }
    }

    static Vector<float> largest_of_lanes(const float* inputs, int64_t places, int64_t size) {
        Vector<float> most = all(1e-30f);
        Integers finite = ~Integers{};
        for (int64_t i = 0; i < size; i++) {
            const Vector<float> some = load(inputs + i * places), sizes = some < 0 ? -some : some;
            finite &= sizes < std::numeric_limits<float>::infinity();
            most = sizes > most ? sizes : most;
        }
        return finite ? most : all(std::numeric_limits<float>::quiet_NaN());
    }
};

// R rows of weights · L rows of inputs. Without a pragma GCC multiplies and adds neighbours in one instruction. Sums stay
// below 2^31 up to 130,000 inputs.
template <int R, int L>
inline void products_of(const int8_t* weights, const Step* inputs, int64_t size, int32_t (&products)[R][L]) {
    int32_t totals[R][L] = {};
    for (int64_t i = 0; i < size; i++)
#pragma GCC unroll 4
        for (int r = 0; r < R; r++)
#pragma GCC unroll 4
            for (int l = 0; l < L; l++)
                totals[r][l] += int32_t(weights[r * size + i]) * int32_t(inputs[l * size + i]);
    std::memcpy(products, totals, sizeof totals);
}

#ifdef __AVX512VNNI__
// R rows of weights · a vector of lanes: four weights are spread over it. The intrinsic was measured to be needed: sums
// along rows, which GCC finds, took twice the time for 16 lanes.
template <int R>
inline void products_by_lanes(const int8_t* weights, const Step* inputs, int64_t places, int64_t size, Integers* products) {
    __m512i totals[R];
    for (int r = 0; r < R; r++) totals[r] = _mm512_setzero_si512();
    const auto add = [&](int64_t i, int64_t count) {
        const __m512i steps = _mm512_loadu_si512(inputs + i * places);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            int32_t four = 0;
            std::memcpy(&four, weights + r * size + i, count);
            totals[r] = _mm512_dpbusd_epi32(totals[r], steps, _mm512_set1_epi32(four));
        }
    };
    int64_t i = 0;
    for (; i + FOUR <= size; i += FOUR) {
        if (i % LINE_BYTES == 0)  // the next rows
#pragma GCC unroll 16
            for (int r = 0; r < R; r++) __builtin_prefetch(weights + (R + r) * size + i);
        add(i, FOUR);
    }
    if (i < size) add(i, size - i);
    for (int r = 0; r < R; r++) std::memcpy(products + r, totals + r, sizeof(Integers));
}
#endif

}  // namespace segue
