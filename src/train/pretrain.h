/* Training on built data: windows of text are the run's source, their held-out loss is its evaluation. */
#ifndef CH_TRAIN_PRETRAIN_H
#define CH_TRAIN_PRETRAIN_H

#include "data/data.h"
#include "train/run.h"

typedef struct ch_pretraining {
  ch_run run;           /* first: the loop knows nothing else */
  char data_path[4096]; /* of what it reads */
  char from[4096];      /* checkpoint whose weights it began with; empty: none */
  choir_data *data;
  ch_data_position position; /* of the next sample */
  int32_t *batch;            /* tokens and targets of one step, and windows to cut them from */
  double *unigram;           /* [V] log p of the training data */
  choir_ranks ranks;         /* laid out; comm NULL: this process alone */
  choir_eval_result eval[2]; /* the last one */
} ch_pretraining;

extern const ch_run_kind ch_run_pretraining;

/* Memory for batches, and for the probabilities that evaluations compare with. */
int ch_pretraining_plan(ch_pretraining *p);
void ch_pretraining_free(ch_pretraining *p);

/* Writes what the model makes of the first held-out tokens, the same prompt at every evaluation, into timing.jsonl.
 * Nothing of the run depends on it; one process alone does it, and no model that is trained by masking. */
void ch_pretraining_sample(const ch_pretraining *p, ch_metrics *metrics);

#endif
