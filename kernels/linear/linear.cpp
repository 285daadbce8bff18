// Linear maps with weights in bf16; the layout and the interface are described in __init__.py.
//
// A block is up to MAX_ROWS rows of x times one tile of the weights: its sums stay in registers, its rows of x in the
// first-level cache. Each output is one sum over the inputs in their order, so its bits do not depend on the number of
// rows.

#include <cstdint>

#if defined(__AVX512F__)
constexpr int LANES = 16, MAX_ROWS = 6;
constexpr int count_vectors(int) { return 4; }
#else
constexpr int LANES = 8, MAX_ROWS = 5;
constexpr int count_vectors(int num_rows) { return num_rows == 1 ? 8 : num_rows == 2 ? 4 : 2; }
#endif

constexpr int TILE = 64;        // output features
constexpr long INPUTS = 1024;   // of one pass over a tile
constexpr long AHEAD = 2048;    // bytes between a load and its prefetch, where weights are read only once

typedef float Floats __attribute__((vector_size(LANES * 4), aligned(4)));
typedef uint32_t Words __attribute__((vector_size(LANES * 4), aligned(4)));

// x in float32: weights are widened in registers.
struct Widened {
    typedef float Input;

    template <int ROWS, int VECTORS>
    static void add(Floats (&sums)[ROWS][VECTORS], const float *x, long in_features, const uint32_t *weights) {
        Words pairs[VECTORS];
        for (int v = 0; v < VECTORS; v++) pairs[v] = *(const Words *)(weights + v * LANES);
        for (int upper = 0; upper < 2; upper++) {
            Floats column[VECTORS];
            for (int v = 0; v < VECTORS; v++) column[v] = (Floats)(upper ? pairs[v] & 0xFFFF0000u : pairs[v] << 16);
            for (int row = 0; row < ROWS; row++)
                for (int v = 0; v < VECTORS; v++) sums[row][v] += x[row * in_features + upper] * column[v];
        }
    }
};

#if defined(__AVX512BF16__)
#include <immintrin.h>

// x in bf16: the CPU multiplies pairs and adds them to a float32.
struct Paired {
    typedef uint16_t Input;

    template <int ROWS, int VECTORS>
    static void add(Floats (&sums)[ROWS][VECTORS], const uint16_t *x, long in_features, const uint32_t *weights) {
        __m512bh column[VECTORS];
        for (int v = 0; v < VECTORS; v++) column[v] = (__m512bh)_mm512_loadu_si512(weights + v * LANES);
        for (int row = 0; row < ROWS; row++) {
            const __m512bh pair = (__m512bh)_mm512_set1_epi32(*(const int *)(x + row * in_features));
            for (int v = 0; v < VECTORS; v++)
                sums[row][v] = (Floats)_mm512_dpbf16_ps((__m512)sums[row][v], pair, column[v]);
        }
    }
};
#endif

// Adds `num_pairs` pairs of inputs of one tile to `out`, which begins with the bias or with zeros.
template <class Op, int ROWS>
static void add_block(const typename Op::Input *x, const uint32_t *weights, const float *bias, float *out,
                      long num_pairs, long in_features, long out_features, bool is_first) {
    constexpr int VECTORS = count_vectors(ROWS);
    for (int at = 0; at < TILE; at += VECTORS * LANES) {
        Floats sums[ROWS][VECTORS];
        for (int row = 0; row < ROWS; row++)
            for (int v = 0; v < VECTORS; v++) {
                const int column = at + v * LANES;
                if (!is_first) sums[row][v] = *(const Floats *)(out + row * out_features + column);
                else sums[row][v] = bias ? *(const Floats *)(bias + column) : Floats{};
            }
        const uint32_t *pairs = weights + at;
        for (long i = 0; i < num_pairs; i++, pairs += TILE) {
            if (ROWS <= 2)
                for (int line = 0; line < VECTORS * LANES * 4; line += 64)
                    __builtin_prefetch((const char *)pairs + AHEAD + line);
            Op::add(sums, x + 2 * i, in_features, pairs);
        }
        for (int row = 0; row < ROWS; row++)
            for (int v = 0; v < VECTORS; v++) *(Floats *)(out + row * out_features + at + v * LANES) = sums[row][v];
    }
}

template <class Op>
static void multiply(const typename Op::Input *x, const uint32_t *weights, const float *bias, float *out,
                     long num_rows, long in_features, long out_features, int num_threads) {
#pragma omp parallel for num_threads(num_threads) schedule(static)
    for (long column = 0; column < out_features; column += TILE)
        for (long first = 0; first < in_features; first += INPUTS) {
            const long num_pairs = (first + INPUTS < in_features ? INPUTS : in_features - first) / 2;
            const uint32_t *tile = weights + (column * in_features + first * TILE) / 2;
            for (long row = 0; row < num_rows;) {
                long rows = num_rows - row;
                if (rows > MAX_ROWS) rows = rows < 2 * MAX_ROWS ? (rows + 1) / 2 : MAX_ROWS;  // no single row is left
                const auto add = [&](auto block) {
                    block(x + row * in_features + first, tile, bias ? bias + column : nullptr,
                          out + row * out_features + column, num_pairs, in_features, out_features, first == 0);
                };
                switch (rows) {
                    case 1: add(add_block<Op, 1>); break;
                    case 2: add(add_block<Op, 2>); break;
                    case 3: add(add_block<Op, 3>); break;
                    case 4: add(add_block<Op, 4>); break;
                    case 5: add(add_block<Op, 5>); break;
                    case 6: add(add_block<Op, 6>); break;
                }
                row += rows;
            }
        }
}

extern "C" void multiply_float32(const float *x, const uint32_t *weights, const float *bias, float *out, long num_rows,
                                 long in_features, long out_features, int num_threads) {
    multiply<Widened>(x, weights, bias, out, num_rows, in_features, out_features, num_threads);
}

#if defined(__AVX512BF16__)
extern "C" void multiply_bfloat16(const uint16_t *x, const uint32_t *weights, const float *bias, float *out,
                                  long num_rows, long in_features, long out_features, int num_threads) {
    multiply<Paired>(x, weights, bias, out, num_rows, in_features, out_features, num_threads);
}
#endif
