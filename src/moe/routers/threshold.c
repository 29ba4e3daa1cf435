/* Causal routing by thresholds: the multiplier of "expert i takes k tokens" is the expert's cut-off score, so a running
 * mean of cut-offs lets an expert decide about a token without a look at any other. */
#include <math.h>
#include <string.h>

#include "moe/router.h"

double ch_router_mean_weight(double decay, uint64_t observed) {
  return decay > 0 ? (1 - decay) / -expm1((double)(observed + 1) * log(decay)) : 1;
}

void ch_router_observe_cutoffs(ch_exec *x, const ch_route_args *a) {
  if (ch_counting(x)) return;
  double weight = ch_router_mean_weight(a->options->decay, a->observed);
  for (int i = 0; i < a->e; i++) {
    double mean = a->observed ? (double)a->state[i] : 0;
    if (isfinite(a->counts->cutoff[i])) a->state[i] = (real)(mean + weight * ((double)a->counts->cutoff[i] - mean));
  }
}

/* The experts of one token: keep[i] = 1 where it passes and, under a cap, is among the best b of S - beta. */
static void choose(const ch_route_args *a, int t, uint8_t *keep) {
  const real *score = a->scores + (int64_t)t * a->e;
  int cap = a->options->cap, passed = 0;
  for (int i = 0; i < a->e; i++) passed += keep[i] = score[i] >= a->thresholds[i];
  for (; cap && passed > cap; passed--) {
    int worst = -1; /* of equal margins the higher expert goes */
    for (int i = 0; i < a->e; i++)
      if (keep[i] && (worst < 0 || score[i] - a->thresholds[i] <= score[worst] - a->thresholds[worst])) worst = i;
    keep[worst] = 0;
  }
}

void ch_router_take_marked(ch_exec *x, const ch_route_args *a, const uint8_t *keep) {
  int n = a->n, e = a->e;
  ch_record *r = a->record;
  memset(r->expert_begin, 0, ((size_t)e + 1) * sizeof *r->expert_begin);
  for (int t = 0; t < n; t++)
    for (int i = 0; i < e; i++) r->expert_begin[i + 1] += keep[(int64_t)t * e + i];
  for (int i = 0; i < e; i++) r->expert_begin[i + 1] += r->expert_begin[i];
  r->slots = r->expert_begin[e];
#pragma omp parallel for num_threads(x->threads)
  for (int i = 0; i < e; i++)
    for (int t = 0, s = r->expert_begin[i]; s < r->expert_begin[i + 1]; t++)
      if (keep[(int64_t)t * e + i]) {
        r->slot_token[s] = t;
        r->slot_gate[s++] = a->scores[(int64_t)t * e + i];
      }
}

void ch_router_by_thresholds(ch_exec *x, const ch_route_args *a) {
  size_t mark = ch_arena_mark(&x->scratch);
  int n = a->n, e = a->e;
  const ch_record *r = a->record;
  uint8_t *keep = CH_NEW(&x->scratch, uint8_t, (int64_t)n * e);
  if (!ch_counting(x)) {
#pragma omp parallel for num_threads(x->threads)
    for (int t = 0; t < n; t++) {
      if (!a->valid || a->valid[t])
        choose(a, t, keep + (int64_t)t * e);
      else
        memset(keep + (int64_t)t * e, 0, (size_t)e);
    }
    ch_router_take_marked(x, a, keep);
    for (int i = 0; i < e; i++) a->counts->demand[i] = r->expert_begin[i + 1] - r->expert_begin[i];
    a->counts->capacity = ch_valid_count(a->valid, n);
    a->counts->dropped = 0;
    a->counts->aux_loss = 0;
  }
  ch_arena_release(&x->scratch, mark);
}

int ch_thresholds_set(const real *thresholds, int e) {
  for (int i = 0; i < e; i++)
    if (thresholds[i] != 0) return 1;
  return 0;
}
