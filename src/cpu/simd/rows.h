/* Exponentials over rows of scores, for attention and the head; variants by instruction set (rows.c). */
#ifndef CH_CPU_SIMD_ROWS_H
#define CH_CPU_SIMD_ROWS_H

#include <stdint.h>

#include "cpu/simd/simd.h"

/* A block of a causal score matrix: row r is position first + r and sees columns 0 .. first + r; what it does not see
 * of columns 0 .. first + rows - 1 gets 0. Rows have room for CH_CAUSAL_PAD - 1 columns more, which are used. `bias` is
 * by descending distance, so that it runs with the columns: what row i, column j gets is at bias[T - 1 - i + j];
 * after T there are CH_CAUSAL_PAD elements of any value. */
enum { CH_CAUSAL_PAD = 16 };
typedef struct {
  int rows, first, T;
  int64_t ld;        /* of the score matrices */
  const float *bias; /* [T + CH_CAUSAL_PAD] */
} ch_causal_block;

/* Scores turn into exp(score + bias - max), row sums' inverses and the log of the softmax's denominator are written. */
CH_SIMD_DECLARE(void, ch_causal_softmax, (const ch_causal_block *b, float *s, float *inverse, float *lse));

/* The same rows for CH_CAUSAL_CHUNK columns from `key` on, which the first row sees at least one of. Scores turn into P
 * = exp(score + bias - lse), and dp into dS = P (dp - delta[row]), which is also added up by distance, in the order of
 * bias and with its padding. Columns that are not seen get 0. */
enum { CH_CAUSAL_CHUNK = 64 };
CH_SIMD_DECLARE(void, ch_causal_backward,
                (const ch_causal_block *b, int key, float *s, float *dp, const float *lse, const float *delta,
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
