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

/* What an evaluation found of one source of built data. */
typedef struct choir_eval_source {
  char name[65];
  int64_t tokens; /* held-out ones that were predicted */
  double loss;    /* their mean, in nats; NaN of none */
  int64_t reserved[2];
} choir_eval_source;

/* What an evaluation of a masked model found at some mask ratios: a tenth of them. */
typedef struct choir_eval_ratio {
  double from, to;
  int64_t evaluations; /* of a sequence, at such a ratio */
  double loss;         /* mean, of their masked tokens */
} choir_eval_ratio;

typedef struct choir_eval_result {
  double loss; /* nats per token; of masked models see `objective` */
  double perplexity, bits_per_byte;
  double
      unigram_loss; /* of token counts with add-one smoothing: of the training share; of the text itself for a text */
  int64_t tokens, bytes;
  const char *routing;       /* "batch", "threshold", ...: which routing gave the loss */
  int looks_across_tokens;   /* nonzero: the loss is not that of causal use */
  double gzip_bits_per_byte; /* of a text that was evaluated to its end; NaN of others */
  /* What the loss is: "next_token"; "masked_diffusion": an upper bound of nats a token, the mean over mask ratios of
   * the mean loss of masked tokens; "masked_lm": the mean loss of 15 % of the tokens, which is no measure of a text. */
  const char *objective;
  double standard_error;      /* of the mean over mask ratios: other draws of ratios and masks would move it by about so
                                 much; of next_token, which draws nothing, 0 */
  choir_eval_source *sources; /* [source_count] of choir_eval on data */
  int source_count, ratio_count;
  choir_eval_ratio ratio[10]; /* [ratio_count] of masked models: the tenths in which there were evaluations, the lowest
                                 first */
  int64_t reserved[5];
} choir_eval_result;

/* Of choir_train, and of choir_finetune, whose `data` is the directory of the task's files. */
typedef struct choir_train_options {
  size_t size;                /* sizeof this struct: set by INIT */
  const choir_config *config; /* NULL with resume: the run's own */
  const char *data;           /* a built data directory; with resume may be NULL: the run's own */
  const char *out;            /* run directory */
  const char *init_from;      /* a checkpoint, or a run's, whose weights a fresh run begins with; NULL: random ones */
  int resume;                 /* continue the newest checkpoint of `out`, bit for bit */
  const choir_model_options *model; /* how it runs, and who trains together; NULL: the defaults */
  double disk_minutes;              /* that the run goes on without room on the disk */
  choir_event_callback event;       /* or NULL; nonzero: finish the step, save, CHOIR_ERROR_INTERRUPTED */
  void *context;
  int64_t patience; /* evaluations without a better one after which to stop; 0: never */
  double minutes; /* that the run may take, as if interrupted then; 0: any number. Where cooldown_steps is a share below
                     1, the rate falls in that share of them, and the run ends by its steps, which `out` then records */
  /* Of choir_finetune alone: */
  const choir_task *task; /* with resume not used */
  double epochs;          /* over the training set, which then give train.steps; 0: the config's steps */
  int batch_sequences;    /* texts that batch routing routes together in evaluations; 0: none of that */
} choir_train_options;
#define CHOIR_TRAIN_OPTIONS_INIT \
  { .size = sizeof(choir_train_options), .disk_minutes = 60, .batch_sequences = 32 }
CHOIR_API void choir_train_options_default(choir_train_options *options, size_t size); /* the same, as a function */

/* Trains to the config's number of steps. With `init_from` only weights come from the checkpoint, into a config of the
 * same shapes, or of more experts where the checkpoint's layers have one ("upcycling"); another router begins with what
 * both have (docs/finetuning.md). Its tokenizer must be the data's. out/ gets config.json, data.path, metrics.jsonl,
 * timing.jsonl, checkpoints/STEP/, and best, which names the checkpoint of the evaluation with the lowest held-out loss
 * (causal where the routing has that) and keeps it. A loss, gradient or weight that is not finite stops with
 * CHOIR_ERROR_NUMERIC, the step and the first such tensor; the last good checkpoint stays. CHOIR_ERROR_INTERRUPTED: the
 * caller's event function asked to stop, and the step that it saw has been saved. Of several ranks each calls this with
 * the same options; ranks that nobody has laid out (choir/ranks.h) take the first layout that their memory has room
 * for, in the order of docs/clusters.md. The first one writes, an error of one is the error of all, and everybody's
 * event function is called. CHOIR_ERROR_FULL: the disk had no room for `disk_minutes` (docs/training.md has the rule).
 * CHOIR_ERROR_BUSY: another process trains there. Otherwise as the loaders of config, data and model. */
CHOIR_API int choir_train(const choir_train_options *options);

typedef struct choir_eval_options {
  size_t size;                          /* sizeof this struct: set by INIT */
  const char *data;                     /* a built data directory: its held-out share */
  const char *text;                     /* or a UTF-8 text file, encoded with the checkpoint's tokenizer */
  int64_t sequences;                    /* at most; 0: all */
  int in_order;                         /* nonzero: held-out sequences as they are; else far apart, a mixture */
  int batch_sequences, sequence_length; /* 0: the config's */
  choir_progress_callback progress;     /* or NULL; in sequences */
  void *context;
  double capacity_factor; /* of batch routing; 0: the config's */
  int mask_samples;       /* of masked models: how many mask ratios every sequence is evaluated at; 0: one */
} choir_eval_options;
#define CHOIR_EVAL_OPTIONS_INIT \
  { .size = sizeof(choir_eval_options) }
CHOIR_API void choir_eval_options_default(choir_eval_options *options, size_t size);

/* Evaluates a model with its present routing (choir_model_set_routing), and leaves the model as it was;
 * choir_model_get_route_stats then gives sums over the whole evaluation. tokenizer: the checkpoint's, needed for a
 * text; with data it may be NULL, else the data must be built with it. Release the result with
 * choir_eval_result_clear; after an error there is none. CHOIR_ERROR_ARGUMENT, CHOIR_ERROR_IO, CHOIR_ERROR_FORMAT,
 * CHOIR_ERROR_MEMORY, CHOIR_ERROR_INTERRUPTED (progress returned nonzero). */
CHOIR_API int choir_eval(choir_model *model, const choir_tokenizer *tokenizer, const choir_eval_options *options,
                         choir_eval_result *result);
CHOIR_API void choir_eval_result_clear(choir_eval_result *result);

/* choir_eval that sets the model's thresholds to the mean cut-offs of these batches, or the prices of router
 * `quantile_balanced` to those by which they have even loads: for such text or, with `capacity_factor`, for that number
 * of experts a token; the factor then stays the model's while evaluating. Errors as choir_eval; after one the
 * thresholds may be those of the batches before it; CHOIR_ERROR_UNSUPPORTED: a routing or a router that finds no
 * cut-offs. */
CHOIR_API int choir_calibrate(choir_model *model, const choir_tokenizer *tokenizer, const choir_eval_options *options,
                              choir_eval_result *result);

CHOIR_C_END
#endif
