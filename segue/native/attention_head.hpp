// Attention of one lane and head: a block of queries at a time, their scores in the cache, keys out of sight skipped.
//
// Letters: T queries, S keys, D head width, R rows of relative keys.

#pragma once

#include <cmath>

#include "attention.hpp"

namespace segue {

constexpr int64_t DEPTH = 128;  // keys of one step of a product over keys: a panel of them stays in the L1 cache

template <class T>
constexpr T LOWEST = -std::numeric_limits<T>::max() / 4;  // of a masked score

// What a thread needs of one lane and head.
template <class T>
class Head {
public:
    Head(const Setting<T>& setting, int64_t lane, int64_t head)
        : setting(setting), problem(setting.problem), lane(lane), head(head), sight(problem, lane),
          ranges(setting.of_lane(lane)), width(problem.width), padded(setting.padded) {}

    void pack_keys(int64_t begin, int64_t end, bool backward) {
        Range all{0, 0, false};
        for (int64_t query = begin; query < end; query++) all.join(ranges[query]);
        first_key = all.low / panel * panel;
        key_count = std::max<int64_t>(0, all.high - first_key);
        const int64_t room_of_panels = rounded_up(key_count, panel);
        keys_transposed = room<T>(KEYS_T, room_of_panels * width);
        pack_transposed(key(first_key), problem.key_strides[0], key_count, width, keys_transposed);
        values = room<T>(VALUES, room_of_panels * padded);
        if (!backward) return pack(value(first_key), problem.value_strides[0], key_count, width, values);
        pack_transposed(value(first_key), problem.value_strides[0], key_count, width, values);
        keys = room<T>(KEYS, key_count * padded);
        pack(key(first_key), problem.key_strides[0], key_count, width, keys);
    }

    void forward(int64_t begin, int64_t end) {
        const Block<T> block(begin, end, ranges);
        load_queries(block);
        T* scores = room<T>(SCORES, block.room_needed());
        score(block, scores, content, keys_transposed);
        add_positions(block, scores);
        T* out = room<T>(OUT, rounded_up(end - begin, TILE_ROWS) * padded);
        for (const Tile& tile : block.tiles) {
            T inverse[TILE_ROWS];
            for (int64_t row = 0; row < tile.count; row++)
                inverse[row] = softmax(block, tile, tile.first + row, scores);
            Matrix<T> into{out + (tile.first - begin) * padded, padded};
            over_keys(block, tile, scores, values, into);
            for (int64_t row = 0; row < tile.count; row++) {
                T* target = at<T>(problem.gathered, tile.first + row);
                for (int64_t d = 0; d < width; d++) target[d] = into.row(row)[d] * inverse[row];
            }
        }
    }

    // Gradients are added to `to_keys`, `to_values` (key_count, padded) and to the partial sums.
    void backward(int64_t begin, int64_t end, T* to_keys, T* to_values, T* to_rows, T* to_biases,
                  T* to_row_bias) {
        const Block<T> block(begin, end, ranges);
        load_queries(block);
        load_gradients(block);
        T* weights = room<T>(SCORES, block.room_needed());
        T* gradients = room<T>(GRADIENTS, block.room_needed());
        score(block, weights, content, keys_transposed);
        add_positions(block, weights);
        score(block, gradients, arriving, values);
        for (const Tile& tile : block.tiles)
            for (int64_t row = 0; row < tile.count; row++)
                softmax_backward(block, tile.first + row, weights, gradients);
        over_queries(block, weights, arriving_panels, to_values);
        over_queries(block, gradients, content_panels, to_keys);
        if (problem.row_width) over_queries_by_row(block, gradients, to_rows);
        if (to_row_bias) sum_by_row(block, gradients, to_row_bias);
        T* out = room<T>(OUT, 2 * TILE_ROWS * padded);
        for (const Tile& tile : block.tiles) {
            Matrix<T> by_content{out, padded}, by_position{out + TILE_ROWS * padded, padded};
            over_keys(block, tile, gradients, keys, by_content);
            over_rows(block, tile, gradients, by_position);
            const T scale = T(problem.scale);
            for (int64_t row = 0; row < tile.count; row++) {
                T* target = at<T>(problem.to_query, tile.first + row);
                for (int64_t d = 0; d < width; d++) {
                    const T left = by_content.row(row)[d] * scale, right = by_position.row(row)[d] * scale;
                    target[d] = left + right;
                    to_biases[d] += left;
                    to_biases[width + d] += right;
                }
            }
        }
    }

    void write_keys(const T* gradients, void* into) const {
        T* target = static_cast<T*>(into) + (lane * problem.heads + head) * width;
        const int64_t stride = problem.lanes * problem.heads * width;
        for (int64_t key = 0; key < problem.keys; key++) {
            const bool inside = key >= first_key && key < first_key + key_count;
            if (inside) copy(gradients + (key - first_key) * padded, width, target + key * stride);
            else std::memset(target + key * stride, 0, sizeof(T) * width);
        }
    }

    int64_t key_count = 0;

private:
    static constexpr int64_t panel = PANEL<T>;
    static constexpr int64_t wide = WIDTH<T>;

    const T* input(const void* tensor, const int64_t* strides, int64_t time) const {
        return static_cast<const T*>(tensor) + time * strides[0] + lane * strides[1] + head * strides[2];
    }
    const T* key(int64_t number) const { return input(problem.key, problem.key_strides, number); }
    const T* value(int64_t number) const { return input(problem.value, problem.value_strides, number); }
    // A row of a contiguous (T, B, H, D).
    template <class U>
    U* at(void* tensor, int64_t query) const {
        return static_cast<U*>(tensor) + ((query * problem.lanes + lane) * problem.heads + head) * width;
    }
    int64_t log_place(int64_t query) const { return (query * problem.lanes + lane) * problem.heads + head; }

    // (q + u) · scale and (q + v) · scale, as rows and, for the backward pass, as panels.
    void load_queries(const Block<T>& block) {
        const int64_t count = block.end - block.begin;
        T* place = room<T>(QUERIES, count * (3 * width + 3 * padded));
        content = place, position = content + count * width, arriving = position + count * width;
        content_panels = arriving + count * width, position_panels = content_panels + count * padded;
        arriving_panels = position_panels + count * padded;
        const T* u = static_cast<const T*>(problem.content_bias);
        const T* v = static_cast<const T*>(problem.position_bias);
        const T scale = T(problem.scale);
        for (int64_t row = 0; row < count; row++) {
            const T* query = input(problem.query, problem.query_strides, block.begin + row);
            T *by_content = content + row * width, *by_position = position + row * width;
            for (int64_t d = 0; d < width; d++) by_content[d] = (query[d] + (u ? u[head * width + d] : T(0))) * scale;
            for (int64_t d = 0; d < problem.row_width; d++) by_position[d] = (query[d] + v[head * width + d]) * scale;
        }
    }

    void load_gradients(const Block<T>& block) {
        const int64_t count = block.end - block.begin;
        for (int64_t row = 0; row < count; row++)
            copy(at<const T>(const_cast<void*>(problem.gradient), block.begin + row), width, arriving + row * width);
        pack(content, width, count, width, content_panels);
        if (problem.row_width) pack(position, width, count, width, position_panels);
        pack(arriving, width, count, width, arriving_panels);
    }

    // scores = left · right^T for all keys in sight; `right` are panels of transposed keys or values.
    void score(const Block<T>& block, T* scores, const T* left, const T* right) const {
        for (int64_t column = block.low; column < block.high; column += panel) {
            const T* here = right + (column - first_key) * width;
            for (const Tile& part : block.tiles)
                if (column + panel > part.seen.low && column < part.seen.high)
                    tile<T>(part.count, width, {left + (part.first - block.begin) * width, width}, here,
                            {block.at(scores, part.first, column), block.pitch}, false);
        }
    }

    // The rows [low, high) that occur between the queries and keys of a tile.
    Range rows_of(const Tile& part) const {
        const int64_t low = part.seen.low - (part.first + part.count - 1) + problem.offset;
        const int64_t high = part.seen.high - part.first + problem.offset;
        return {std::max<int64_t>(0, low), std::min(problem.rows, high), false};
    }

    // Scores by distance are added askew: a row lower, the same relative key belongs to the key one column farther.
    void add_positions(const Block<T>& block, T* scores) const {
        if (!problem.row_width) return;
        const T* rows = setting.rows_transposed + head * setting.transposed_size();
        for (const Tile& part : block.tiles) {
            const Range near = rows_of(part);
            if (part.seen.low >= part.seen.high) continue;
            for (int64_t row = near.low / panel * panel; row < near.high; row += panel)
                tile<T>(part.count, width, {position + (part.first - block.begin) * width, width}, rows + row * width,
                        {block.at(scores, part.first, row + part.first - problem.offset), block.pitch + 1}, true);
        }
    }

    // Add the bias of each distance, mask, and fill up to whole vectors before the first key; where they begin.
    // Vectors are counted from the newest key, so that a row is summed in the same order wherever it begins.
    int64_t masked_row(const Block<T>& block, int64_t query, T* scores) const {
        const Range seen = ranges[query];
        T* row = block.at(scores, query, 0);
        if (problem.row_bias) {
            const T* bias = static_cast<const T*>(problem.row_bias) + head * problem.rows + problem.offset - query;
            const int64_t low = std::max(seen.low, query - problem.offset);
            const int64_t high = std::min(seen.high, problem.rows + query - problem.offset);
            const T scale = T(problem.scale);
            for (int64_t key = low; key < high; key++) row[key] += bias[key] * scale;
        }
        if (seen.gaps)
            for (int64_t key = seen.low; key < seen.high; key++)
                if (sight.masked(query, key)) row[key] = LOWEST<T>;
        const int64_t start = seen.high - rounded_up(seen.high - seen.low, wide);
        for (int64_t key = start; key < seen.low; key++) row[key] = LOWEST<T>;
        return start;
    }

    const T* drawn_factors(int64_t query, int64_t start, int64_t high) const {
        const int64_t first = std::max<int64_t>(0, start) / DRAWS * DRAWS;
        T* factors = room<T>(FACTORS, high - first + 2 * DRAWS + wide) + wide;
        const uint64_t place = uint64_t(lane * problem.heads + head) * uint64_t(problem.queries) + uint64_t(query);
        dropout_factors(problem.seed, place, uint32_t(problem.grains), first, high, factors);
        for (int64_t key = -wide; key < 0; key++) factors[key] = 0;  // a vector may begin before the first key
        return factors - first;
    }

    // Exponentiated scores less the largest; zero where nothing is seen. What they must be multiplied by comes back.
    T softmax(const Block<T>& block, const Tile& part, int64_t query, T* scores) const {
        const Range seen = ranges[query];
        const int64_t start = masked_row(block, query, scores);
        T* row = block.at(scores, query, 0);
        Vector<T> highest = LOWEST<T> / 2 - Vector<T>{};
        for (int64_t key = start; key < seen.high; key += wide) {
            const Vector<T> here = load(row + key);
            highest = here > highest ? here : highest;
        }
        const T largest = largest_of<T>(highest);
        const auto powers = [&](int64_t key) {
            const Vector<T> power = exponential<T>(load(row + key) - largest);
            store(row + key, power);
            return power;
        };
        Vector<T> even{}, odd{};
        int64_t key = seen.high - wide;
        for (; key >= start + wide; key -= 2 * wide) even += powers(key), odd += powers(key - wide);
        if (key >= start) even += powers(key);
        const T total = sum<T>(even + odd);
        for (int64_t key = part.seen.low; key < start; key++) row[key] = 0;
        for (int64_t key = seen.high; key < part.seen.high; key++) row[key] = 0;
        if (problem.grains && seen.low < seen.high) {
            const T* factors = drawn_factors(query, start, seen.high);
            for (int64_t key = start; key < seen.high; key += wide)
                store(row + key, Vector<T>(load(row + key) * load(factors + key)));
        }
        static_cast<T*>(problem.logs)[log_place(query)] =
            total == 0 ? std::numeric_limits<T>::lowest() : largest + std::log(total);
        return total == 0 ? T(0) : 1 / total;
    }

    // From scores and gradients of weights: weights as dropout left them, and gradients of scores. Zero where not seen.
    void softmax_backward(const Block<T>& block, int64_t query, T* weights, T* gradients) const {
        const Range seen = ranges[query], band = sight.band(query);
        const int64_t start = masked_row(block, query, weights);
        T *row = block.at(weights, query, 0), *slope = block.at(gradients, query, 0);
        const T *arrived = arriving + (query - block.begin) * width, *gathered = at<const T>(problem.gathered, query);
        T common = problem.to_logs ? -static_cast<const T*>(problem.to_logs)[log_place(query)] : T(0);
        for (int64_t d = 0; d < width; d++) common += arrived[d] * gathered[d];
        const T log = static_cast<const T*>(problem.logs)[log_place(query)];
        const bool blind = log <= LOWEST<T>;
        const T* factors = problem.grains && seen.low < seen.high ? drawn_factors(query, start, seen.high) : nullptr;
        for (int64_t key = start; key < seen.high; key += wide) {
            const Vector<T> weight = blind ? Vector<T>{} : exponential<T>(load(row + key) - log);
            if (!factors) {
                store(row + key, weight);
                // A vector may begin before the first key, where nothing was computed.
                const Vector<T> change = weight * (load(slope + key) - common);
                store(slope + key, Vector<T>(weight == 0 ? Vector<T>{} : change));
                continue;
            }
            const Vector<T> factor = load(factors + key);
            store(row + key, Vector<T>(weight * factor));
            const Vector<T> change = weight * (load(slope + key) * factor - common);
            store(slope + key, Vector<T>(weight == 0 ? Vector<T>{} : change));
        }
        const int64_t low = std::max(band.low, block.low) - 2 * TILE_ROWS;
        const int64_t high = std::min(band.high, block.high) + 2 * TILE_ROWS;
        for (int64_t key = low; key < std::min(start, high); key++) row[key] = slope[key] = 0;
        for (int64_t key = std::max(seen.high, low); key < high; key++) row[key] = slope[key] = 0;
    }

    // (count, padded) The product of a tile's weights with panels of keys or values.
    void over_keys(const Block<T>& block, const Tile& part, const T* weights, const T* panels, Matrix<T> into) const {
        if (part.seen.low >= part.seen.high)
            for (int64_t row = 0; row < part.count; row++) std::memset(into.row(row), 0, sizeof(T) * padded);
        for (int64_t low = part.seen.low; low < part.seen.high; low += DEPTH) {
            const int64_t depth = std::min(DEPTH, part.seen.high - low);
            const T* left = block.at(const_cast<T*>(weights), part.first, low);
            for (int64_t column = 0; column < padded; column += panel)
                tile<T>(part.count, depth, {left, block.pitch}, panels + column * key_count + (low - first_key) * panel,
                        {into.data + column, padded}, low > part.seen.low);
        }
    }

    // The same with panels of rows: gradients are read askew, as scores were written.
    void over_rows(const Block<T>& block, const Tile& part, const T* gradients, Matrix<T> into) const {
        const Range near = rows_of(part);
        if (!problem.row_width || near.low >= near.high || part.seen.low >= part.seen.high)
            for (int64_t row = 0; row < part.count; row++) std::memset(into.row(row), 0, sizeof(T) * padded);
        if (!problem.row_width || part.seen.low >= part.seen.high) return;
        const T* panels = setting.row_panels + head * problem.rows * padded;
        for (int64_t low = near.low; low < near.high; low += DEPTH) {
            const int64_t depth = std::min(DEPTH, near.high - low);
            const T* left = block.at(const_cast<T*>(gradients), part.first, low + part.first - problem.offset);
            for (int64_t column = 0; column < padded; column += panel)
                tile<T>(part.count, depth, {left, block.pitch + 1}, panels + column * problem.rows + low * panel,
                        {into.data + column, padded}, low > near.low);
        }
    }

    // Gradients of keys or values: the sum over queries of weight · panel, added to (key_count, padded).
    void over_queries(const Block<T>& block, const T* weights, const T* panels, T* into) const {
        const int64_t count = block.end - block.begin;
        for (int64_t key = block.low; key < block.high; key += TILE_ROWS) {
            const int64_t rows = std::min(TILE_ROWS, block.high - key);
            const int64_t low = std::max(block.begin, key - problem.last + 1);
            const int64_t high = std::min(block.end, key + rows - problem.first);
            if (low >= high) continue;
            const T* left = block.at(const_cast<T*>(weights), low, key);
            for (int64_t column = 0; column < padded; column += panel)
                tile<T, true>(rows, high - low, {left, block.pitch},
                              panels + column * count + (low - block.begin) * panel,
                              {into + (key - first_key) * padded + column, padded}, true);
        }
    }

    // Gradients of relative keys, added to (rows, padded).
    void over_queries_by_row(const Block<T>& block, const T* gradients, T* into) const {
        const int64_t count = block.end - block.begin, offset = problem.offset;
        const Range near = rows_of({block.begin, count, {block.low, block.high, false}});
        const int64_t lowest = std::max(near.low, problem.first + offset);
        const int64_t highest = std::min(near.high, problem.last + offset);
        for (int64_t row = lowest; row < highest; row += TILE_ROWS) {
            const int64_t rows = std::min(TILE_ROWS, highest - row);
            const int64_t low = std::max(block.begin, block.low + offset - (row + rows - 1));
            const int64_t high = std::min(block.end, block.high + offset - row);
            if (low >= high) continue;
            const T* left = block.at(const_cast<T*>(gradients), low, row + low - offset);
            for (int64_t column = 0; column < padded; column += panel)
                tile<T, true>(rows, high - low, {left, block.pitch + 1},
                              position_panels + column * count + (low - block.begin) * panel,
                              {into + row * padded + column, padded}, true);
        }
    }

    void sum_by_row(const Block<T>& block, const T* gradients, T* into) const {
        const T scale = T(problem.scale);
        for (int64_t query = block.begin; query < block.end; query++) {
            const T* slope = block.at(const_cast<T*>(gradients), query, 0);
            const Range seen = ranges[query];
            const int64_t shift = problem.offset - query;
            const int64_t low = std::max(seen.low, -shift), high = std::min(seen.high, problem.rows - shift);
            for (int64_t key = low; key < high; key++) into[key + shift] += slope[key] * scale;
        }
    }

    const Setting<T>& setting;
    const Problem& problem;
    int64_t lane, head;
    Sight sight;
    const Range* ranges;
    int64_t width, padded, first_key = 0;
    T *keys_transposed = nullptr, *keys = nullptr, *values = nullptr;
    T *content = nullptr, *position = nullptr, *arriving = nullptr;
    T *content_panels = nullptr, *position_panels = nullptr, *arriving_panels = nullptr;
};

}  // namespace segue
