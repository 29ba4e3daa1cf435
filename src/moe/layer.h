/* The MoE layer: router, gather, expert FFN, combine, and all of it backwards. */
#ifndef CH_MOE_LAYER_H
#define CH_MOE_LAYER_H

#include "moe/args.h"

void ch_moe_forward(ch_exec *x, const ch_moe_args *a, ch_moe_saved *saved);
void ch_moe_backward(ch_exec *x, const ch_moe_args *a, ch_moe_saved *saved);

#endif
