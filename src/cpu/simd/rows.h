/* Exponentials over rows of scores, for attention and the head; variants by instruction set (rows.c). */
#ifndef CH_CPU_SIMD_ROWS_H
#define CH_CPU_SIMD_ROWS_H

#include <stdint.h>

#include "cpu/simd/simd.h"

/* A block of a score matrix. Row r is position first + r. Causal: the block has columns 0 .. first + rows - 1 and row r
 * sees columns 0 .. first + r. Bidirectional: rows have and see columns 0 .. T - 1. Masked columns become 0. Rows must
 * be allocated with CH_SCORES_PAD - 1 extra columns, which are overwritten. `bias` is in order of descending distance,
 * i.e. ascending columns: position i, column j has bias[T - 1 - i + j]; CH_SCORES_PAD elements of any value follow the
 * last distance. */
enum { CH_SCORES_PAD = 16 };
typedef struct {
  int rows, first, T, bidirectional;
  int64_t ld; /* row stride of the score matrices */
  const float *bias;
} ch_scores_block;

/* Number of columns that row r sees, and number of columns of the block. */
static inline int ch_scores_seen(const ch_scores_block *b, int r) { return b->bidirectional ? b->T : b->first + r + 1; }
static inline int ch_scores_columns(const ch_scores_block *b) { return ch_scores_seen(b, b->rows - 1); }

/* Replaces scores by exp(score + bias - max); writes the inverse row sums, and the log-sum-exp of each row. */
CH_SIMD_DECLARE(void, ch_scores_softmax, (const ch_scores_block *b, float *s, float *inverse, float *lse));

/* Backward of these rows for CH_SCORES_CHUNK columns from `key` on; the first row must see at least one of them.
 * Replaces scores by P = exp(score + bias - lse) and dp by dS = P (dp - delta[row]), and adds dS by distance, in bias's
 * order and with its padding. Masked columns become 0. */
enum { CH_SCORES_CHUNK = 64 };
CH_SIMD_DECLARE(void, ch_scores_backward,
                (const ch_scores_block *b, int key, float *s, float *dp, const float *lse, const float *delta,
                 float *dbias));

/* Replaces a row of logits [count] by exp(logit - max); returns -log softmax[target]; *sum: sum of the exponentials. */
CH_SIMD_DECLARE(double, ch_cross_entropy, (int count, int target, float *logits, double *sum));

/* Two rows of exponentials of the softmaxes p and q, whose logits differ by delta. Replaces them by the logits'
 * gradients of weight * (-log p[target] - log q[target]) + consistency * (KL(p|q) + KL(q|p)) / 2, without the -weight
 * at the target. Returns (KL(p|q) + KL(q|p)) / 2. */
typedef struct {
  int count;
  const float *delta;
  double sum[2]; /* sums of the exponentials */
  float weight, consistency;
} ch_pair;
CH_SIMD_DECLARE(double, ch_consistency, (const ch_pair *r, float *restrict z, float *restrict y));

#endif
