/* Sampling a token from logits. */
#ifndef CH_INFER_SAMPLE_H
#define CH_INFER_SAMPLE_H

#include "base/rng.h"

typedef struct ch_candidate {
  double weight; /* the logit, later the unnormalized probability */
  int32_t token;
} ch_candidate;

typedef struct ch_sampling {
  double temperature; /* 0: the most likely token, ties to the lower id */
  int top_k;          /* 0: all */
  double top_p;       /* 1: all */
} ch_sampling;

/* Samples a token from logits [V] with a number `uniform` in (0,1). From softmax(logits / temperature) the top_k
 * likeliest tokens are kept, then the smallest set whose probability reaches top_p of the kept sum. candidates: [V]
 * scratch. A logit of -infinity excludes its token. Returns -1 if a logit is NaN or +infinity. */
int32_t ch_sample(const ch_sampling *how, const float *logits, int V, double uniform, ch_candidate *candidates);

/* Summary of a row of logits: the log of the sum of exponentials, and the most likely token (of equal ones the lower
 * id). */
typedef struct ch_summary {
  double log_sum;
  int best;
} ch_summary;
ch_summary ch_summarize(const float *logits, int V);

#endif
