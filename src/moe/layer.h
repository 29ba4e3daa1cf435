/* The MoE layer: router, gather, expert FFN, combine, and all of it backwards. */
#ifndef CH_MOE_LAYER_H
#define CH_MOE_LAYER_H

#include "moe/args.h"

/* a->route.routing becomes the saved one. */
void ch_moe_forward(ch_exec *x, ch_moe_args *a, ch_moe_saved *saved);
void ch_moe_backward(ch_exec *x, ch_moe_args *a, ch_moe_saved *saved);

/* ---- routing by thresholds, in parts ----
 * With thresholds every token may take every expert, but few do. Memory is planned for as many slots as the router's
 * own rule takes, and for one expert twice the mean. A record with more slots is cut by tokens into several parts,
 * which go through the experts one after the other. The cuts depend on the record alone, not on the distribution of
 * tokens over ranks. */

typedef struct ch_parts {
  int slots, max;                                     /* limits of a part: all slots, and slots of one expert */
  int tokens, experts;                                /* of the whole record */
  const int *expert_begin, *token_begin, *token_slot; /* host copies of the record's arrays */
  int *slots_used;                                    /* [experts] slots of the part so far */
} ch_parts;

/* Most slots of one expert in a part of `slots` slots for e experts. */
int ch_parts_max_load(int slots, int e);

/* Copies the record to scratch of x's host. Waits for the device. */
void ch_parts_begin(ch_exec *x, const ch_record *all, int slots, int max, ch_parts *parts);

/* End of the part that begins with token `first`; at least one token further. */
int ch_parts_end(ch_parts *parts, int begin);

#endif
