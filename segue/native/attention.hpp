// What the passes of attention share: the problem, which keys a query sees, memory to work in, blocks of queries.
//
// Letters: B lanes, T queries, S keys, H heads, D head width, R rows of relative keys.

#pragma once

#include <cstdlib>
#include <new>
#include <vector>

#include "native.hpp"
#include "philox.hpp"
#include "product.hpp"

namespace segue {

// The arguments, in the order of `nn/native_attention.py`. Strides count numbers; the last dimension is contiguous.
struct Problem {
    int64_t lanes, heads, width, queries, keys, rows, row_width;
    int64_t first, last;  // query i sees the keys i + first … i + last - 1, as far as there are such
    int64_t offset;       // the row of key j for query i is j - i + offset; others score zero
    int64_t sees_itself;  // whatever is padded
    int64_t grains;       // of dropout: probability · 2^16
    uint64_t seed;
    double scale;
    int64_t query_strides[3], key_strides[3], value_strides[3], row_strides[2], padding_strides[3];
    const void *query, *key, *value, *row, *content_bias, *position_bias, *row_bias;
    const int64_t* documents;  // (B, S) or none
    const uint8_t* padding;    // (B, T, S) with strides, or none: not 0 where a key is masked
    void *gathered, *logs;     // (T, B, H, D), (T, B, H)
    // Of the backward pass alone. Gradients of keys and values are (S, B, H, D), of rows (R, H, D), of biases (H, D).
    const void *gradient, *to_logs;
    void *to_query, *to_key, *to_value, *to_row, *to_content_bias, *to_position_bias, *to_row_bias;
};

// Keys [low, high) of a query; `gaps` where some of them are masked.
struct Range {
    int64_t low, high;
    bool gaps;

    void join(const Range& other) {
        if (other.low >= other.high) return;
        *this = low >= high ? other : Range{std::min(low, other.low), std::max(high, other.high), gaps || other.gaps};
    }
};

class Sight {
public:
    Sight(const Problem& problem, int64_t lane) : problem(problem), lane(lane) {}

    Range band(int64_t query) const {
        return {std::max<int64_t>(0, query + problem.first), std::min(problem.keys, query + problem.last), false};
    }

    bool masked(int64_t query, int64_t key) const {
        if (problem.documents) {
            const int64_t* own = problem.documents + lane * problem.keys;
            if (own[problem.keys - problem.queries + query] != own[key]) return true;
        }
        if (!problem.padding || (problem.sees_itself && query == key)) return false;
        const int64_t* strides = problem.padding_strides;
        return problem.padding[lane * strides[0] + query * strides[1] + key * strides[2]] != 0;
    }

    // The band without the masked keys at both its ends.
    Range range(int64_t query) const {
        Range seen = band(query);
        if (!problem.documents && !problem.padding) return seen;
        while (seen.low < seen.high && masked(query, seen.low)) seen.low++;
        while (seen.low < seen.high && masked(query, seen.high - 1)) seen.high--;
        for (int64_t key = seen.low; key < seen.high && !seen.gaps; key++) seen.gaps = masked(query, key);
        return seen;
    }

private:
    const Problem& problem;
    int64_t lane;
};

// Memory that a thread keeps for its next call: fresh pages cost more than the numbers that are put there.
class Room {
public:
    template <class T>
    T* take(int64_t count) {
        const int64_t bytes = rounded_up(count * int64_t(sizeof(T)), 64) + 64;
        if (bytes > size) {
            std::free(data);
            data = std::aligned_alloc(64, size_t(bytes));
            size = data ? bytes : 0;
            if (!data) throw std::bad_alloc();
        }
        return static_cast<T*>(data);
    }

    Room() = default;
    Room(const Room&) = delete;
    ~Room() { std::free(data); }

private:
    void* data = nullptr;
    int64_t size = 0;
};

enum Use {
    SHARED_ROWS, SHARED_ROW_PANELS, SHARED_PARTIAL, SHARED_RANGES,
    KEYS_T, KEYS, VALUES, QUERIES, SCORES, GRADIENTS, OUT, FACTORS, TO_KEYS, TO_VALUES, USES
};

template <class T>
T* room(Use use, int64_t count) {
    static thread_local Room rooms[USES];
    return rooms[use].take<T>(count);
}

// Up to 6 queries that are computed together, and the keys that any of them sees.
struct Tile {
    int64_t first, count;
    Range seen;
};

// A block of queries, few enough that their scores stay in the cache; and where those scores are.
//
// Column 0 is key `low`. Beside every row lie GUARD numbers that belong to none: whole panels may spill there, and a
// row may be read askew.
template <class T>
struct Block {
    static constexpr int64_t GUARD = std::max<int64_t>(2 * PANEL<T>, 32);
    int64_t begin, end, low = 0, high = 0, pitch = 0;
    std::vector<Tile> tiles;

    Block(int64_t begin, int64_t end, const Range* ranges) : begin(begin), end(end) {
        Range all{0, 0, false};
        for (int64_t first = begin; first < end; first += TILE_ROWS) {
            Tile tile{first, std::min(TILE_ROWS, end - first), {0, 0, false}};
            for (int64_t query = first; query < first + tile.count; query++) tile.seen.join(ranges[query]);
            all.join(tile.seen);
            tiles.push_back(tile);
        }
        low = all.low / PANEL<T> * PANEL<T>;
        high = std::max(low, all.high);
        // An odd number of cache lines from row to row: a column is then spread over the whole cache.
        pitch = rounded_up(high - low, 16) + rounded_up(GUARD, 16);
        pitch += pitch / 16 % 2 ? 0 : 16;
    }

    int64_t room_needed() const { return (end - begin) * (pitch + 1) + 3 * GUARD; }

    // The score of a query and key, in memory that begins with a guard.
    T* at(T* scores, int64_t query, int64_t key) const {
        return scores + GUARD + (query - begin) * pitch + key - low;
    }
};

// What all threads share: the problem, relative keys packed for products, the keys that each query sees.
template <class T>
struct Setting {
    const Problem& problem;
    int64_t padded;  // D, rounded up to panels
    const T *rows_transposed, *row_panels;
    const Range* ranges;  // (B or 1, T)

    const Range* of_lane(int64_t lane) const {
        return ranges + (problem.documents || problem.padding ? lane * problem.queries : 0);
    }
    int64_t row_panel_count() const { return (problem.rows + PANEL<T> - 1) / PANEL<T>; }
    int64_t transposed_size() const { return row_panel_count() * PANEL<T> * problem.row_width; }
};

}  // namespace segue
