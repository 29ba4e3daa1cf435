/* Reference: threshold routing, moving averages of cut-offs, and the prices of quantile balancing. */
#include <math.h>
#include <string.h>

#include "cpu/ref/ref.h"
#include "op/token.cl.h"

CH_REF_OP(threshold) {
#pragma omp parallel for num_threads(x->threads)
  for (int64_t t = 0; t < a->n; t++)
    pass_bars(a->e, a->cap, !a->valid || a->valid[t], a->score + t * a->e, a->threshold, a->keep + t * a->e);
}

/* Writes expert i's tokens to `to`, ascending: the min selection if the threshold is above its cut-off, otherwise the
 * tokens of the max selection that reach the threshold. Returns their number. */
static int take_within(const ch_within_args *a, int i, int *to) {
  int all = a->threshold[i] > a->min_cutoff[i], count = 0;
  const ch_record *from = all ? a->min : a->max;
  for (int s = from->expert_begin[i]; s < from->expert_begin[i + 1]; s++) {
    int t = from->slot_token[s];
    if (all || a->score[(int64_t)t * from->experts + i] >= a->threshold[i]) to[count++] = t;
  }
  return count;
}

/* Number of tokens that reach the threshold, regardless of capacity. */
static int asking(const ch_within_args *a, int i) {
  int count = 0, e = a->record->experts;
  for (int t = 0; t < a->record->tokens; t++)
    count += (!a->valid || a->valid[t]) && a->score[(int64_t)t * e + i] >= a->threshold[i];
  return count;
}

CH_REF_SCRATCH_OP(within) {
  const ch_record *r = a->record;
  int e = r->experts, capacity = a->max->max_slots / e;
  CH_SCRATCH(x);
  int *list = CH_NEW(&x->scratch, int, ((int64_t)e * capacity)), *count = CH_NEW(&x->scratch, int, e);
  if (ch_counting(x)) return;
#pragma omp parallel for num_threads(x->threads)
  for (int i = 0; i < e; i++) {
    count[i] = take_within(a, i, list + (int64_t)i * capacity);
    a->demand[i] = asking(a, i);
  }
  *a->dropped = 0;
  r->expert_begin[0] = 0;
  for (int i = 0; i < e; i++) {
    memcpy(r->slot_token + r->expert_begin[i], list + (int64_t)i * capacity, (size_t)count[i] * sizeof *list);
    r->expert_begin[i + 1] = r->expert_begin[i] + count[i];
    if (a->demand[i] > count[i]) *a->dropped += a->demand[i] - count[i];
  }
}

CH_REF_OP(mean_cutoff) {
  for (int i = 0; i < a->e; i++) {
    double sum = 0;
    int finite = 0;
    for (int p = 0; p < a->pools; p++) {
      real value = a->cutoff[(int64_t)p * a->e + i];
      if (!isfinite(value)) continue;
      sum += (double)value;
      finite++;
    }
    a->mean[i] = finite ? (real)(sum / finite) : (real)INFINITY;
  }
}

CH_REF_OP(running_mean) {
  for (int i = 0; i < a->count; i++) {
    double mean = a->fresh ? 0 : (double)a->mean[i];
    if (isfinite(a->value[i])) a->mean[i] = (real)(mean + a->weight * ((double)a->value[i] - mean));
  }
}

CH_REF_OP(price) { move_prices(a->e, a->next, a->beta); }

CH_REF_OP(update_bias) {
  int64_t sum = 0;
  for (int i = 0; i < a->e; i++) sum += a->demand[i];
  for (int i = 0; i < a->e; i++) {
    int64_t more = (int64_t)a->demand[i] * a->e - sum;
    a->price[i] = (real)((a->fresh ? 0 : (double)a->price[i]) + a->rate * (double)((more > 0) - (more < 0)));
  }
}
