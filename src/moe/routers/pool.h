/* Pools: the sets of tokens within which experts choose. */
#ifndef CH_MOE_ROUTERS_POOL_H
#define CH_MOE_ROUTERS_POOL_H

#include "moe/router.h"

/* The pools of one call. "batch", "sequence" and "group" cut the tokens into runs; "position" puts the tokens at the
 * same position of all sequences into one pool. */
typedef struct ch_pools {
  int count;
  int *begin; /* [count+1] host: indices into the tokens sorted by pool */
  int *k;     /* [count] host: tokens per expert */
  int stride; /* 1, or T: token p + s T is the s-th of pool p */
  int total;  /* sum of k */
} ch_pools;

/* Checks, for every capacity factor of the options, that a pool of n tokens has k = n c / e of them for each expert,
 * k >= 1, and at least as many tokens as experts. */
int ch_pools_check(const ch_router_spec *o, int n, int e, int sequence_length);

/* Max slots of n tokens, with capacity factor c. */
int64_t ch_pools_slots(const ch_router_spec *o, double c, int n, int e, int sequence_length);

/* Allocates pools from the host's scratch and, unless counting, fills them; k depends on the valid tokens of each
 * pool. */
ch_pools ch_pools_cut(ch_exec *x, const ch_route_args *a);

/* Selects the top-k tokens of every pool for every expert: fills expert_begin and slot_token of a->routing->record.
 * cutoff [count,e]: the k-th best scores. */
void ch_pools_select(ch_exec *x, const ch_route_args *a, const ch_pools *pools, real CH_DEV *cutoff);

/* ch_pools_select with one pool of all tokens, for any score [n,e] and record; cutoff [e] or NULL. */
void ch_select_best(ch_exec *x, const ch_route_args *a, const real CH_DEV *score, int k, const ch_record *record,
                    real CH_DEV *cutoff);

/* The number of pools, and the token at place j of pool p. */
int ch_pools_count(const ch_router_spec *o, int n, int sequence_length);
static inline int ch_pools_token(const ch_pools *pools, int p, int j) {
  return pools->stride == 1 ? pools->begin[p] + j : p + j * pools->stride;
}

/* Tokens of the largest pool. */
int ch_pools_largest(const ch_router_spec *o, int n, int sequence_length);

/* The tokens sorted by pool [n], in the host's scratch; NULL: they are in this order already. */
const int *ch_pools_order(ch_exec *x, const ch_route_args *a, const ch_pools *pools);

/* Sets counts->cutoff [e] to the mean of cutoff [count,e] over the pools in which the expert has tokens; +infinity if
 * it has none. */
void ch_pools_mean_cutoff(ch_exec *x, const ch_route_args *a, const ch_pools *pools, const real CH_DEV *cutoff);

#endif
