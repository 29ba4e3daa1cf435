/* Text generation: choir_generate continues prompts; a session returns logits, and the caller chooses the tokens. */
#ifndef CHOIR_GENERATE_H
#define CHOIR_GENERATE_H

#include "choir/event.h"
#include "choir/model.h"
#include "choir/tokenizer.h"

CHOIR_C_BEGIN

/* A text to continue: UTF-8 (requires a tokenizer; an empty text begins a document), or token ids. */
typedef struct choir_prompt {
  const char *text; /* `size` bytes, or NUL-terminated if size is 0; NULL: tokens */
  size_t size;
  const int32_t *tokens; /* [count] */
  int count;
  int64_t reserved[4];
} choir_prompt;

/* Why a sequence ended. */
typedef enum {
  CHOIR_END_LENGTH,     /* max_tokens */
  CHOIR_END_EOS,        /* the model generated the end-of-text token */
  CHOIR_END_STOP,       /* the text contains one of `stops` */
  CHOIR_END_INTERRUPTED /* a callback stopped the call, possibly before the sequence began */
} choir_end;

typedef struct choir_generated {
  char *text; /* NUL-terminated, well-formed UTF-8; invalid bytes become U+FFFD; "" without tokenizer */
  size_t size;
  int32_t *tokens; /* [count] new tokens, without end of text */
  int count;
  int prompt_count; /* tokens of the prompt; 0: a callback stopped the call before the prompt was encoded */
  choir_end end;
  int64_t reserved[4];
} choir_generated;

/* An event of a sequence. */
typedef struct choir_text_event {
  int sequence;                     /* index of its prompt */
  const char *text;                 /* TEXT: new text, complete characters; may be empty */
  size_t size;                      /* bytes of `text` */
  const choir_generated *generated; /* END: the finished sequence; valid as long as the result */
} choir_text_event;

typedef struct choir_generate_options {
  size_t size;              /* sizeof this struct: set by INIT */
  int max_tokens;           /* max new tokens of a sequence */
  double temperature;       /* logits are divided by it; 0: always the most probable token */
  int top_k;                /* only the k most probable tokens; 0: all */
  double top_p;             /* only the most probable tokens that together reach this probability; 1: all */
  uint64_t seed;            /* the sample of sequence i at a position is a function of (seed, i, position) */
  const char *const *stops; /* NULL-terminated texts that end a sequence and are not part of the result; or NULL */
  int batch;                /* sequences per pass; results do not depend on it */
  int chunk;                /* prompt tokens per pass: more memory, more speed */
  choir_progress_callback progress; /* between passes of the model, and while a long prompt is encoded; in prompts */
  choir_event_callback event;       /* TEXT, END. A nonzero return of either callback stops the call. May be NULL */
  void *context;
} choir_generate_options;
#define CHOIR_GENERATE_OPTIONS_INIT                                                                           \
  {                                                                                                           \
    .size = sizeof(choir_generate_options), .max_tokens = 256, .temperature = 0.8, .top_p = 0.95, .batch = 8, \
    .chunk = 512                                                                                              \
  }
CHOIR_API void choir_generate_options_default(choir_generate_options *options,
                                              size_t size); /* the same, as a function */

typedef struct choir_generate_result {
  choir_generated *sequences; /* [count] in the order of the prompts */
  int count;
  int64_t prompt_tokens, tokens; /* tokens of prompts; new tokens */
  double prompt_seconds;         /* of passes over prompts, which also give the first new token */
  double seconds;                /* of passes over one new token per sequence */
  const char *routing;           /* choir_session_routing */
  int64_t reserved[7];
} choir_generate_result;

/* "length", "eos", "stop", "interrupted". */
CHOIR_API const char *choir_end_name(choir_end end);

/* Continues `count` prompts, up to options.batch at a time. tokenizer: the model's tokenizer. If all prompts are tokens
 * it may be NULL: the results then have no text, and only max_tokens ends a sequence. The routing is that of a session
 * (choir_session_create); result->routing names it. Release the result with choir_generate_result_clear; after an error
 * there is no result. A stop by a callback is not an error. CHOIR_ERROR_ARGUMENT: options, a prompt without tokens, a
 * token outside the vocabulary; CHOIR_ERROR_UNSUPPORTED as choir_session_create; CHOIR_ERROR_FORMAT: a prompt that is
 * not UTF-8, another model's tokenizer; CHOIR_ERROR_MEMORY; CHOIR_ERROR_NUMERIC: logits that are not finite. */
CHOIR_API int choir_generate(choir_model *model, const choir_tokenizer *tokenizer, const choir_prompt *prompts,
                             int count, const choir_generate_options *options, choir_generate_result *result);
CHOIR_API void choir_generate_result_clear(choir_generate_result *result);

/* ---- filling gaps: models trained by masking (train.objective) ---- */

typedef struct choir_fill_options {
  size_t size;        /* sizeof this struct: set by INIT */
  int steps;          /* passes of the model per block; 0, or more than the block has gaps: one gap per pass */
  int block;          /* gaps per block; blocks are filled from left to right; 0: one block */
  int random_order;   /* nonzero: fill gaps in random order; 0: in the order of the probability of their tokens */
  double temperature; /* logits are divided by it; 0: always the most probable token */
  int top_k;          /* as in choir_generate_options */
  double top_p;
  uint64_t seed;                    /* the sample at a gap is a function of (seed, position) */
  choir_progress_callback progress; /* after each pass, or NULL; in gaps */
  void *context;
} choir_fill_options;
#define CHOIR_FILL_OPTIONS_INIT \
  { .size = sizeof(choir_fill_options), .temperature = 0.8, .top_p = 0.95 }
CHOIR_API void choir_fill_options_default(choir_fill_options *options, size_t size); /* the same, as a function */

/* Replaces the gaps of tokens [count], which are marked by choir_config_mask_token, in place. Each pass reads the whole
 * text, including the tokens filled so far, and fills 1/steps of a block (Nie et al. 2025). Routing does not depend on
 * other texts: the result is a function of the model, the tokens and the options. CHOIR_ERROR_UNSUPPORTED: a model that
 * predicts the next token; CHOIR_ERROR_ARGUMENT: options, tokens outside the vocabulary; CHOIR_ERROR_INTERRUPTED:
 * stopped by the progress callback, with some gaps unfilled; CHOIR_ERROR_NUMERIC: logits that are not finite;
 * CHOIR_ERROR_MEMORY. */
CHOIR_API int choir_fill(choir_model *model, int count, int32_t *tokens, const choir_fill_options *options);

/* A session: `slots` sequences, each with a cache of the keys and values of its tokens so far. The logits of a sequence
 * do not depend on how its tokens are divided into calls or on the other sequences, bit for bit (backend "cpu"). */
typedef struct choir_session choir_session;

typedef struct choir_session_options {
  size_t size; /* sizeof this struct: set by INIT */
  int slots;   /* sequences */
  int length;  /* max tokens of a sequence; may exceed the context length of training */
  int chunk;   /* tokens per pass; longer calls are split */
} choir_session_options;
#define CHOIR_SESSION_OPTIONS_INIT \
  { .size = sizeof(choir_session_options), .slots = 1, .length = 1024, .chunk = 512 }
CHOIR_API void choir_session_options_default(choir_session_options *options, size_t size); /* the same, as a function */

/* Creates a session and allocates all its memory. The model must outlive the session, and its weights must not change.
 * The session uses the model's routing; if that depends on other tokens, as expert choice over a batch does, the
 * session uses threshold routing (the model's own routing does not change). options NULL: the defaults.
 * CHOIR_ERROR_ARGUMENT: sizes; CHOIR_ERROR_UNSUPPORTED: a router without thresholds, or thresholds that no training has
 * set; CHOIR_ERROR_MEMORY. */
CHOIR_API int choir_session_create(choir_model *model, const choir_session_options *options, choir_session **session);
CHOIR_API void choir_session_free(choir_session *session);

/* The session's routing, a name as in choir_model_routing; NULL: no session. */
CHOIR_API const char *choir_session_routing(const choir_session *session);

/* Appends counts[s] tokens (perhaps 0) to every slot s; `tokens` holds those of slot 0, then 1, and so on. last:
 * [slots,V], receives the logits after the last new token of every slot with new tokens; other rows are unchanged; or
 * NULL. all: [sum of counts,V] logits after every new token, or NULL. Allocates nothing. CHOIR_ERROR_ARGUMENT, with
 * nothing changed: a token outside the vocabulary, or a sequence that grows beyond `length`. */
CHOIR_API int choir_session_advance(choir_session *session, const int *counts, const int32_t *tokens, float *last,
                                    float *all);

/* Removes the tokens after the first `length` tokens of a slot; 0: a new sequence. CHOIR_ERROR_ARGUMENT: no such slot,
 * or it has fewer tokens. */
CHOIR_API int choir_session_rewind(choir_session *session, int slot, int length);
CHOIR_API int choir_session_length(const choir_session *session, int slot); /* tokens so far; -1: no such slot */

CHOIR_C_END
#endif
