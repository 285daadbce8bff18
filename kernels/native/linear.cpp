// Linear maps with weights in bf16; the layout and the interface are described in kernels/linear.

#include <vector>

#include "block.h"

constexpr long INPUTS = 1024;  // of one pass over a tile, for which the rows of x stay in the first-level cache

template <class Op>
static void multiply(const typename Op::Input *x, const uint32_t *weights, const float *bias, typename Op::Input *out,
                     long num_rows, long in_features, long out_features, int num_threads) {
#pragma omp parallel for num_threads(num_threads) schedule(static)
    for (long column = 0; column < out_features; column += TILE) {
        static thread_local std::vector<float> sums;  // [num_rows, TILE], in the second-level cache
        if ((long)sums.size() < num_rows * TILE) sums.resize(num_rows * TILE);
        for (long first = 0; first < in_features; first += INPUTS) {
            const long num_pairs = (first + INPUTS < in_features ? INPUTS : in_features - first) / 2;
            const uint32_t *tile = weights + (column * in_features + first * TILE) / 2;
            for (long row = 0; row < num_rows;) {
                const long rows = choose_rows(num_rows - row);
                add_rows<Op>(rows, x + row * in_features + first, in_features, tile, num_pairs,
                             bias ? bias + column : nullptr, sums.data() + row * TILE, TILE, first == 0);
                row += rows;
            }
        }
        for (long row = 0; row < num_rows; row++)
            store_row(out + row * out_features + column, sums.data() + row * TILE, out_features - column);
    }
}

extern "C" void multiply_float32(const float *x, const uint32_t *weights, const float *bias, float *out, long num_rows,
                                 long in_features, long out_features, int num_threads) {
    multiply<Widened>(x, weights, bias, out, num_rows, in_features, out_features, num_threads);
}

#if defined(__AVX512BF16__)
extern "C" void multiply_bfloat16(const uint16_t *x, const uint32_t *weights, const float *bias, uint16_t *out,
                                  long num_rows, long in_features, long out_features, int num_threads) {
    multiply<Paired>(x, weights, bias, out, num_rows, in_features, out_features, num_threads);
}
#endif
