/* Causal routing that prefers cached experts: a token has the same number of experts as without the cache, but cached
 * candidates come first. Candidates are the token's best experts or, if experts choose, the experts whose lowered
 * threshold it reaches. docs/locality.md has the definition. */
#ifndef CH_MOE_PREFER_H
#define CH_MOE_PREFER_H

#include "moe/locality.h"
#include "moe/router.h"

enum { CH_MARGIN_BINS = 1 << 17 };

typedef struct ch_prefer {
  int size;      /* size of the layer's LRU cache in experts; the cache is empty at the start of each sequence */
  int among;     /* if tokens choose: number of candidates, the token's best experts; a token that has this many experts
                    keeps them */
  real lowered;  /* if experts choose: amount subtracted from thresholds for candidates; 0: no other candidates */
  ch_ratio hits; /* out: cache hits / experts used; added to */
  int64_t *margins; /* [CH_MARGIN_BINS] out if experts choose, or NULL: histogram of score - threshold, from -1 to 1;
                       added to */
} ch_prefer;

/* Computes `lowered` such that the tokens counted in `margins` have `among` candidates on average; 0 if they have as
 * many without it. */
real ch_prefer_lowered(const int64_t *margins, int64_t tokens, int among);

/* CHOIR_ERROR_UNSUPPORTED: the router does not rank the experts of a token by scores, or its gates are not scores. */
int ch_prefer_check(const ch_router *router);

/* Replaces experts and gates in the record of a causal routing by those that a->prefer selects; call it before op
 * `index`. */
void ch_prefer_cached(ch_exec *x, const ch_route_args *a);

#endif
