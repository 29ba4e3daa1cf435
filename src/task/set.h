/* One set of a task: reading it as tokens, predicting its labels, measuring and writing the predictions. */
#ifndef CH_TASK_SET_H
#define CH_TASK_SET_H

#include "choir/score.h"
#include "handle/model.h"
#include "task/examples.h"

/* ---- predictions ----
 * The label predicted for an example is the one whose word is most likely after the prompt. Words of several tokens are
 * compared by the mean of their tokens' log-probabilities, so that long and short words are comparable. */

typedef struct ch_predictions {
  int64_t count;
  int labels;
  int *label;    /* [count] of equal scores the first label */
  double *score; /* [count,labels] mean log-probability per token of the word */
} ch_predictions;

/* Predicts with threshold routing, each example by itself: bit-identical in any batch and order. The model's routing
 * must not depend on other tokens. */
int ch_predict_alone(choir_model *model, const ch_examples *examples, const choir_score_options *options,
                     ch_predictions *predictions);

/* Predicts with the router's own routing, B examples (or all, if there are fewer) at a time in the order of the
 * file, the last batch smaller; padding is not routed. Needs a plan for ch_predict_passes. */
int ch_predict_batches(choir_model *model, const ch_examples *examples, int B, const choir_score_options *options,
                       ch_predictions *predictions);

/* The passes [count] that batches of B of these examples need, malloc'd, for ch_model_plan_passes; B 0: none. */
int ch_predict_passes(const ch_examples *examples, int B, int experts, ch_pass **passes, int *count);

void ch_predictions_free(ch_predictions *predictions);

/* ---- sets ---- */

/* Reads a file. With `labelled`, a file without labels is refused, and a row without label is malformed unless marked
 * "unlabelled"; otherwise missing labels are -1. Malformed rows are skipped and counted, and the first one is named by
 * its line. A file with more than one malformed row and more than one in a hundred is refused, and so is a file without
 * any good row. CHOIR_ERROR_IO, CHOIR_ERROR_FORMAT, CHOIR_ERROR_MEMORY. */
int ch_rows_read(const choir_task *task, const char *path, int labelled, ch_rows *rows);
int ch_rows_parse(const choir_task *task, const char *name, const char *text, size_t size, int labelled, ch_rows *rows);

typedef struct ch_set {
  char path[4096];
  ch_rows rows;
  ch_examples examples;
} ch_set;

/* Reads a split of a task for sequences of at most `length` tokens. config: determines whether words are masked, and
 * the minimum length of a batch; NULL: those of a model that predicts the next token. labelled: the split must have
 * labels, and unlabelled rows are left out. */
int ch_set_open(const choir_task *task, const char *directory, const char *split, const choir_tokenizer *tokenizer,
                const choir_config *config, int length, int labelled, ch_set *set);
void ch_set_close(ch_set *set);

/* Whether predictions with batch routing can differ: that routing depends on other tokens. Models that are trained
 * by masking route each text by itself. */
int ch_set_has_batches(const choir_model *model);

/* Measures a model on the set: with threshold routing, each example by itself, or with batch routing, which needs a
 * plan (ch_predict_passes). options: those of choir_task_score. Writes the predictions if `out` is not NULL. */
int ch_set_measure(choir_model *model, const ch_set *set, int by_batch, const choir_task_options *options,
                   const char *out, choir_task_measure *measure);

/* Computes measures over the examples that have a label; of two labels the second is the positive one. A measure
 * that the task does not request or that is undefined (no label, a denominator of 0) is NaN, except that matthews and
 * f1 are 0 if all predictions or labels are the same, as is usual. */
choir_task_measure ch_measure(const choir_task *task, const ch_examples *examples, const ch_predictions *predictions);

/* The most frequent label of the examples, and its share: the accuracy of a constant prediction. -1: no example has
 * a label. */
int ch_majority(const choir_task *task, const ch_examples *examples, double *share);

/* FILE.jsonl: {"idx": ..., "label": ...} per line, SuperGLUE's format; any other name: "index TAB prediction",
 * GLUE's format. */
int ch_predictions_write(const char *path, const ch_rows *rows, const ch_examples *examples,
                         const ch_predictions *predictions);

#endif
