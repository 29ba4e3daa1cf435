/* The leak probe: tests whether logits depend on tokens that they should not depend on. */
#ifndef CH_PROBE_PROBE_H
#define CH_PROBE_PROBE_H

#include "choir/model.h"

typedef struct ch_probe_options {
  const char *routing; /* as in choir_model_set_routing; NULL: the model's present one, which is restored afterwards */
  const int32_t *tokens; /* [sequences, length], or NULL */
  const char *text;      /* used if tokens is NULL: windows from the beginning of a UTF-8 text; NULL: random tokens */
  int sequences, length; /* B and T; 0: as in training. A short text gives fewer */
  int positions, draws;  /* number of positions after which tokens are changed, and changes at each; at least 1; limited
                            by the length of the sequence */
  uint64_t seed;         /* of positions, sequences and new tokens */
} ch_probe_options;
#define CH_PROBE_OPTIONS_INIT \
  { .positions = 4, .draws = 2, .seed = 1 }

typedef enum {
  CH_PROBE_UNTRIED, /* there is no other sequence, or the router refuses the batch size */
  CH_PROBE_EQUAL,   /* bit-identical */
  CH_PROBE_ROUNDED, /* equal up to rounding: products with other numbers of rows may round differently */
  CH_PROBE_CHANGED
} ch_probe_verdict;

/* The effect of a change elsewhere on the logits of a sequence. */
typedef struct ch_probe_effect {
  ch_probe_verdict verdict;
  int64_t compared; /* positions compared, over all changes */
  int64_t changed;  /* positions with a logit whose bits changed */
  int first;        /* the first such position in its sequence; -1: none */
  double largest;   /* largest absolute change of a logit; infinite if a logit was NaN */
  double loss;      /* change of the mean cross-entropy, nats per token */
} ch_probe_effect;

typedef struct ch_probe_result {
  char routing[CHOIR_NAME_BYTES];
  choir_routing_properties declared;
  int sequences, length;
  double loss;            /* nats per token, with the original tokens */
  double spread;          /* standard deviation of the logits, for comparison with `largest` */
  ch_probe_effect later;  /* on positions up to t, when the tokens after t in the same sequence change */
  ch_probe_effect others; /* on a sequence, when every other sequence of the batch changes */
  ch_probe_effect alone;  /* on positions up to t, when the sequence runs by itself and ends there */
  int leaks;              /* nonzero: tokens declared irrelevant changed logits by more than rounding */
} ch_probe_result;

/* tokenizer: the checkpoint's, for `text`; otherwise may be NULL. CHOIR_ERROR_ARGUMENT: an unknown routing,
 * impossible sizes; CHOIR_ERROR_UNSUPPORTED: thresholds that training has not set; CHOIR_ERROR_MEMORY; CHOIR_ERROR_IO,
 * CHOIR_ERROR_FORMAT: of the text. */
int ch_probe(choir_model *model, const choir_tokenizer *tokenizer, const ch_probe_options *options,
             ch_probe_result *result);

#endif
