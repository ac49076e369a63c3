// Linear layers whose bits are a row's own: whatever the rows beside it and the number of threads.
//
// C = A Bᵀ + bias, with A (rows, depth), B (columns, depth) and C (rows, columns), all contiguous. For readers that ask for it; others
// use torch's.

#include <cstdlib>
#include <new>
#include <vector>

#include "native.hpp"
#include "product.hpp"

namespace segue {
namespace {

constexpr int64_t DEPTH_AT_ONCE = 256;  // of a panel of B: so much of it stays in the first cache

template <class T>
struct Product {
    const T *a, *b, *bias;  // bias: (columns) or null
    T* c;
    int64_t rows, columns, depth;

    // The columns of one panel, for all rows. `panel` and `sums` are room for the panel and for its part of C.
    void compute(int64_t first, T* panel, T* sums) const {
        const int64_t here = std::min(PANEL<T>, columns - first);
        pack_transposed(b + first * depth, depth, here, depth, panel);
        for (int64_t from = 0; from < depth; from += DEPTH_AT_ONCE) {
            const int64_t deep = std::min(DEPTH_AT_ONCE, depth - from);
            for (int64_t row = 0; row < rows; row += TILE_ROWS)
                tile<T>(std::min(TILE_ROWS, rows - row), deep, Matrix<const T>{a + row * depth + from, depth},
                        panel + from * PANEL<T>, Matrix<T>{sums + row * PANEL<T>, PANEL<T>}, from > 0);
        }
        for (int64_t row = 0; row < rows; row++)
            for (int64_t n = 0; n < here; n++)
                c[row * columns + first + n] = sums[row * PANEL<T> + n] + (bias ? bias[first + n] : T(0));
    }
};

template <class T>
int32_t product(const Product<T>& product, int32_t threads) {
    const int64_t panels = (product.columns + PANEL<T> - 1) / PANEL<T>;
    const int64_t room = PANEL<T> * (product.depth + product.rows);
    try {
        std::vector<T> rooms(room * threads);
#pragma omp parallel num_threads(threads)
        {
            T* own = rooms.data() + room * omp_get_thread_num();
            const Share mine(panels);
            for (int64_t panel = mine.first; panel < mine.last; panel++)
                product.compute(panel * PANEL<T>, own, own + PANEL<T> * product.depth);
        }
        return 0;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}

}  // namespace
}  // namespace segue

// 0, or 1 if there is not enough memory. `sizes` are rows, columns and depth.
SEGUE_EXPORT int32_t segue_product_float(const float* a, const float* b, const float* bias, float* c,
                                         const int64_t* sizes, int32_t threads) {
    return segue::product<float>({a, b, bias, c, sizes[0], sizes[1], sizes[2]}, threads);
}

SEGUE_EXPORT int32_t segue_product_double(const double* a, const double* b, const double* bias, double* c,
                                          const int64_t* sizes, int32_t threads) {
    return segue::product<double>({a, b, bias, c, sizes[0], sizes[1], sizes[2]}, threads);
}
