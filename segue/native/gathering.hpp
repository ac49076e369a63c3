// Attention of one query of one head over keys and values that lie anywhere: `rows` tells where each of them is.
//
// Letters: D head width.

#pragma once

#include "vector.hpp"

namespace segue {

// Keys (or values) of one head: key j lies `rows(j)` numbers behind the first.
template <typename Real, typename Rows>
struct Scattered {
    const Real *keys, *values;
    Rows rows;
    int64_t count;
};

template <typename Real>
inline Real dot(const Real* left, const Real* right, int64_t size) {
    constexpr int width = WIDTH<Real>;
    Vector<Real> sums{};
    int64_t i = 0;
    for (; i + width <= size; i += width) sums += load(left + i) * load(right + i);
    Real total = sum<Real>(sums);
    for (; i < size; i++) total += left[i] * right[i];
    return total;
}

// gathered[c] = sum over keys of weights[key] · values[key][c] · factor, for N vectors of columns.
template <typename Real, int N, typename Rows>
inline void gather_columns(const Scattered<Real, Rows>& seen, const Real* weights, Real factor, int64_t column,
                           Real* gathered) {
    Vector<Real> sums[N];
    for (int n = 0; n < N; n++) sums[n] = Vector<Real>{};
    for (int64_t key = 0; key < seen.count; key++) {
        const Real* value = seen.values + seen.rows(key) + column;
        for (int n = 0; n < N; n++) sums[n] += weights[key] * load(value + n * WIDTH<Real>);
    }
    for (int n = 0; n < N; n++) store(gathered + column + n * WIDTH<Real>, sums[n] * factor);
}

// softmax(scale · query · keys) · values. `scores` is room for a number for each key.
template <typename Real, typename Rows>
inline void attend_scattered(const Scattered<Real, Rows>& seen, const Real* query, int64_t size, Real scale, Real* scores,
                             Real* gathered) {
    constexpr int width = WIDTH<Real>;
    for (int64_t key = 0; key < seen.count; key++)
        scores[key] = scale * dot(query, seen.keys + seen.rows(key), size);
    const Real factor = 1 / exponentials(scores, seen.count);
    int64_t i = 0;
    for (; i + 4 * width <= size; i += 4 * width) gather_columns<Real, 4>(seen, scores, factor, i, gathered);
    for (; i + width <= size; i += width) gather_columns<Real, 1>(seen, scores, factor, i, gathered);
    for (; i < size; i++) {
        Real total = 0;
        for (int64_t key = 0; key < seen.count; key++) total += scores[key] * seen.values[seen.rows(key) + i];
        gathered[i] = total * factor;
    }
}

}  // namespace segue
