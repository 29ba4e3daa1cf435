/* Locality of routing: whether a token uses the experts that earlier tokens of its sequence used. It decides what a
 * cache of experts is worth where a model runs from memory or disk. docs/locality.md has the formulas. */
#ifndef CH_MOE_LOCALITY_H
#define CH_MOE_LOCALITY_H

#include <jansson.h>

#include "base/buffer.h"
#include "choir/routing.h"

enum { CH_CACHE_SIZES = 3, CH_SEGMENTS = 3, CH_ROUTE_LOG_TOKENS = 1 << 18 /* at most; later ones are not logged */ };
extern const int ch_segments[CH_SEGMENTS]; /* lengths of segments, in tokens: 16, 64, 256 */

/* Experts of a cache, by index: an eighth, a quarter, a half of all, at least 1. */
int ch_cache_size(int experts, int index);

/* A sum over a sum. */
typedef struct ch_ratio {
  int64_t part, whole; /* whole 0: there is nothing to divide */
} ch_ratio;

typedef struct ch_locality_sums {
  ch_ratio reuse;                            /* experts of a token that the previous token used, of its experts */
  ch_ratio lru[CH_CACHE_SIZES];              /* hits, of the experts used */
  ch_ratio srp[CH_CACHE_SIZES][CH_SEGMENTS]; /* uses of the most used experts of a segment, of its uses */
  ch_ratio working_set[CH_SEGMENTS];         /* distinct experts of a segment, summed, of the segments */
} ch_locality_sums;

typedef struct ch_locality {
  ch_locality_sums text, shuffled; /* in the order of the text; with its tokens permuted, which keeps the loads */
} ch_locality;

/* The experts that a sequence has used, the last one first: an LRU cache of m experts has the first m of them. */
typedef struct ch_recent {
  int *expert; /* [e] */
  int count;
} ch_recent;

/* Uses an expert. Gives its place before, INT_MAX: it was not used yet. */
int ch_recent_use(ch_recent *recent, int expert);

/* The experts of each token, in the order of the text. */
typedef struct ch_route_log {
  int experts, length; /* tokens of a sequence, padding included */
  ch_buffer rows;      /* a bit for each expert, in words of 64, for each token */
  ch_buffer begins;    /* a byte for each token: 1 at the first one of a sequence */
  int code;            /* CHOIR_ERROR_MEMORY: tokens are missing */
} ch_route_log;

/* Appends the valid tokens of a routing whose sequences have log->length tokens, padding only at their ends, until the
 * log has CH_ROUTE_LOG_TOKENS, which bounds its memory. An error is kept in log->code. */
void ch_route_log_append(ch_route_log *log, const choir_routing *routing);
void ch_route_log_free(ch_route_log *log);

/* Locality of a log. CHOIR_ERROR_MEMORY. */
int ch_locality_make(const ch_route_log *log, ch_locality *locality);

/* reuse of each expert [e]: uses that the previous token shares, of its uses from the second token of a sequence on. */
void ch_locality_expert_reuse(const ch_route_log *log, ch_ratio *reuse);

/* Adds the sums of another layer, which has as many experts. */
void ch_locality_add(ch_locality *sum, const ch_locality *more);

/* null: there is nothing to divide, as no whole segment. */
json_t *ch_ratio_json(ch_ratio ratio);

/* {"reuse", "lru", "srp", "working_set", "shuffled"}; docs/locality.md. */
json_t *ch_locality_json(const ch_locality *locality, int experts);

#endif
