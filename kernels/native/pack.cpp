// Weights brought into the layout of the linear maps (kernels/linear), and weights and activations quantised.

#include <cmath>
#include <cstring>

#include "block.h"

constexpr long WORDS = 16;  // of a row that are packed at a time: a cache line

// Rows of words into tiles, [num_tiles][words_of_row][TILE]; the last one is filled up with zeros.
extern "C" void pack_int32(const uint32_t *rows, uint32_t *tiles, long num_rows, long words_of_row, int num_threads) {
#pragma omp parallel for num_threads(num_threads) schedule(static)
    for (long first = 0; first < num_rows; first += TILE) {
        uint32_t *tile = tiles + first * words_of_row;
        const long num_columns = num_rows - first < TILE ? num_rows - first : TILE;
        if (num_columns < TILE) std::memset(tile, 0, TILE * words_of_row * sizeof(uint32_t));
        for (long from = 0; from < words_of_row; from += WORDS) {
            const long to = from + WORDS < words_of_row ? from + WORDS : words_of_row;
            for (long column = 0; column < num_columns; column++) {
                const uint32_t *row = rows + (first + column) * words_of_row;
                for (long word = from; word < to; word++) tile[word * TILE + column] = row[word];
            }
        }
    }
}

constexpr float ROUNDER = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, half to even

// Each row of bf16 numbers as integers of -127..127 times a scale; `sums` are those of the integers.
// A row with a NaN or an infinity has such a scale.
extern "C" void quantise_rows_bfloat16(const uint16_t *rows, int8_t *integers, float *scales, int32_t *sums,
                                       long num_rows, long num_columns, int num_threads) {
    constexpr float MOST = 127.0f;
#pragma omp parallel for num_threads(num_threads) schedule(static)
    for (long row = 0; row < num_rows; row++) {
        const uint16_t *from = rows + row * num_columns;
        int8_t *to = integers + row * num_columns;
        uint16_t largest = 0;  // compared as integers, a NaN is larger than an infinity
        for (long at = 0; at < num_columns; at++) {
            const uint16_t size = from[at] & 0x7FFF;
            largest = size > largest ? size : largest;
        }
        float scale = widen(largest) / MOST;
        if (scale == 0.0f) scale = 1.0f;
        scales[row] = scale;
        int32_t sum = 0;
        if (std::isfinite(scale))
            for (long at = 0; at < num_columns; at++) {
                float rounded = (widen(from[at]) / scale + ROUNDER) - ROUNDER;
                rounded = rounded > MOST ? MOST : rounded < -MOST ? -MOST : rounded;
                to[at] = (int8_t)rounded;
                sum += to[at];
            }
        else
            std::memset(to, 0, num_columns);
        sums[row] = sum;
    }
}

// Each row as integers times a scale, and each integer as two terms of a byte, upper * step + lower, plus step / 2: first
// the upper terms of all rows, then the lower ones. A row with a NaN or an infinity has such a scale.
template <int STEP, class Number>
static void split_terms(const Number *rows, uint8_t *terms, float *scales, long num_rows, long num_columns,
                        int num_threads) {
    constexpr int HALF = STEP / 2, MOST = HALF * STEP - HALF - 1;  // so that the upper term is below HALF
    constexpr float LEAST = 1.17549435e-38f;
#pragma omp parallel for num_threads(num_threads) schedule(static) if (num_rows * num_columns >= 1 << 15)
    for (long row = 0; row < num_rows; row++) {
        const Number *from = rows + row * num_columns;
        uint8_t *uppers = terms + row * num_columns, *lowers = uppers + num_rows * num_columns;
        uint32_t largest = 0;  // compared as integers, a NaN is larger than an infinity
        for (long at = 0; at < num_columns; at++) {
            const float wide = widen(from[at]);
            uint32_t bits;
            std::memcpy(&bits, &wide, 4);
            bits &= 0x7FFFFFFF;
            largest = bits > largest ? bits : largest;
        }
        float scale;
        std::memcpy(&scale, &largest, 4);
        scale = scale / MOST;
        if (scale < LEAST) scale = LEAST;
        scales[row] = scale;
        if (!std::isfinite(scale)) {
            std::memset(uppers, HALF, num_columns);
            std::memset(lowers, HALF, num_columns);
            continue;
        }
        for (long at = 0; at < num_columns; at++) {
            const int whole = (int)((widen(from[at]) / scale + ROUNDER) - ROUNDER);
            const unsigned shifted = whole + HALF * STEP + HALF;  // not negative
            uppers[at] = (uint8_t)(shifted / STEP);
            lowers[at] = (uint8_t)(shifted % STEP);
        }
    }
}

template <class Number>
static void split_terms(const Number *rows, uint8_t *terms, float *scales, long num_rows, long num_columns, long step,
                        int num_threads) {
    if (step == 256) split_terms<256>(rows, terms, scales, num_rows, num_columns, num_threads);
    else split_terms<128>(rows, terms, scales, num_rows, num_columns, num_threads);
}

extern "C" void split_terms_float32(const float *rows, uint8_t *terms, float *scales, long num_rows, long num_columns,
                                    long step, int num_threads) {
    split_terms(rows, terms, scales, num_rows, num_columns, step, num_threads);
}

extern "C" void split_terms_bfloat16(const uint16_t *rows, uint8_t *terms, float *scales, long num_rows,
                                     long num_columns, long step, int num_threads) {
    split_terms(rows, terms, scales, num_rows, num_columns, step, num_threads);
}
