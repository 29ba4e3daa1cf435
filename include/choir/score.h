/* Log-likelihoods of continuations, and predictions of tasks. */
#ifndef CHOIR_SCORE_H
#define CHOIR_SCORE_H

#include "choir/generate.h"
#include "choir/task.h"

CHOIR_C_BEGIN

/* A context and a continuation to score; each is a text or tokens. The context is encoded separately, and all
 * continuations share its tokens; trailing spaces of the context are moved to the continuation. An empty context means
 * the beginning of a document: the continuation then follows an end-of-text token. */
typedef struct choir_score_request {
  choir_prompt context, continuation;
  int64_t reserved[2];
} choir_score_request;

typedef struct choir_scored {
  double log_likelihood; /* sum over the continuation's tokens, natural logarithm; for a model trained by masking see
                            choir_score_result.measure */
  int greedy;      /* 1: every token is the most probable one (ties: the lower id), so temperature 0 generates this
                      continuation; else 0; -1: not defined (a model trained by masking) */
  int count;       /* tokens of the continuation */
  int32_t *tokens; /* [count] */
  float *log_probability; /* [count] log-probability of each token; for CHOIR_SCORE_LOWER_BOUND each token's
                             contribution to the bound */
  double standard_error;  /* of CHOIR_SCORE_LOWER_BOUND, from the sampling of masks; else 0 */
  int64_t reserved[1];
} choir_scored;

typedef struct choir_score_options {
  size_t size;                      /* sizeof this struct: set by INIT */
  int batch;                        /* sequences per pass; scores do not depend on it */
  int chunk;                        /* tokens per pass: more memory, more speed */
  choir_progress_callback progress; /* or NULL; in requests, or in texts of a task */
  void *context;
  int mask_samples; /* train.objective masked_diffusion: sets of masks per continuation of several tokens; 0: 32. Must
                       be 0 for other models */
} choir_score_options;
#define CHOIR_SCORE_OPTIONS_INIT \
  { .size = sizeof(choir_score_options), .batch = 16, .chunk = 512 }
CHOIR_API void choir_score_options_default(choir_score_options *options, size_t size); /* the same, as a function */

typedef struct choir_score_result {
  choir_scored *score; /* [count] in the order of the requests */
  int64_t count;
  int64_t tokens; /* tokens that the model processed; common prefixes of requests are processed once */
  double seconds;
  const char *routing; /* choir_session_routing */
  const char *measure; /* the meaning of log_likelihood: one of the names below */
  int mask_samples;    /* samples of CHOIR_SCORE_LOWER_BOUND; else 0 */
  int64_t reserved[5];
} choir_score_result;

#define CHOIR_SCORE_EXACT "log_likelihood"             /* models that predict the next token */
#define CHOIR_SCORE_LOWER_BOUND "log_likelihood_bound" /* masked_diffusion: estimated lower bound */
#define CHOIR_SCORE_PSEUDO "pseudo_log_likelihood"     /* masked_lm: sum of log p(token | all others) */

/* Scores `count` requests. The routing is that of a session (choir_session_create); the result names it. A score
 * depends only on the model and the request, bit for bit, not on batch, chunk, order or number of threads. A model that
 * is trained by masking reads the whole request with some of the continuation's tokens masked, and routing does not
 * depend on other requests (docs/diffusion.md). `measure` names the kind of score; do not compare these scores with
 * exact ones. tokenizer: the model's; NULL if all contexts and continuations are tokens and no context is empty.
 * Release the result with choir_score_result_clear; after an error there is none. CHOIR_ERROR_ARGUMENT: options, an
 * empty continuation, a token outside the vocabulary; CHOIR_ERROR_UNSUPPORTED as choir_session_create;
 * CHOIR_ERROR_FORMAT: a text that is not UTF-8, another model's tokenizer; CHOIR_ERROR_MEMORY; CHOIR_ERROR_NUMERIC:
 * logits that are not finite. */
CHOIR_API int choir_score(choir_model *model, const choir_tokenizer *tokenizer, const choir_score_request *requests,
                          int64_t count, const choir_score_options *options, choir_score_result *result);
CHOIR_API void choir_score_result_clear(choir_score_result *result);

typedef struct choir_task_options {
  size_t size;       /* sizeof this struct: set by INIT */
  const char *data;  /* directory of the task's files, or one with a folder of the task's name */
  const char *split; /* the split of the task; NULL: "dev" */
  const char *out;   /* file for the predictions with threshold routing: SuperGLUE's format if the name ends in .jsonl,
                        else GLUE's; NULL: no file */
  int sequence_length;              /* max tokens per text; longer texts are truncated; 0: the config's */
  int batch_sequences;              /* number of texts in a batch of batch routing; 0: no batch routing */
  double capacity_factor;           /* of batch routing; 0: the config's */
  const choir_score_options *score; /* NULL: the defaults */
} choir_task_options;
#define CHOIR_TASK_OPTIONS_INIT \
  { .size = sizeof(choir_task_options), .batch_sequences = 32 }
CHOIR_API void choir_task_options_default(choir_task_options *options, size_t size); /* the same, as a function */

typedef struct choir_task_result {
  choir_task_measure measure[2]; /* with threshold routing; then with batch routing, if that differs */
  int measures;
  int64_t examples;
  int64_t malformed;          /* skipped rows */
  char first_malformed[400];  /* why the first malformed row was refused */
  int64_t cut;                /* truncated texts */
  double majority;            /* share of the most common label; NaN without labels */
  const char *majority_label; /* a label of the task; NULL: none */
  char file[4096];
  double seconds;
  int64_t reserved[16];
} choir_task_result;

/* Predicts the label of every row: the label whose text, appended to the task's template, has the highest mean
 * log-probability per token (for a model trained by masking, the highest score per token). Such a model has no measure
 * with batch routing. CHOIR_ERROR_UNSUPPORTED: the model's thresholds have not been trained; CHOIR_ERROR_IO: no such
 * file; CHOIR_ERROR_FORMAT: too many malformed rows, named by line; and as choir_score. */
CHOIR_API int choir_task_score(choir_model *model, const choir_tokenizer *tokenizer, const choir_task *task,
                               const choir_task_options *options, choir_task_result *result);

CHOIR_C_END
#endif
