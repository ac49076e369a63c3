// Linear layers for one token of each lane: every weight is read once for all of them, by one of the threads.
//
// Letters: P places for lanes: 1 for a single lane, else their number rounded up to whole vectors. Inputs are (inputs, P)
// and outputs (outputs, P), so that a vector holds one number of several lanes; weights are (outputs, inputs).

#pragma once

#include <type_traits>

#include "native.hpp"
#include "rounded.hpp"
#include "vector.hpp"

namespace segue {

// as `Weights` of segue/nn/native_structures.py.
template <typename Real>
struct Weights {
    const Real* weights;    // null: they are rounded
    const Real* bias;       // or null
    const int8_t* rounded;  // (outputs, inputs)
    const Real* scales;     // (outputs) of the rounded weights
    const int32_t* offsets;  // (outputs) what products are too large by, because steps of inputs are not counted from 0
    double step;            // of the rounded inputs
    int64_t zero;           // the step that stands for 0
    int64_t outputs, inputs;
};

// A row of weights times the inputs of a single lane. Four sums side by side keep the processor busy.
template <typename Real>
inline Real product_of(const Real* weights, const Real* inputs, int64_t size) {
    constexpr int width = WIDTH<Real>;
    Vector<Real> first{}, second{}, third{}, fourth{};
    int64_t i = 0;
    for (; i + 4 * width <= size; i += 4 * width) {
        first += load(weights + i) * load(inputs + i);
        second += load(weights + i + width) * load(inputs + i + width);
        third += load(weights + i + 2 * width) * load(inputs + i + 2 * width);
        fourth += load(weights + i + 3 * width) * load(inputs + i + 3 * width);
    }
    for (; i + width <= size; i += width) first += load(weights + i) * load(inputs + i);
    Real total = sum<Real>((first + second) + (third + fourth));
    for (; i < size; i++) total += weights[i] * inputs[i];
    return total;
}

// R outputs for V vectors of lanes: each weight is spread over a vector. If `fetching`, the next R rows of weights are
// asked for on the way: rows are too short for the processor to guess them, and it would wait a third of the time.
template <typename Real, int R, int V>
inline void tile(const Weights<Real>& matrix, const Real* inputs, int64_t places, int64_t row, Real* outputs, bool relu,
                 bool fetching) {
    constexpr int width = WIDTH<Real>;
    constexpr int64_t line = LINE_BYTES / sizeof(Real);
    const Real *weights = matrix.weights + row * matrix.inputs, *next = weights + R * matrix.inputs;
    Vector<Real> sums[R][V];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) sums[r][v] = all(matrix.bias ? matrix.bias[row + r] : Real(0));
    for (int64_t first = 0; first < matrix.inputs; first += line) {
        if (fetching)
#pragma GCC unroll 12
            for (int r = 0; r < R; r++) __builtin_prefetch(next + r * matrix.inputs + first);
        for (int64_t i = first; i < std::min(matrix.inputs, first + line); i++) {
            Vector<Real> some[V];
            for (int v = 0; v < V; v++) some[v] = load(inputs + i * places + v * width);
#pragma GCC unroll 12
            for (int r = 0; r < R; r++)
                for (int v = 0; v < V; v++) sums[r][v] += weights[r * matrix.inputs + i] * some[v];
        }
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) {
            const Vector<Real> total = sums[r][v];
            store(outputs + (row + r) * places + v * width, relu ? (total < 0 ? Vector<Real>{} : total) : total);
        }
}

// R outputs for all lanes. There are R more rows of weights behind these, if `fetching`.
template <typename Real, int R>
inline void tiles(const Weights<Real>& matrix, const Real* inputs, int64_t places, int64_t row, Real* outputs, bool relu,
                  bool fetching) {
    constexpr int width = WIDTH<Real>;
    int64_t lane = 0;
    for (; lane + 2 * width <= places; lane += 2 * width, fetching = false)
        tile<Real, R, 2>(matrix, inputs + lane, places, row, outputs + lane, relu, fetching);
    for (; lane < places; lane += width, fetching = false)
        tile<Real, R, 1>(matrix, inputs + lane, places, row, outputs + lane, relu, fetching);
}

// Of weights in a tile: with two vectors of lanes, as many sums as registers can hold.
constexpr int ROWS = VECTOR_BYTES == 64 ? 12 : 6;
constexpr int FEWER_ROWS = 4;  // of what is left over

// An output from 8-bit weights, of one lane or of a vector of them.
template <typename Real, typename Some>
inline Some rounded_output(const Weights<Real>& matrix, int64_t row, Some product, Some largest, bool relu) {
    product = product * (Real(matrix.step) * matrix.scales[row]) * largest;
    if (matrix.bias) product += matrix.bias[row];
    return relu ? (product < 0 ? Some{} : product) : product;
}

// R outputs of L lanes from the first one on.
template <int R, int L, typename Real>
inline void rounded_outputs(const Weights<Real>& matrix, const RoundedInputs& inputs, int64_t lane, int64_t places,
                            int64_t row, Real* outputs, bool relu) {
    int32_t products[R][L];
    const Step* steps = inputs.steps + lane * matrix.inputs;
    products_of(matrix.rounded + row * matrix.inputs, steps, matrix.inputs, products);
    for (int r = 0; r < R; r++)
        for (int l = 0; l < L; l++) {
            const Real product = Real(products[r][l] - matrix.offsets[row + r]);
            outputs[(row + r) * places + lane + l] =
                rounded_output(matrix, row + r, product, Real(inputs.largest[lane + l]), relu);
        }
}

#ifdef __AVX512VNNI__
// R outputs of all lanes.
template <int R, typename Real>
inline void outputs_by_lanes(const Weights<Real>& matrix, const RoundedInputs& inputs, int64_t places, int64_t row,
                             Real* outputs, bool relu) {
    for (int64_t lane = 0; lane < places; lane += WIDTH<Real>) {
        Integers products[R];
        const int8_t* weights = matrix.rounded + row * matrix.inputs;
        products_by_lanes<R>(weights, inputs.steps + lane * FOUR, places, matrix.inputs, products);
        for (int r = 0; r < R; r++) {
            const Integers exact = products[r] - matrix.offsets[row + r];
            const Vector<Real> product = __builtin_convertvector(exact, Vector<Real>);
            store(outputs + (row + r) * places + lane,
                  rounded_output(matrix, row + r, product, load(inputs.largest + lane), relu));
        }
    }
}
#endif

// Some rows of outputs [row, last) from 8-bit weights.
template <typename Real>
inline void rounded_linear(const Weights<Real>& matrix, const RoundedInputs& inputs, int64_t lanes, int64_t places,
                           int64_t row, int64_t last, Real* outputs, bool relu) {
#ifdef __AVX512VNNI__
    if (places > 1) {
        for (; row + ROWS <= last; row += ROWS) outputs_by_lanes<ROWS>(matrix, inputs, places, row, outputs, relu);
        for (; row < last; row++) outputs_by_lanes<1>(matrix, inputs, places, row, outputs, relu);
        return;
    }
#endif
    for (; lanes == 1 && row + 4 <= last; row += 4) rounded_outputs<4, 1>(matrix, inputs, 0, places, row, outputs, relu);
    for (; row < last; row++) {
        int64_t lane = 0;
        for (; lane + 4 <= lanes; lane += 4) rounded_outputs<1, 4>(matrix, inputs, lane, places, row, outputs, relu);
        for (; lane < lanes; lane++) rounded_outputs<1, 1>(matrix, inputs, lane, places, row, outputs, relu);
    }
}

// This thread's share of the outputs. Rounded inputs go to `space`.
template <typename Real>
inline void linear(const Weights<Real>& matrix, const Real* inputs, int64_t lanes, int64_t places, Real* outputs,
                   const RoundedInputs& space, bool relu = false) {
    const Share mine(matrix.outputs, places > 1 ? ROWS : 4);
    int64_t row = mine.first;
    if constexpr (std::is_same_v<Real, float>)
        if (matrix.rounded) {
            space.round(inputs, lanes, places, matrix.inputs, float(matrix.step), matrix.zero);
            rounded_linear(matrix, space, lanes, places, mine.first, mine.last, outputs, relu);
            return;
        }
    if (places > 1) {
        for (; row + ROWS <= mine.last; row += ROWS)
            tiles<Real, ROWS>(matrix, inputs, places, row, outputs, relu, row + 2 * ROWS <= mine.last);
        for (; row + FEWER_ROWS <= mine.last; row += FEWER_ROWS)
            tiles<Real, FEWER_ROWS>(matrix, inputs, places, row, outputs, relu, false);
        for (; row < mine.last; row++) tiles<Real, 1>(matrix, inputs, places, row, outputs, relu, false);
    }
    for (; row < mine.last; row++) {
        Real product = product_of(matrix.weights + row * matrix.inputs, inputs, matrix.inputs);
        if (matrix.bias) product += matrix.bias[row];
        outputs[row] = relu && product < 0 ? 0 : product;
    }
}

}  // namespace segue
