/* Locality of routing: how often a token uses the experts that earlier tokens of its sequence used. It determines the
 * hit rate of a cache of experts, for models whose experts are loaded from memory or disk. docs/locality.md has the
 * formulas. */
#ifndef CH_MOE_LOCALITY_H
#define CH_MOE_LOCALITY_H

#include <jansson.h>

#include "base/buffer.h"
#include "choir/routing.h"

enum { CH_CACHE_SIZES = 3, CH_SEGMENTS = 3, CH_ROUTE_LOG_TOKENS = 1 << 18 /* max logged tokens */ };
extern const int ch_segments[CH_SEGMENTS]; /* lengths of segments, in tokens: 16, 64, 256 */

/* Size of a cache by index, in experts: an eighth, a quarter, a half of all experts, at least 1. */
int ch_cache_size(int experts, int index);

/* A ratio of two sums: part / whole. */
typedef struct ch_ratio {
  int64_t part, whole; /* whole 0: the ratio is undefined */
} ch_ratio;

typedef struct ch_locality_sums {
  ch_ratio reuse;                            /* experts that the previous token used, too / experts used */
  ch_ratio lru[CH_CACHE_SIZES];              /* cache hits / experts used */
  ch_ratio srp[CH_CACHE_SIZES][CH_SEGMENTS]; /* uses of a segment's most used experts / all its uses */
  ch_ratio working_set[CH_SEGMENTS];         /* distinct experts, summed over segments / number of segments */
} ch_locality_sums;

typedef struct ch_locality {
  ch_locality_sums text,
      shuffled; /* for the tokens in text order; for the same tokens permuted, which does not change the loads */
} ch_locality;

/* The experts that a sequence has used, most recent first: an LRU cache of size m contains the first m. */
typedef struct ch_recent {
  int *expert; /* [e] */
  int count;
} ch_recent;

/* Moves an expert to the front. Returns its previous place; INT_MAX: not used before. */
int ch_recent_use(ch_recent *recent, int expert);

/* The experts of each token, in the order of the text. */
typedef struct ch_route_log {
  int experts, length; /* e; T, including padding */
  ch_buffer rows;      /* per token a bit for each expert, in 64-bit words */
  ch_buffer begins;    /* per token a byte: 1 for the first token of a sequence */
  int code;            /* CHOIR_ERROR_MEMORY: the log is incomplete */
} ch_route_log;

/* Appends the valid tokens of a routing, up to CH_ROUTE_LOG_TOKENS in all, which bounds memory. Sequences have
 * log->length tokens, with padding only at their ends. Errors are stored in log->code. */
void ch_route_log_append(ch_route_log *log, const choir_routing *routing);
void ch_route_log_free(ch_route_log *log);

/* Computes the locality of a log. CHOIR_ERROR_MEMORY. */
int ch_locality_make(const ch_route_log *log, ch_locality *locality);

/* Sets reuse [e]: uses of the expert by both a token and the previous one / all its uses, without the first token of
 * each sequence. */
void ch_locality_expert_reuse(const ch_route_log *log, ch_ratio *reuse);

/* Adds the sums of another layer with the same number of experts. */
void ch_locality_add(ch_locality *sum, const ch_locality *more);

/* part / whole, or null if whole is 0 (no complete segment, for example). */
json_t *ch_ratio_json(ch_ratio ratio);

/* {"reuse", "lru", "srp", "working_set", "shuffled"}; docs/locality.md. */
json_t *ch_locality_json(const ch_locality *locality, int experts);

#endif
