/* A session: the sequences being generated, their caches, and one pass over some new tokens of each. */
#ifndef CH_INFER_SESSION_H
#define CH_INFER_SESSION_H

#include "choir/generate.h"
#include "handle/model.h"

struct choir_session {
  choir_model *model;
  ch_transformer net; /* shared parameters; separate blocks and statistics */
  ch_exec x;
  int slots, positions, chunk;
  int causal;                   /* a ch_causal: the session's routing, which is the model's or threshold routing */
  ch_arena arrays;              /* host memory of blocks, statistics, and the arrays below */
  ch_arena memory;              /* memory of the next four members */
  real CH_DEV *rope_table;      /* rope table by position; or NULL */
  real CH_DEV **bias;           /* [L] -> [H,positions + CH_BIAS_PAD] relative position bias by distance, or NULL */
  real CH_DEV **keys, **values; /* [L] -> [slots,kv_heads,positions,dh] */
  int *length;                  /* [slots] tokens in the caches */
  int *begin;                   /* [slots+1] first row of each slot in the current pass */
  int64_t *until;               /* [slots+1] first row of each slot in the whole call */
  real **last;                  /* [slots] destination of logits in this pass: the caller's arrays */
  int32_t *token;               /* [chunk] tokens of this pass */
  int32_t *position;            /* [chunk] position of each token in its sequence */
};

/* One pass: slot b processes the tokens token[begin[b]] .. token[begin[b+1]-1], at most `chunk` over all slots. The
 * logits [V] after its last token are written to last[b] unless that is NULL, the logits after every token to all
 * [begin[slots],V] unless that is NULL. With a counting arena: counts a pass of `chunk` tokens. */
void ch_session_pass(choir_session *s, real *all);

#endif
