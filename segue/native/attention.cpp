// Relative attention, forward and backward, over all lanes and heads. `nn/native_attention.py` calls it; the formula is
// in `nn/attention.py`, one lane and head in `attention_head.hpp`.

#include "attention_head.hpp"

namespace segue {
namespace {

constexpr int64_t SCORES_KEPT = 128 * 1024;  // of a block of queries, their gradients included: they stay in the L2 cache
constexpr int64_t MOST_QUERIES = 96;
constexpr int64_t LANE_GROUPS = 8;  // parts into which lanes are grouped where gradients are summed over them

int64_t block_size(const Problem& problem, int64_t kept) {
    const int64_t seen = std::max<int64_t>(1, std::min(problem.keys, problem.last - problem.first + MOST_QUERIES));
    return std::max<int64_t>(2 * TILE_ROWS, std::min(MOST_QUERIES, kept / seen / TILE_ROWS * TILE_ROWS));
}

// Memory that all threads read, taken before they start.
template <class T>
Setting<T> prepared(const Problem& problem, bool backward) {
    Setting<T> setting{problem, rounded_up(problem.width, PANEL<T>), nullptr, nullptr, nullptr};
    setting.rows_transposed = room<T>(SHARED_ROWS, problem.heads * setting.transposed_size());
    if (backward && problem.row_width)
        setting.row_panels = room<T>(SHARED_ROW_PANELS, problem.heads * problem.rows * setting.padded);
    const int64_t lanes = problem.documents || problem.padding ? problem.lanes : 1;
    setting.ranges = room<Range>(SHARED_RANGES, lanes * problem.queries);
    return setting;
}

// Called by all threads of a team.
template <class T>
void fill(const Setting<T>& setting) {
    const Problem& problem = setting.problem;
    const int64_t lanes = problem.documents || problem.padding ? problem.lanes : 1;
    Range* ranges = const_cast<Range*>(setting.ranges);
#pragma omp for schedule(static) nowait
    for (int64_t number = 0; number < lanes * problem.queries; number++)
        ranges[number] = Sight(problem, number / problem.queries).range(number % problem.queries);
#pragma omp for schedule(static)
    for (int64_t head = 0; head < problem.heads; head++) {
        if (!problem.row_width) continue;
        const T* from = static_cast<const T*>(problem.row) + head * problem.row_strides[1];
        pack_transposed(from, problem.row_strides[0], problem.rows, problem.width,
                        const_cast<T*>(setting.rows_transposed) + head * setting.transposed_size());
        if (setting.row_panels)
            pack(from, problem.row_strides[0], problem.rows, problem.width,
                 const_cast<T*>(setting.row_panels) + head * problem.rows * setting.padded);
    }
}

template <class T>
void forward(const Problem& problem, int threads) {
    const Setting<T> setting = prepared<T>(problem, false);
    const int64_t few = block_size(problem, SCORES_KEPT), blocks = (problem.queries + few - 1) / few;
    const int64_t heads = problem.lanes * problem.heads;
    // Few lanes and heads are cut into parts by query, so that every thread has something to do.
    const int64_t parts = std::max<int64_t>(1, std::min(blocks, (2 * threads + heads - 1) / heads));
#pragma omp parallel num_threads(threads)
    {
        fill(setting);
#pragma omp for schedule(dynamic)
        for (int64_t number = 0; number < heads * parts; number++) {
            const int64_t part = number % parts;
            const int64_t lane = number / parts / problem.heads, head = number / parts % problem.heads;
            const int64_t first = blocks * part / parts * few;
            const int64_t last = std::min(problem.queries, blocks * (part + 1) / parts * few);
            Head<T> work(setting, lane, head);
            work.pack_keys(first, last, false);
            for (int64_t begin = first; begin < last; begin += few) work.forward(begin, std::min(begin + few, last));
        }
    }
}

// Gradients of one head that are summed over lanes: of rows (R, padded), of both biases (2, D), of row biases (R).
template <class T>
struct Partial {
    int64_t rows, biases, all;

    explicit Partial(const Setting<T>& setting)
        : rows(setting.problem.row_width ? setting.problem.rows * setting.padded : 0),
          biases(2 * setting.problem.width),
          all(rounded_up(rows + biases + setting.problem.rows, 16)) {}
};

template <class T>
void add_up(const Setting<T>& setting, const T* partial, int64_t groups) {
    const Problem& problem = setting.problem;
    const Partial<T> sizes(setting);
    const int64_t heads = problem.heads, width = problem.width;
    T *to_row = static_cast<T*>(problem.to_row), *to_row_bias = static_cast<T*>(problem.to_row_bias);
    auto summed = [&](int64_t head, int64_t place) {
        T sum = 0;
        for (int64_t group = 0; group < groups; group++) sum += partial[(head * groups + group) * sizes.all + place];
        return sum;
    };
#pragma omp for schedule(static)
    for (int64_t head = 0; head < heads; head++) {
        if (problem.row_width)
            for (int64_t row = 0; row < problem.rows; row++)
                for (int64_t d = 0; d < width; d++)
                    to_row[(row * heads + head) * width + d] = summed(head, row * setting.padded + d);
        if (problem.to_row_bias)
            for (int64_t row = 0; row < problem.rows; row++)
                to_row_bias[row * heads + head] = summed(head, sizes.rows + sizes.biases + row);
        for (int64_t d = 0; problem.to_content_bias && d < width; d++) {
            static_cast<T*>(problem.to_content_bias)[head * width + d] = summed(head, sizes.rows + d);
            static_cast<T*>(problem.to_position_bias)[head * width + d] = summed(head, sizes.rows + width + d);
        }
    }
}

template <class T>
void backward(const Problem& problem, int threads) {
    const Setting<T> setting = prepared<T>(problem, true);
    const Partial<T> sizes(setting);
    const int64_t few = block_size(problem, SCORES_KEPT / 2), groups = std::min(problem.lanes, LANE_GROUPS);
    T* partials = room<T>(SHARED_PARTIAL, problem.heads * groups * sizes.all);
#pragma omp parallel num_threads(threads)
    {
        fill(setting);
#pragma omp for schedule(dynamic)
        for (int64_t number = 0; number < problem.heads * groups; number++) {
            const int64_t head = number / groups, group = number % groups;
            T* partial = partials + number * sizes.all;
            std::memset(partial, 0, sizeof(T) * sizes.all);
            T* to_row_bias = problem.to_row_bias ? partial + sizes.rows + sizes.biases : nullptr;
            const Share share(problem.lanes, 1, int(group), int(groups));
            for (int64_t lane = share.first; lane < share.last; lane++) {
                Head<T> work(setting, lane, head);
                work.pack_keys(0, problem.queries, true);
                T* to_keys = room<T>(TO_KEYS, work.key_count * setting.padded);
                T* to_values = room<T>(TO_VALUES, work.key_count * setting.padded);
                std::memset(to_keys, 0, sizeof(T) * work.key_count * setting.padded);
                std::memset(to_values, 0, sizeof(T) * work.key_count * setting.padded);
                for (int64_t begin = 0; begin < problem.queries; begin += few)
                    work.backward(begin, std::min(begin + few, problem.queries), to_keys, to_values, partial,
                                  partial + sizes.rows, to_row_bias);
                work.write_keys(to_keys, problem.to_key);
                work.write_keys(to_values, problem.to_value);
            }
        }
        add_up(setting, partials, groups);
    }
}

}  // namespace
}  // namespace segue

SEGUE_EXPORT void segue_attention_float(const segue::Problem* problem, int32_t backward, int32_t threads) {
    (backward ? segue::backward<float> : segue::forward<float>)(*problem, threads);
}

SEGUE_EXPORT void segue_attention_double(const segue::Problem* problem, int32_t backward, int32_t threads) {
    (backward ? segue::backward<double> : segue::forward<double>)(*problem, threads);
}
