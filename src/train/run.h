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

/* Sizes of the batches of one step. */
typedef struct ch_step_counts {
  int64_t sequences, positions, tokens; /* positions: tokens and padding */
} ch_step_counts;

/* A kind of run. The struct of a kind begins with a ch_run, which is passed to these functions. */
typedef struct ch_run_kind {
  /* Source: returns the micro-batches [train.accumulate] of the next step and advances run->tokens and run->epoch,
   * which count the tokens of all ranks on every rank. */
  const ch_batch *(*next)(ch_run *run, ch_step_counts *counts);
  /* Writes the source's fields of a step's line in metrics.jsonl: ",\"tokens\":512". */
  void (*describe_step)(const ch_run *run, const choir_event *e, char *text, size_t size);
  /* Returns an error if the source was changed while it was read; or NULL. */
  int (*check_source)(const ch_run *run);
  /* Evaluates the model, calls ch_run_evaluated, writes a line, and fills the event. Without anything to evaluate,
   * the event's evals and measures stay empty. Collective. */
  int (*evaluate)(ch_run *run, ch_metrics *metrics, choir_event *e);
  /* Writes the result file of run->best, unless it is on disk already; or NULL. Called by the first rank, before a
   * checkpoint that includes run->best is saved. */
  int (*write_result)(ch_run *run);
  /* Writes the first line of metrics.jsonl. */
  void (*write_head)(ch_metrics *metrics, const ch_run *run);
  /* Lists the counters of a checkpoint, at most CH_COUNTERS, and returns their number. */
  int (*list_counters)(ch_run *run, ch_counter *counters);
  /* Computes the counters that a checkpoint of an earlier version lacks (-1) from the config of its steps. */
  void (*fill_counters)(ch_run *run, const choir_config *made_with);
} ch_run_kind;

/* The best evaluation of a run. */
typedef struct ch_best {
  int64_t step;    /* 0: none yet */
  double loss;     /* training on data: with threshold routing if that is causal and the router's own routing is not */
  int64_t correct; /* fine-tuning: number of correct labels of the dev set */
  char *result;    /* fine-tuning: the text of its RUN/result.json; NULL: not known to this process */
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
      patience; /* steps between evaluations; evaluations without improvement before the run ends, 0: no limit */
  double flops_per_token; /* FLOPs of training; 0: not counted */
  uint64_t data_hash;     /* hash of the source's data */
  /* Progress so far: */
  int64_t tokens;
  double epoch;
  ch_best best;          /* best evaluation; its checkpoint exists, or is that of the present step */
  ch_best before;        /* the previous best evaluation */
  int64_t waited;        /* evaluations since `best`, or since an evaluation whose checkpoint could not be saved */
  int64_t metrics_bytes; /* length of metrics.jsonl at this step */
  int config_changed;    /* the steps so far were made with another config */
  choir_memory memory;   /* memory of the whole run */
  char layout[512];      /* the chosen layout of several ranks and the reason; empty if the user set it */
};

/* ---- the loop ---- */

/* Records an evaluation of the present step, and sets its `step`: it becomes the best if it is the first one or
 * `better` than the best before it. Returns whether it is the best. */
int ch_run_evaluated(ch_run *run, ch_best evaluation, int better);

/* Makes the previous best evaluation the best again: the checkpoint of `best` could not be saved, and the weights
 * are about to change. */
void ch_run_forget_best(ch_run *run);

/* Nonzero if the run has taken all its steps, or had no better evaluation for `patience` evaluations. */
int ch_run_is_done(const ch_run *run);

/* Takes steps until the run is done, the caller stops it, or an error. Collective. */
int ch_run_loop(ch_run *run);

/* Takes the next step, on the next batch. Collective. */
int ch_run_step(ch_run *run, ch_step_counts *counts, choir_trainer_result *result);

/* ---- checkpoints, and resuming a run ---- */

/* Called before the first step by the first rank: writes a file that says that the run has no checkpoint yet; the
 * first checkpoint removes it. The log cannot show this: a checkpoint may have failed on a full disk. */
int ch_checkpoint_none(const ch_run *run);

/* Writes a checkpoint of the run, like ch_state_save; the checkpoint of best.step is kept. */
int ch_checkpoint_save(ch_run *run, char *path);

/* RUN/best names the checkpoint of best.step. ch_best_begin takes its disk space before that checkpoint is saved,
 * and ch_best_end renames it into place afterwards: otherwise a disk that becomes full in between would leave an older
 * checkpoint as the best. Without a checkpoint of best.step RUN/best is removed. Called by the first rank. */
int ch_best_begin(const ch_run *run, ch_file *name);
int ch_best_end(const ch_run *run, ch_file *name);
int ch_best_save(const ch_run *run); /* both, unless the file is correct already */

/* Loads the weights of a checkpoint as the start of another training (ch_weights_start). A layer keeps the
 * activation that its weights were trained for; another router starts with the weights and state that both have in
 * common (docs/finetuning.md). */
int ch_start_weights(choir_model *model, const char *directory);

/* Sets the config that the run resumes with: `given`, which must describe the same model, or (NULL) the run's own.
 * steps [count]: the run's checkpoints, the newest first. */
int ch_resume_config(ch_run *run, const choir_config *given, const int64_t *steps, int count);

/* Loads the newest intact checkpoint of the run and reports the skipped ones. Sets run->config_changed if the
 * checkpoint's steps used another config. If every checkpoint fails the result is an error, because a fresh start would
 * discard the log; CHOIR_ERROR_ARGUMENT and CHOIR_ERROR_MEMORY, which older ones would give too, are returned at once.
 * */
int ch_resume_state(ch_run *run, const int64_t *steps, int count);

/* Creates a run's directory and its directory of checkpoints, locks the first, checks its files, and then removes
 * leftovers of killed processes. Release the reservation after an error, too. Before anything is truncated, removed or
 * renamed it checks that
 * - all files of a run are regular files (CHOIR_ERROR_FORMAT: a link would lead elsewhere);
 * - a fresh run finds no file that it would write, except those of a run that never began (CHOIR_ERROR_ARGUMENT);
 * - a resumed run has a checkpoint, unless none was ever saved (CHOIR_ERROR_FORMAT).
 * CHOIR_ERROR_IO: a check could not be made. */
int ch_run_directory_take(ch_reservation *reservation, const char *out, int resume);

/* What the logs of a run record about its steps. */
typedef struct ch_run_known {
  int64_t last;  /* last step */
  int64_t saved; /* step of the last checkpoint that was certainly saved; 0: none */
  int64_t every; /* train.checkpoint_every of the last config */
} ch_run_known;

/* Reads metrics.jsonl or timing.jsonl, whose lines may be arbitrary. Nonzero: the file could not be read to its end;
 * errno is set. */
int ch_run_log_read(FILE *file, ch_run_known *known);

/* Sets up a run from its caller's options. CHOIR_ERROR_ARGUMENT: options that are invalid for every run. */
int ch_run_begin(ch_run *run, const ch_run_kind *kind, const choir_train_options *options);

/* Frees the members that every kind of run has. */
void ch_run_free(ch_run *run);

/* ---- ranks: agreement on their input ---- */

/* CHOIR_ERROR_ARGUMENT on all ranks if a rank's data, checkpoint or model (ch_model_same) differs from rank 0's; names
 * the first such rank. Collective. */
int ch_run_same(const ch_run *run);

#endif
