// Weights brought into the layout of the linear maps (kernels/linear), and quantised.

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

// Each row of bf16 numbers as integers of -127..127 times a scale; `sums` are those of the integers.
// A row with a NaN or an infinity has such a scale.
extern "C" void quantise_rows_bfloat16(const uint16_t *rows, int8_t *integers, float *scales, int32_t *sums,
                                       long num_rows, long num_columns, int num_threads) {
    constexpr float MOST = 127.0f, ROUNDER = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, half to even
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
