/* Weights of 8 bits: blocks of 32 values along the depth of a product, signed bytes times one scale in half precision.
 * The values are those of GGUF's q8_0. In memory 16 outputs stand together, a panel, so that a vector of bytes has four
 * inputs of each of them: first the scales [blocks][16], then the bytes [blocks][8][16 outputs][4 inputs]. */
#ifndef CH_BASE_Q8_H
#define CH_BASE_Q8_H

#include "base/real.h"

enum {
  CH_Q8_VALUES = 32,                         /* of a block */
  CH_Q8_BYTES = 2 + CH_Q8_VALUES,            /* of a block in a GGUF file: the scale, then the bytes */
  CH_Q8_OUTPUTS = 16,                        /* of a panel */
  CH_Q8_BLOCK = CH_Q8_OUTPUTS * CH_Q8_VALUES /* bytes that a panel has of a block of inputs, without scales */
};

/* A byte of packed matrices, which begin at multiples of 64 bytes. */
typedef unsigned char ch_q8;

/* Blocks of a row of `depth` values; the last one may be shorter, and is filled up with zeros. */
static inline int64_t ch_q8_blocks(int64_t depth) { return (depth + CH_Q8_VALUES - 1) / CH_Q8_VALUES; }

/* Bytes of a panel's scales, of a panel, and of a matrix. */
static inline int64_t ch_q8_scale_bytes(int64_t depth) {
  return (ch_q8_blocks(depth) * CH_Q8_OUTPUTS * 2 + 63) / 64 * 64;
}
static inline int64_t ch_q8_panel_bytes(int64_t depth) {
  return ch_q8_scale_bytes(depth) + ch_q8_blocks(depth) * CH_Q8_BLOCK;
}
static inline int64_t ch_q8_panels(int64_t outputs) { return (outputs + CH_Q8_OUTPUTS - 1) / CH_Q8_OUTPUTS; }
static inline int64_t ch_q8_matrix_bytes(int64_t outputs, int64_t depth) {
  return ch_q8_panels(outputs) * ch_q8_panel_bytes(depth);
}

/* Where the byte of an input stands, behind the panel's scales, for output 0; output o's is 4 o bytes later. */
static inline int64_t ch_q8_place(int64_t input) { return input / 4 * 4 * CH_Q8_OUTPUTS + input % 4; }

/* The largest value that a block can have: the largest scale in half precision, 127 times. */
#define CH_Q8_MAX (127 * 65504.0f)

/* Rounds a block as ggml's reference does: the largest magnitude becomes 127, halves are rounded away from 0. Values
 * that some block has exactly are kept: the values of any block whose scale is not negative become a block of the same
 * values, and of the same bits if its largest magnitude is 127, as in all that ggml writes, or its bytes have no common
 * divisor. Values are finite and at most CH_Q8_MOST. Returns the scale in half precision. */
uint16_t ch_q8_round(const float x[CH_Q8_VALUES], int8_t q[CH_Q8_VALUES]);

/* A matrix of numbers: output o, input i is at x[o * output + i * input]. */
typedef struct ch_q8_values {
  real *x;
  int64_t outputs, depth, output, input;
} ch_q8_values;

/* The first value that no block has: not finite, or above CH_Q8_MOST; `count` if all fit. */
int64_t ch_q8_first_unfit(const real *x, int64_t count);

/* Packs panel number `panel` of a matrix, whose values all fit, to `to`, its first byte. */
void ch_q8_pack(const ch_q8_values *from, int64_t panel, ch_q8 *to);

/* The values of a packed panel. */
void ch_q8_unpack(const ch_q8 *from, int64_t panel, const ch_q8_values *to);

#endif
