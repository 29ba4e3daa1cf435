#include <string.h>

#include "dispatch/exchange.h"

ch_range ch_experts_of(const ch_exec *x, int e, int rank) {
  return ch_share_range(e, rank / x->grid.tp_group.size, x->grid.ep_group.size);
}

ch_range ch_group_of(const ch_exec *x, const ch_dispatch *ex, int rank, int group) {
  ch_range range = ch_experts_of(x, ex->e, rank), some = ch_share_range(range.last - range.first, group, ex->groups);
  return (ch_range){range.first + some.first, range.first + some.last};
}

ch_range ch_local_group(const ch_exec *x, const ch_dispatch *ex, int group) {
  return ch_group_of(x, ex, x->grid.replica.rank, group);
}

int ch_dispatch_groups(int64_t ranks, int64_t owners, int e, int64_t max_slots, int64_t row_bytes, int64_t worth) {
  int64_t max = (e + owners - 1) / owners, groups = max_slots / (ranks * owners) * row_bytes / worth;
  if (groups > CH_EXPERT_GROUPS) groups = CH_EXPERT_GROUPS;
  return groups < 1 ? 1 : ch_min(groups, max);
}

static int within(int64_t value, int max) { return value < 0 ? 0 : ch_min(value, max); }

ch_range ch_tokens_of(const ch_dispatch *ex, int rank) {
  int64_t first = (int64_t)rank * ex->n - ex->begin;
  return (ch_range){within(first, ex->all.tokens), within(first + ex->n, ex->all.tokens)};
}

int64_t ch_slots_at(const ch_dispatch *ex, int rank, ch_range experts) {
  int64_t sum = 0;
  for (int i = experts.first; i < experts.last; i++) sum += ex->slots[(int64_t)rank * ex->e + i];
  return sum;
}

/* Number of slots of `experts` over all tokens of the replica. */
static int of_replica(const ch_exec *x, const ch_dispatch *ex, ch_range experts) {
  int64_t sum = 0;
  for (int r = 0; r < x->grid.replica.size; r++) sum += ch_slots_at(ex, ch_comm_number(&x->grid.replica, r), experts);
  return (int)sum;
}

static void count_group(ch_exec *x, ch_dispatch *ex, int group) {
  ch_expert_group *g = &ex->group[group];
  int *begin = g->begin;
  ch_range some = ch_local_group(x, ex, group);
  int first = ch_experts_of(x, ex->e, x->grid.replica.rank).first, experts = some.last - some.first;
  for (int i = 0; i <= experts; i++) begin[i] = of_replica(x, ex, (ch_range){some.first, some.first + i});
  x->memory->upload(g->record.expert_begin, begin, ((size_t)experts + 1) * sizeof *begin);
  g->record.host_begin = begin;
  g->slot = of_replica(x, ex, (ch_range){first, some.first});
}

void ch_slots_count(ch_exec *x, ch_dispatch *ex) {
  ch_arena *host = &ch_host(x)->scratch;
  size_t mark = ch_arena_mark(host), e = (size_t)ex->e;
  const int *expert_begin = ch_download(x, ex->all.expert_begin, (e + 1) * sizeof(int));
  const int *token = ch_download(x, ex->all.slot_token, (size_t)ex->all.max_slots * sizeof(int));
  for (int g = 0; g < ex->groups; g++) {
    ch_record *r = &ex->group[g].record;
    r->load = x->grid.dp_group.size == 1 ? ex->all.load : -1; /* with several replicas the load of one is unknown */
    r->max = ex->all.max;
  }
  if (!ch_counting(x)) {
    memset(ex->slots, 0, (size_t)x->comm->size * e * sizeof *ex->slots);
    for (int i = 0; i < ex->e; i++)
      for (int s = expert_begin[i]; s < expert_begin[i + 1]; s++)
        ex->slots[(int64_t)((ex->begin + token[s]) / ex->n) * ex->e + i]++;
    for (int g = 0; g < ex->groups; g++) count_group(x, ex, g);
  }
  ch_arena_release(host, mark);
}
