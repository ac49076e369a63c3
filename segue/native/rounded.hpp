// Linear layers with 8-bit weights and inputs: the arithmetic of segue/nn/int8.py, whose sums of integers are exact.
//
// Letters: B lanes. A row of inputs is divided by its largest number and rounded to steps.

#pragma once

#include <cmath>

#include "native.hpp"
#include "vector.hpp"

namespace segue {

// Inputs as whole steps, held in 16 bits for the products; and the largest number of each lane.
struct RoundedInputs {
    int16_t* steps;  // (B, inputs)
    float* largest;  // (B)

    // From inputs (inputs, P), of which the first B are lanes.
    void round(const float* inputs, int64_t lanes, int64_t places, int64_t size, float step) const {
        const float per_step = 1 / step;
        for (int64_t b = 0; b < lanes; b++) {
            float most = 1e-30f;
            bool finite = true;  // what is not a number stays none, and is never turned into an integer
            for (int64_t i = 0; i < size; i++) {
                const float one = std::abs(inputs[i * places + b]);
                finite &= one <= std::numeric_limits<float>::max();
                most = std::max(most, one);
            }
            largest[b] = finite ? most : std::numeric_limits<float>::quiet_NaN();
        }
        for (int64_t i = 0; i < size; i++)
            for (int64_t b = 0; b < lanes; b++) {
                const float share = inputs[i * places + b] / largest[b];
                steps[b * size + i] = share == share ? int16_t(int32_t(std::rint(share * per_step))) : 0;
            }
    }
};

// weights · inputs, of one row of inputs or of four. Without a pragma: GCC then multiplies and adds neighbours in one
// instruction. Sums stay below 2^31 up to 130,000 inputs.
inline void products_of(const int8_t* weights, const int16_t* inputs, int64_t size, int32_t (&products)[1]) {
    int32_t total = 0;
    for (int64_t i = 0; i < size; i++) total += int16_t(weights[i]) * inputs[i];
    products[0] = total;
}

inline void products_of(const int8_t* weights, const int16_t* inputs, int64_t size, int32_t (&products)[4]) {
    const int16_t *second = inputs + size, *third = second + size, *fourth = third + size;
    int32_t totals[4] = {};
    for (int64_t i = 0; i < size; i++) {
        const int16_t weight = weights[i];
        totals[0] += weight * inputs[i];
        totals[1] += weight * second[i];
        totals[2] += weight * third[i];
        totals[3] += weight * fourth[i];
    }
    std::memcpy(products, totals, sizeof totals);
}

}  // namespace segue
