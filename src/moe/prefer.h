/* Causal routing that prefers the experts in a cache: of a token's best experts it takes those that the cache has, and
 * as many as the router gives it. docs/locality.md has the definition. */
#ifndef CH_MOE_PREFER_H
#define CH_MOE_PREFER_H

#include "moe/locality.h"
#include "moe/router.h"

typedef struct ch_prefer {
  int size;      /* experts in the LRU cache of the layer, which is empty at the start of each sequence */
  int among;     /* best experts that a token chooses from; a token with as many experts or more keeps its own */
  ch_ratio hits; /* out: of the experts used; added to */
} ch_prefer;

/* CHOIR_ERROR_UNSUPPORTED: a router that does not rank the experts of a token by scores, or whose gates are no scores.
 */
int ch_prefer_check(const ch_router *router);

/* After the causal choice of all experts, before the index: replaces the experts of tokens as a->prefer says, and their
 * gates. */
void ch_prefer_cached(ch_exec *x, const ch_route_args *a);

#endif
