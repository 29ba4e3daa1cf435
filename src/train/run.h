/* A run in progress on built data, its directory and its checkpoints. */
#ifndef CH_TRAIN_RUN_H
#define CH_TRAIN_RUN_H

#include "api/ranks.h"
#include "choir/train.h"
#include "data/data.h"
#include "file/dir.h"
#include "train/step.h"

typedef struct ch_run {
  const char *out;      /* run directory */
  double started;       /* seconds on the clock */
  char data_path[4096]; /* of what it reads */
  char from[4096];      /* checkpoint whose weights it began with; empty: none */
  choir_config config;
  choir_data *data;
  choir_tokenizer *tokenizer;
  ch_trainer trainer;
  ch_data_position position; /* of the next sample */
  int64_t best_step;         /* whose checkpoint has the lowest held-out loss of those saved; 0: none yet */
  double best_loss;          /* by thresholds where they are causal and the router's own routing is not */
  int64_t metrics_bytes;     /* length of metrics.jsonl at this step */
  int config_changed;        /* the steps so far were made with another config */
  int32_t *batch;            /* tokens and targets of one step, and windows to cut them from */
  double *unigram;           /* [V] log p of the training data */
  choir_ranks ranks;         /* laid out; comm NULL: this process alone */
  char layout[512];          /* how, and why, where nobody has said how; else empty */
  choir_memory memory;       /* what all of it will need */
} ch_run;

/* Writes a checkpoint of the run, as ch_state_save; that of best_step stays. */
int ch_checkpoint_save(ch_run *run, char *path);

/* Writes RUN/best, which names the checkpoint of best_step, or removes it where that checkpoint is not there. Without
 * room on the disk it is named with the next checkpoint. Called by the first rank. */
int ch_checkpoint_name_best(const ch_run *run);

/* Weights of a checkpoint to begin another training with (ch_weights_start). A layer keeps the activation that its
 * weights were trained for; another router begins with what both have (docs/finetuning.md). */
int ch_start_weights(choir_model *model, const char *directory);

/* The config that the run goes on with: `given`, or (NULL) the run's own, which must describe the same model. steps
 * [count]: of the checkpoints that are there, the newest first. */
int ch_resume_config(ch_run *run, const choir_config *given, const int64_t *steps, int count);

/* Tries `load` on the checkpoints, the newest first, until one loads; reports each unreadable one. Returns an error if
 * every checkpoint fails, or at once for CHOIR_ERROR_ARGUMENT and CHOIR_ERROR_MEMORY, which older ones would give too.
 */
int ch_resume_newest(const ch_trainer *trainer, const int64_t *steps, int count,
                     int (*load)(void *context, int64_t step), void *context);

/* Loads the newest intact checkpoint of the run and reports the ones passed over. Sets run->config_changed if the
 * checkpoint's steps used another config. If every checkpoint fails the result is an error, because a fresh start would
 * discard the log. */
int ch_resume_state(ch_run *run, const int64_t *steps, int count);

/* Makes a run's directory and that of its checkpoints, locks the first, judges what is there, and then removes what
 * dead processes left. Release the claim after an error, too. Judged is, before anything is cut, removed or renamed:
 * - all files of a run are regular ones (CHOIR_ERROR_FORMAT: a link would lead elsewhere);
 * - a fresh run finds none that it would write, but for what one that never began left (CHOIR_ERROR_ARGUMENT);
 * - a run that is resumed has a checkpoint, unless its log says that none was made (CHOIR_ERROR_FORMAT).
 * CHOIR_ERROR_IO: something could not be told. */
int ch_run_directory_take(ch_claim *claim, const char *out, int resume);

/* ---- ranks: agreement on their input, and the cost of their exchanges ---- */

/* CHOIR_ERROR_ARGUMENT on all ranks if a rank's data, checkpoint or model (ch_model_same) differs from rank 0's; names
 * the first such rank. Collective. */
int ch_run_same(const ch_run *run);

/* This rank's traffic in one step and its time in exchanges. The rank with the least such time is the straggler for
 * which the others waited. */
typedef struct ch_rank_times {
  int ranks; /* 1: nothing else is set */
  int64_t bytes, messages;
  double waited, least;
  int slowest;
} ch_rank_times;

/* So far. */
ch_traffic ch_traffic_of(const ch_comm *comm);

/* Since `before`. Collective. */
ch_rank_times ch_rank_times_since(const ch_comm *comm, const ch_traffic *before);

/* ---- the loop over a run that has been set up ---- */

/* Memory for batches and for the probabilities that evaluations compare with. */
int ch_run_plan(ch_run *run);

/* The next step, on the next batch. Collective. */
int ch_run_step(ch_run *run, ch_step_result *r);

/* Steps until the config's number of steps, the caller's stop, or an error. */
int ch_run_loop(ch_run *run, const choir_train_options *options);

#endif
