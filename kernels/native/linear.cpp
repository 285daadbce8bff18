// Linear maps with weights in bf16; the layout and the interface are described in kernels/linear.

#include <vector>

#include "block.h"

constexpr long INPUTS_BYTES = 4096;  // of a row of x, for one pass over a tile: the rows stay in the first-level cache

// All sums of a tile, [num_rows, TILE], in the second-level cache.
template <class Op>
static typename Op::Sum *sum_tile(const typename Op::Input *x, const uint32_t *tile, const typename Op::Sum *bias,
                                  long num_rows, long in_features) {
    constexpr long INPUTS = INPUTS_BYTES / sizeof(typename Op::Input);
    static thread_local std::vector<typename Op::Sum> sums;
    if ((long)sums.size() < num_rows * TILE) sums.resize(num_rows * TILE);
    for (long first = 0; first < in_features; first += INPUTS) {
        const long num_steps = (first + INPUTS < in_features ? INPUTS : in_features - first) / Op::INPUTS_OF_STEP;
        const uint32_t *words = tile + first / Op::INPUTS_OF_STEP * TILE;
        for (long row = 0; row < num_rows;) {
            const long rows = choose_rows(num_rows - row);
            add_rows<Op>(rows, x + row * in_features + first, in_features, words, num_steps, bias,
                         sums.data() + row * TILE, TILE, first == 0);
            row += rows;
        }
    }
    return sums.data();
}

template <class Op>
static void multiply(const typename Op::Input *x, const uint32_t *weights, const float *bias, typename Op::Input *out,
                     long num_rows, long in_features, long out_features, int num_threads) {
#pragma omp parallel for num_threads(num_threads) schedule(static)
    for (long column = 0; column < out_features; column += TILE) {
        const uint32_t *tile = weights + column * in_features / Op::INPUTS_OF_STEP;
        const float *sums = sum_tile<Op>(x, tile, bias ? bias + column : nullptr, num_rows, in_features);
        for (long row = 0; row < num_rows; row++)
            store_row(out + row * out_features + column, sums + row * TILE, out_features - column);
    }
}

#if defined(__AVX512VNNI__)
// `terms` are the upper terms of all rows, and then the lower ones; `corrections` are what their zero point adds.
template <class Output>
static void multiply_terms(const uint8_t *terms, float step, const float *row_scales, const uint32_t *weights,
                           const float *scales, const int32_t *corrections, const float *bias, Output *out,
                           long num_rows, long in_features, long out_features, int num_threads) {
#pragma omp parallel for num_threads(num_threads) schedule(static)
    for (long column = 0; column < out_features; column += TILE) {
        const uint32_t *tile = weights + column * in_features / Bytes::INPUTS_OF_STEP;
        const int32_t *uppers = sum_tile<Bytes>(terms, tile, nullptr, 2 * num_rows, in_features);
        for (long row = 0; row < num_rows; row++) {
            const int32_t *upper = uppers + row * TILE, *lower = uppers + (num_rows + row) * TILE;
            float whole[TILE];
            for (int at = 0; at < TILE; at++) {
                const int32_t correction = corrections[column + at];
                const float sum = (float)(upper[at] - correction) * step + (float)(lower[at] - correction);
                whole[at] = sum * scales[column + at] * row_scales[row] + (bias ? bias[column + at] : 0.0f);
            }
            store_row(out + row * out_features + column, whole, out_features - column);
        }
    }
}

extern "C" void multiply_terms_float32(const uint8_t *terms, float step, const float *row_scales,
                                       const uint32_t *weights, const float *scales, const int32_t *corrections,
                                       const float *bias, float *out, long num_rows, long in_features,
                                       long out_features, int num_threads) {
    multiply_terms(terms, step, row_scales, weights, scales, corrections, bias, out, num_rows, in_features,
                   out_features, num_threads);
}

extern "C" void multiply_terms_bfloat16(const uint8_t *terms, float step, const float *row_scales,
                                        const uint32_t *weights, const float *scales, const int32_t *corrections,
                                        const float *bias, uint16_t *out, long num_rows, long in_features,
                                        long out_features, int num_threads) {
    multiply_terms(terms, step, row_scales, weights, scales, corrections, bias, out, num_rows, in_features,
                   out_features, num_threads);
}
#endif

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
