/* Drawing a token from logits. */
#ifndef CH_INFER_SAMPLE_H
#define CH_INFER_SAMPLE_H

#include "base/rng.h"

typedef struct ch_candidate {
  double weight; /* its logit, then what is proportional to its probability */
  int32_t token;
} ch_candidate;

typedef struct ch_sampling {
  double temperature; /* 0: the likeliest token, ties to the lower id */
  int top_k;          /* 0: all */
  double top_p;       /* 1: all */
} ch_sampling;

/* The token of logits [V] for a number `uniform` in (0,1): softmax(logits / temperature), of which the top_k likeliest
 * are kept, and of these the fewest that reach top_p of their sum. candidates: [V]. -1 where logits are not finite;
 * those of -infinity are tokens that never come. */
int32_t ch_sample(const ch_sampling *how, const float *logits, int V, double uniform, ch_candidate *candidates);

#endif
