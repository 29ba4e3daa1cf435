/* A model's answers to a task's examples: the label whose word is likeliest behind the prompt. Words of several tokens
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

/* Routed by the router's own rule, B examples (or fewer, where there are no more) at a time in the order of the file,
 * the last batch smaller; padding takes no part. Needs a plan for ch_predict_passes. */
int ch_predict_batches(choir_model *model, const ch_examples *examples, int B, const choir_score_options *options,
                       ch_predictions *predictions);

/* The passes [count] that batches of B of these examples will need, malloc'd, for ch_model_plan_passes; B 0: none. */
int ch_predict_passes(const ch_examples *examples, int B, int experts, ch_pass **passes, int *count);

void ch_predictions_free(ch_predictions *predictions);

#endif
