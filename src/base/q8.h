/* 8-bit weights: blocks of 32 values along the depth of a product, signed bytes times one scale in half precision.
 * Values are those of GGUF's q8_0. The layout is panels of 16 outputs, so that a vector of bytes has four inputs of
 * each output: first the scales [blocks][16], then the bytes [blocks][8][16 outputs][4 inputs]. */
#ifndef CH_BASE_Q8_H
#define CH_BASE_Q8_H

#include "base/real.h"

enum {
  CH_Q8_VALUES = 32,                         /* of a block */
  CH_Q8_BYTES = 2 + CH_Q8_VALUES,            /* bytes per block in a GGUF file: the scale, then the values */
  CH_Q8_OUTPUTS = 16,                        /* of a panel */
  CH_Q8_BLOCK = CH_Q8_OUTPUTS * CH_Q8_VALUES /* bytes per panel and block of inputs, without scales */
};

/* A byte of a packed matrix; matrices are 64-byte aligned. */
typedef unsigned char ch_q8;

/* Blocks of a row of `depth` values; a shorter last block is padded with zeros. */
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

/* Offset of an input's byte, after the panel's scales, for output 0; for output o it is 4 o bytes later. */
static inline int64_t ch_q8_place(int64_t input) { return input / 4 * 4 * CH_Q8_OUTPUTS + input % 4; }

/* The largest value of a block: 127 times the largest scale in half precision. */
#define CH_Q8_MAX (127 * 65504.0f)

/* Quantizes a block as ggml's reference does: the largest magnitude becomes 127, ties are rounded away from 0. Values
 * that a block can represent exactly stay exact: values unpacked from a block with a nonnegative scale are quantized to
 * the same values, and to the same bits if its largest byte has magnitude 127 (as in all blocks that ggml writes) or
 * its bytes have no common divisor. Values must be finite and at most CH_Q8_MAX. Returns the scale in half
 * precision. */
uint16_t ch_q8_round(const float x[CH_Q8_VALUES], int8_t q[CH_Q8_VALUES]);

/* A matrix: output o, input i is at x[o * output + i * input]. */
typedef struct ch_q8_values {
  real *x;
  int64_t outputs, depth, output, input;
} ch_q8_values;

/* Index of the first value that no block can represent: not finite, or above CH_Q8_MAX; `count` if there is none. */
int64_t ch_q8_first_unfit(const real *x, int64_t count);

/* Packs panel number `panel` of a matrix to `to`, the panel's first byte; all values must fit. */
void ch_q8_pack(const ch_q8_values *from, int64_t panel, ch_q8 *to);

/* Unpacks the values of a panel. */
void ch_q8_unpack(const ch_q8 *from, int64_t panel, const ch_q8_values *to);

#endif
