/* A run in progress: its directory, its checkpoints, and the loop over its steps. Training on built data (pretrain.h)
 * and fine-tuning (task/tune.h) are two kinds of runs; each has a source of batches and an evaluation. */
#ifndef CH_TRAIN_RUN_H
#define CH_TRAIN_RUN_H

#include <stdio.h>

#include "choir/train.h"
#include "file/dir.h"
#include "file/file.h"
#include "handle/ranks.h"
#include "train/state.h"

typedef struct ch_run ch_run;
typedef struct ch_metrics ch_metrics;

/* What the batches of one step hold. */
typedef struct ch_step_counts {
  int64_t sequences, positions, tokens; /* positions: tokens and padding */
} ch_step_counts;

/* A kind of run. The struct of a kind begins with its ch_run, which these functions get. */
typedef struct ch_run_kind {
  /* Source: the micro-batches [train.accumulate] of the next step, and how far they bring run->tokens and run->epoch.
   * On every rank those of all ranks. */
  const ch_batch *(*next)(ch_run *run, ch_step_counts *counts);
  /* The source's fields of a step's line in metrics.jsonl: ",\"tokens\":512". */
  void (*describe_step)(const ch_run *run, const choir_event *e, char *text, size_t size);
  /* An error if the source was changed while it was read; or NULL. */
  int (*check_source)(const ch_run *run);
  /* Evaluates the model, calls ch_run_evaluated, writes a line, and fills the event. Leaves it without evals and
   * measures if there is nothing to evaluate. Collective. */
  int (*evaluate)(ch_run *run, ch_metrics *metrics, choir_event *e);
  /* Writes the file about run->best, unless it is on the disk; or NULL. Called by the first rank, before a checkpoint
   * that knows of run->best is saved. */
  int (*write_result)(ch_run *run);
  /* The first line of metrics.jsonl. */
  void (*write_head)(ch_metrics *metrics, const ch_run *run);
  /* Lists the counters of a checkpoint, CH_COUNTERS at most, and returns how many. */
  int (*list_counters)(ch_run *run, ch_counter *counters);
  /* Computes the counters that a checkpoint of an earlier version lacks (-1) from the config of its steps. */
  void (*fill_counters)(ch_run *run, const choir_config *made_with);
} ch_run_kind;

/* The best evaluation of a run. */
typedef struct ch_best {
  int64_t step;    /* 0: none yet */
  double loss;     /* of training on data; by thresholds if they are causal and the router's own routing is not */
  int64_t correct; /* of fine-tuning: labels of the dev set that were right */
  char *result;    /* of fine-tuning: the text of RUN/result.json about it; NULL: not known to this process */
} ch_best;

struct ch_run {
  const ch_run_kind *kind;
  const choir_train_options *options; /* the caller's */
  const char *out;                    /* run directory */
  choir_config config;
  choir_tokenizer *tokenizer;
  ch_trainer trainer;
  double started; /* seconds on the clock */
  int64_t eval_every,
      patience;           /* steps from evaluation to evaluation; evaluations without a better one, 0: any number */
  double flops_per_token; /* of training; 0: not counted */
  uint64_t data_hash;     /* of what it reads */
  /* So far: */
  int64_t tokens;
  double epoch;
  ch_best best;          /* its checkpoint exists, or is that of the present step */
  ch_best before;        /* the one that `best` replaced */
  int64_t waited;        /* evaluations since `best`, or since one whose checkpoint could not be saved */
  int64_t metrics_bytes; /* length of metrics.jsonl at this step */
  int config_changed;    /* the steps so far were made with another config */
  choir_memory memory;   /* what all of it will need */
  char layout[512];      /* of several ranks, and why, if nobody has said how; else empty */
};

/* ---- the loop ---- */

/* Notes an evaluation of the present step: the first one is the best, and so is each that is `better` than the best
 * before it. Its step is set here. Returns whether it is the best. */
int ch_run_evaluated(ch_run *run, ch_best evaluation, int better);

/* The best evaluation is the one before it again: the checkpoint of `best` could not be saved, and its weights are
 * about to change. */
void ch_run_forget_best(ch_run *run);

/* Nonzero if the run has taken all its steps, or waited long enough for a better evaluation. */
int ch_run_is_done(const ch_run *run);

/* Takes steps until the run is done, the caller stops it, or an error. Collective. */
int ch_run_loop(ch_run *run);

/* Takes the next step, on the next batch. Collective. */
int ch_run_step(ch_run *run, ch_step_counts *counts, choir_trainer_result *result);

/* ---- checkpoints, and taking a run up again ---- */

/* Before the first step: leaves a file in the run's directory that says that there is no checkpoint yet, which the
 * first one removes. Its absence cannot be told from the log: a disk may have had no room. Called by the first rank. */
int ch_checkpoint_none(const ch_run *run);

/* Writes a checkpoint of the run, as ch_state_save; that of best.step stays. */
int ch_checkpoint_save(ch_run *run, char *path);

/* RUN/best names the checkpoint of best.step. Its room on the disk is taken before that checkpoint is saved (begin),
 * and it gets its name when the checkpoint is there (end): else a disk that becomes full between the two would leave an
 * older one as the best. Without a checkpoint of best.step RUN/best is removed. Called by the first rank. */
int ch_best_begin(const ch_run *run, ch_file *name);
int ch_best_end(const ch_run *run, ch_file *name);
int ch_best_save(const ch_run *run); /* both, unless the file is right already */

/* Weights of a checkpoint to begin another training with (ch_weights_start). A layer keeps the activation that its
 * weights were trained for; another router begins with what both have (docs/finetuning.md). */
int ch_start_weights(choir_model *model, const char *directory);

/* Sets the config that the run resumes with: `given`, which must describe the same model, or (NULL) the run's own.
 * steps [count]: the run's checkpoints, the newest first. */
int ch_resume_config(ch_run *run, const choir_config *given, const int64_t *steps, int count);

/* Loads the newest intact checkpoint of the run and reports the ones passed over. Sets run->config_changed if the
 * checkpoint's steps used another config. If every checkpoint fails the result is an error, because a fresh start would
 * discard the log; CHOIR_ERROR_ARGUMENT and CHOIR_ERROR_MEMORY, which older ones would give too, are returned at once.
 */
int ch_resume_state(ch_run *run, const int64_t *steps, int count);

/* Makes a run's directory and that of its checkpoints, locks the first, judges what is there, and then removes what
 * dead processes left. Release the reservation after an error, too. Judged is, before anything is cut, removed or
 * renamed:
 * - all files of a run are regular ones (CHOIR_ERROR_FORMAT: a link would lead elsewhere);
 * - a fresh run finds none that it would write, but for what one that never began left (CHOIR_ERROR_ARGUMENT);
 * - a run that is resumed has a checkpoint, unless none was made (CHOIR_ERROR_FORMAT).
 * CHOIR_ERROR_IO: something could not be told. */
int ch_run_directory_take(ch_reservation *reservation, const char *out, int resume);

/* What the logs of a run say of its steps. */
typedef struct ch_run_known {
  int64_t last;  /* step */
  int64_t saved; /* step of a checkpoint that was made for certain; 0: none */
  int64_t every; /* train.checkpoint_every of the last config */
} ch_run_known;

/* Reads metrics.jsonl or timing.jsonl, whose lines may be anything. Nonzero: not to its end, with errno. */
int ch_run_log_read(FILE *file, ch_run_known *known);

/* What a run has from its caller's options. CHOIR_ERROR_ARGUMENT: options that no run can have. */
int ch_run_begin(ch_run *run, const ch_run_kind *kind, const choir_train_options *options);

/* Frees what every kind of run has. */
void ch_run_free(ch_run *run);

/* ---- ranks: agreement on their input ---- */

/* CHOIR_ERROR_ARGUMENT on all ranks if a rank's data, checkpoint or model (ch_model_same) differs from rank 0's; names
 * the first such rank. Collective. */
int ch_run_same(const ch_run *run);

#endif
