#include "moe/route.h"

#include "comm/collective.h"

/* Slots that the record of such a call must have room for. */
static int slots_of(const ch_route_args *a) {
  if (a->taken) return ch_valid_count(a->taken, a->n * a->e);
  if (ch_route_by_causal(a)) return a->n * ch_router_most_experts(a->options, a->e);
  return a->router->max_slots(a->options, a->n, a->e, a->sequence_length);
}

void ch_routing_alloc(ch_exec *x, const ch_route_args *a, ch_arena *keep, ch_routing *r) {
  *r = (ch_routing){.tally = a->tally};
  ch_record_alloc(&x->tape, &r->record, a->n, a->e, slots_of(a));
  ch_route_counts_alloc(x, &x->tape, &r->counts, a->e);
  if (!r->tally.sums) {
    r->tally.sums = CH_NEW(&x->tape, double, CH_TALLY_SUMS);
    r->tally.counts = CH_NEW(&x->tape, int64_t, CH_TALLY_COUNTS(a->e));
  }
  if (a->options->normalize_gates) r->gate_sum = CH_NEW(keep, real, a->n);
  if (a->options->z_loss_weight > 0) r->lse = CH_NEW(keep, real, a->n);
}

/* One copy to the host, of scores or, where the router reads none, logits; one of the record back. */
static void route_on_host(ch_exec *x, const ch_route_args *a) {
  ch_exec *host = ch_host(x);
  CH_SCRATCH(x);
  size_t cells = (size_t)a->n * (size_t)a->e * sizeof(real), e = (size_t)a->e;
  ch_record record;
  ch_route_counts counts;
  ch_record_alloc(&host->scratch, &record, a->n, a->e, a->record->max_slots);
  ch_route_counts_alloc(host, &host->scratch, &counts, a->e);
  ch_route_args there = *a;
  const real CH_DEV *read = CH_AS_DEV(const real, ch_get(x, a->scores ? a->scores : a->logits, cells));
  there.scores = a->scores ? read : NULL;
  there.logits = a->scores ? NULL : read;
  there.valid = CH_AS_DEV(const uint8_t, a->mask);
  there.record = &record;
  there.counts = &counts;
  a->router->route(host, &there);
  a->record->load = record.load;
  a->record->most = record.most;
  a->counts->capacity = counts.capacity;
  a->counts->certificate = counts.certificate;
  if (ch_counting(x)) return;
  const struct {
    void CH_DEV *to;
    const void CH_DEV *from;
    size_t bytes;
  } array[] = {{a->record->expert_begin, record.expert_begin, (e + 1) * sizeof(int)},
               {a->record->slot_token, record.slot_token, (size_t)record.max_slots * sizeof(int)},
               {a->record->slot_gate, record.slot_gate, (size_t)record.max_slots * sizeof(real)},
               {a->counts->demand, counts.demand, e * sizeof(int)},
               {a->counts->cutoff, counts.cutoff, e * sizeof(real)},
               {a->counts->dropped, counts.dropped, sizeof(int64_t)},
               {a->counts->aux_loss, counts.aux_loss, sizeof(double)}};
  for (size_t i = 0; i < sizeof array / sizeof *array; i++)
    x->memory->put(array[i].to, CH_AS_HOST(const void, array[i].from), array[i].bytes);
}

void ch_route_only(ch_exec *x, const ch_route_args *a) {
  if (a->router->on_host && !x->memory->host)
    route_on_host(x, a);
  else
    a->router->route(x, a);
}

void ch_route_gather(const ch_exec *x, const char *what, real CH_DEV *all, int64_t count) {
  if (!ch_counting(x)) ch_comm_gather(x->comm, what, CH_EITHER_SIDE(all), count * (int64_t)sizeof(real));
}

void ch_route_z_loss(ch_exec *x, const ch_route_args *a, ch_routing *r, int64_t first, int n,
                     const real CH_DEV *logits) {
  if (r->lse) CH_OP(x, z_loss, .n = n, .e = a->e, .logit = logits, .lse = r->lse + first);
}

void ch_route_z_loss_backward(ch_exec *x, const ch_route_args *a, const ch_routing *r, int64_t first, int n,
                              const real CH_DEV *logits, real CH_DEV *dlogits) {
  int valid = ch_valid_count(a->mask, a->n);
  if (!r->lse || !valid || (double)a->z_scale == 0) return;
  CH_OP(x, z_loss_backward, .n = n, .e = a->e, .valid = a->valid ? a->valid + first : NULL, .logit = logits,
        .lse = r->lse + first, .scale = 2 * a->z_scale / (real)valid, .dlogit_acc = dlogits);
}

/* Updates the router's own state; centroids from the rows of all ranks. */
static void observe(ch_exec *x, const ch_route_args *a) {
  CH_SCRATCH(x);
  ch_route_args seen = *a;
  if (x->comm->size > 1 && ch_router_has_centroids(a->router)) {
    int64_t count = (int64_t)a->n / x->comm->size * a->d;
    real CH_DEV *rows = CH_NEW(&x->scratch, real, x->comm->size * count);
    CH_OP(x, copy, .count = count, .x = a->x, .y = rows + x->comm->rank * count);
    ch_route_gather(x, "tokens of all", rows, count);
    seen.x = rows;
  }
  a->router->observe(x, &seen);
}

/* The arguments of the router's functions. */
static ch_route_args full(const ch_route_args *a, const ch_routing *r, ch_record *record, ch_route_counts *counts) {
  ch_route_args all = *a;
  all.rng = ch_rng_make(a->rng.seed, CH_STREAM_SECOND_EXPERT, a->rng.sub);
  all.logits = r->scores ? NULL : r->logits;
  all.scores = r->scores;
  all.record = record;
  all.counts = counts;
  return all;
}

/* Forced routing: the record from given marks; gates are scores, as ever, and have their gradients. */
static void route_as_given(ch_exec *x, const ch_route_args *a) {
  CH_SCRATCH(x);
  CH_OP(x, collect, .keep = ch_put(&x->scratch, a->taken, (size_t)a->n * (size_t)a->e), .record = a->record);
  ch_router_gates_from_scores(x, a);
  ch_router_demand_is_load(x, a);
  a->counts->capacity = ch_valid_count(a->mask, a->n);
}

void ch_route(ch_exec *x, const ch_route_args *given, ch_routing *r) {
  const ch_route_args a = full(given, r, &r->record, &r->counts);
  if (a.taken)
    route_as_given(x, &a);
  else if (ch_route_by_causal(&a))
    a.router->causal(x, &a);
  else if (ch_routes_sharded(x, &a))
    ch_route_sharded(x, &a);
  else
    ch_route_only(x, &a);
  if (a.state) observe(x, &a);
  CH_OP(x, index, .record = &r->record);
  if (r->gate_sum) CH_OP(x, normalize_gates, .record = &r->record, .sum = r->gate_sum);
  CH_OP(x, tally, .record = &r->record, .valid = a.valid, .aux_loss = r->counts.aux_loss, .dropped = r->counts.dropped,
        .demand = r->counts.demand, .lse = r->lse, .sums = r->tally.sums, .counts = r->tally.counts);
}

void ch_route_backward(ch_exec *x, const ch_route_args *given, const ch_routing *r, real CH_DEV *dgate,
                       real CH_DEV *dscores) {
  ch_record record = r->record;
  ch_route_counts counts = r->counts;
  ch_route_args a = full(given, r, &record, &counts);
  a.dgate = dgate;
  a.dscores = dscores;
  if (r->gate_sum) CH_OP(x, normalize_gates_backward, .record = &record, .sum = r->gate_sum, .dgate = dgate);
  if (a.taken)
    ch_router_gates_backward(x, &a);
  else if (a.router->backward)
    a.router->backward(x, &a);
  else
    CH_OP(x, copy, .count = (int64_t)a.n * a.e, .y = dscores);
}
