// Attention over keys and values in bf16; the interface is described in kernels/attention/native.py.
//
// A query's result does not depend on the other queries: its keys are taken in blocks that begin at multiples of
// KEYS, whatever is computed beside it. Scores, their softmax (computed online: Milakov and Gimelshein 2018, arXiv
// 1805.02867; Dao et al. 2022, arXiv 2205.14135) and the sums stay in the caches of one core.

#include <cmath>
#include <cstring>
#include <vector>

#include "block.h"

constexpr int KEYS = TILE;       // of a block
constexpr int MAX_WIDTH = 256;   // of a head
constexpr int QUERY_ROWS = 96;   // that share a packed block
constexpr float NOTHING = -INFINITY;

static const uint16_t ZEROS[MAX_WIDTH] = {};

struct Run {
    const uint8_t *keys, *values;             // of the first position and head
    long first, end;                          // positions
    long key_stride, value_stride;            // bytes between two positions
    long key_head_stride, value_head_stride;  // bytes between two heads
};

// Integers of a byte as bf16, which has them all. The compiler makes vectors of this loop; of
// `__builtin_convertvector` from bytes GCC 12 makes single numbers.
static inline void widen_bytes(const uint8_t *__restrict from, long width, uint16_t *__restrict to) {
    for (long at = 0; at < width; at++) {
        const float wide = (int8_t)from[at];
        uint32_t bits;
        std::memcpy(&bits, &wide, 4);
        to[at] = bits >> 16;
    }
}

// The scales of the keys or values of a block that are in int8 (kernels/attention/kv_format.py); 0 where there is none.
struct Scales {
    alignas(64) uint16_t halves[KEYS];
    alignas(64) float numbers[KEYS];

    void take(long key, const uint8_t *token, long num_heads, long head_stride, long head) {
        std::memcpy(halves + key, token + num_heads * head_stride + 2 * head, 2);
    }
    void widen() {
        for (int key = 0; key < KEYS; key += LANES) store_lanes(numbers + key, widen_halves(halves + key));
    }
};

static inline void transpose(Words (&rows)[LANES]) {
    Words indices;
    for (int lane = 0; lane < LANES; lane++) indices[lane] = lane;
#pragma GCC unroll 4
    for (int step = 1; step < LANES; step *= 2) {
        const Words is_upper = (indices & step) != 0;
        const Words first = is_upper ? indices - step + LANES : indices;
        const Words second = is_upper ? indices + LANES : indices + step;
#pragma GCC unroll 16
        for (int row = 0; row < LANES; row++) {
            if (row & step) continue;
            const Words one = rows[row], other = rows[row + step];
            rows[row] = __builtin_shuffle(one, other, first);
            rows[row + step] = __builtin_shuffle(one, other, second);
        }
    }
}

// The keys of a block as a tile whose columns are the keys: [width / 2][KEYS] pairs.
static void pack_keys(const uint16_t *const *keys, long width, uint32_t *tile) {
    const long num_words = width / 2, num_whole = num_words - num_words % LANES;
    for (int key = 0; key < KEYS; key += LANES)
        for (long word = 0; word < num_whole; word += LANES) {
            Words rows[LANES];
            for (int lane = 0; lane < LANES; lane++)
                std::memcpy(&rows[lane], keys[key + lane] + 2 * word, sizeof(Words));
            transpose(rows);
            for (int lane = 0; lane < LANES; lane++) *(Words *)(tile + (word + lane) * KEYS + key) = rows[lane];
        }
    for (int key = 0; key < KEYS; key++)
        for (long word = num_whole; word < num_words; word++)
            std::memcpy(tile + word * KEYS + key, keys[key] + 2 * word, 4);
}

// The values of a block as tiles whose columns are those of the values: [width / TILE][KEYS / 2][TILE] pairs.
static void pack_values(const uint16_t *const *values, long width, uint32_t *tiles) {
    for (long first = 0; first < width; first += TILE)
        for (int key = 0; key < KEYS; key += 2, tiles += TILE) {
            const uint16_t *one = values[key] + first, *other = values[key + 1] + first;
            const long num_columns = width - first < TILE ? width - first : TILE;
            for (long column = 0; column < num_columns; column++)
                tiles[column] = one[column] | (uint32_t)other[column] << 16;
            for (long column = num_columns; column < TILE; column++) tiles[column] = 0;
        }
}

// cap * tanh(x / cap)
static inline Floats cap_lanes(Floats x, float cap) {
    const Floats size = (x < 0.0f ? -x : x) * (1.0f / cap), power = exp2_lanes(size * (-2.0f * LOG2_E));
    const Floats capped = (1.0f - power) / (1.0f + power) * cap;
    return x < 0.0f ? -capped : capped;
}

// One row's softmax over a block of scores: writes its shares, and scales what was summed of earlier blocks. A score
// times `scale` is a power of 2. `cap`: of the scores, 0 for none. Scores are multiplied by `key_scales`, and the shares
// that are written by `value_scales`, if there are any.
template <class Input>
static void take_block(float *scores, long num_hidden_first, long num_seen, float scale, float cap,
                       const float *key_scales, const float *value_scales, float &largest, float &total, float *sums,
                       long sums_width, Input *shares) {
    constexpr int VECTORS = KEYS / LANES;
    if (key_scales)
        for (long key = 0; key < KEYS; key += LANES) *(Floats *)(scores + key) *= *(const Floats *)(key_scales + key);
    if (cap)
        for (long key = 0; key < KEYS; key += LANES) *(Floats *)(scores + key) = cap_lanes(*(Floats *)(scores + key), cap);
    for (long key = 0; key < num_hidden_first; key++) scores[key] = NOTHING;
    for (long key = num_seen; key < KEYS; key++) scores[key] = NOTHING;
    Floats own[VECTORS];
    for (int v = 0; v < VECTORS; v++) own[v] = *(const Floats *)(scores + v * LANES);
    Floats most = own[0];
    for (int v = 1; v < VECTORS; v++) most = own[v] > most ? own[v] : most;
    const float now = std::fmax(largest, max_lanes(most));
    if (now > largest) {
        if (largest != NOTHING) {
            const float factor = exp2_lanes(Floats{} + (largest - now) * scale)[0];
            total *= factor;
            for (long column = 0; column < sums_width; column += LANES) *(Floats *)(sums + column) *= factor;
        }
        largest = now;
    }
    Floats added = {};
    for (int v = 0; v < VECTORS; v++) {
        const Floats share = exp2_lanes(own[v] * scale - now * scale);
        added += share;
        store_lanes(shares + v * LANES, value_scales ? share * *(const Floats *)(value_scales + v * LANES) : share);
    }
    total += sum_lanes(added);
}

// Tokens of a pass that belong to one sequence, and its runs.
struct Sequence {
    long first_token, num_tokens, first_run, num_runs;
};

// Some rows of a sequence and a head that are computed together; a row is a query head of a token.
struct Tile {
    const Sequence *sequence;
    long head, first_row, end_row;
};

static std::vector<Tile> list_tiles(const Sequence *sequences, long num_sequences, long num_kv_heads, long group) {
    std::vector<Tile> tiles;
    for (const Sequence *each = sequences; each < sequences + num_sequences; each++) {
        const long num_rows = each->num_tokens * group;
        // The last tiles see the most keys, and go first.
        for (long first = (num_rows - 1) / QUERY_ROWS * QUERY_ROWS; first >= 0; first -= QUERY_ROWS)
            for (long head = 0; head < num_kv_heads; head++)
                tiles.push_back({each, head, first, first + QUERY_ROWS < num_rows ? first + QUERY_ROWS : num_rows});
    }
    return tiles;
}

template <class Op>
static void attend(const typename Op::Input *all_queries, const long *all_positions, const Sequence *sequences,
                   long num_sequences, const Run *all_runs, long num_kv_heads, long group, long width, long window,
                   float scale, float cap, bool is_int8, typename Op::Input *all_outs, int num_threads) {
    typedef typename Op::Input Input;
    const std::vector<Tile> tiles = list_tiles(sequences, num_sequences, num_kv_heads, group);
    const long sums_width = (width + TILE - 1) / TILE * TILE, token_width = num_kv_heads * group * width;
#pragma omp parallel for num_threads(num_threads) schedule(dynamic)
    for (long item = 0; item < (long)tiles.size(); item++) {
        const long head = tiles[item].head, first_row = tiles[item].first_row, last_row = tiles[item].end_row;
        const Sequence &sequence = *tiles[item].sequence;
        const Input *query = all_queries + sequence.first_token * token_width;
        Input *out = all_outs + sequence.first_token * token_width;
        const long *positions = all_positions + sequence.first_token, num_runs = sequence.num_runs;
        const Run *runs = all_runs + sequence.first_run;
        alignas(64) Input rows[QUERY_ROWS * MAX_WIDTH];
        alignas(64) float sums[QUERY_ROWS * MAX_WIDTH];
        alignas(64) uint32_t key_tile[MAX_WIDTH / 2 * KEYS], value_tiles[KEYS / 2 * MAX_WIDTH];
        alignas(64) uint16_t wide_keys[KEYS * MAX_WIDTH], wide_values[KEYS * MAX_WIDTH];
        Scales key_scales, value_scales;
        alignas(64) float scores[MAX_ROWS * KEYS];
        alignas(64) Input shares[MAX_ROWS * KEYS];
        float largest[QUERY_ROWS], totals[QUERY_ROWS];
        for (long row = first_row; row < last_row; row++) {
            const long token = row / group, own = head * group + row % group;
            std::memcpy(rows + (row - first_row) * width, query + (token * num_kv_heads * group + own) * width,
                        width * sizeof(Input));
            largest[row - first_row] = NOTHING;
            totals[row - first_row] = 0.0f;
        }
        std::memset(sums, 0, (last_row - first_row) * sums_width * sizeof(float));

        const long first_token = first_row / group, last_token = (last_row - 1) / group;
        const long first_key = window && positions[first_token] >= window ? positions[first_token] - window + 1 : 0;
        const long end_key = positions[last_token] + 1;
        long run = 0;
        for (long block = first_key / KEYS * KEYS; block < end_key; block += KEYS) {
            const uint16_t *keys[KEYS], *values[KEYS];
            while (run < num_runs - 1 && runs[run].end <= block) run++;
            for (long key = 0, at = run; key < KEYS; key++) {
                const long position = block + key;
                while (at < num_runs - 1 && runs[at].end <= position) at++;
                const Run &own = runs[at];
                const bool is_there = position >= own.first && position < own.end && position < end_key;
                if (!is_there) {
                    keys[key] = values[key] = ZEROS;
                    key_scales.halves[key] = value_scales.halves[key] = 0;
                    continue;
                }
                const uint8_t *key_token = own.keys + (position - own.first) * own.key_stride;
                const uint8_t *value_token = own.values + (position - own.first) * own.value_stride;
                const uint8_t *from_key = key_token + head * own.key_head_stride;
                const uint8_t *from_value = value_token + head * own.value_head_stride;
                if (is_int8) {
                    key_scales.take(key, key_token, num_kv_heads, own.key_head_stride, head);
                    value_scales.take(key, value_token, num_kv_heads, own.value_head_stride, head);
                    widen_bytes(from_key, width, wide_keys + key * width);
                    widen_bytes(from_value, width, wide_values + key * width);
                    keys[key] = wide_keys + key * width;
                    values[key] = wide_values + key * width;
                } else {
                    keys[key] = (const uint16_t *)from_key;
                    values[key] = (const uint16_t *)from_value;
                }
            }
            if (is_int8) {
                key_scales.widen();
                value_scales.widen();
            }
            pack_keys(keys, width, key_tile);
            pack_values(values, width, value_tiles);
            // The rows that see a key of the block; positions ascend.
            long row = first_row, end_row = last_row;
            while (positions[row / group] < block) row++;
            while (window && positions[(end_row - 1) / group] - window + 1 >= block + KEYS) end_row--;
            long whole_row = row;  // from here on they see it to its end
            while (whole_row < end_row && positions[whole_row / group] < block + KEYS - 1) whole_row++;
            while (row < end_row) {
                const long num = choose_rows((row < whole_row ? whole_row : end_row) - row), local = row - first_row;
                add_rows<Op>(num, rows + local * width, width, key_tile, width / 2, nullptr, scores, KEYS, true);
                for (long each = 0; each < num; each++) {
                    const long position = positions[(row + each) / group] - block;  // in the block
                    const long num_seen = position >= KEYS ? KEYS : position + 1;
                    const long num_hidden_first = window && position >= window ? position - window + 1 : 0;
                    take_block(scores + each * KEYS, num_hidden_first, num_seen, scale * LOG2_E, cap,
                               is_int8 ? key_scales.numbers : nullptr, is_int8 ? value_scales.numbers : nullptr,
                               largest[local + each], totals[local + each], sums + (local + each) * sums_width,
                               sums_width, shares + each * KEYS);
                }
                const long most_seen = positions[(row + num - 1) / group] - block + 1;
                const long num_pairs = most_seen >= KEYS ? KEYS / 2 : (most_seen + 1) / 2;
                for (long column = 0; column < sums_width; column += TILE)
                    add_rows<Op>(num, shares, KEYS, value_tiles + column * (KEYS / 2), num_pairs, nullptr,
                                 sums + local * sums_width + column, sums_width, false);
                row += num;
            }
        }
        for (long row = first_row; row < last_row; row++) {
            const long token = row / group, own = head * group + row % group;
            Input *to = out + (token * num_kv_heads * group + own) * width;
            const float factor = 1.0f / totals[row - first_row];
            float *own_sums = sums + (row - first_row) * sums_width;
            for (long column = 0; column < sums_width; column += LANES) *(Floats *)(own_sums + column) *= factor;
            for (long column = 0; column < width; column += TILE)
                store_row(to + column, own_sums + column, width - column);
        }
    }
}

extern "C" void attend_float32(const float *query, const long *positions, const Sequence *sequences,
                               long num_sequences, const Run *runs, long num_kv_heads, long group, long width,
                               long window, float scale, float cap, int is_int8, float *out, int num_threads) {
    attend<Widened>(query, positions, sequences, num_sequences, runs, num_kv_heads, group, width, window, scale, cap, is_int8,
                    out, num_threads);
}

#if defined(__AVX512BF16__)
extern "C" void attend_bfloat16(const uint16_t *query, const long *positions, const Sequence *sequences,
                                long num_sequences, const Run *runs, long num_kv_heads, long group, long width,
                                long window, float scale, float cap, int is_int8, uint16_t *out, int num_threads) {
    attend<Paired>(query, positions, sequences, num_sequences, runs, num_kv_heads, group, width, window, scale, cap, is_int8,
                   out, num_threads);
}
#endif
