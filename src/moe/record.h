/* Counts and a tally of a routing, and the memory of these and of the record. */
#ifndef CH_MOE_RECORD_H
#define CH_MOE_RECORD_H

#include "choir/routing.h"
#include "op/op.h"

/* Counts of one routing, on top of what the record says. The host knows the first two beforehand, or from a solver that
 * ran there; the router's ops write the rest. */
typedef struct ch_route_counts {
  int capacity;                  /* per expert; at most the number of tokens. Set by the router */
  choir_certificate certificate; /* all 0 where nothing was assigned by a solver */
  int CH_DEV *demand;            /* [e] tokens that asked for the expert. Set by the router */
  real CH_DEV *cutoff; /* [e] scores from which on the expert takes tokens; +infinity: it took none. For `observe` */
  int64_t CH_DEV *dropped; /* [1] choices that found their expert full; comes in 0 */
  double CH_DEV *aux_loss; /* [1] unweighted; comes in 0 */
} ch_route_counts;

/* Where op `tally` leaves what a routing did: as ch_tally_args has them. */
enum { CH_TALLY_SUMS = 2 };
#define CH_TALLY_COUNTS(e) (3 * (e) + 2)
typedef struct ch_route_tally {
  double CH_DEV *sums;    /* [CH_TALLY_SUMS] */
  int64_t CH_DEV *counts; /* [CH_TALLY_COUNTS(e)] */
} ch_route_tally;

/* Allocates a record with room for max_slots from an arena. */
static inline void ch_record_alloc(ch_arena *a, ch_record *r, int n, int e, int max_slots) {
  *r = (ch_record){.tokens = n, .experts = e, .max_slots = max_slots, .load = -1};
  r->expert_begin = CH_NEW(a, int, e + 1);
  r->slot_token = CH_NEW(a, int, max_slots);
  r->slot_gate = CH_NEW(a, real, max_slots);
  r->token_begin = CH_NEW(a, int, n + 1);
  r->token_slot = CH_NEW(a, int, max_slots);
}

/* Allocates the arrays of counts, and sets what comes in 0. */
static inline void ch_route_counts_alloc(ch_exec *x, ch_arena *a, ch_route_counts *c, int e) {
  *c = (ch_route_counts){.demand = CH_NEW(a, int, e), .cutoff = CH_NEW(a, real, e)};
  double CH_DEV *both = CH_NEW(a, double, 2);
  c->aux_loss = both;
  c->dropped = (int64_t CH_DEV *)(both + 1);
  if (!ch_counting(x)) x->memory->zero(both, 2 * sizeof *both);
}

#endif
