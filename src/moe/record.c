#include "moe/record.h"

void ch_record_alloc(ch_arena *a, ch_record *r, int n, int e, int max_slots) {
  *r = (ch_record){.tokens = n, .experts = e, .max_slots = max_slots, .load = -1};
  r->expert_begin = CH_NEW(a, int, e + 1);
  r->slot_token = CH_NEW(a, int, max_slots);
  r->slot_gate = CH_NEW(a, real, max_slots);
  r->token_begin = CH_NEW(a, int, n + 1);
  r->token_slot = CH_NEW(a, int, max_slots);
}

void ch_route_counts_alloc(ch_exec *x, ch_arena *a, ch_route_counts *c, int e) {
  *c = (ch_route_counts){.demand = CH_NEW(a, int, e), .cutoff = CH_NEW(a, real, e)};
  double CH_DEV *both = CH_NEW(a, double, 2);
  c->aux_loss = both;
  c->dropped = (int64_t CH_DEV *)(both + 1);
  if (!ch_counting(x)) x->memory->zero(both, 2 * sizeof *both);
}
