/* Callbacks of long calls: `progress` (how much is done) and `event` (what happened). */
#ifndef CHOIR_EVENT_H
#define CHOIR_EVENT_H

#include <stdint.h>

#include "choir/error.h"

CHOIR_C_BEGIN

/* The progress of a call. Only the library creates this struct and events; both may get new fields at their end. A
 * field that the call does not count is 0. */
typedef struct choir_progress {
  int64_t done, total; /* in `unit`; total 0: not known yet, as while a long text is being encoded */
  const char *unit;    /* "bytes" of input, compressed ones as they are; "sequences", "prompts", "requests", "texts",
                          "gaps"; NULL: the call only has `text` */
  const char *text;    /* a readable line, or NULL */
  double seconds;      /* since the call began */
  int64_t text_bytes, tokens, documents; /* choir_data_build: written so far */
  int64_t replaced;                      /* choir_data_build: bytes that were not UTF-8 (replace_invalid) */
} choir_progress;

/* Nonzero stops the call: CHOIR_ERROR_INTERRUPTED. */
typedef int (*choir_progress_callback)(void *context, const choir_progress *progress);

/* The speed of a step and, with several ranks, their communication. */
typedef struct choir_step_speed {
  double seconds;
  int64_t sequences;                /* read by the step */
  double padding;                   /* share of its positions that hold no token */
  double tokens_per_second, gflops; /* model FLOPs; 0: not counted, as in fine-tuning */
  double peak_gflops; /* of the backend, measured when the run began, in the run's compute type; 0: not known */
  double cpu_share;   /* CPU time of the threads divided by the step's time; far below 1 if other programs use the
                         machine; NaN with several ranks and on devices */
  int ranks;          /* processes that took the step; with more than one: */
  int slowest_rank;   /* the rank that waited least for the others */
  int64_t sent_bytes, sent_messages; /* by this rank */
  double waited, waited_least;       /* seconds in exchanges: of this rank, and of the slowest one */
} choir_step_speed;

/* Of choir_train and choir_finetune: STEP comes after every step, EVAL and CHECKPOINT after theirs, MEMORY once before
 * the first step, with the memory that the run will need. NOTICE has lines for the user: a damaged checkpoint that was
 * passed over, or a full disk. WAITING comes every second when all steps are done and there is no room to save them.
 * Of choir_generate: TEXT after every token of a sequence, END when one has ended, sooner perhaps than one before it.
 * Of choir_ranks_watch: SILENT. */
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

/* Pointers are NULL in events of other kinds, and valid during the call. */
typedef struct choir_event {
  choir_event_kind kind;
  int64_t step, steps;   /* done, planned */
  int64_t tokens;        /* STEP: read so far; of fine-tuning, by this process */
  double epoch;          /* of fine-tuning: passes over the training set so far; else 0 */
  double seconds_left;   /* STEP: to the last step, at the mean speed of this process, or to the end of the
                            minutes; WAITING: until it gives up */
  const char *objective; /* STEP: what `loss` is, as in choir_eval_result */
  const struct choir_trainer_result *result; /* STEP */
  const choir_step_speed *speed;             /* STEP */
  const struct choir_eval_result *eval;      /* EVAL [evals] of text: with the router's own routing; then with threshold
                                                routing, if the first depends on other tokens */
  int evals, measures;
  const struct choir_task_measure
      *measure;      /* EVAL [measures] of a task: with threshold routing; then with batch routing, if that differs */
  int64_t best_step; /* EVAL: step of the best evaluation of the run; 0: none yet */
  double best;       /* EVAL: its loss (of the last of eval), or its accuracy; NaN: none yet */
  const struct choir_memory *memory; /* MEMORY */
  const char *layout;                /* MEMORY: the layout that the ranks chose and why; NULL: there was no choice */
  const char *checkpoint;            /* CHECKPOINT: its directory */
  const char *notice; /* NOTICE: lines for the user; WAITING: the error of the disk; SILENT: the rank that is waited
                         for, and its last known position */
  const struct choir_text_event *text; /* TEXT, END */
} choir_event;

/* Nonzero ends the call; its results so far are kept. */
typedef int (*choir_event_callback)(void *context, const choir_event *event);

CHOIR_C_END
#endif
