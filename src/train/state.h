/* A run in progress, and its checkpoints: everything that resuming needs to go on bit for bit. */
#ifndef CH_TRAIN_STATE_H
#define CH_TRAIN_STATE_H

#include "data/reader.h"
#include "train/step.h"

typedef struct ch_run {
  const char *out; /* run directory */
  choir_config config;
  choir_data *data;
  choir_tokenizer *tokenizer;
  ch_trainer trainer;
  ch_data_position position; /* of the next sample */
  int64_t metrics_bytes;     /* length of metrics.jsonl at this step */
  int config_changed;        /* the steps so far were made with another config */
  int32_t *batch;            /* tokens and targets of one step, and windows to cut them from */
  double *unigram;           /* [V] log p of the training data */
  choir_memory memory;       /* what all of it will need */
} ch_run;

/* Writes RUN/checkpoints/STEP (model, config, tokenizer, state.safetensors) and removes the oldest beyond
 * keep_checkpoints. `path` (PATH_MAX) gets its name. */
int ch_checkpoint_save(ch_run *run, char *path);

/* Loads weights and state of a checkpoint directory into a run whose model and optimizer have been made. The data must
 * be the run's own. */
int ch_checkpoint_load(ch_run *run, const char *path);

/* The part that is state.safetensors: writes it, and reads it, opened; `path` names it in messages. */
int ch_state_write(const ch_run *run, const char *path);
int ch_state_read(ch_run *run, const choir_tensors *file, const char *path);

#endif
