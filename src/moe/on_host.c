/* Routers whose solver belongs on the host. */
#include "moe/router.h"

/* One copy to the host, of scores or, where the router reads none, logits; one of the record back. */
static void route_on_host(ch_exec *x, const ch_router *router, const ch_route_args *a) {
  ch_exec *host = ch_host(x);
  ch_marks mark = ch_scratch_mark(x);
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
  router->route(host, &there);
  a->record->load = record.load;
  a->counts->capacity = counts.capacity;
  a->counts->certificate = counts.certificate;
  if (!ch_counting(x)) {
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
  ch_scratch_release(x, mark);
}

void ch_route(ch_exec *x, const ch_router *router, const ch_route_args *a) {
  if (router->on_host && !x->memory->host)
    route_on_host(x, router, a);
  else
    router->route(x, a);
}
