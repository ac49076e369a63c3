// How many threads a region really gets: for tests, and a sign that OpenMP works.

#include "native.hpp"

SEGUE_EXPORT int32_t segue_threads(int32_t wanted) {
    int32_t counted = 0;
#pragma omp parallel num_threads(wanted) reduction(+ : counted)
    counted += 1;
    return counted;
}
