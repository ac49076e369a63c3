// Linear layers for a few rows of inputs: every weight is read once for all of them, by one of the threads.
//
// Letters: B lanes. Inputs are (B, inputs), outputs (B, outputs), weights (outputs, inputs), all row by row.

#pragma once

#include "native.hpp"
#include "rounded.hpp"
#include "vector.hpp"

namespace segue {

// As `Matrix` of segue/nn/native_step.py.
template <typename Real>
struct Matrix {
    const Real* weights;    // null: they are rounded
    const Real* bias;       // or null
    const int8_t* rounded;  // (outputs, inputs)
    const Real* scales;     // (outputs) of the rounded weights
    double step;            // of the rounded inputs
    int64_t outputs, inputs;
};

// products[r][l] = weights[r] · inputs[l], for R rows of weights and L of inputs; U sums side by side for each.
template <typename Real, int R, int L, int U>
inline void products_of(const Real* weights, const Real* inputs, int64_t size, Real (&products)[R][L]) {
    constexpr int width = WIDTH<Real>;
    Vector<Real> sums[U][R][L] = {};
    int64_t i = 0;
    for (; i + U * width <= size; i += U * width)
        for (int u = 0; u < U; u++)
            for (int l = 0; l < L; l++) {
                const Vector<Real> some = load(inputs + l * size + i + u * width);
                for (int r = 0; r < R; r++) sums[u][r][l] += load(weights + r * size + i + u * width) * some;
            }
    for (int r = 0; r < R; r++)
        for (int l = 0; l < L; l++) {
            Vector<Real> total = sums[0][r][l];
            for (int u = 1; u < U; u++) total += sums[u][r][l];
            products[r][l] = sum<Real>(total);
            for (int64_t j = i; j < size; j++) products[r][l] += weights[r * size + j] * inputs[l * size + j];
        }
}

// R outputs of all lanes, from output `row` on.
template <typename Real, int R, int U>
inline void some_outputs(const Matrix<Real>& matrix, const Real* inputs, int64_t lanes, int64_t row, Real* outputs,
                         bool relu) {
    const Real* weights = matrix.weights + row * matrix.inputs;
    const auto finish = [&](int64_t lane, int r, Real product) {
        if (matrix.bias) product += matrix.bias[row + r];
        outputs[lane * matrix.outputs + row + r] = relu && product < 0 ? 0 : product;
    };
    int64_t lane = 0;
    for (; lane + 2 <= lanes; lane += 2) {
        Real products[R][2];
        products_of<Real, R, 2, 1>(weights, inputs + lane * matrix.inputs, matrix.inputs, products);
        for (int r = 0; r < R; r++)
            for (int l = 0; l < 2; l++) finish(lane + l, r, products[r][l]);
    }
    for (; lane < lanes; lane++) {
        Real products[R][1];
        products_of<Real, R, 1, U>(weights, inputs + lane * matrix.inputs, matrix.inputs, products);
        for (int r = 0; r < R; r++) finish(lane, r, products[r][0]);
    }
}

// Some outputs of one or four lanes, from 8-bit weights.
template <int L, typename Real>
inline void rounded_outputs(const Matrix<Real>& matrix, const RoundedInputs& inputs, int64_t lane, int64_t row,
                            Real* outputs, bool relu) {
    int32_t products[L];
    products_of(matrix.rounded + row * matrix.inputs, inputs.steps + lane * matrix.inputs, matrix.inputs, products);
    const Real factor = Real(matrix.step) * matrix.scales[row];
    for (int l = 0; l < L; l++) {
        Real product = products[l] * factor * inputs.largest[lane + l];
        if (matrix.bias) product += matrix.bias[row];
        outputs[(lane + l) * matrix.outputs + row] = relu && product < 0 ? 0 : product;
    }
}

// This thread's share of the outputs. Rounded inputs go to `space`.
template <typename Real>
inline void linear(const Matrix<Real>& matrix, const Real* inputs, int64_t lanes, Real* outputs,
                   const RoundedInputs& space, bool relu = false) {
    const Share mine(matrix.outputs, 4);
    int64_t row = mine.first;
    if constexpr (std::is_same_v<Real, float>)
        if (matrix.rounded) {
            space.round(inputs, lanes, matrix.inputs, float(matrix.step));
            for (; row < mine.last; row++) {
                int64_t lane = 0;
                for (; lane + 4 <= lanes; lane += 4) rounded_outputs<4>(matrix, space, lane, row, outputs, relu);
                for (; lane < lanes; lane++) rounded_outputs<1>(matrix, space, lane, row, outputs, relu);
            }
            return;
        }
    if (lanes > 1)  // of one lane alone, a row at a time is read fastest
        for (; row + 4 <= mine.last; row += 4) some_outputs<Real, 4, 1>(matrix, inputs, lanes, row, outputs, relu);
    for (; row < mine.last; row++) some_outputs<Real, 1, 4>(matrix, inputs, lanes, row, outputs, relu);
}

}  // namespace segue
