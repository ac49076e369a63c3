// What all native sources share: exported names, and a team of threads.
//
// No torch headers and no C++ in any signature: functions take pointers, integers and the number of threads to use
// (torch.get_num_threads()). OpenMP's runtime is the one that torch has loaded; the library is linked to none.

#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

#define SEGUE_EXPORT extern "C" __attribute__((visibility("default")))

namespace segue {

// The share of `count` things that is this thread's: [first, last), as even as can be, in blocks of `block`.
struct Share {
    int64_t first, last;

    Share(int64_t count, int64_t block = 1) : Share(count, block, omp_get_thread_num(), omp_get_num_threads()) {}

    Share(int64_t count, int64_t block, int thread, int threads) {
        const int64_t blocks = (count + block - 1) / block;
        first = std::min(count, blocks * thread / threads * block);
        last = std::min(count, blocks * (thread + 1) / threads * block);
    }
};

}  // namespace segue
