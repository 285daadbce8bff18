// Linear maps with weights in bf16; the layout and the interface are described in kernels/linear.

#include <vector>

#include "block.h"

constexpr long INPUTS_BYTES = 4096;  // of a row of x, for one block of a tile: the rows stay in the first-level cache
constexpr long FEW_INPUTS_BYTES = 512;  // so that the tile's block does: 16 KiB
constexpr long AHEAD = 2048;  // bytes between a load and its prefetch, where a tile is read in one pass

// Whether a few rows need several passes over the steps of a tile. In the first they would wait for memory, and in the
// others not use it; so a block of steps is as small as the first-level cache, and each pass prefetches a part of the
// next block.
static inline bool is_in_passes(long num_rows) {
    return count_vectors(num_rows) * LANES < TILE && num_rows <= 32;
}

// All sums of a tile, [num_rows, TILE], in the second-level cache.
template <class Op>
static typename Op::Sum *sum_tile(const typename Op::Input *x, const uint32_t *tile, const typename Op::Sum *bias,
                                  long num_rows, long in_features) {
    const bool in_passes = is_in_passes(num_rows);
    const long inputs = (in_passes ? FEW_INPUTS_BYTES : INPUTS_BYTES) / sizeof(typename Op::Input);
    static thread_local std::vector<typename Op::Sum> sums;
    if ((long)sums.size() < num_rows * TILE) sums.resize(num_rows * TILE);
    for (long first = 0; first < in_features; first += inputs) {
        const long num_steps = (first + inputs < in_features ? inputs : in_features - first) / Op::INPUTS_OF_STEP;
        const uint32_t *words = tile + first / Op::INPUTS_OF_STEP * TILE;
        for (long row = 0; row < num_rows;) {
            const long rows = choose_rows(num_rows - row);
            const char *ahead = nullptr;
            if (in_passes && row == 0) ahead = (const char *)(words + num_steps * TILE);
            else if (rows <= 2) ahead = (const char *)words + AHEAD;
            add_rows<Op>(rows, x + row * in_features + first, in_features, words, num_steps, bias,
                         sums.data() + row * TILE, TILE, first == 0, ahead);
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

constexpr long GROUP = 32, INPUTS_OF_WORD = 8;  // inputs that share a scale, and the nibbles of a word
constexpr int NIBBLE_ROWS = 4;

static inline __m512i repeat_word(const int8_t *terms) {
    int four;
    std::memcpy(&four, terms, 4);
    return _mm512_set1_epi32(four);
}

// Multiplies ROWS rows of terms, the lower ones `lower_at` behind the upper ones, by a tile of nibbles: the integers of
// a group are summed exactly, and times its scale added to `out`, in the order of the groups.
template <int ROWS>
static void sum_nibbles(const int8_t *terms, long lower_at, long in_features, const uint32_t *tile,
                        const uint16_t *scales, const float *group_sums, float *out) {
    constexpr int VECTORS = ROWS <= 2 ? 4 : 2;
    const __m512i mask = _mm512_set1_epi8(15);
    const long num_groups = in_features / GROUP;
    std::memset(out, 0, ROWS * TILE * sizeof(float));
    for (int at = 0; at < TILE; at += VECTORS * LANES) {
        const uint32_t *words = tile + at;
        for (long group = 0; group < num_groups; group++) {
            __m512i uppers[ROWS][VECTORS] = {}, lowers[ROWS][VECTORS] = {};
            for (long i = 0; i < GROUP; i += INPUTS_OF_WORD, words += TILE) {
                __m512i first[VECTORS], second[VECTORS];
                for (int v = 0; v < VECTORS; v++) {
                    const __m512i word = _mm512_loadu_si512(words + v * LANES);
                    if (ROWS <= 2) __builtin_prefetch((const char *)(words + v * LANES) + AHEAD);
                    first[v] = _mm512_and_si512(word, mask);
                    second[v] = _mm512_and_si512(_mm512_srli_epi32(word, 4), mask);
                }
                for (int row = 0; row < ROWS; row++) {
                    const int8_t *upper = terms + row * in_features + group * GROUP + i, *lower = upper + lower_at;
                    const __m512i upper_first = repeat_word(upper), upper_second = repeat_word(upper + 4);
                    const __m512i lower_first = repeat_word(lower), lower_second = repeat_word(lower + 4);
                    for (int v = 0; v < VECTORS; v++) {
                        uppers[row][v] = _mm512_dpbusd_epi32(uppers[row][v], first[v], upper_first);
                        lowers[row][v] = _mm512_dpbusd_epi32(lowers[row][v], first[v], lower_first);
                        uppers[row][v] = _mm512_dpbusd_epi32(uppers[row][v], second[v], upper_second);
                        lowers[row][v] = _mm512_dpbusd_epi32(lowers[row][v], second[v], lower_second);
                    }
                }
            }
            for (int v = 0; v < VECTORS; v++) {
                const uint16_t *own = scales + group * 2 * TILE + at + v * LANES;
                const Floats scale = load_lanes(own), least = load_lanes(own + TILE);
                for (int row = 0; row < ROWS; row++) {
                    const __m512i whole = _mm512_add_epi32(_mm512_slli_epi32(uppers[row][v], 8), lowers[row][v]);
                    Floats *sum = (Floats *)(out + row * TILE + at + v * LANES);
                    const Floats before = *sum + scale * (Floats)_mm512_cvtepi32_ps(whole);
                    *sum = before + least * group_sums[row * num_groups + group];
                }
            }
        }
    }
}

// `terms` are the upper terms of all rows, and then the lower ones, of 256 values each. A tile has the scales of each
// group and then what a nibble of 0 stands for: [num_groups][2][TILE].
template <class Output>
static void multiply_nibbles(const uint8_t *terms, const float *row_scales, const uint32_t *weights,
                             const uint16_t *scales, const float *bias, Output *out, long num_rows, long in_features,
                             long out_features, int num_threads) {
    const long num_groups = in_features / GROUP, lower_at = num_rows * in_features;
    std::vector<int8_t> signed_terms(2 * lower_at);
    for (long at = 0; at < 2 * lower_at; at++) signed_terms[at] = (int8_t)(terms[at] - 128);
    std::vector<float> group_sums(num_rows * num_groups);
    for (long at = 0; at < num_rows * num_groups; at++) {
        int32_t upper = 0, lower = 0;
        for (long i = at * GROUP; i < (at + 1) * GROUP; i++) upper += signed_terms[i], lower += signed_terms[lower_at + i];
        group_sums[at] = (float)(upper * 256 + lower);
    }
#pragma omp parallel for num_threads(num_threads) schedule(static)
    for (long column = 0; column < out_features; column += TILE) {
        const uint32_t *tile = weights + column * in_features / INPUTS_OF_WORD;
        const uint16_t *own_scales = scales + column * num_groups * 2;
        for (long row = 0; row < num_rows;) {
            const long rows = num_rows - row < NIBBLE_ROWS ? num_rows - row : NIBBLE_ROWS;
            float sums[NIBBLE_ROWS][TILE];
            const auto sum = [&](auto block) {
                block(signed_terms.data() + row * in_features, lower_at, in_features, tile, own_scales,
                      group_sums.data() + row * num_groups, sums[0]);
            };
            switch (rows) {
                case 1: sum(sum_nibbles<1>); break;
                case 2: sum(sum_nibbles<2>); break;
                case 3: sum(sum_nibbles<3>); break;
                case 4: sum(sum_nibbles<4>); break;
            }
            for (long i = 0; i < rows; i++, row++) {
                for (int at = 0; at < TILE; at++)
                    sums[i][at] = sums[i][at] * row_scales[row] + (bias ? bias[column + at] : 0.0f);
                store_row(out + row * out_features + column, sums[i], out_features - column);
            }
        }
    }
}

extern "C" void multiply_nibbles_float32(const uint8_t *terms, const float *row_scales, const uint32_t *weights,
                                         const uint16_t *scales, const float *bias, float *out, long num_rows,
                                         long in_features, long out_features, int num_threads) {
    multiply_nibbles(terms, row_scales, weights, scales, bias, out, num_rows, in_features, out_features, num_threads);
}

extern "C" void multiply_nibbles_bfloat16(const uint8_t *terms, const float *row_scales, const uint32_t *weights,
                                          const uint16_t *scales, const float *bias, uint16_t *out, long num_rows,
                                          long in_features, long out_features, int num_threads) {
    multiply_nibbles(terms, row_scales, weights, scales, bias, out, num_rows, in_features, out_features, num_threads);
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
