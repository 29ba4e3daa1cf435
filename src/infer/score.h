/* Scoring on tokens: requests that begin alike share what they have in common. */
#ifndef CH_INFER_SCORE_H
#define CH_INFER_SCORE_H

#include "choir/score.h"
#include "infer/sample.h"

/* Refuse a tokenizer (NULL: none) that has not the model's vocabulary of V, mask_samples where nothing is drawn, and
 * tokens outside the vocabulary. */
int ch_check_tokenizer(const choir_tokenizer *tokenizer, int V);
int ch_check_mask_samples(const choir_model *model, const choir_score_options *options);
int ch_check_tokens(const int32_t *tokens, int count, int V);

/* A request as tokens, and where its score goes. */
typedef struct ch_score_item {
  const int32_t *context, *continuation;
  int contexts, continuations; /* tokens of each; one at least */
  choir_scored *score;         /* log_probability has its memory, or is NULL */
} ch_score_item;

/* Fills the scores of items, and the result's tokens and seconds. Puts the items in another order. */
int ch_score_run(choir_model *model, ch_score_item *items, int64_t count, const choir_score_options *options,
                 choir_score_result *result);

/* The same for a model that is trained by masking, in the order of the items. Leaves the model's plan as it is. */
int ch_score_masked(choir_model *model, const ch_score_item *items, int64_t count, const choir_score_options *options,
                    choir_score_result *result);

/* The routing under which such a model scores: its own, of one text. */
const char *ch_masked_routing(const choir_model *model);

#endif
