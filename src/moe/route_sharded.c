#include <string.h>

#include "comm/collective.h"
#include "dispatch/dispatch.h"
#include "moe/route.h"

/* An expert's owner sends this to all ranks, beside the tokens that it took. The last three are one rank's. */
typedef struct {
  int load, demand;
  real cutoff;
  int capacity, most_load;
  int64_t dropped;
} report;
_Static_assert(sizeof(real) != sizeof(float) || sizeof(report) == CH_CHOSEN_EXPERT_BYTES, "as docs/clusters.md has it");
_Static_assert(sizeof(real) != sizeof(float) || sizeof(int) + sizeof(real) == CH_CHOSEN_SLOT_BYTES, "the same");

/* The experts that a rank chooses for. */
static ch_range experts_at(const ch_exec *x, int e, int rank) { return ch_share_range(e, rank, x->comm->size); }

/* mine [n,own]: the scores of all tokens with this rank's experts. */
static void transpose(ch_exec *x, const ch_route_args *all, real CH_DEV *mine) {
  CH_SCRATCH(x);
  int rows = all->n / x->comm->size, e = all->e;
  ch_range own = experts_at(x, e, x->comm->rank);
  int64_t received = (int64_t)rows * (own.last - own.first);
  const real *scores = ch_get(x, all->routing->scores, (size_t)rows * (size_t)e * sizeof *scores);
  real *at = CH_NEW_HOST(&ch_host(x)->scratch, real, (int64_t)rows * e), *to = CH_AS_HOST(real, mine);
  ch_bytes send[CH_RANKS], receive[CH_RANKS];
  if (ch_counting(x)) return;
  for (int r = 0; r < x->comm->size; r++) {
    ch_range theirs = experts_at(x, e, r);
    int count = theirs.last - theirs.first;
    send[r] = (ch_bytes){at, (int64_t)rows * count * (int64_t)sizeof(real)};
    for (int t = 0; t < rows; t++, at += count)
      memcpy(at, scores + (int64_t)t * e + theirs.first, (size_t)count * sizeof(real));
    receive[r] = (ch_bytes){to + r * received, received * (int64_t)sizeof(real)};
  }
  ch_comm_exchange(x->comm, "scores", send, receive);
}

/* Runs the router for this rank's experts; leaves their record and counts. */
static void choose(ch_exec *x, const ch_route_args *all, ch_route_args *mine) {
  ch_range chosen = experts_at(x, all->e, x->comm->rank);
  int e = all->e, own = chosen.last - chosen.first;
  real CH_DEV *scores = CH_NEW(&x->scratch, real, (int64_t)all->n * own);
  transpose(x, all, scores);
  *mine->routing = (ch_routing){.scores = scores};
  if (!own) return;
  ch_record_alloc(&x->scratch, &mine->routing->record, all->n, own, all->routing->record.max_slots / e * own);
  ch_route_counts_alloc(x, &x->scratch, &mine->routing->counts, own);
  mine->e = own;
  mine->of = e;
  if (all->kept.thresholds) mine->kept.thresholds = all->kept.thresholds + chosen.first;
  mine->router->route(x, mine);
}

/* `experts` of this rank's [own]. */
static void describe_experts(ch_exec *x, const ch_routing *mine, report *experts) {
  size_t own = (size_t)mine->record.experts;
  if (!own) return;
  const int *begin = ch_get(x, mine->record.expert_begin, (own + 1) * sizeof *begin);
  const int *demand = ch_get(x, mine->counts.demand, own * sizeof *demand);
  const real *cutoff = ch_get(x, mine->counts.cutoff, own * sizeof *cutoff);
  const int64_t *dropped = ch_get(x, mine->counts.dropped, sizeof *dropped);
  for (size_t i = 0; i < own && !ch_counting(x); i++)
    experts[i] = (report){.load = begin[i + 1] - begin[i],
                          .demand = demand[i],
                          .cutoff = cutoff[i],
                          .capacity = mine->counts.capacity,
                          .most_load = mine->record.load,
                          .dropped = i ? 0 : *dropped};
}

/* The whole record except for its slots, and counts; where experts begin [e+1], for the host. */
static const int *collect_record(ch_exec *x, const ch_route_args *all, const report *experts) {
  ch_arena *host = &ch_host(x)->scratch;
  size_t e = (size_t)all->e;
  int *begin = CH_NEW_HOST(host, int, e + 1), *demand = CH_NEW_HOST(host, int, e);
  real *cutoff = CH_NEW_HOST(host, real, e);
  int64_t dropped = 0;
  ch_record *record = &all->routing->record;
  ch_route_counts *counts = &all->routing->counts;
  record->most = record->max_slots / all->e;
  if (ch_counting(x)) {
    record->load = all->options->threshold_after ? -1 : record->most;
    return begin;
  }
  begin[0] = 0;
  for (size_t i = 0; i < e; i++) {
    begin[i + 1] = begin[i] + experts[i].load;
    demand[i] = experts[i].demand;
    cutoff[i] = experts[i].cutoff;
    dropped += experts[i].dropped;
  }
  x->memory->put(record->expert_begin, begin, (e + 1) * sizeof *begin);
  x->memory->put(counts->demand, demand, e * sizeof *demand);
  x->memory->put(counts->cutoff, cutoff, e * sizeof *cutoff);
  x->memory->put(counts->dropped, &dropped, sizeof dropped);
  counts->capacity = experts[0].capacity;
  record->load = experts[0].most_load;
  return begin;
}

/* Slots of a rank's experts, which are e in all. */
static ch_range slots_chosen(const ch_exec *x, const int *begin, int e, int rank) {
  ch_range experts = experts_at(x, e, rank);
  return (ch_range){begin[experts.first], begin[experts.last]};
}

static ch_bytes both(ch_range a, ch_range b, const void *base, int64_t from, int64_t size) {
  int64_t first = a.first > b.first ? a.first : b.first, last = a.last < b.last ? a.last : b.last;
  if (last < first) last = first;
  return (ch_bytes){(char *)(uintptr_t)base + (first - from) * size, (last - first) * size};
}

/* One array of the record [slots], `mine` of this rank's experts, to all. Where a rank has more than its share, others
 * get a part of it first: with more ranks than experts few would send to all, and the others wait. */
static void gather_slots(const ch_exec *x, const int *begin, int e, const char *what, const void CH_DEV *mine,
                         void CH_DEV *whole, int64_t size) {
  int rank = x->comm->rank, ranks = x->comm->size;
  ch_range chosen = slots_chosen(x, begin, e, rank), shared = ch_share_range(begin[e], rank, ranks);
  ch_bytes send[CH_RANKS], receive[CH_RANKS];
  for (int r = 0; r < ranks; r++) {
    send[r] = both(chosen, ch_share_range(begin[e], r, ranks), CH_EITHER_SIDE(mine), chosen.first, size);
    receive[r] = both(shared, slots_chosen(x, begin, e, r), CH_EITHER_SIDE(whole), 0, size);
  }
  ch_comm_exchange(x->comm, what, send, receive);
  ch_comm_gather_shares(x->comm, what, CH_EITHER_SIDE(whole), begin[e], size);
}

void ch_route_sharded(ch_exec *x, const ch_route_args *all) {
  CH_SCRATCH(x);
  ch_routing own;
  ch_route_args mine = *all;
  mine.routing = &own;
  report *experts = CH_NEW_HOST(&ch_host(x)->scratch, report, all->e);
  choose(x, all, &mine);
  if (!ch_counting(x)) memset(experts, 0, (size_t)all->e * sizeof *experts);
  describe_experts(x, &own, experts + experts_at(x, all->e, x->comm->rank).first);
  if (!ch_counting(x)) ch_comm_gather_shares(x->comm, "loads of experts", experts, all->e, sizeof *experts);
  const int *begin = collect_record(x, all, experts);
  if (ch_counting(x)) return;
  gather_slots(x, begin, all->e, "tokens of experts", own.record.slot_token, all->routing->record.slot_token,
               sizeof(int));
  gather_slots(x, begin, all->e, "gates", own.record.slot_gate, all->routing->record.slot_gate, sizeof(real));
}
