/* Scores and experts of a layer case again, in double loops: shares no code with src/. */
#ifndef CH_TESTS_NAIVE_LAYER_H
#define CH_TESTS_NAIVE_LAYER_H

#include "moe_testing.h"

enum { NAIVE_MAX = 256 }; /* experts, and hidden width */

static inline double dot_strided(const real *a, int64_t stride_a, const real *b, int64_t stride_b, int count) {
  double sum = 0;
  for (int j = 0; j < count; j++) sum += (double)a[j * stride_a] * (double)b[j * stride_b];
  return sum;
}

/* S of X Wg of one token, a softmax or sigmoids; of base the logits themselves; of kmeans half the negative squared
 * distance to each centroid, without |x|^2, which all experts share. */
static inline void naive_scores(const layer_case *c, int t, real *score) {
  double logit[NAIVE_MAX], sum = 0;
  int centroids = !strcmp(c->options.kind->name, "kmeans"), raw = !strcmp(c->options.kind->name, "base"),
      sigmoid = c->options.score == CH_SIGMOID;
  for (int i = 0; i < c->e; i++) sum += exp(logit[i] = dot_strided(c->x + t * c->d, 1, c->router + i, c->e, c->d));
  for (int i = 0; i < c->e; i++) {
    const real *mu = c->router + i;
    score[i] = (real)(centroids ? logit[i] - dot_strided(mu, c->e, mu, c->e, c->d) / 2
                      : raw     ? logit[i]
                      : sigmoid ? 1 / (1 + exp(-logit[i]))
                                : exp(logit[i]) / sum);
  }
}

/* out += gate * act(x W1[i]) W2[i]^T, or of gated experts (act(x W1[i]) * (x W3[i])) W2[i]^T; with gate_on input out +=
 * the same of gate * x, without a factor */
static inline void naive_expert(const layer_case *c, int t, int i, double gate, real *out) {
  const real *w1 = c->w1 + (int64_t)i * c->d * c->h, *w2 = c->w2 + (int64_t)i * c->d * c->h,
             *w3 = c->w3 + (int64_t)i * c->d * c->h;
  real hidden[NAIVE_MAX];
  double in = c->options.gate_on != CH_GATE_INPUT ? 1 : gate, scale = c->options.gate_on != CH_GATE_INPUT ? gate : 1;
  for (int j = 0; j < c->h; j++) {
    double z = in * dot_strided(c->x + t * c->d, 1, w1 + j, c->h, c->d);
    double u = ch_gated(c->activation) ? in * dot_strided(c->x + t * c->d, 1, w3 + j, c->h, c->d) : 1;
    hidden[j] = (real)(u * z * (c->activation == CH_SWIGLU ? 1 / (1 + exp(-z)) : 0.5 * erfc(-z * sqrt(0.5))));
  }
  for (int j = 0; j < c->d; j++) out[j] += (real)(scale * dot_strided(hidden, 1, w2 + (int64_t)j * c->h, 1, c->h));
}

#endif
