/* Training runs and evaluation. */
#ifndef CHOIR_TRAIN_H
#define CHOIR_TRAIN_H

#include "choir/data.h"
#include "choir/event.h"
#include "choir/model.h"
#include "choir/ranks.h"
#include "choir/task.h"
#include "choir/trainer.h"

CHOIR_C_BEGIN

/* The evaluation of one source of built data. */
typedef struct choir_eval_source {
  char name[65];
  int64_t tokens; /* predicted held-out tokens */
  double loss;    /* mean loss in nats; NaN: no tokens */
  int64_t reserved[2];
} choir_eval_source;

/* The evaluation of a masked model within one tenth of the range of mask ratios. */
typedef struct choir_eval_ratio {
  double from, to;
  int64_t evaluations; /* evaluated sequences with a mask ratio in [from, to) */
  double loss;         /* mean over their masked tokens */
} choir_eval_ratio;

typedef struct choir_eval_result {
  double loss; /* nats per token; of masked models see `objective` */
  double perplexity, bits_per_byte;
  double unigram_loss; /* loss of a unigram model with add-one smoothing, counted on the training share, or on the text
                          itself if a text is evaluated */
  int64_t tokens, bytes;
  const char *routing;       /* the routing used: "batch", "threshold", ... */
  int looks_across_tokens;   /* nonzero: the loss is not causal */
  double gzip_bits_per_byte; /* if the whole of a text was evaluated; else NaN */
  /* The kind of loss: "next_token"; "masked_diffusion": an upper bound of the loss in nats per token, the mean over
   * mask ratios of the mean loss of masked tokens; "masked_lm": the mean loss of the 15 % of tokens that are masked,
   * which is not a likelihood of the text. */
  const char *objective;
  double standard_error;      /* standard error of a masked model's loss, from the sampling of ratios and masks; 0 for
                                 next_token */
  choir_eval_source *sources; /* [source_count] of choir_eval on data */
  int source_count, ratio_count;
  choir_eval_ratio
      ratio[10]; /* [ratio_count] masked models: the tenths with at least one evaluation, in ascending order */
  int64_t reserved[5];
} choir_eval_result;

/* Options of choir_train and of choir_finetune (whose `data` is the directory of the task's files). */
typedef struct choir_train_options {
  size_t size;                      /* sizeof this struct: set by INIT */
  const choir_config *config;       /* with resume may be NULL: the config of the run */
  const char *data;                 /* a built data directory; with resume may be NULL: the data of the run */
  const char *out;                  /* run directory */
  const char *init_from;            /* checkpoint or run that the weights are initialized from; NULL: random weights */
  int resume;                       /* continue the newest checkpoint of `out`, bit for bit */
  const choir_model_options *model; /* compute type, backend, ranks; NULL: the defaults */
  double disk_minutes;              /* max minutes that the run continues while the disk is full */
  choir_event_callback event; /* or NULL; return nonzero to finish the step, save, and return CHOIR_ERROR_INTERRUPTED */
  void *context;
  int64_t patience; /* stop after this number of evaluations without improvement; 0: never */
  double minutes;   /* stop after this number of minutes, as if interrupted; 0: never. If cooldown_steps is a fraction
                       below 1, the learning rate falls over the last fraction of the minutes; the run then ends as
                       complete, and `out` records its last step */
  /* choir_finetune only: */
  const choir_task *task; /* ignored with resume */
  double epochs;          /* epochs over the training set, which set train.steps; 0: train.steps of the config */
  int batch_sequences;    /* number of texts in a batch of batch routing in evaluations; 0: no batch routing */
} choir_train_options;
#define CHOIR_TRAIN_OPTIONS_INIT \
  { .size = sizeof(choir_train_options), .disk_minutes = 60, .batch_sequences = 32 }
CHOIR_API void choir_train_options_default(choir_train_options *options, size_t size); /* the same, as a function */

/* Trains to the config's number of steps. With `init_from` only the weights come from the checkpoint; the config has
 * the same shapes, or more experts where the checkpoint's layers have one ("upcycling"); with another router, only the
 * weights that both routers have are loaded (docs/finetuning.md). The checkpoint's tokenizer must be that of the data.
 * out/ gets config.json, data.path, metrics.jsonl, timing.jsonl, checkpoints/STEP/, and best, the name of the
 * checkpoint with the lowest held-out loss (the causal loss, if the routing has one), which is never removed. A loss,
 * gradient or weight that is not finite stops the run with CHOIR_ERROR_NUMERIC; the message names the step and the
 * first such tensor, and the last good checkpoint stays. CHOIR_ERROR_INTERRUPTED: the event callback asked to stop, and
 * the step has been saved. Collective over ranks, with the same options; without choir_ranks_set_layout, the ranks use
 * the first layout that fits into memory, in the order of docs/clusters.md. Rank 0 writes the files, an error of one
 * rank is the error of all, and the event callback is called on every rank. CHOIR_ERROR_FULL: the disk was full for
 * `disk_minutes` (docs/training.md). CHOIR_ERROR_BUSY: another process trains in this directory. Other errors as
 * choir_config_load, choir_data_load and choir_model_load. */
CHOIR_API int choir_train(const choir_train_options *options);

typedef struct choir_eval_options {
  size_t size;       /* sizeof this struct: set by INIT */
  const char *data;  /* a built data directory: its held-out share */
  const char *text;  /* or a UTF-8 text file, to be encoded with the checkpoint's tokenizer */
  int64_t sequences; /* max number of sequences; 0: all */
  int in_order;      /* nonzero: the first held-out sequences; 0: sequences spread over all sources */
  int batch_sequences, sequence_length; /* 0: the config's */
  choir_progress_callback progress;     /* or NULL; in sequences */
  void *context;
  double capacity_factor; /* of batch routing; 0: the config's */
  int mask_samples;       /* masked models: mask ratios per sequence; 0: one */
} choir_eval_options;
#define CHOIR_EVAL_OPTIONS_INIT \
  { .size = sizeof(choir_eval_options) }
CHOIR_API void choir_eval_options_default(choir_eval_options *options, size_t size);

/* Evaluates a model with its current routing (choir_model_set_routing); the model is unchanged.
 * choir_model_get_route_stats then returns statistics of the whole evaluation. tokenizer: the checkpoint's tokenizer,
 * required for a text. With data it may be NULL; otherwise the data must be built with it. Release the result with
 * choir_eval_result_clear; after an error there is none. CHOIR_ERROR_ARGUMENT, CHOIR_ERROR_IO, CHOIR_ERROR_FORMAT,
 * CHOIR_ERROR_MEMORY, CHOIR_ERROR_INTERRUPTED (progress returned nonzero). */
CHOIR_API int choir_eval(choir_model *model, const choir_tokenizer *tokenizer, const choir_eval_options *options,
                         choir_eval_result *result);
CHOIR_API void choir_eval_result_clear(choir_eval_result *result);

/* Like choir_eval, and sets the model's thresholds to the mean cut-offs of these batches (router `quantile_balanced`:
 * its biases to values that balance the loads). Use it to adapt a model to another kind of text or, with
 * `capacity_factor`, to another mean number of experts per token, which then is the model's capacity factor for
 * evaluation. Errors as choir_eval; after an error the thresholds may come from the batches before it;
 * CHOIR_ERROR_UNSUPPORTED: a routing or a router without cut-offs. */
CHOIR_API int choir_calibrate(choir_model *model, const choir_tokenizer *tokenizer, const choir_eval_options *options,
                              choir_eval_result *result);

CHOIR_C_END
#endif
