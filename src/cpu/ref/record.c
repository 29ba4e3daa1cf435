/* Reference: the routing record: built from marks, indexed by token, restricted to a range, and its statistics. */
#include <string.h>

#include "cpu/ref/ref.h"

CH_REF_OP(collect) {
  const ch_record *r = a->record;
  int n = r->tokens, e = r->experts;
  memset(r->expert_begin, 0, ((size_t)e + 1) * sizeof *r->expert_begin);
  for (int t = 0; t < n; t++)
    for (int i = 0; i < e; i++) r->expert_begin[i + 1] += a->keep[(int64_t)t * e + i];
  for (int i = 0; i < e; i++) r->expert_begin[i + 1] += r->expert_begin[i];
#pragma omp parallel for num_threads(x->threads)
  for (int i = 0; i < e; i++)
    for (int t = 0, s = r->expert_begin[i]; s < r->expert_begin[i + 1]; t++)
      if (a->keep[(int64_t)t * e + i]) r->slot_token[s++] = t;
}

CH_REF_OP(loads) {
  for (int i = 0; i < a->record->experts; i++)
    a->demand[i] = a->record->expert_begin[i + 1] - a->record->expert_begin[i];
}

/* A counting sort by token; slots are visited in order, so each token's slots are ascending. */
CH_REF_OP(index) {
  const ch_record *r = a->record;
  int *begin = r->token_begin, slots = ch_slots(r);
  for (int t = 0; t <= r->tokens; t++) begin[t] = 0;
  for (int s = 0; s < slots; s++) begin[r->slot_token[s]]++;
  for (int t = 0, sum = 0; t <= r->tokens; t++) begin[t] = sum += begin[t]; /* now the end of token t */
  for (int s = slots - 1; s >= 0; s--) r->token_slot[--begin[r->slot_token[s]]] = s;
}

CH_REF_OP(part) {
  const ch_record *all = a->all, *some = a->part;
  int slots = 0;
  for (int i = 0; i < all->experts; i++) {
    some->expert_begin[i] = slots;
    for (int s = all->expert_begin[i]; s < all->expert_begin[i + 1]; s++) {
      if (all->slot_token[s] < a->begin || all->slot_token[s] >= a->end) continue;
      some->slot_token[slots] = all->slot_token[s] - a->begin;
      some->slot_gate[slots++] = all->slot_gate[s];
    }
  }
  some->expert_begin[all->experts] = slots;
}

static double mean_square(const ch_tally_args *a) {
  int n = a->record->tokens, valid = ch_valid_count(a->valid, n);
  double sum = 0;
  for (int t = 0; t < n && a->lse; t++)
    if (!a->valid || a->valid[t]) sum += (double)a->lse[t] * (double)a->lse[t];
  return valid ? sum / valid : 0;
}

CH_REF_OP(tally) {
  const ch_record *r = a->record;
  int e = r->experts, slots = ch_slots(r);
  int64_t *load = a->counts + 1, *demand = load + e, *histogram = demand + e;
  double gates = 0;
  for (int s = 0; s < slots; s++) gates += (double)r->slot_gate[s];
  a->sums[0] = *a->aux_loss;
  a->sums[1] = gates;
  a->sums[2] = mean_square(a);
  a->counts[0] = *a->dropped;
  for (int i = 0; i < e; i++) {
    load[i] = r->expert_begin[i + 1] - r->expert_begin[i];
    demand[i] = a->demand[i];
  }
  for (int i = 0; i <= e; i++) histogram[i] = 0;
  for (int t = 0; t < r->tokens; t++)
    if (!a->valid || a->valid[t]) histogram[r->token_begin[t + 1] - r->token_begin[t]]++;
}
