// The likeliest tokens of each lane and their log-probabilities. The logits of a whole vocabulary are never held: each
// tile of them goes into a running sum of exponentials and a short list of the best, while it is in the first cache.
//
// The vocabulary is cut into blocks of a fixed size, so that no bit depends on the number of threads. Of equal logits
// the first token's comes first. Letters: B lanes, P places for them (`linear.hpp`), C width, V vocabulary, K tokens.

#include <cmath>
#include <new>
#include <vector>

#include "linear.hpp"

namespace segue {
namespace {

constexpr int64_t BLOCK = 64 * ROWS;  // tokens whose exponentials are summed up by themselves

template <typename Real>
struct Asked {
    Weights<Real> table;  // (V, C)
    const Real* hidden;   // (B, C)
    Real* logprobs;       // (B, K)
    int64_t* tokens;      // (B, K)
    int64_t lanes, count, never;  // B, K, and a token that is not wanted; -1: none
};

// The best K of what one lane was shown, the best first.
template <typename Real>
struct Best {
    Real* logits;
    int64_t* tokens;
    int64_t count;

    void insert(Real logit, int64_t token) const {
        int64_t place = count;
        for (; place > 0 && logit > logits[place - 1]; place--)
            if (place < count) {
                logits[place] = logits[place - 1];
                tokens[place] = tokens[place - 1];
            }
        if (place == count) return;
        logits[place] = logit;
        tokens[place] = token;
    }
};

template <typename Real>
struct Search {
    const Asked<Real>& asked;
    int64_t places, blocks;
    std::vector<Real> inputs;         // (C, P)
    std::vector<Real> largest, sums;  // (blocks, P): the largest logit, and the sum of exp(logit - largest)
    std::vector<Real> logits;         // (threads, B, K)
    std::vector<int64_t> tokens;      // (threads, B, K)
    std::vector<Real> rooms;          // (threads, ROWS, P)

    Search(const Asked<Real>& asked, int threads)
        : asked(asked),
          places(asked.lanes == 1 ? 1 : (asked.lanes + WIDTH<Real> - 1) / WIDTH<Real> * WIDTH<Real>),
          blocks((asked.table.outputs + BLOCK - 1) / BLOCK),
          inputs(asked.table.inputs * places),
          largest(blocks * places, std::numeric_limits<Real>::lowest()),
          sums(blocks * places),
          logits(threads * asked.lanes * asked.count, -std::numeric_limits<Real>::infinity()),
          tokens(threads * asked.lanes * asked.count, std::max<int64_t>(asked.never, 0)),
          rooms(threads * ROWS * places) {
        for (int64_t b = 0; b < asked.lanes; b++)
            for (int64_t i = 0; i < asked.table.inputs; i++)
                inputs[i * places + b] = asked.hidden[b * asked.table.inputs + i];
    }

    Best<Real> best(int64_t thread, int64_t lane) {
        const int64_t place = (thread * asked.lanes + lane) * asked.count;
        return {logits.data() + place, tokens.data() + place, asked.count};
    }

    // Some of a lane's logits, P apart, for tokens from `first` on.
    void choose(int thread, int64_t lane, const Real* some, int64_t count, int64_t first) {
        const Best<Real> list = best(thread, lane);
        for (int64_t row = 0; row < count; row++)
            if (some[row * places] > list.logits[asked.count - 1] && first + row != asked.never)
                list.insert(some[row * places], first + row);
    }

    // A tile of logits (count, P) of block number `block`, for vectors of lanes.
    void take(int thread, int64_t block, const Real* tile, int64_t count, int64_t first) {
        constexpr int width = WIDTH<Real>;
        for (int64_t lane = 0; lane < places; lane += width) {
            Real *most = largest.data() + block * places + lane, *sum = sums.data() + block * places + lane;
            const Vector<Real> before = load(most);
            Vector<Real> here = load(tile + lane);
            for (int64_t row = 1; row < count; row++) {
                const Vector<Real> logit = load(tile + row * places + lane);
                here = logit > here ? logit : here;
            }
            const Vector<Real> after = here > before ? here : before;
            Vector<Real> total = load(sum) * exponential<Real>(before - after);
            for (int64_t row = 0; row < count; row++)
                total += exponential<Real>(load(tile + row * places + lane) - after);
            store(most, after);
            store(sum, total);
            for (int64_t l = lane; l < std::min(lane + width, asked.lanes); l++)
                if (here[l - lane] > best(thread, l).logits[asked.count - 1])
                    choose(thread, l, tile + l, count, first);
        }
    }

    // The same for a single lane.
    void take_one(int thread, int64_t block, Real* tile, int64_t count, int64_t first) {
        choose(thread, 0, tile, count, first);
        Real here = largest[block];
        for (int64_t row = 0; row < count; row++) here = tile[row] > here ? tile[row] : here;
        sums[block] *= std::exp(largest[block] - here);
        largest[block] = here;
        for (int64_t row = 0; row < count; row++) sums[block] += std::exp(tile[row] - here);
    }

    // This thread's share of the blocks.
    void run(int thread) {
        const Share mine(asked.table.outputs, BLOCK);
        Real* tile = rooms.data() + thread * ROWS * places;
        Weights<Real> part = asked.table;
        for (int64_t row = mine.first; row < mine.last; row += ROWS) {
            const int64_t count = std::min<int64_t>(ROWS, mine.last - row);
            part.weights = asked.table.weights + row * part.inputs;
            part.bias = asked.table.bias ? asked.table.bias + row : nullptr;
            const bool more = row + 2 * ROWS <= mine.last;
            if (places > 1 && count == ROWS)
                tiles<Real, ROWS>(part, inputs.data(), places, 0, tile, false, more);
            else
                for (int64_t r = 0; r < count; r++) one_row(part, r, tile);
            places > 1 ? take(thread, row / BLOCK, tile, count, row) : take_one(thread, row / BLOCK, tile, count, row);
        }
    }

    void one_row(const Weights<Real>& part, int64_t row, Real* tile) {
        if (places > 1) return tiles<Real, 1>(part, inputs.data(), places, row, tile, false, false);
        tile[row] = product_of(part.weights + row * part.inputs, inputs.data(), part.inputs);
        if (part.bias) tile[row] += part.bias[row];
    }

    // What all threads found, as log-probabilities.
    void finish(int64_t lane, int threads) {
        const Best<Real> list = best(0, lane);
        for (int thread = 1; thread < threads; thread++) {
            const Best<Real> other = best(thread, lane);
            for (int64_t n = 0; n < asked.count && other.logits[n] > list.logits[asked.count - 1]; n++)
                list.insert(other.logits[n], other.tokens[n]);
        }
        Real most = largest[lane], total = 0;
        for (int64_t block = 1; block < blocks; block++) most = std::max(most, largest[block * places + lane]);
        for (int64_t block = 0; block < blocks; block++)
            total += sums[block * places + lane] * std::exp(largest[block * places + lane] - most);
        const Real log = most + std::log(total);
        for (int64_t n = 0; n < asked.count; n++) {
            asked.logprobs[lane * asked.count + n] = list.logits[n] - log;
            asked.tokens[lane * asked.count + n] = list.tokens[n];
        }
    }
};

template <typename Real>
int32_t likeliest(const Asked<Real>* asked, int32_t threads) {
    try {
        Search<Real> search(*asked, threads);
#pragma omp parallel num_threads(threads)
        search.run(omp_get_thread_num());
        for (int64_t lane = 0; lane < asked->lanes; lane++) search.finish(lane, threads);
        return 0;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}

}  // namespace
}  // namespace segue

// 0, or 1 if there is not enough memory.
SEGUE_EXPORT int32_t segue_likeliest_float(const void* asked, int32_t threads) {
    return segue::likeliest(static_cast<const segue::Asked<float>*>(asked), threads);
}

SEGUE_EXPORT int32_t segue_likeliest_double(const void* asked, int32_t threads) {
    return segue::likeliest(static_cast<const segue::Asked<double>*>(asked), threads);
}
