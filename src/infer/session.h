/* A model's sequences in the making: caches, and one pass over some new tokens of each. */
#ifndef CH_INFER_SESSION_H
#define CH_INFER_SESSION_H

#include "choir/generate.h"
#include "handle/model.h"

struct choir_session {
  choir_model *model;
  ch_transformer net; /* the model's parameters; blocks and statistics of its own */
  ch_exec x;
  int slots, positions, chunk;
  int causal;                   /* a ch_causal: the session's routing: the model's, or thresholds */
  ch_arena arrays;              /* on the host: of blocks, statistics, and the arrays below */
  ch_arena memory;              /* of what the next four point to */
  real CH_DEV *rope_table;      /* of rope, by position; or NULL */
  real CH_DEV **bias;           /* [L] -> [H,positions + CH_BIAS_PAD] relative position bias by distance, or NULL */
  real CH_DEV **keys, **values; /* [L] -> [slots,kv_heads,positions,dh] */
  int *length;                  /* [slots] tokens that the caches hold */
  int *begin;                   /* [slots+1] rows of the pass at hand */
  int64_t *until;               /* [slots+1] the same over the whole call */
  real **last;                  /* [slots] where this pass writes logits: the caller's arrays */
  int32_t *token;               /* [chunk] tokens of this pass */
  int32_t *position;            /* [chunk] position of each token in its sequence */
};

/* One pass: slot b takes the tokens token[begin[b]] .. token[begin[b+1]-1], `chunk` of all slots at most. The logits
 * [V] after its last one go to last[b] unless that is NULL, those after every token to all [begin[slots],V] unless
 * that is. Or counts a pass of `chunk` tokens. */
void ch_session_pass(choir_session *s, real *all);

#endif
