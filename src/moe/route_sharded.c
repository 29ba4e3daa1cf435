#include <string.h>

#include "comm/collective.h"
#include "dispatch/dispatch.h"
#include "moe/route.h"

/* Message of an expert's owner to all ranks, sent with the expert's tokens. The last three fields are per rank. */
typedef struct {
  int load, demand;
  real cutoff;
  int capacity, max_load;
  int64_t dropped;
} report;
_Static_assert(sizeof(real) != sizeof(float) || sizeof(report) == CH_CHOSEN_EXPERT_BYTES, "as docs/clusters.md has it");
_Static_assert(sizeof(real) != sizeof(float) || sizeof(int) + sizeof(real) == CH_CHOSEN_SLOT_BYTES, "the same");

/* Exchanges scores: mine [n,own] gets the scores of all tokens for this rank's experts. */
static void transpose(ch_exec *x, const ch_route_args *all, real CH_DEV *mine) {
  CH_SCRATCH(x);
  int64_t rows = ch_local_count(x->comm, all->n), cells = rows * all->e;
  const real *scores = ch_download(x, all->routing->scores, (size_t)cells * sizeof *scores);
  real *packed = CH_NEW_HOST(&ch_host(x)->scratch, real, cells);
  if (ch_counting(x)) return;
  ch_comm_columns(x->comm, "scores", rows, all->e, sizeof(real), scores, packed, CH_HOST_OR_DEVICE(mine));
}

/* Runs the router for this rank's experts, which sets their record and counts. */
static void choose(ch_exec *x, const ch_route_args *all, ch_route_args *mine) {
  ch_range chosen = ch_local_range(x->comm, all->e);
  int e = all->e, local = chosen.last - chosen.first;
  real CH_DEV *scores = CH_NEW(&x->scratch, real, (int64_t)all->n * local);
  transpose(x, all, scores);
  *mine->routing = (ch_routing){.scores = scores};
  if (!local) return;
  ch_routing_new(x, &x->scratch, mine->routing, all->n, local, all->routing->record.max_slots / e * local);
  mine->e = local;
  mine->total_experts = e;
  if (all->router_state.thresholds) mine->router_state.thresholds = all->router_state.thresholds + chosen.first;
  mine->router->route(x, mine);
}

/* Fills experts [own] for this rank's experts. */
static void describe_experts(ch_exec *x, const ch_routing *mine, report *experts) {
  size_t local = (size_t)mine->record.experts;
  if (!local) return;
  const int *begin = ch_download(x, mine->record.expert_begin, (local + 1) * sizeof *begin);
  const int *demand = ch_download(x, mine->counts.demand, local * sizeof *demand);
  const real *cutoff = ch_download(x, mine->counts.cutoff, local * sizeof *cutoff);
  const int64_t *dropped = ch_download(x, mine->counts.dropped, sizeof *dropped);
  for (size_t i = 0; i < local && !ch_counting(x); i++)
    experts[i] = (report){.load = begin[i + 1] - begin[i],
                          .demand = demand[i],
                          .cutoff = cutoff[i],
                          .capacity = mine->counts.capacity,
                          .max_load = mine->record.load,
                          .dropped = i ? 0 : *dropped};
}

/* Builds the whole record, without its slots, and the counts. Returns expert_begin [e+1] on the host. */
static const int *collect_record(ch_exec *x, const ch_route_args *all, const report *experts) {
  ch_arena *host = &ch_host(x)->scratch;
  size_t e = (size_t)all->e;
  int *begin = CH_NEW_HOST(host, int, e + 1), *demand = CH_NEW_HOST(host, int, e);
  real *cutoff = CH_NEW_HOST(host, real, e);
  int64_t dropped = 0;
  ch_record *record = &all->routing->record;
  ch_route_counts *counts = &all->routing->counts;
  record->max = record->max_slots / all->e;
  if (ch_counting(x)) {
    record->load = all->options->threshold_after ? -1 : record->max;
    return begin;
  }
  begin[0] = 0;
  for (size_t i = 0; i < e; i++) {
    begin[i + 1] = begin[i] + experts[i].load;
    demand[i] = experts[i].demand;
    cutoff[i] = experts[i].cutoff;
    dropped += experts[i].dropped;
  }
  x->memory->upload(record->expert_begin, begin, (e + 1) * sizeof *begin);
  x->memory->upload(counts->demand, demand, e * sizeof *demand);
  x->memory->upload(counts->cutoff, cutoff, e * sizeof *cutoff);
  x->memory->upload(counts->dropped, &dropped, sizeof dropped);
  counts->capacity = experts[0].capacity;
  record->load = experts[0].max_load;
  return begin;
}

void ch_route_sharded(ch_exec *x, const ch_route_args *all) {
  CH_SCRATCH(x);
  ch_routing local;
  ch_route_args mine = *all;
  mine.routing = &local;
  report *experts = CH_NEW_HOST(&ch_host(x)->scratch, report, all->e);
  choose(x, all, &mine);
  if (!ch_counting(x)) memset(experts, 0, (size_t)all->e * sizeof *experts);
  describe_experts(x, &local, experts + ch_local_range(x->comm, all->e).first);
  ch_gather_shares(x, x->comm, "loads of experts", CH_AS_DEV(void, experts), all->e, sizeof *experts);
  const int *begin = collect_record(x, all, experts);
  if (ch_counting(x)) return;
  ch_comm_gather_lists(x->comm, "tokens of experts", CH_HOST_OR_DEVICE(local.record.slot_token),
                       CH_HOST_OR_DEVICE(all->routing->record.slot_token), all->e, begin, sizeof(int));
  ch_comm_gather_lists(x->comm, "gates", CH_HOST_OR_DEVICE(local.record.slot_gate),
                       CH_HOST_OR_DEVICE(all->routing->record.slot_gate), all->e, begin, sizeof(real));
}
