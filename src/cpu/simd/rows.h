/* Exponentials over rows of scores, for attention and the head; variants by instruction set (rows.c). */
#ifndef CH_CPU_SIMD_ROWS_H
#define CH_CPU_SIMD_ROWS_H

#include <stdint.h>

#include "cpu/simd/simd.h"

/* A block of a score matrix: row r is position first + r and sees columns 0 .. first + r, of which columns 0 .. first +
 * rows - 1 are there, or, if bidirectional, columns 0 .. T - 1. Columns that are there and that a row does not see get
 * 0. Rows have room for CH_SCORES_PAD - 1 columns more, which are used. `bias` is by descending distance, so that it
 * runs with the columns: what row i, column j gets is at bias[T - 1 - i + j]; after the last distance there are
 * CH_SCORES_PAD elements of any value. */
enum { CH_SCORES_PAD = 16 };
typedef struct {
  int rows, first, T, bidirectional;
  int64_t ld; /* of the score matrices */
  const float *bias;
} ch_scores_block;

/* Columns that row r sees, and columns that are there. */
static inline int ch_scores_seen(const ch_scores_block *b, int r) { return b->bidirectional ? b->T : b->first + r + 1; }
static inline int ch_scores_columns(const ch_scores_block *b) { return ch_scores_seen(b, b->rows - 1); }

/* Scores turn into exp(score + bias - max), row sums' inverses and the log of the softmax's denominator are written. */
CH_SIMD_DECLARE(void, ch_scores_softmax, (const ch_scores_block *b, float *s, float *inverse, float *lse));

/* The same rows for CH_SCORES_CHUNK columns from `key` on, which the first row sees at least one of. Scores turn into P
 * = exp(score + bias - lse), and dp into dS = P (dp - delta[row]), which is also added up by distance, in the order of
 * bias and with its padding. Columns that are not seen get 0. */
enum { CH_SCORES_CHUNK = 64 };
CH_SIMD_DECLARE(void, ch_scores_backward,
                (const ch_scores_block *b, int key, float *s, float *dp, const float *lse, const float *delta,
                 float *dbias));

/* One row of logits turns into exp(logit - max); returns -log softmax[target], and the sum of the exponentials. */
CH_SIMD_DECLARE(double, ch_cross_entropy, (int count, int target, float *logits, double *sum));

/* Two rows of exponentials that mean p and q, softmaxes of logits that differ by delta. They turn into the logits'
 * gradients of weight * (-log p[target] - log q[target]) + consistency * (KL(p|q) + KL(q|p)) / 2, except for the
 * -weight at the target; the latter sum is returned. */
typedef struct {
  int count;
  const float *delta;
  double sum[2]; /* of the exponentials */
  float weight, consistency;
} ch_pair;
CH_SIMD_DECLARE(double, ch_consistency, (const ch_pair *r, float *restrict z, float *restrict y));

#endif
