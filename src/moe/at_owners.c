#include "moe/at_owners.h"

#include <string.h>

#include "comm/collective.h"
#include "moe/slots.h"

/* An expert's owner sends this to all ranks, beside the tokens that it took. The last three are one rank's. */
typedef struct {
  int load, demand;
  real cutoff;
  int capacity, most_load;
  int64_t dropped;
} report;
_Static_assert(sizeof(real) != sizeof(float) || sizeof(report) == CH_CHOSEN_EXPERT_BYTES, "as docs/clusters.md has it");
_Static_assert(sizeof(real) != sizeof(float) || sizeof(int) + sizeof(real) == CH_CHOSEN_SLOT_BYTES, "the same");

static int first_of(const ch_exec *x, int e, int rank) { return (int)ch_share(e, rank, x->comm->size); }

/* mine [n,own]: the scores of all tokens with this rank's experts. */
static void transpose(ch_exec *x, const ch_route_args *all, real *mine) {
  size_t mark = ch_arena_mark(&x->scratch);
  int rows = all->n / x->comm->size, e = all->e, rank = x->comm->rank;
  int own = first_of(x, e, rank + 1) - first_of(x, e, rank);
  real *stage = CH_NEW_HOST(&x->scratch, real, (int64_t)rows * e), *at = stage;
  ch_bytes send[CH_RANKS], receive[CH_RANKS];
  if (!ch_counting(x)) {
    const real *scores = CH_AS_HOST(const real, all->scores);
    for (int r = 0; r < x->comm->size; r++) {
      int first = first_of(x, e, r), count = first_of(x, e, r + 1) - first;
      send[r] = (ch_bytes){at, (int64_t)rows * count * (int64_t)sizeof(real)};
      for (int t = 0; t < rows; t++, at += count)
        memcpy(at, scores + (int64_t)t * e + first, (size_t)count * sizeof(real));
      receive[r] = (ch_bytes){mine + (int64_t)r * rows * own, (int64_t)rows * own * (int64_t)sizeof(real)};
    }
    ch_comm_exchange(x->comm, "scores", send, receive);
  }
  ch_arena_release(&x->scratch, mark);
}

/* Runs the router for this rank's experts; leaves their record and counts. */
static void choose(ch_exec *x, const ch_route_args *all, ch_route_args *mine) {
  int e = all->e, first = first_of(x, e, x->comm->rank), own = first_of(x, e, x->comm->rank + 1) - first;
  real CH_DEV *scores = CH_NEW(&x->scratch, real, (int64_t)all->n * own);
  transpose(x, all, CH_AS_HOST(real, scores));
  *mine->record = (ch_record){0};
  *mine->counts = (ch_route_counts){0};
  if (!own) return;
  ch_record_alloc(&x->scratch, mine->record, all->n, own, all->record->max_slots / e * own);
  ch_route_counts_alloc(x, &x->scratch, mine->counts, own);
  mine->e = own;
  mine->of = e;
  mine->scores = scores;
  if (all->thresholds) mine->thresholds = all->thresholds + first;
  mine->router->route(x, mine);
}

static void describe(const ch_route_args *mine, report *experts) {
  const int *begin = CH_AS_HOST(const int, mine->record->expert_begin);
  for (int i = 0; i < mine->record->experts; i++)
    experts[i] = (report){.load = begin[i + 1] - begin[i],
                          .demand = CH_AS_HOST(const int, mine->counts->demand)[i],
                          .cutoff = CH_AS_HOST(const real, mine->counts->cutoff)[i],
                          .capacity = mine->counts->capacity,
                          .most_load = mine->record->load,
                          .dropped = i ? 0 : *CH_AS_HOST(const int64_t, mine->counts->dropped)};
}

/* The whole record but for its slots, and counts. */
static void collect(const ch_route_args *all, const report *experts) {
  int *begin = CH_AS_HOST(int, all->record->expert_begin);
  int64_t *dropped = CH_AS_HOST(int64_t, all->counts->dropped);
  begin[0] = 0;
  for (int i = 0; i < all->e; i++) {
    begin[i + 1] = begin[i] + experts[i].load;
    CH_AS_HOST(int, all->counts->demand)[i] = experts[i].demand;
    CH_AS_HOST(real, all->counts->cutoff)[i] = experts[i].cutoff;
    *dropped += experts[i].dropped;
  }
  all->counts->capacity = experts[0].capacity;
  all->record->load = experts[0].most_load;
}

/* Slots of a rank's experts, and the part of all slots that is its to send to all. */
static ch_range slots_chosen(const ch_exec *x, const ch_route_args *all, int rank) {
  const int *begin = CH_AS_HOST(const int, all->record->expert_begin);
  return (ch_range){begin[first_of(x, all->e, rank)], begin[first_of(x, all->e, rank + 1)]};
}

static ch_range slots_shared(const ch_exec *x, const ch_route_args *all, int rank) {
  int64_t slots = CH_AS_HOST(const int, all->record->expert_begin)[all->e], ranks = x->comm->size;
  return (ch_range){(int)ch_share(slots, rank, ranks), (int)ch_share(slots, rank + 1, ranks)};
}

static ch_bytes both(ch_range a, ch_range b, const void *base, int64_t from, int64_t size) {
  int64_t first = a.first > b.first ? a.first : b.first, last = a.last < b.last ? a.last : b.last;
  if (last < first) last = first;
  return (ch_bytes){(char *)(uintptr_t)base + (first - from) * size, (last - first) * size};
}

/* One array of the record [slots], `mine` of this rank's experts, to all. Where a rank has more than its share, others
 * get a part of it first: with more ranks than experts few would send to all, and the others wait. */
static void gather_slots(const ch_exec *x, const ch_route_args *all, const char *what, const void *mine, void *whole,
                         int64_t size) {
  int rank = x->comm->rank;
  ch_range chosen = slots_chosen(x, all, rank), shared = slots_shared(x, all, rank);
  ch_bytes send[CH_RANKS], receive[CH_RANKS];
  for (int r = 0; r < x->comm->size; r++) {
    send[r] = both(chosen, slots_shared(x, all, r), mine, chosen.first, size);
    receive[r] = both(shared, slots_chosen(x, all, r), whole, 0, size);
  }
  ch_comm_exchange(x->comm, what, send, receive);
  ch_comm_gather_shares(x->comm, what, whole, CH_AS_HOST(const int, all->record->expert_begin)[all->e], size);
}

void ch_route_at_owners(ch_exec *x, const ch_route_args *all) {
  ch_marks mark = ch_scratch_mark(x);
  ch_record record;
  ch_route_counts counts;
  ch_route_args mine = *all;
  mine.record = &record;
  mine.counts = &counts;
  report *experts = CH_NEW_HOST(&x->scratch, report, all->e);
  choose(x, all, &mine);
  if (!ch_counting(x)) {
    memset(experts, 0, (size_t)all->e * sizeof *experts);
    describe(&mine, experts + first_of(x, all->e, x->comm->rank));
    ch_comm_gather_shares(x->comm, "loads of experts", experts, all->e, sizeof *experts);
    collect(all, experts);
    gather_slots(x, all, "tokens of experts", CH_AS_HOST(const int, record.slot_token),
                 CH_AS_HOST(int, all->record->slot_token), sizeof(int));
    gather_slots(x, all, "gates", CH_AS_HOST(const real, record.slot_gate), CH_AS_HOST(real, all->record->slot_gate),
                 sizeof(real));
  }
  ch_scratch_release(x, mark);
}
