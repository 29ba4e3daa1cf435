/* Scoring on tokens: requests with a common prefix share its computation. */
#ifndef CH_INFER_SCORE_H
#define CH_INFER_SCORE_H

#include "choir/score.h"
#include "infer/sample.h"

/* Checks of the tokenizer (NULL: none), whose vocabulary size must be the model's V; of mask_samples, which only
 * sampled masks can use; and of tokens, which must be in the vocabulary. */
int ch_check_tokenizer(const choir_tokenizer *tokenizer, int V);
int ch_check_mask_samples(const choir_model *model, const choir_score_options *options);
int ch_check_tokens(const int32_t *tokens, int count, int V);

/* A request as tokens, with the destination of its score. */
typedef struct ch_score_item {
  const int32_t *context, *continuation;
  int contexts, continuations; /* tokens of the context and of the continuation; at least one each */
  choir_scored *score;         /* log_probability is allocated, or NULL */
} ch_score_item;

/* Computes the scores of items, and the result's tokens and seconds. Reorders the items. */
int ch_score_run(choir_model *model, ch_score_item *items, int64_t count, const choir_score_options *options,
                 choir_score_result *result);

/* Like ch_score_run for a model that is trained by masking; keeps the order of the items and the model's plan. */
int ch_score_masked(choir_model *model, const ch_score_item *items, int64_t count, const choir_score_options *options,
                    choir_score_result *result);

/* The routing with which a model trained by masking scores: its own, with each text as a pool of its own. */
const char *ch_masked_routing(const choir_model *model);

#endif
