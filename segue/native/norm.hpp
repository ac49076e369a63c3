// LayerNorm of one token of each lane. Letters: C width, P places for lanes (`linear.hpp`).

#pragma once

#include <cmath>
#include <cstdint>

#include "vector.hpp"

namespace segue {

// As `Norm` of segue/nn/native_structures.py.
template <typename Real>
struct Norm {
    const Real *weight, *bias;
    double epsilon;
};

// LayerNorm of a single lane (C).
template <typename Real>
inline void normed_lane(const Norm<Real>& norm, const Real* inputs, int64_t size, Real* outputs) {
    constexpr int width = WIDTH<Real>;
    const auto total = [&](auto&& term) {
        Vector<Real> sums{};
        int64_t i = 0;
        for (; i + width <= size; i += width) sums += term(load(inputs + i));
        Real all_of_them = sum<Real>(sums);
        for (; i < size; i++) all_of_them += term(inputs[i]);
        return all_of_them;
    };
    const Real mean = total([](auto x) { return x; }) / size;
    const Real variance = total([&](auto x) { return (x - mean) * (x - mean); }) / size;
    const Real factor = 1 / std::sqrt(variance + Real(norm.epsilon));
    for (int64_t i = 0; i < size; i++) outputs[i] = (inputs[i] - mean) * factor * norm.weight[i] + norm.bias[i];
}

// LayerNorm of all lanes (C, P), a vector of them at a time.
template <typename Real>
inline void normed(const Norm<Real>& norm, const Real* inputs, int64_t size, int64_t places, Real* outputs) {
    constexpr int width = WIDTH<Real>;
    if (places == 1) return normed_lane(norm, inputs, size, outputs);
    for (int64_t lane = 0; lane < places; lane += width) {
        Vector<Real> mean{}, variance{}, factor;
        for (int64_t i = 0; i < size; i++) mean += load(inputs + i * places + lane);
        mean /= all(Real(size));
        for (int64_t i = 0; i < size; i++) {
            const Vector<Real> apart = load(inputs + i * places + lane) - mean;
            variance += apart * apart;
        }
        for (int l = 0; l < width; l++) factor[l] = 1 / std::sqrt(variance[l] / size + Real(norm.epsilon));
        for (int64_t i = 0; i < size; i++) {
            const Vector<Real> apart = load(inputs + i * places + lane) - mean;
            store(outputs + i * places + lane, apart * factor * norm.weight[i] + norm.bias[i]);
        }
    }
}

}  // namespace segue
