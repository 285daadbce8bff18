// RMSNorm, SwiGLU and RoPE of rows of numbers in float32 or bf16. They compute in float32 and round where the torch
// operations of kernels/rms_norm, kernels/swiglu and kernels/rope round.

#include <cmath>

#include "block.h"

constexpr long LEAST_NUMBERS = 1 << 14;  // worth a second thread

// Fewer than LANES numbers, the rest zeros.
template <class Number>
static inline Floats load_some(const Number *from, long num) {
    Floats x = {};
    for (long lane = 0; lane < num; lane++) x[lane] = widen(from[lane]);
    return x;
}

template <class Number>
static inline void store_some(Number *to, Floats x, long num) {
    for (long lane = 0; lane < num; lane++) store(to + lane, x[lane]);
}

// Calls `take(column, load, store)` for each vector of a row.
template <class Number, class Take>
static inline void take_vectors(long size, Take take) {
    const long whole = size - size % LANES;
    for (long at = 0; at < whole; at += LANES)
        take(
            at, [](const auto *from) { return load_lanes(from); }, [](Number *to, Floats x) { store_lanes(to, x); });
    const long left = size - whole;
    if (left)
        take(
            whole, [=](const auto *from) { return load_some(from, left); },
            [=](Number *to, Floats x) { store_some(to, x, left); });
}

template <class Number>
static inline Floats round_lanes(Floats x) {
    Number rounded[LANES];
    store_lanes(rounded, x);
    return load_lanes(rounded);
}

// Heads of tokens, `token_stride` and `head_stride` numbers apart; `delta`, if any, is added to them in place.
template <class Number>
static void rms_norm(Number *x, const Number *delta, const float *weight, Number *out, long num_tokens, long num_heads,
                     long size, long token_stride, long head_stride, long weight_stride, long out_token_stride,
                     long out_head_stride, float eps, int num_threads) {
#pragma omp parallel for num_threads(num_threads) schedule(static) if (num_tokens * num_heads * size >= LEAST_NUMBERS)
    for (long token = 0; token < num_tokens; token++)
        for (long head = 0; head < num_heads; head++) {
            Number *row = x + token * token_stride + head * head_stride;
            const Number *added = delta ? delta + token * size : nullptr;
            const float *scales = weight + head * weight_stride;
            Number *to = out + token * out_token_stride + head * out_head_stride;
            Floats squares = {};
            take_vectors<Number>(size, [&](long at, auto load, auto store) {
                Floats own = load(row + at);
                if (added) {
                    own = round_lanes<Number>(own + load(added + at));
                    store(row + at, own);
                }
                squares += own * own;
            });
            const float scale = 1.0f / std::sqrt(sum_lanes(squares) / size + eps);
            take_vectors<Number>(size, [&](long at, auto load, auto store) {
                store(to + at, round_lanes<Number>(load(row + at) * scale) * load(scales + at));
            });
        }
}

template <class Number>
static void swiglu(const Number *gate_up, Number *out, long num_rows, long size, long row_stride, bool is_gelu,
                   int num_threads) {
#pragma omp parallel for num_threads(num_threads) schedule(static) if (num_rows * size >= LEAST_NUMBERS)
    for (long row = 0; row < num_rows; row++) {
        const Number *gates = gate_up + row * row_stride, *ups = gates + size;
        take_vectors<Number>(size, [&](long at, auto load, auto store) {
            const Floats gate = load(gates + at);
            // Both activations are the gate times a sigmoid: 0.5 * (1 + tanh(y)) is that of 2 * y.
            const Floats x = is_gelu ? 1.59576912f * (gate + 0.044715f * gate * gate * gate) : gate;
            const Floats power = exp2_lanes((x < 0.0f ? x : -x) * LOG2_E), whole = power + 1.0f;
            const Floats share = (x < 0.0f ? power : Floats{} + 1.0f) / whole;
            store(out + row * size + at, round_lanes<Number>(gate * share) * load(ups + at));
        });
    }
}

// Rounds as `kernels.rope.naive_rope` and the Triton kernels do: the first product, and then the sum.
template <class Number>
static void rope(const Number *heads, const float *cosines, const float *sines, Number *out, long num_tokens,
                 long num_heads, long size, long token_stride, long head_stride, int num_threads) {
    const long half = size / 2;
#pragma omp parallel for num_threads(num_threads) schedule(static) if (num_tokens * num_heads * size >= LEAST_NUMBERS)
    for (long token = 0; token < num_tokens; token++) {
        const float *cos = cosines + token * half, *sin = sines + token * half;
        for (long head = 0; head < num_heads; head++) {
            const Number *first = heads + token * token_stride + head * head_stride, *second = first + half;
            Number *to = out + (token * num_heads + head) * size;
            for (long at = 0; at < half; at++) {
                const float one = widen(first[at]), other = widen(second[at]);
                store(to + at, std::fma(-other, sin[at], one * cos[at]));
                store(to + half + at, std::fma(one, sin[at], other * cos[at]));
            }
        }
    }
}

// Heads of tokens as integers of a byte and their scale in half precision, as `kernels.attention.kv_format` says.
template <class Number>
static void encode_heads(const Number *heads, uint8_t *out, long num_tokens, long num_heads, long size,
                         long token_stride, long head_stride, int num_threads) {
#pragma omp parallel for num_threads(num_threads) schedule(static) if (num_tokens * num_heads * size >= LEAST_NUMBERS)
    for (long token = 0; token < num_tokens; token++)
        for (long head = 0; head < num_heads; head++) {
            const Number *row = heads + token * token_stride + head * head_stride;
            uint8_t *own = out + token * num_heads * (size + 2), *to = own + head * size;
            float most = 0.0f;
            for (long at = 0; at < size; at++) {
                const float own = std::fabs(widen(row[at]));
                most = own > most || own != own ? own : most;  // a NaN stays
            }
            const uint16_t half = round_to_half(most / 127.0f);
            const float scale = widen_half(half);
            for (long at = 0; at < size; at++) {
                const float quotient = scale > 0.0f && scale < INFINITY ? widen(row[at]) / scale : 0.0f;
                const float bounded = quotient > 127.0f ? 127.0f : quotient < -127.0f ? -127.0f : quotient;
                to[at] = (uint8_t)(int8_t)((bounded + 12582912.0f) - 12582912.0f);  // ties to even
            }
            std::memcpy(own + num_heads * size + 2 * head, &half, 2);
        }
}

#define EXPORT(NAME, NUMBER)                                                                                          \
    extern "C" void rms_norm_##NAME(NUMBER *x, const NUMBER *delta, const float *weight, NUMBER *out,                 \
                                    long num_tokens, long num_heads, long size, long token_stride, long head_stride,  \
                                    long weight_stride, long out_token_stride, long out_head_stride, float eps,       \
                                    int num_threads) {                                                                \
        rms_norm(x, delta, weight, out, num_tokens, num_heads, size, token_stride, head_stride, weight_stride,        \
                 out_token_stride, out_head_stride, eps, num_threads);                                                \
    }                                                                                                                 \
    extern "C" void swiglu_##NAME(const NUMBER *gate_up, NUMBER *out, long num_rows, long size, long row_stride,      \
                                  int is_gelu, int num_threads) {                                                     \
        swiglu(gate_up, out, num_rows, size, row_stride, is_gelu, num_threads);                                       \
    }                                                                                                                 \
    extern "C" void rope_##NAME(const NUMBER *heads, const float *cosines, const float *sines, NUMBER *out,           \
                                long num_tokens, long num_heads, long size, long token_stride, long head_stride,      \
                                int num_threads) {                                                                    \
        rope(heads, cosines, sines, out, num_tokens, num_heads, size, token_stride, head_stride, num_threads);        \
    }                                                                                                                 \
    extern "C" void encode_heads_##NAME(const NUMBER *heads, uint8_t *out, long num_tokens, long num_heads,           \
                                        long size, long token_stride, long head_stride, int num_threads) {            \
        encode_heads(heads, out, num_tokens, num_heads, size, token_stride, head_stride, num_threads);                \
    }

EXPORT(float32, float)
EXPORT(bfloat16, uint16_t)
