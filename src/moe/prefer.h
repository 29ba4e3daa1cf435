/* Causal routing that prefers the experts in a cache: of its candidates a token takes those that the cache has, and as
 * many as the router gives it. Candidates are the token's best experts or, where experts choose, those whose lowered
 * threshold it reaches. docs/locality.md has the definition. */
#ifndef CH_MOE_PREFER_H
#define CH_MOE_PREFER_H

#include "moe/locality.h"
#include "moe/router.h"

enum { CH_MARGIN_BINS = 1 << 17 };

typedef struct ch_prefer {
  int size;         /* experts in the LRU cache of the layer, which is empty at the start of each sequence */
  int among;        /* where tokens choose: best experts that are candidates; at most its own number: its own */
  real lowered;     /* where experts choose: by how much thresholds are lower for candidates; 0: a token's own */
  ch_ratio hits;    /* out: of the experts used; added to */
  int64_t *margins; /* [CH_MARGIN_BINS] out, where experts choose, or NULL: histogram of scores minus thresholds from -1
                       to 1; added to */
} ch_prefer;

/* By how much thresholds must be lower for each of some tokens, whose margins these are, to have so many candidates on
 * average; 0 where they have them already. */
real ch_prefer_lowered(const int64_t *margins, int64_t tokens, int among);

/* CHOIR_ERROR_UNSUPPORTED: a router that does not rank the experts of a token by scores, or whose gates are no scores.
 */
int ch_prefer_check(const ch_router *router);

/* After the causal choice of all experts, before the index: replaces the experts of tokens as a->prefer says, and their
 * gates. */
void ch_prefer_cached(ch_exec *x, const ch_route_args *a);

#endif
