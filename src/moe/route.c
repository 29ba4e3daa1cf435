#include "moe/route.h"

#include "moe/gates.h"
#include "moe/prefer.h"

/* Max slots of the record of a call. */
static int slots_of(const ch_route_args *a) {
  if (a->tokens.assignment) return ch_valid_count(a->tokens.assignment, a->n * a->e);
  if (ch_route_by_causal(a)) return a->n * ch_router_max_experts(a->options, a->e);
  return a->router->max_slots(a->options, a->n, a->e, a->sequence_length);
}

void ch_routing_alloc(ch_exec *x, const ch_route_args *a, ch_route_tally tally, ch_arena *keep) {
  ch_routing *r = a->routing;
  *r = (ch_routing){.tally = tally};
  ch_routing_new(x, &x->tape, r, a->n, a->e, slots_of(a));
  if (!r->tally.sums) {
    r->tally.sums = CH_NEW(&x->tape, double, CH_TALLY_SUMS);
    r->tally.counts = CH_NEW(&x->tape, int64_t, CH_TALLY_COUNTS(a->e));
  }
  ch_gates_alloc(a, keep);
  if (a->router->loss == CHOIR_LOSS_OWN) r->dloss = CH_NEW(keep, real, (int64_t)a->n * a->e);
}

/* Forced routing: builds the record from given marks; gates are scores, with gradients. */
static void route_as_given(ch_exec *x, const ch_route_args *a) {
  CH_SCRATCH(x);
  CH_OP(x, collect, .keep = ch_upload(&x->scratch, a->tokens.assignment, (size_t)a->n * (size_t)a->e),
        .record = &a->routing->record);
  ch_router_gates_from_scores(x, a);
  ch_router_demand_is_load(x, a);
  a->routing->counts.capacity = ch_valid_count(a->tokens.mask, a->n);
}

void ch_route(ch_exec *x, const ch_route_args *a) {
  ch_routing *r = a->routing;
  if (a->tokens.assignment)
    route_as_given(x, a);
  else if (ch_route_by_causal(a))
    a->router->causal(x, a);
  else if (ch_routes_sharded(x, a))
    ch_route_sharded(x, a);
  else
    a->router->route(x, a);
  if (a->prefer) ch_prefer_cached(x, a);
  if (a->router_state.updated) a->router->observe(x, a);
  CH_OP(x, index, .record = &r->record);
  ch_gates_change(x, a);
  CH_OP(x, tally, .record = &r->record, .valid = a->tokens.valid, .aux_loss = r->counts.aux_loss,
        .dropped = r->counts.dropped, .demand = r->counts.demand, .lse = r->lse, .sums = r->tally.sums,
        .counts = r->tally.counts);
}

void ch_route_backward(ch_exec *x, const ch_route_args *a) {
  const ch_routing *r = a->routing;
  ch_gates_change_backward(x, a);
  if (a->tokens.assignment)
    ch_router_gates_backward(x, a);
  else if (a->router->backward)
    a->router->backward(x, a);
  else
    CH_OP(x, copy, .count = (int64_t)a->n * a->e, .y = r->dscores);
}
