/* The MoE layer: router, gather, expert FFN, combine; forward and backward. */
#ifndef CH_MOE_LAYER_H
#define CH_MOE_LAYER_H

#include "moe/args.h"

/* Sets a->route.routing to &saved->routing. */
void ch_moe_forward(ch_exec *x, ch_moe_args *a, ch_moe_saved *saved);
void ch_moe_backward(ch_exec *x, ch_moe_args *a, ch_moe_saved *saved);

/*  ---- threshold routing in parts ---- With threshold routing a token may have all experts, but few tokens have many.
 * Memory is planned for the number of slots of batch routing, and for twice the mean load of an expert. A record with
 * more slots is split by tokens into several parts, which the experts process one after the other. The split depends
 * only on the record, not on the distribution of tokens over ranks. */

typedef struct ch_parts {
  int slots, max;                                     /* limits of a part: total slots, and slots per expert */
  int tokens, experts;                                /* n, e of the whole record */
  const int *expert_begin, *token_begin, *token_slot; /* host copies of the record's arrays */
  int *slots_used;                                    /* [experts] slots of the part so far */
} ch_parts;

/* Max slots per expert in a part of `slots` slots for e experts. */
int ch_parts_max_load(int slots, int e);

/* Copies the record to the host's scratch. Waits for the device. */
void ch_parts_begin(ch_exec *x, const ch_record *all, int slots, int max, ch_parts *parts);

/* Returns the end of the part that begins with token `begin`; a part has at least one token. */
int ch_parts_end(ch_parts *parts, int begin);

#endif
