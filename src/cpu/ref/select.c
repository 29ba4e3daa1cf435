/* Reference: top-k selection. */
#include <math.h>

#include "cpu/ref/ref.h"

/* Nonzero when token s goes before token t for an expert: larger score, then lower index; NaN counts as smallest. */
static int goes_before(const ch_select_args *a, int expert, int s, int t) {
  int e = a->record->experts;
  real x = a->score[(int64_t)s * e + expert], y = a->score[(int64_t)t * e + expert];
  int x_nan = isnan(x), y_nan = isnan(y);
  if (x_nan != y_nan) return y_nan;
  if (!x_nan && x != y) return x > y;
  return s < t;
}

static int eligible(const ch_select_args *a, int t) { return !a->valid || a->valid[t]; }

/* The tokens first, first + step, ... below end. */
typedef struct {
  int first, step, end;
} pool;

static pool pool_at(const ch_select_args *a, int p) {
  if (a->stride > 1) return (pool){p, a->stride, a->record->tokens};
  return (pool){a->pool_begin[p], 1, a->pool_begin[p + 1]};
}

/* Rank of token t: number of eligible tokens of the pool that go before it. */
static int rank_of(const ch_select_args *a, int expert, pool p, int t) {
  int rank = 0;
  for (int s = p.first; s < p.end; s += p.step) rank += eligible(a, s) && goes_before(a, expert, s, t);
  return rank;
}

/* Quadratic but obviously correct: a token is assigned if its rank is below k. Visits tokens in ascending order; p is
 * token t's pool. */
static void select_expert(const ch_select_args *a, int i, int slot) {
  const ch_record *r = a->record;
  r->expert_begin[i] = slot;
  for (int p = 0; p < a->pools && a->cutoff; p++)
    a->cutoff[p * r->experts + i] = (real)INFINITY; /* k = 0: no score reaches the cut-off */
  for (int t = 0, p = 0; t < r->tokens; t++) {
    if (a->stride > 1) p = t % a->stride;
    while (a->stride <= 1 && t >= a->pool_begin[p + 1]) p++;
    if (!eligible(a, t)) continue;
    int rank = rank_of(a, i, pool_at(a, p), t);
    if (rank < a->k[p]) r->slot_token[slot++] = t;
    if (a->cutoff && rank == a->k[p] - 1) a->cutoff[p * r->experts + i] = a->score[(int64_t)t * r->experts + i];
  }
}

CH_REF_OP(select) {
  const ch_record *r = a->record;
  int per_expert = 0;
  for (int p = 0; p < a->pools; p++) per_expert += a->k[p];
#pragma omp parallel for num_threads(x->threads)
  for (int i = 0; i < r->experts; i++) select_expert(a, i, i * per_expert);
  r->expert_begin[r->experts] = r->experts * per_expert;
}
