/* Reference: top-k selection, and the record's index by token. */
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

/* How many eligible tokens of the pool go before token t. */
static int rank_of(const ch_select_args *a, int expert, int begin, int end, int t) {
  int rank = 0;
  for (int s = begin; s < end; s++) rank += eligible(a, s) && goes_before(a, expert, s, t);
  return rank;
}

/* Quadratic and obviously right: a token is taken when fewer than k go before it. */
static void select_tokens(ch_exec *x, const ch_select_args *a) {
  if (ch_counting(x)) return;
  ch_record *r = a->record;
  int per_expert = 0;
  for (int p = 0; p < a->pools; p++) per_expert += a->k[p];
#pragma omp parallel for num_threads(x->threads)
  for (int i = 0; i < r->experts; i++) {
    int slot = i * per_expert;
    r->expert_begin[i] = slot;
    for (int p = 0; p < a->pools; p++) {
      if (a->cutoff) a->cutoff[p * r->experts + i] = (real)INFINITY; /* k of 0: no score is good enough */
      for (int t = a->pool_begin[p]; t < a->pool_begin[p + 1]; t++) {
        if (!eligible(a, t)) continue;
        int rank = rank_of(a, i, a->pool_begin[p], a->pool_begin[p + 1], t);
        if (rank < a->k[p]) r->slot_token[slot++] = t;
        if (a->cutoff && rank == a->k[p] - 1) a->cutoff[p * r->experts + i] = a->score[(int64_t)t * r->experts + i];
      }
    }
  }
  r->slots = r->experts * per_expert;
  r->expert_begin[r->experts] = r->slots;
}

/* A counting sort by token; slots of a token come out ascending because they are visited so. */
static void index_tokens(ch_exec *x, const ch_index_args *a) {
  if (ch_counting(x)) return;
  const ch_record *r = a->record;
  int *begin = r->token_begin;
  for (int t = 0; t <= r->tokens; t++) begin[t] = 0;
  for (int s = 0; s < r->slots; s++) begin[r->slot_token[s]]++;
  for (int t = 0, sum = 0; t <= r->tokens; t++) begin[t] = sum += begin[t]; /* now the end of token t */
  for (int s = r->slots - 1; s >= 0; s--) r->token_slot[--begin[r->slot_token[s]]] = s;
}

void ch_ref_fill_select(ch_ops *ops) {
  ops->select = select_tokens;
  ops->index = index_tokens;
}
