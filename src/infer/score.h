/* Scoring on tokens: requests that begin alike share what they have in common. */
#ifndef CH_INFER_SCORE_H
#define CH_INFER_SCORE_H

#include "choir/score.h"

/* Refuse a tokenizer (NULL: none) that has not the model's vocabulary of V, and tokens outside it. */
int ch_check_tokenizer(const choir_tokenizer *tokenizer, int V);
int ch_check_tokens(const int32_t *tokens, int count, int V);

/* A request as tokens, and where its score goes. */
typedef struct ch_score_item {
  const int32_t *context, *continuation;
  int contexts, continuations; /* tokens of each; one at least */
  choir_scored *score;         /* log_probability has its memory, or is NULL */
} ch_score_item;

/* A row of logits: log of the sum of their exponentials, and the likeliest token (of equal ones the lower id). */
typedef struct ch_summary {
  double log_sum;
  int best;
} ch_summary;
ch_summary ch_summarize(const float *logits, int V);

/* Fills the scores of items, and the result's tokens and seconds. Puts the items in another order. */
int ch_score_run(choir_model *model, ch_score_item *items, int64_t count, const choir_score_options *options,
                 choir_score_result *result);

#endif
