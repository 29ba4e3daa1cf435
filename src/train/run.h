/* A run in progress on built data. */
#ifndef CH_TRAIN_RUN_H
#define CH_TRAIN_RUN_H

#include "api/ranks.h"
#include "data/reader.h"
#include "train/step.h"

typedef struct ch_run {
  const char *out;      /* run directory */
  char data_path[4096]; /* of what it reads */
  char from[4096];      /* checkpoint whose weights it began with; empty: none */
  choir_config config;
  choir_data *data;
  choir_tokenizer *tokenizer;
  ch_trainer trainer;
  ch_data_position position; /* of the next sample */
  int64_t metrics_bytes;     /* length of metrics.jsonl at this step */
  int config_changed;        /* the steps so far were made with another config */
  int32_t *batch;            /* tokens and targets of one step, and windows to cut them from */
  double *unigram;           /* [V] log p of the training data */
  choir_ranks ranks;         /* laid out; comm NULL: this process alone */
  char layout[512];          /* how, and why, where nobody has said how; else empty */
  choir_memory memory;       /* what all of it will need */
} ch_run;

/* Writes a checkpoint of the run, as ch_state_save. */
int ch_checkpoint_save(ch_run *run, char *path);

/* Loads one into a run whose trainer has its memory. The data must be the run's own. */
int ch_checkpoint_load(ch_run *run, const char *path);

#endif
