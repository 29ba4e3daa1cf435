/* The routing record: the one thing that routers fill and that gather, expert FFN and combine read.
 * Nothing behind a router ever asks which router ran. */
#ifndef CH_OP_RECORD_H
#define CH_OP_RECORD_H

#include "base/real.h"

typedef struct ch_record {
  int tokens, experts; /* n, e */
  int slots;           /* filled slots = expert_begin[experts] */
  int max_slots;       /* what the arrays below have room for */
  int *expert_begin;   /* [e+1] slots of expert i are expert_begin[i] .. expert_begin[i+1]-1 */
  int *slot_token;     /* [slots] the token in the slot, ascending within an expert */
  real *slot_gate;     /* [slots] combine weight */
  int *token_begin;    /* [n+1] the same pairs by token, so that combine adds in a fixed order without atomics: */
  int *token_slot;     /* [slots] slots of token t are token_slot[token_begin[t] .. token_begin[t+1]-1], ascending */
} ch_record;

#endif
