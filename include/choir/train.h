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

/* The evaluation of a masked model for one tenth of the mask ratios. */
typedef struct choir_eval_ratio {
  double from, to;
  int64_t evaluations; /* evaluated sequences with such a ratio */
  double loss;         /* mean over their masked tokens */
} choir_eval_ratio;

typedef struct choir_eval_result {
  double loss; /* nats per token; of masked models see `objective` */
  double perplexity, bits_per_byte;
  double
      unigram_loss; /* of token counts with add-one smoothing: of the training share; of the text itself for a text */
  int64_t tokens, bytes;
  const char *routing;       /* "batch", "threshold", ...: the routing that gave the loss */
  int looks_across_tokens;   /* nonzero: the loss is not causal */
  double gzip_bits_per_byte; /* of a text that was evaluated completely; else NaN */
  /* What the loss is: "next_token"; "masked_diffusion": an upper bound of nats a token, the mean over mask ratios of
   * the mean loss of masked tokens; "masked_lm": the mean loss of 15 % of the tokens, which is not a likelihood of the
   * text. */
  const char *objective;
  double standard_error; /* of the mean over mask ratios, from the sampling of ratios and masks; 0 for next_token */
  choir_eval_source *sources; /* [source_count] of choir_eval on data */
  int source_count, ratio_count;
  choir_eval_ratio ratio[10]; /* [ratio_count] of masked models: the tenths in which there were evaluations, the lowest
                                 first */
  int64_t reserved[5];
} choir_eval_result;

/* Options of choir_train and of choir_finetune (whose `data` is the directory of the task's files). */
typedef struct choir_train_options {
  size_t size;                      /* sizeof this struct: set by INIT */
  const choir_config *config;       /* NULL with resume: the run's own */
  const char *data;                 /* a built data directory; with resume may be NULL: the run's own */
  const char *out;                  /* run directory */
  const char *init_from;            /* checkpoint or run that the weights are initialized from; NULL: random weights */
  int resume;                       /* continue the newest checkpoint of `out`, bit for bit */
  const choir_model_options *model; /* compute type, backend, ranks; NULL: the defaults */
  double disk_minutes;              /* how long the run continues while the disk is full */
  choir_event_callback event;       /* or NULL; nonzero: finish the step, save, CHOIR_ERROR_INTERRUPTED */
  void *context;
  int64_t patience; /* stop after so many evaluations without a better one; 0: never */
  double minutes;   /* stop after that many minutes, as if interrupted; 0: never. If cooldown_steps is a share below 1,
                       the learning rate falls over that share of the minutes, and the run ends with its last step, which
                       `out` records */
  /* choir_finetune only: */
  const choir_task *task; /* with resume not used */
  double epochs;          /* over the training set; sets train.steps; 0: the config's steps */
  int batch_sequences;    /* number of texts in a batch of batch routing in evaluations; 0: no batch routing */
} choir_train_options;
#define CHOIR_TRAIN_OPTIONS_INIT \
  { .size = sizeof(choir_train_options), .disk_minutes = 60, .batch_sequences = 32 }
CHOIR_API void choir_train_options_default(choir_train_options *options, size_t size); /* the same, as a function */

/* Trains to the config's number of steps. With `init_from` only the weights come from the checkpoint; the config has
 * the same shapes, or more experts where the checkpoint's layers have one ("upcycling"); with another router, the
 * weights that both routers have are kept (docs/finetuning.md). Its tokenizer must be the data's. out/ gets
 * config.json, data.path, metrics.jsonl, timing.jsonl, checkpoints/STEP/, and best, the name of the checkpoint with the
 * lowest held-out loss (the causal loss, if the routing has one), which is kept. A loss, gradient or weight that is not
 * finite stops with CHOIR_ERROR_NUMERIC, the step and the first such tensor; the last good checkpoint stays.
 * CHOIR_ERROR_INTERRUPTED: the event callback asked to stop, and the step has been saved. Collective over ranks, with
 * the same options; without choir_ranks_set_layout, the ranks use the first layout that fits into memory, in the order
 * of docs/clusters.md. Rank 0 writes the files, an error of one rank is the error of all, and the event callback is
 * called on every rank. CHOIR_ERROR_FULL: the disk was full for `disk_minutes` (docs/training.md). CHOIR_ERROR_BUSY:
 * another process trains in this directory. Otherwise as the loaders of config, data and model. */
CHOIR_API int choir_train(const choir_train_options *options);

typedef struct choir_eval_options {
  size_t size;                          /* sizeof this struct: set by INIT */
  const char *data;                     /* a built data directory: its held-out share */
  const char *text;                     /* or a UTF-8 text file, encoded with the checkpoint's tokenizer */
  int64_t sequences;                    /* at most; 0: all */
  int in_order;                         /* nonzero: held-out sequences in their order; else spread over all sources */
  int batch_sequences, sequence_length; /* 0: the config's */
  choir_progress_callback progress;     /* or NULL; in sequences */
  void *context;
  double capacity_factor; /* of batch routing; 0: the config's */
  int mask_samples;       /* of masked models: mask ratios per sequence; 0: one */
} choir_eval_options;
#define CHOIR_EVAL_OPTIONS_INIT \
  { .size = sizeof(choir_eval_options) }
CHOIR_API void choir_eval_options_default(choir_eval_options *options, size_t size);

/* Evaluates a model with its present routing (choir_model_set_routing); the model is unchanged.
 * choir_model_get_route_stats then returns sums over the whole evaluation. tokenizer: the checkpoint's, needed for a
 * text; with data it may be NULL, else the data must be built with it. Release the result with
 * choir_eval_result_clear; after an error there is none. CHOIR_ERROR_ARGUMENT, CHOIR_ERROR_IO, CHOIR_ERROR_FORMAT,
 * CHOIR_ERROR_MEMORY, CHOIR_ERROR_INTERRUPTED (progress returned nonzero). */
CHOIR_API int choir_eval(choir_model *model, const choir_tokenizer *tokenizer, const choir_eval_options *options,
                         choir_eval_result *result);
CHOIR_API void choir_eval_result_clear(choir_eval_result *result);

/* choir_eval that sets the model's thresholds to the mean cut-offs of these batches, or the biases of router
 * `quantile_balanced` to those that give even loads: for this kind of text or, with `capacity_factor`, for that mean
 * number of experts per token. The model keeps the factor for evaluation. Errors as choir_eval; after one the
 * thresholds may be those of the batches before it; CHOIR_ERROR_UNSUPPORTED: a routing or a router without cut-offs. */
CHOIR_API int choir_calibrate(choir_model *model, const choir_tokenizer *tokenizer, const choir_eval_options *options,
                              choir_eval_result *result);

CHOIR_C_END
#endif
