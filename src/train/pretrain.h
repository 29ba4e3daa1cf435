/* Training on built data: windows of text are the run's source, their held-out loss is its evaluation. */
#ifndef CH_TRAIN_PRETRAIN_H
#define CH_TRAIN_PRETRAIN_H

#include "data/data.h"
#include "train/run.h"

typedef struct ch_pretraining {
  ch_run run;           /* must be first: the loop uses only this member */
  char data_path[4096]; /* data directory */
  char from[4096];      /* checkpoint that the initial weights come from; empty: none */
  choir_data *data;
  ch_data_position position; /* position of the next sample */
  int32_t *batch;            /* tokens and targets of one step, and the windows they are cut from */
  double *unigram;           /* [V] log p of each token in the training data */
  choir_ranks ranks;         /* with their layout; comm NULL: a single process */
  choir_eval_result
      eval[2]; /* last evaluation: with the router's own routing, and with threshold routing if that is another */
} ch_pretraining;

extern const ch_run_kind ch_run_pretraining;

/* Allocates batches and the unigram probabilities that evaluations compare with. */
int ch_pretraining_plan(ch_pretraining *p);
void ch_pretraining_free(ch_pretraining *p);

/* Generates a continuation of the first held-out tokens, the same prompt at every evaluation, and writes it into
 * timing.jsonl. The run does not depend on it. Only a single process does so, and only for models that are not trained
 * by masking. */
void ch_pretraining_sample(const ch_pretraining *p, ch_metrics *metrics);

#endif
