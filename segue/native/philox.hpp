// Philox4x32-10, the counter-based random generator of Salmon et al. (2011), for dropout: whoever knows seed and place
// draws the same number again, so nothing is kept for the backward pass, and threads do not matter.

#pragma once

#include <cstdint>

#include "vector.hpp"

namespace segue {

constexpr int64_t DRAWS = 128;  // of one call: 16 counters, 4 words of each, 2 draws of 16 bits of each word
constexpr int64_t COUNTERS = 16;

// Words of the counters (16 block + 0 … 15, place, place >> 32, 0) under a seed: four for each, word by word.
inline void philox(uint64_t seed, uint32_t block, uint64_t place, uint32_t (&words)[4][COUNTERS]) {
#pragma omp simd
    for (uint32_t lane = 0; lane < COUNTERS; lane++) {
        uint32_t a = block * uint32_t(COUNTERS) + lane, b = uint32_t(place), c = uint32_t(place >> 32), d = 0;
        uint32_t first = uint32_t(seed), second = uint32_t(seed >> 32);
#pragma GCC unroll 10
        for (int round = 0; round < 10; round++) {
            const uint64_t left = uint64_t(0xD2511F53u) * a, right = uint64_t(0xCD9E8D57u) * c;
            a = uint32_t(right >> 32) ^ b ^ first;
            b = uint32_t(right);
            c = uint32_t(left >> 32) ^ d ^ second;
            d = uint32_t(left);
            first += 0x9E3779B9u;
            second += 0xBB67AE85u;
        }
        words[0][lane] = a;
        words[1][lane] = b;
        words[2][lane] = c;
        words[3][lane] = d;
    }
}

// Factors of the numbers [first, last) of a row: zero with probability grains / 2^16, else 2^16 / (2^16 - grains).
// `factors` holds whole blocks of draws: its first is of the number `first` rounded down to a block.
template <class T>
void dropout_factors(uint64_t seed, uint64_t place, uint32_t grains, int64_t first, int64_t last, T* factors) {
    constexpr int64_t wide = WIDTH<T>;
    typedef int32_t Draws __attribute__((vector_size(4 * wide)));
    const T growth = T(65536.0 / (65536.0 - grains));
    const int32_t dropped = int32_t(grains);
    uint32_t words[4][COUNTERS];
    for (int64_t block = first / DRAWS; block * DRAWS < last; block++) {
        philox(seed, uint32_t(block), place, words);
        for (int word = 0; word < 4; word++, factors += 2 * COUNTERS)
            for (int64_t lane = 0; lane < COUNTERS; lane += wide) {
                Draws drawn;
                std::memcpy(&drawn, words[word] + lane, sizeof drawn);
                const Draws low = (drawn & 0xFFFF) >= dropped, high = ((drawn >> 16) & 0xFFFF) >= dropped;
                // A comparison is -1 where it holds.
                store(factors + lane, Vector<T>(__builtin_convertvector(-low, Vector<T>) * growth));
                store(factors + COUNTERS + lane, Vector<T>(__builtin_convertvector(-high, Vector<T>) * growth));
            }
    }
}

}  // namespace segue
