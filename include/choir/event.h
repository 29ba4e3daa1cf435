/* Callbacks of long calls: `progress` (how much is done) and `event` (what happened). */
#ifndef CHOIR_EVENT_H
#define CHOIR_EVENT_H

#include <stdint.h>

#include "choir/error.h"

CHOIR_C_BEGIN

/* The progress of a call. Only the library creates this struct and choir_event; both may get new fields at their end.
 * Fields that do not apply to the call are 0. */
typedef struct choir_progress {
  int64_t done, total; /* in `unit`; total 0: not known yet, as while a long text is being encoded */
  const char *unit;    /* "bytes" of input (compressed size for compressed files), "sequences", "prompts", "requests",
                          "texts" or "gaps"; NULL: only `text` is set */
  const char *text;    /* a readable line, or NULL */
  double seconds;      /* since the call began */
  int64_t text_bytes, tokens, documents; /* choir_data_build: written so far */
  int64_t replaced;                      /* choir_data_build: bytes that were not UTF-8 (replace_invalid) */
} choir_progress;

/* Return nonzero to stop the call, which then returns CHOIR_ERROR_INTERRUPTED. */
typedef int (*choir_progress_callback)(void *context, const choir_progress *progress);

/* The speed of a training step and, with several ranks, its communication. */
typedef struct choir_step_speed {
  double seconds;
  int64_t sequences;                /* read by the step */
  double padding;                   /* share of positions without a token */
  double tokens_per_second, gflops; /* model FLOPs; 0: not counted, as in fine-tuning */
  double peak_gflops; /* peak rate of the backend in the run's compute type, measured at the start of the run; 0: not
                         known */
  double cpu_share;   /* CPU time of the threads divided by the step's time; far below 1 if other programs use the
                         machine; NaN with several ranks and on devices */
  int ranks;          /* processes that share the step; the fields below are for more than one */
  int slowest_rank;   /* the rank that waited least for the others */
  int64_t sent_bytes, sent_messages; /* by this rank */
  double waited, waited_least;       /* seconds in exchanges: of this rank, and of the slowest one */
} choir_step_speed;

/* Kinds of events. choir_train and choir_finetune: STEP after every step, EVAL after every evaluation, CHECKPOINT after
 * every checkpoint, MEMORY once before the first step, with the memory that the run needs, NOTICE for messages to the
 * user (a damaged checkpoint was skipped, the disk is full), WAITING every second if all steps are done and the full
 * disk prevents saving. choir_generate: TEXT after every token of a sequence, END at the end of a sequence; sequences
 * may end in any order. choir_ranks_watch: SILENT. */
typedef enum {
  CHOIR_EVENT_STEP,
  CHOIR_EVENT_EVAL,
  CHOIR_EVENT_CHECKPOINT,
  CHOIR_EVENT_MEMORY,
  CHOIR_EVENT_NOTICE,
  CHOIR_EVENT_WAITING,
  CHOIR_EVENT_TEXT,
  CHOIR_EVENT_END,
  CHOIR_EVENT_SILENT
} choir_event_kind;

/* A comment names the kinds in which a field is set; in other kinds pointers are NULL. Pointers are valid during the
 * callback. */
typedef struct choir_event {
  choir_event_kind kind;
  int64_t step, steps;   /* done, planned */
  int64_t tokens;        /* STEP: tokens read so far (fine-tuning: by this process) */
  double epoch;          /* fine-tuning: passes over the training set so far; else 0 */
  double seconds_left;   /* STEP: estimated time to the last step, or to the end of options.minutes; WAITING: time until
                            the run stops with an error */
  const char *objective; /* STEP: the kind of loss, as in choir_eval_result */
  const struct choir_trainer_result *result; /* STEP */
  const choir_step_speed *speed;             /* STEP */
  const struct choir_eval_result *eval; /* EVAL of text [evals]: with the router's default routing, then with threshold
                                           routing if the default depends on other tokens */
  int evals, measures;
  const struct choir_task_measure
      *measure;      /* EVAL of a task [measures]: with threshold routing, then with batch routing if that differs */
  int64_t best_step; /* EVAL: step of the best evaluation of the run; 0: none yet */
  double best;       /* EVAL: loss (last element of `eval`) or accuracy of the best evaluation; NaN: none yet */
  const struct choir_memory *memory; /* MEMORY */
  const char *layout; /* MEMORY: the layout that was chosen for the ranks and the reason; NULL: the layout was given */
  const char *checkpoint; /* CHECKPOINT: its directory */
  const char *notice; /* NOTICE: message for the user; WAITING: the error of the disk; SILENT: the rank that does not
                         respond, and its last known position */
  const struct choir_text_event *text; /* TEXT, END */
} choir_event;

/* Return nonzero to end the call; its results so far stay valid. */
typedef int (*choir_event_callback)(void *context, const choir_event *event);

CHOIR_C_END
#endif
