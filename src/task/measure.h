/* How good predictions are, and files of them. */
#ifndef CH_TASK_MEASURE_H
#define CH_TASK_MEASURE_H

#include "choir/score.h"
#include "task/predict.h"

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
