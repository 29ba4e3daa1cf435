/* What a model says of a task's examples: the label whose word is likeliest behind the prompt. Words of several tokens
 * count by the mean of their tokens' log-probabilities, so that long and short ones compare. */
#ifndef CH_TASK_PREDICT_H
#define CH_TASK_PREDICT_H

#include "api/model.h"
#include "choir/score.h"
#include "task/examples.h"

typedef struct ch_predictions {
  int64_t count;
  int labels;
  int *label;    /* [count] of equal ones the first */
  double *score; /* [count,labels] mean log-probability of a token of the word */
} ch_predictions;

/* Routed by thresholds, each example by itself: the same bits in any batch and order. The model's routing must not look
 * at other tokens. */
int ch_predict_alone(choir_model *model, const ch_examples *examples, const choir_score_options *options,
                     ch_predictions *predictions);

/* B, or where there are fewer examples no more than these: the rest of a batch would be padding, computed like all
 * else. But tokens enough for the experts, which a router checks. */
int ch_predict_fit(const ch_examples *examples, int B, int experts);

/* Routed by the router's own rule, B examples (as they fit) at a time in the order of the file, the last batch smaller;
 * padding takes no part. Needs a plan for ch_predict_passes of the B that fits. */
int ch_predict_batches(choir_model *model, const ch_examples *examples, int B, const choir_score_options *options,
                       ch_predictions *predictions);

/* The passes that batches of these examples will need, for ch_model_plan_passes. Returns how many; passes NULL: counts
 * them. */
int ch_predict_passes(const ch_examples *examples, int B, ch_pass *passes);

void ch_predictions_free(ch_predictions *predictions);

#endif
