/* The routing record: the one thing that routers fill and that gather, expert FFN and combine read.
 * Nothing behind a router ever asks which router ran. */
#ifndef CH_OP_RECORD_H
#define CH_OP_RECORD_H

#include "base/memory.h"
#include "base/real.h"

typedef struct ch_record {
  int tokens, experts; /* n, e */
  int max_slots;       /* what the arrays below have room for; expert_begin[experts] of them are filled */
  int load;            /* slots of every expert, where all have as many and the host knows it beforehand; else -1 */
  int most;            /* slots of one expert at most, where the router bounds them; else 0 */
  int CH_DEV *expert_begin; /* [e+1] slots of expert i are expert_begin[i] .. expert_begin[i+1]-1 */
  int CH_DEV *slot_token;   /* [slots] the token in the slot, ascending within an expert */
  real CH_DEV *slot_gate;   /* [slots] combine weight */
  int CH_DEV *token_begin;  /* [n+1] the same pairs by token, so that combine adds in a fixed order without atomics: */
  int CH_DEV *token_slot; /* [slots] slots of token t are token_slot[token_begin[t] .. token_begin[t+1]-1], ascending */
} ch_record;

/* How many of `n` tokens take part; valid [n] on the side that asks, or NULL: all. */
static inline int ch_valid_count(const uint8_t *valid, int n) {
  if (!valid) return n;
  int count = 0;
  for (int t = 0; t < n; t++) count += valid[t] != 0;
  return count;
}

#endif
