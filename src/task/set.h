/* One set of a task, from its file to tokens, how good predictions of it are, and files of them. */
#ifndef CH_TASK_SET_H
#define CH_TASK_SET_H

#include "choir/score.h"
#include "handle/model.h"
#include "task/examples.h"

/* ---- predictions ----
 * A model's answers to a task's examples: the label whose word is likeliest after the prompt. Words of several tokens
 * count by the mean of their tokens' log-probabilities, so that long and short ones compare. */

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

/* Reads a split of a task for sequences of at most `length` tokens. config: says whether words are masked, and how long
 * a batch is at least; NULL: as of a model that predicts the next token. labelled: the split must have labels, and
 * unlabelled rows are left out. */
int ch_set_open(const choir_task *task, const char *directory, const char *split, const choir_tokenizer *tokenizer,
                const choir_config *config, int length, int labelled, ch_set *set);
void ch_set_close(ch_set *set);

/* Whether batch routing is worth a look of its own: it looks at other tokens. Models that are trained by masking route
 * each text by itself. */
int ch_set_has_batches(const choir_model *model);

/* How good a model is on it: by thresholds, each example by itself, or by batch routing, which needs a plan
 * (ch_predict_passes). options: of choir_task_score. Writes the predictions where `out` is not NULL. */
int ch_set_measure(choir_model *model, const ch_set *set, int by_batch, const choir_task_options *options,
                   const char *out, choir_task_measure *measure);

/* Over the examples that have a label; of two labels the second is the positive one. What is not asked of the task, or
 * not defined (no label, a denominator of 0), is NaN: but matthews and f1 are then 0 where predictions or labels are
 * all alike, as is usual. */
choir_task_measure ch_measure(const choir_task *task, const ch_examples *examples, const ch_predictions *predictions);

/* The commonest label of the examples, and its share: what is right without a look at the text. -1: none has a label.
 */
int ch_majority(const choir_task *task, const ch_examples *examples, double *share);

/* FILE.jsonl: {"idx": ..., "label": ...} a line, as SuperGLUE wants them; any other name: "index TAB prediction", as
 * GLUE does. */
int ch_predictions_write(const char *path, const ch_rows *rows, const ch_examples *examples,
                         const ch_predictions *predictions);

#endif
