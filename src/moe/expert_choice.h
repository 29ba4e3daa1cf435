/* What routers share where experts choose among the tokens of pools. */
#ifndef CH_MOE_EXPERT_CHOICE_H
#define CH_MOE_EXPERT_CHOICE_H

#include "moe/router.h"

/* Tokens of a full pool: all, or one sequence of them. */
int ch_pool_size(const choir_router_options *o, int n, int sequence_length);

/* Sizes, capacity factors and pool; k must be possible. */
int ch_expert_choice_check(const choir_router_options *o, int n, int e, int sequence_length);
int ch_expert_choice_max_slots(const choir_router_options *o, int n, int e, int sequence_length);

/* Cuts the tokens into `count` pools of `size`: begin [count+1], k [count]; returns the k of all of them together. */
int ch_expert_choice_cut(const ch_route_args *a, int size, int count, int *begin, int *k);

/* Gates and counts, from expert_begin and slot_token. cutoff [pools,e]. */
void ch_expert_choice_finish(ch_exec *x, const ch_route_args *a, int capacity, int pools, const real *cutoff);

#endif
