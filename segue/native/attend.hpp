// Attention of one token over memory: of one head, for some lanes, each with its own keys and length.
//
// Scores are scale · ((q + u)·k + (q + v)·r + b), with r and b a row and a bias for each distance. Lanes read a distance's
// row together, while it is in the cache. Relative keys are stored as keys are. Letters: D head width, R rows of relative
// keys.

#pragma once

#include "native.hpp"
#include "rows.hpp"
#include "vector.hpp"

namespace segue {

// As `Relative` of segue/nn/native_step.py. Row j stands for distance R-1-j; farther ones score zero, or as `farthest`.
template <typename Real>
struct Relative {
    const void* rows;           // (H, R, D), as keys are stored; null: none
    const Real* farthest;       // (H, D): the row of all farther distances; null: zero
    const Real* bias;           // (H, R); null: none
    const Real* content_bias;   // u, (H, D); null: zero
    const Real* position_bias;  // v, (H, D); null: zero
    int64_t known;              // R
};

// One head of one lane: its keys and values in the order of their age, the newest just written.
template <typename Real>
struct LaneHead {
    const void* keys;    // (count, D), as they are stored
    const void* values;  // (count, D)
    int64_t count;
    const Real* content;   // scale (q + u)
    const Real* position;  // scale (q + v)
    Real* scores;          // (count)
    Real* gathered;        // (D)
};

// Rows that are asked for before they are read: the processor guesses short runs of rows too late. Of int8, attention took
// 1.3 times as long without it.
constexpr int64_t ROWS_AHEAD = 32;

// Scores of K neighbouring keys; P: with position terms, whose first row is `rows`.
template <typename Real, typename Cell, int K, bool P>
inline void score_some(const LaneHead<Real>& head, int64_t size, int64_t key, const Cell* rows) {
    constexpr int width = WIDTH<Real>;
    const int64_t pitch = Rows<Cell>::pitch(size);
    const Cell* keys = static_cast<const Cell*>(head.keys) + key * pitch;
    for (int k = 0; k < K; k++) {
        __builtin_prefetch(keys + (k + ROWS_AHEAD) * pitch);
        if (P) __builtin_prefetch(rows + (k + ROWS_AHEAD) * pitch);
    }
    Vector<Real> sums[K], by_position[K];
    for (int k = 0; k < K; k++) sums[k] = by_position[k] = Vector<Real>{};  // `= {}` of arrays writes to the stack
    int64_t i = 0;
    for (; i + width <= size; i += width) {
        const Vector<Real> content = load(head.content + i), position = load(head.position + i);
        for (int k = 0; k < K; k++) {
            sums[k] += numbers<Real>(keys + k * pitch + i) * content;
            if (P) by_position[k] += numbers<Real>(rows + k * pitch + i) * position;
        }
    }
    Real scales[K], row_scales[K];
    for (int k = 0; k < K; k++) {
        scales[k] = Rows<Cell>::scale(keys + k * pitch, size);
        row_scales[k] = P ? Real(Rows<Cell>::scale(rows + k * pitch, size)) : Real(1);
        sums[k] = sums[k] * scales[k] + by_position[k] * row_scales[k];
    }
    Real* scores = head.scores + key;
    if constexpr (K == 4)
        sums_of_four<Real>(sums, scores);
    else
        for (int k = 0; k < K; k++) scores[k] = sum<Real>(sums[k]);
    for (int k = 0; k < K && i < size; k++) {
        Real rest = 0, rest_by_position = 0;
        for (int64_t j = i; j < size; j++) {
            rest += number<Real>(keys[k * pitch + j]) * head.content[j];
            if (P) rest_by_position += number<Real>(rows[k * pitch + j]) * head.position[j];
        }
        scores[k] += rest * scales[k] + rest_by_position * row_scales[k];
    }
}

template <typename Real, typename Cell, bool P>
inline void score(const LaneHead<Real>& head, int64_t size, int64_t first, int64_t last, const Cell* rows) {
    const int64_t pitch = P ? Rows<Cell>::pitch(size) : 0;
    int64_t key = first;
    for (; key + 4 <= last; key += 4) score_some<Real, Cell, 4, P>(head, size, key, rows + (key - first) * pitch);
    for (; key < last; key++) score_some<Real, Cell, 1, P>(head, size, key, rows + (key - first) * pitch);
}

// gathered[c] = sum over keys of weights[key] · factor · values[key][c], for N vectors of columns from this one on.
template <typename Real, typename Cell, int N>
inline void gather(const LaneHead<Real>& head, int64_t size, Real factor, int64_t column) {
    const int64_t pitch = Rows<Cell>::pitch(size);
    const Cell* value = static_cast<const Cell*>(head.values);
    Vector<Real> sums[N];
    for (int n = 0; n < N; n++) sums[n] = Vector<Real>{};
    for (int64_t key = 0; key < head.count; key++, value += pitch) {
        __builtin_prefetch(value + ROWS_AHEAD * pitch);
        const Real weight = head.scores[key] * (factor * Real(Rows<Cell>::scale(value, size)));
        for (int n = 0; n < N; n++) sums[n] += weight * numbers<Real>(value + column + n * WIDTH<Real>);
    }
    for (int n = 0; n < N; n++) store(head.gathered + column + n * WIDTH<Real>, sums[n]);
}

template <typename Real, typename Cell>
inline void gather(const LaneHead<Real>& head, int64_t size, Real factor) {
    constexpr int width = WIDTH<Real>;
    const int64_t pitch = Rows<Cell>::pitch(size);
    const Cell* values = static_cast<const Cell*>(head.values);
    int64_t i = 0;
    for (; i + 8 * width <= size; i += 8 * width) gather<Real, Cell, 8>(head, size, factor, i);
    for (; i + 4 * width <= size; i += 4 * width) gather<Real, Cell, 4>(head, size, factor, i);
    for (; i + width <= size; i += width) gather<Real, Cell, 1>(head, size, factor, i);
    for (; i < size; i++) {
        Real total = 0;
        for (int64_t key = 0; key < head.count; key++) {
            const Cell* value = values + key * pitch;
            total += head.scores[key] * (factor * Real(Rows<Cell>::scale(value, size))) * number<Real>(value[i]);
        }
        head.gathered[i] = total;
    }
}

constexpr int64_t DISTANCES_AT_ONCE = 256;  // rows of relative keys that stay in the first cache while lanes use them

// All lanes' attention of head number `number`, with rows of these cells. `heads` are the lanes'.
template <typename Real, typename Cell>
inline void attend(const Relative<Real>& relative, int64_t number, int64_t size, Real scale, const LaneHead<Real>* heads,
                   int64_t lanes) {
    int64_t longest = 0;
    for (int64_t lane = 0; lane < lanes; lane++) longest = std::max(longest, heads[lane].count);
    const int64_t known = relative.known, pitch = Rows<Cell>::pitch(size);
    const Cell* rows = relative.rows ? static_cast<const Cell*>(relative.rows) + number * known * pitch : nullptr;
    const Real* farthest = relative.farthest ? relative.farthest + number * size : nullptr;
    const Real* bias = relative.bias ? relative.bias + number * known : nullptr;
    for (int64_t far = longest; far > 0; far -= DISTANCES_AT_ONCE) {  // distances far-1 … near
        const int64_t near = std::max<int64_t>(0, far - DISTANCES_AT_ONCE);
        for (int64_t lane = 0; lane < lanes; lane++) {
            const LaneHead<Real>& head = heads[lane];
            const int64_t first = std::max<int64_t>(0, head.count - far), last = head.count - near;
            if (last <= first) continue;
            const int64_t beyond = std::min(last, std::max(first, head.count - known));  // keys before it: too far
            score<Real, Cell, false>(head, size, first, beyond, nullptr);
            if (farthest && first < beyond) {
                Real by_position = 0;
                for (int64_t i = 0; i < size; i++) by_position += farthest[i] * head.position[i];
                for (int64_t key = first; key < beyond; key++) head.scores[key] += by_position;
            }
            const int64_t row = known - head.count + beyond;
            if (rows)
                score<Real, Cell, true>(head, size, beyond, last, rows + row * pitch);
            else
                score<Real, Cell, false>(head, size, beyond, last, nullptr);
            if (bias)
                for (int64_t key = beyond; key < last; key++) head.scores[key] += scale * bias[row + key - beyond];
        }
    }
    for (int64_t lane = 0; lane < lanes; lane++)
        gather<Real, Cell>(heads[lane], size, 1 / exponentials(heads[lane].scores, heads[lane].count));
}

}  // namespace segue
