// The product of a few rows and a tile of bf16 numbers or bytes, which the linear maps and attention are made of.
//
// A tile has TILE columns. Of its rows two (four of bytes) make a step; the steps lie in order, and of a step the numbers
// of each column side by side, a word: [num_steps][TILE][2]. Each result is one sum over the rows of the tile in their order, so its bits do not depend on
// how many rows of x are multiplied together.

#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int LANES = 16;
constexpr int count_vectors(int) { return 4; }
#else
constexpr int LANES = 8;
constexpr int count_vectors(int num_rows) { return num_rows == 1 ? 8 : 2; }
#endif

constexpr int TILE = 64, MAX_ROWS = 6;

typedef float Floats __attribute__((vector_size(LANES * 4), aligned(4)));
typedef uint32_t Words __attribute__((vector_size(LANES * 4), aligned(4)));
typedef int32_t Ints __attribute__((vector_size(LANES * 4), aligned(4)));

static inline uint16_t round_to_bf16(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    if (x != x) return 0x7FC0;
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
}

static inline void store(float *to, float x) { *to = x; }
static inline void store(uint16_t *to, float x) { *to = round_to_bf16(x); }

static inline void store_lanes(float *to, Floats x) { *(Floats *)to = x; }
static inline void store_lanes(uint16_t *to, Floats x) {
#if defined(__AVX512BF16__)
    _mm256_storeu_si256((__m256i *)to, (__m256i)_mm512_cvtneps_pbh((__m512)x));
#else
    typedef uint16_t Halves __attribute__((vector_size(LANES * 2), aligned(2)));
    const Words bits = (Words)x, rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    const Words is_nan = x != x;
    *(Halves *)to = __builtin_convertvector((is_nan & 0x7FC0) | (~is_nan & rounded), Halves);
#endif
}

static inline float widen(float x) { return x; }
static inline float widen(uint16_t x) {
    const uint32_t bits = (uint32_t)x << 16;
    float wide;
    std::memcpy(&wide, &bits, 4);
    return wide;
}

static inline Floats load_lanes(const float *from) { return *(const Floats *)from; }
static inline Floats load_lanes(const uint16_t *from) {
    typedef uint16_t Halves __attribute__((vector_size(LANES * 2), aligned(2)));
    return (Floats)(__builtin_convertvector(*(const Halves *)from, Words) << 16);
}

// The nearest half-precision number of x >= 0, ties to even; infinity beyond the largest.
static inline uint16_t round_to_half(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    if (x != x) return 0x7E00;
    if (bits >= 0x477FF000u) return 0x7C00;
    if (bits < 0x38800000u) return (uint16_t)__builtin_lrintf(x * 16777216.0f);  // a multiple of 2^-24
    return (uint16_t)((bits + 0xFFF + ((bits >> 13) & 1) - 0x38000000u) >> 13);
}

static inline float widen_half(uint16_t half) {
    const uint32_t exponent = half >> 10 & 31, fraction = half & 1023;
    if (exponent == 0) return fraction * 5.9604644775390625e-8f;
    const uint32_t bits = exponent == 31 ? 0x7F800000u | fraction << 13 : (exponent + 112) << 23 | fraction << 13;
    float wide;
    std::memcpy(&wide, &bits, 4);
    return wide;
}

static inline Floats widen_halves(const uint16_t *halves) {
#if defined(__AVX512F__)
    return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)halves));
#else
    Floats wide;
    for (int lane = 0; lane < LANES; lane++) wide[lane] = widen_half(halves[lane]);
    return wide;
#endif
}

static inline float sum_lanes(Floats v) {
    for (int half = LANES / 2; half; half /= 2)
        for (int lane = 0; lane < half; lane++) v[lane] += v[lane + half];
    return v[0];
}

static inline float max_lanes(Floats v) {
    for (int half = LANES / 2; half; half /= 2)
        for (int lane = 0; lane < half; lane++) v[lane] = v[lane] > v[lane + half] ? v[lane] : v[lane + half];
    return v[0];
}

// 2 to the power of x <= 0, off by 2 units in the last place; 0 below -126.
static inline Floats exp2_lanes(Floats x) {
#if defined(__AVX512F__)
    const Floats bounded = (Floats)_mm512_max_ps(_mm512_set1_ps(-200.0f), (__m512)x);  // a NaN stays one
    const Floats whole = (Floats)_mm512_roundscale_ps((__m512)bounded, _MM_FROUND_TO_NEAREST_INT);
#else
    const Floats bounded = x < -200.0f ? Floats{} - 200.0f : x;
    const Floats shifted = bounded + 12582912.0f;  // rounded to a whole number in the lowest bits
    const Floats whole = shifted - 12582912.0f;
#endif
    const Floats r = bounded - whole;
    Floats p = r * 1.5403530e-4f + 1.3333558e-3f;
    p = p * r + 9.6181291e-3f;
    p = p * r + 5.5504109e-2f;
    p = p * r + 2.4022651e-1f;
    p = p * r + 6.9314718e-1f;
    p = p * r + 1.0f;
#if defined(__AVX512F__)
    return (Floats)_mm512_scalef_ps((__m512)p, (__m512)whole);
#else
    const Ints power = ((Ints)shifted - (int32_t)0x4B400000) << 23;
    return (Floats)(((Ints)p + power) & ~(Ints)(x < -126.0f));
#endif
}

constexpr float LOG2_E = 1.44269504f;

// The first `num_columns` of TILE numbers, in the dtype of the result.
template <class Output>
static void store_row(Output *to, const float *row, long num_columns) {
    if (num_columns >= TILE)
        for (int at = 0; at < TILE; at += LANES) store_lanes(to + at, *(const Floats *)(row + at));
    else
        for (long at = 0; at < num_columns; at++) store(to + at, row[at]);
}

// x in float32: the tile is widened in registers.
struct Widened {
    typedef float Input, Sum;
    typedef Floats Sums;
    static constexpr int INPUTS_OF_STEP = 2;

    template <int ROWS, int VECTORS>
    static void add(Floats (&sums)[ROWS][VECTORS], const float *x, long x_stride, const uint32_t *weights) {
        Words pairs[VECTORS];
        for (int v = 0; v < VECTORS; v++) pairs[v] = *(const Words *)(weights + v * LANES);
        for (int upper = 0; upper < 2; upper++) {
            Floats column[VECTORS];
            for (int v = 0; v < VECTORS; v++) column[v] = (Floats)(upper ? pairs[v] & 0xFFFF0000u : pairs[v] << 16);
            for (int row = 0; row < ROWS; row++)
                for (int v = 0; v < VECTORS; v++) sums[row][v] += x[row * x_stride + upper] * column[v];
        }
    }
};

#if defined(__AVX512BF16__)
// x in bf16: the CPU multiplies pairs and adds them to a float32.
struct Paired {
    typedef uint16_t Input;
    typedef float Sum;
    typedef Floats Sums;
    static constexpr int INPUTS_OF_STEP = 2;

    template <int ROWS, int VECTORS>
    static void add(Floats (&sums)[ROWS][VECTORS], const uint16_t *x, long x_stride, const uint32_t *weights) {
        __m512bh column[VECTORS];
        for (int v = 0; v < VECTORS; v++) column[v] = (__m512bh)_mm512_loadu_si512(weights + v * LANES);
        for (int row = 0; row < ROWS; row++) {
            const __m512bh pair = (__m512bh)_mm512_set1_epi32(*(const int *)(x + row * x_stride));
            for (int v = 0; v < VECTORS; v++)
                sums[row][v] = (Floats)_mm512_dpbf16_ps((__m512)sums[row][v], pair, column[v]);
        }
    }
};
#endif

#if defined(__AVX512VNNI__)
// x in unsigned bytes, the tile in signed ones: sums are exact.
struct Bytes {
    typedef uint8_t Input;
    typedef int32_t Sum;
    typedef Ints Sums;
    static constexpr int INPUTS_OF_STEP = 4;

    template <int ROWS, int VECTORS>
    static void add(Ints (&sums)[ROWS][VECTORS], const uint8_t *x, long x_stride, const uint32_t *weights) {
        __m512i column[VECTORS];
        for (int v = 0; v < VECTORS; v++) column[v] = _mm512_loadu_si512(weights + v * LANES);
        for (int row = 0; row < ROWS; row++) {
            int four;
            std::memcpy(&four, x + row * x_stride, 4);
            for (int v = 0; v < VECTORS; v++)
                sums[row][v] = (Ints)_mm512_dpbusd_epi32((__m512i)sums[row][v], _mm512_set1_epi32(four), column[v]);
        }
    }
};
#endif

// Multiplies ROWS rows of x, `x_stride` apart, by `num_steps` steps of a tile. The sums begin with `out`, or if
// `is_first` with the bias, or with zeros. While the steps are read, as many bytes from `ahead` on are prefetched.
template <class Op, int ROWS, bool PREFETCHES>
static void add_block(const typename Op::Input *x, long x_stride, const uint32_t *tile, long num_steps,
                      const typename Op::Sum *bias, typename Op::Sum *out, long out_stride, bool is_first,
                      const char *ahead) {
    typedef typename Op::Sums Sums;
    constexpr int VECTORS = count_vectors(ROWS);
    for (int at = 0; at < TILE; at += VECTORS * LANES) {
        Sums sums[ROWS][VECTORS];
        for (int row = 0; row < ROWS; row++)
            for (int v = 0; v < VECTORS; v++) {
                const int column = at + v * LANES;
                if (!is_first) sums[row][v] = *(const Sums *)(out + row * out_stride + column);
                else sums[row][v] = bias ? *(const Sums *)(bias + column) : Sums{};
            }
        const uint32_t *words = tile + at;
        for (long i = 0; i < num_steps; i++, words += TILE) {
            if (PREFETCHES)
                for (int line = 0; line < VECTORS * LANES * 4; line += 64, ahead += 64) __builtin_prefetch(ahead);
            Op::add(sums, x + Op::INPUTS_OF_STEP * i, x_stride, words);
        }
        for (int row = 0; row < ROWS; row++)
            for (int v = 0; v < VECTORS; v++) *(Sums *)(out + row * out_stride + at + v * LANES) = sums[row][v];
    }
}

// As `add_block`, for up to MAX_ROWS rows.
template <class Op>
static void add_rows(long num_rows, const typename Op::Input *x, long x_stride, const uint32_t *tile, long num_steps,
                     const typename Op::Sum *bias, typename Op::Sum *out, long out_stride, bool is_first,
                     const char *ahead = nullptr) {
    const auto add = [&](auto rows) {
        const auto block = ahead ? add_block<Op, rows(), true> : add_block<Op, rows(), false>;
        block(x, x_stride, tile, num_steps, bias, out, out_stride, is_first, ahead);
    };
    switch (num_rows) {
        case 1: add(std::integral_constant<int, 1>()); break;
        case 2: add(std::integral_constant<int, 2>()); break;
        case 3: add(std::integral_constant<int, 3>()); break;
        case 4: add(std::integral_constant<int, 4>()); break;
        case 5: add(std::integral_constant<int, 5>()); break;
        case 6: add(std::integral_constant<int, 6>()); break;
    }
}

// How many of the rows that are left to take at once, so that no single row is left.
static inline long choose_rows(long num_left) {
    if (num_left <= MAX_ROWS) return num_left;
    return num_left < 2 * MAX_ROWS ? (num_left + 1) / 2 : MAX_ROWS;
}
