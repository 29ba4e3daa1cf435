/* The MoE layer: router, gather, expert FFN, combine, and all of it backwards. */
#ifndef CH_MOE_LAYER_H
#define CH_MOE_LAYER_H

#include "moe/args.h"

void ch_moe_forward(ch_exec *x, const ch_moe_args *a, ch_moe_saved *saved);
void ch_moe_backward(ch_exec *x, const ch_moe_args *a, ch_moe_saved *saved);

/* ---- a batch whose tokens go by thresholds, in parts ----
 * Every token could meet every expert, but hardly does. Memory is
 * planned for what the router's own rule takes, and of one expert for twice the mean; what is more goes through the
 * experts in several parts. Where they are cut depends on the record alone, not on who has which tokens. */

typedef struct ch_parts {
  int slots, most;                                    /* of a part; of one expert in it */
  int tokens, experts;                                /* of the whole */
  const int *expert_begin, *token_begin, *token_slot; /* the record's, on the host */
  int *taken;                                         /* [experts] in this part so far */
} ch_parts;

/* Tokens that one of e experts takes in a part of so many slots, at most. */
int ch_parts_most(int slots, int e);

/* Scratch of x's host for them. Waits for the device. */
void ch_parts_begin(ch_exec *x, const ch_record *all, int slots, int most, ch_parts *parts);

/* The end of the part that begins with this token. There is room for one token at least. */
int ch_parts_end(ch_parts *parts, int begin);

#endif
