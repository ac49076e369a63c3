// Attention of one token over memory: of one head, for some lanes, each with its own keys and length.
//
// Scores are scale · ((q + u)·k + (q + v)·r + b), with r and b a row and a bias for each distance. Lanes read a distance's
// row together, while it is in the cache. Letters: D head width, R rows of relative keys.

#pragma once

#include "native.hpp"
#include "vector.hpp"

namespace segue {

// As `Relative` of segue/nn/native_step.py. Row j stands for distance R-1-j; farther ones score zero.
template <typename Real>
struct Relative {
    const Real* rows;           // (H, R, D); null: none
    const Real* bias;           // (H, R); null: none
    const Real* content_bias;   // u, (H, D); null: zero
    const Real* position_bias;  // v, (H, D); null: zero
    int64_t known;              // R
};

// One head of one lane: its keys and values in the order of their age, the newest just written.
template <typename Real>
struct Head {
    const Real* keys;    // (count, D)
    const Real* values;  // (count, D)
    int64_t count;
    const Real* content;   // scale (q + u)
    const Real* position;  // scale (q + v)
    Real* scores;          // (count)
    Real* gathered;        // (D)
};

// Scores of K neighbouring keys; P: with position terms, whose first row is `rows`.
template <typename Real, int K, bool P>
inline void score_some(const Head<Real>& head, int64_t size, int64_t key, const Real* rows) {
    constexpr int width = WIDTH<Real>;
    const Real* keys = head.keys + key * size;
    Vector<Real> sums[K], by_position[K];
    for (int k = 0; k < K; k++) sums[k] = by_position[k] = Vector<Real>{};  // `= {}` of arrays writes to the stack
    int64_t i = 0;
    for (; i + width <= size; i += width) {
        const Vector<Real> content = load(head.content + i), position = load(head.position + i);
        for (int k = 0; k < K; k++) {
            sums[k] += load(keys + k * size + i) * content;
            if (P) by_position[k] += load(rows + k * size + i) * position;
        }
    }
    for (int k = 0; k < K; k++) head.scores[key + k] = sum<Real>(P ? sums[k] + by_position[k] : sums[k]);
    for (; i < size; i++)
        for (int k = 0; k < K; k++) {
            head.scores[key + k] += keys[k * size + i] * head.content[i];
            if (P) head.scores[key + k] += rows[k * size + i] * head.position[i];
        }
}

template <typename Real, bool P>
inline void score(const Head<Real>& head, int64_t size, int64_t first, int64_t last, const Real* rows) {
    int64_t key = first;
    for (; key + 4 <= last; key += 4) score_some<Real, 4, P>(head, size, key, P ? rows + (key - first) * size : rows);
    for (; key < last; key++) score_some<Real, 1, P>(head, size, key, P ? rows + (key - first) * size : rows);
}

// gathered[c] = sum over keys of weights[key] · values[key][c], for N vectors of columns.
template <typename Real, int N>
inline void gather(const Real* weights, const Real* values, int64_t size, int64_t count, Real factor, Real* gathered) {
    Vector<Real> sums[N];
    for (int n = 0; n < N; n++) sums[n] = Vector<Real>{};
    for (int64_t key = 0; key < count; key++)
        for (int n = 0; n < N; n++) sums[n] += weights[key] * load(values + key * size + n * WIDTH<Real>);
    for (int n = 0; n < N; n++) store(gathered + n * WIDTH<Real>, sums[n] * factor);
}

template <typename Real>
inline void gather(const Head<Real>& head, int64_t size, Real factor) {
    constexpr int width = WIDTH<Real>;
    int64_t i = 0;
    for (; i + 8 * width <= size; i += 8 * width)
        gather<Real, 8>(head.scores, head.values + i, size, head.count, factor, head.gathered + i);
    for (; i + 2 * width <= size; i += 2 * width)
        gather<Real, 2>(head.scores, head.values + i, size, head.count, factor, head.gathered + i);
    for (; i + width <= size; i += width)
        gather<Real, 1>(head.scores, head.values + i, size, head.count, factor, head.gathered + i);
    for (; i < size; i++) {
        Real total = 0;
        for (int64_t key = 0; key < head.count; key++) total += head.scores[key] * head.values[key * size + i];
        head.gathered[i] = total * factor;
    }
}

constexpr int64_t DISTANCES_AT_ONCE = 256;  // rows of relative keys that stay in the first cache while lanes use them

// All lanes' attention of head number `number`. `heads` are the lanes'.
template <typename Real>
inline void attend(const Relative<Real>& relative, int64_t number, int64_t size, Real scale, const Head<Real>* heads,
                   int64_t lanes) {
    int64_t longest = 0;
    for (int64_t lane = 0; lane < lanes; lane++) longest = std::max(longest, heads[lane].count);
    const int64_t known = relative.known;
    const Real* rows = relative.rows ? relative.rows + number * known * size : nullptr;
    const Real* bias = relative.bias ? relative.bias + number * known : nullptr;
    for (int64_t far = longest; far > 0; far -= DISTANCES_AT_ONCE) {  // distances far-1 … near
        const int64_t near = std::max<int64_t>(0, far - DISTANCES_AT_ONCE);
        for (int64_t lane = 0; lane < lanes; lane++) {
            const Head<Real>& head = heads[lane];
            const int64_t first = std::max<int64_t>(0, head.count - far), last = head.count - near;
            if (last <= first) continue;
            const int64_t beyond = std::min(last, std::max(first, head.count - known));  // keys before it: too far
            score<Real, false>(head, size, first, beyond, nullptr);
            const int64_t row = known - head.count + beyond;
            if (rows)
                score<Real, true>(head, size, beyond, last, rows + row * size);
            else
                score<Real, false>(head, size, beyond, last, nullptr);
            if (bias)
                for (int64_t key = beyond; key < last; key++) head.scores[key] += scale * bias[row + key - beyond];
        }
    }
    for (int64_t lane = 0; lane < lanes; lane++)
        gather(heads[lane], size, 1 / exponentials(heads[lane].scores, heads[lane].count));
}

}  // namespace segue
