// The one product that attention is made of: up to 6 rows of A by a panel of B that is 2 vectors wide, in registers.
//
// Every number of C is one chain of multiply-adds in the order of the depth, whatever is computed beside it: no result
// depends on how the work is cut. The compiler makes the vector code: there are no intrinsics.

#pragma once

#include <utility>

#include "vector.hpp"

namespace segue {

template <class T>
constexpr int64_t PANEL = 2 * WIDTH<T>;  // columns of a tile

constexpr int64_t TILE_ROWS = 6;  // with 2 vectors each: 12 of the 16 registers that AVX2 has

inline int64_t rounded_up(int64_t count, int64_t multiple) { return (count + multiple - 1) / multiple * multiple; }

// A matrix in memory: `pitch` numbers from row to row.
template <class T>
struct Matrix {
    T* data;
    int64_t pitch;

    T* row(int64_t number) const { return data + number * pitch; }
};

// C = A B or C += A B for ROWS rows of C. A's rows are contiguous, or, if TRANSPOSED, its columns are.
template <class T, int ROWS, bool TRANSPOSED>
inline void tile(int64_t depth, Matrix<const T> a, const T* panel, Matrix<T> c, bool adding) {
    constexpr int64_t wide = WIDTH<T>;
    Vector<T> left[ROWS], right[ROWS];
    for (int row = 0; row < ROWS; row++) {
        left[row] = adding ? load(c.row(row)) : Vector<T>{};
        right[row] = adding ? load(c.row(row) + wide) : Vector<T>{};
    }
    for (int64_t k = 0; k < depth; k++) {
        const Vector<T> first = load(panel + k * 2 * wide), second = load(panel + k * 2 * wide + wide);
#pragma GCC unroll 6
        for (int row = 0; row < ROWS; row++) {
            const T factor = TRANSPOSED ? a.data[k * a.pitch + row] : a.data[row * a.pitch + k];
            left[row] += factor * first;
            right[row] += factor * second;
        }
    }
    for (int row = 0; row < ROWS; row++) {
        store(c.row(row), left[row]);
        store(c.row(row) + wide, right[row]);
    }
}

template <class T, bool TRANSPOSED = false>
inline void tile(int64_t rows, int64_t depth, Matrix<const T> a, const T* panel, Matrix<T> c, bool adding) {
    switch (rows) {
        case 1: return tile<T, 1, TRANSPOSED>(depth, a, panel, c, adding);
        case 2: return tile<T, 2, TRANSPOSED>(depth, a, panel, c, adding);
        case 3: return tile<T, 3, TRANSPOSED>(depth, a, panel, c, adding);
        case 4: return tile<T, 4, TRANSPOSED>(depth, a, panel, c, adding);
        case 5: return tile<T, 5, TRANSPOSED>(depth, a, panel, c, adding);
        default: return tile<T, 6, TRANSPOSED>(depth, a, panel, c, adding);
    }
}

// Copies to panels are made of whole vectors; a call of memcpy for each row would cost more than the copy.
template <class T>
inline void copy(const T* from, int64_t count, T* to) {
    int64_t n = 0;
    for (; n + WIDTH<T> <= count; n += WIDTH<T>) store(to + n, load(from + n));
    for (; n < count; n++) to[n] = from[n];
}

// The numbers a_0 b_0 a_1 b_1 … of the lower or upper halves of two vectors.
template <class T, std::size_t... N>
inline void interleave(Vector<T> a, Vector<T> b, Vector<T>& low, Vector<T>& high, std::index_sequence<N...>) {
    constexpr int count = WIDTH<T>;
    low = __builtin_shufflevector(a, b, int(N / 2 + (N % 2) * count)...);
    high = __builtin_shufflevector(a, b, int(N / 2 + (N % 2) * count + count / 2)...);
}

// A square of as many rows as a vector has numbers: interleaving the halves log2 times transposes it.
template <class T>
inline void transpose(const T* from, int64_t stride, T* to, int64_t to_stride) {
    constexpr int count = WIDTH<T>;
    Vector<T> rows[count], mixed[count];
    for (int row = 0; row < count; row++) rows[row] = load(from + row * stride);
    for (int half = 1; half < count; half *= 2) {
        for (int row = 0; row < count / 2; row++)
            interleave<T>(rows[row], rows[row + count / 2], mixed[2 * row], mixed[2 * row + 1],
                          std::make_index_sequence<count>());
        for (int row = 0; row < count; row++) rows[row] = mixed[row];
    }
    for (int row = 0; row < count; row++) store(to + row * to_stride, rows[row]);
}

// Panels of B^T: from rows (count, width), `stride` apart, panel after panel of (width, panel) numbers. The last is
// filled up with zeros.
template <class T>
void pack_transposed(const T* from, int64_t stride, int64_t count, int64_t width, T* to) {
    constexpr int64_t panel = PANEL<T>, wide = WIDTH<T>;
    for (int64_t first = 0; first < count; first += panel, to += panel * width) {
        const int64_t here = count - first < panel ? count - first : panel;
        if (here < panel) std::memset(to, 0, sizeof(T) * panel * width);
        for (int64_t low = 0; low < here; low += wide) {
            const T* rows = from + (first + low) * stride;
            int64_t d = 0;
            if (low + wide <= here)
                for (; d + wide <= width; d += wide) transpose<T>(rows + d, stride, to + d * panel + low, panel);
            for (int64_t row = 0; row < wide && low + row < here; row++)
                for (int64_t rest = d; rest < width; rest++) to[rest * panel + low + row] = rows[row * stride + rest];
        }
    }
}

// Panels of B: from rows (count, width), `stride` apart, panel after panel of (count, panel) numbers.
template <class T>
void pack(const T* from, int64_t stride, int64_t count, int64_t width, T* to) {
    constexpr int64_t panel = PANEL<T>;
    const int64_t whole = width / panel;
    if (width % panel) std::memset(to + whole * panel * count, 0, sizeof(T) * panel * count);
    for (int64_t row = 0; row < count; row++) {
        const T* source = from + row * stride;
        for (int64_t number = 0; number < whole; number++)
            for (int64_t n = 0; n < panel; n += WIDTH<T>)
                store(to + (number * count + row) * panel + n, load(source + number * panel + n));
        copy(source + whole * panel, width % panel, to + (whole * count + row) * panel);
    }
}

}  // namespace segue
