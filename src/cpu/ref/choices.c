/* Reference: top-K experts of tokens, and their assignment under capacities. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/ref/ref.h"

/* The `count` best experts of one token; ties go to the lower expert. Without `inline`, gcc makes a separate function
 * per call; inside `best` the loop runs out of registers and is a fifth slower. */
static void best_of(int e, int count, const real *restrict score, const real *restrict shift, int *restrict expert,
                    real *restrict value) {
  int have = 0;
  for (int i = 0; i < e; i++) {
    real worth = shift ? score[i] - shift[i] : score[i];
    if (have == count && !(worth > value[count - 1])) continue;
    int at = have < count ? have++ : count - 1;
    for (; at > 0 && worth > value[at - 1]; at--) {
      value[at] = value[at - 1];
      expert[at] = expert[at - 1];
    }
    value[at] = worth;
    expert[at] = i;
  }
}

/* The best two (count 2) or the best one (count 1) in registers: the common case. */
static inline void best_two(int e, int count, const real *score, const real *shift, int *expert, real *value) {
  int first = 0, second = -1;
  real best = shift ? score[0] - shift[0] : score[0], next = 0;
  for (int i = 1; i < e; i++) {
    real worth = shift ? score[i] - shift[i] : score[i];
    if (second >= 0 && !(worth > next)) continue;
    if (worth > best) {
      second = first, next = best;
      first = i, best = worth;
    } else {
      second = i, next = worth;
    }
  }
  expert[0] = first, value[0] = best;
  if (count > 1) expert[1] = second, value[1] = next;
}

/* restrict: the compiler vectorizes without a test for overlap. */
static inline void subtract(int e, const real *restrict score, real half_way, real *restrict margin) {
  for (int i = 0; i < e; i++) margin[i] = score[i] - half_way;
}

/* Null experts: each has an equal share of 1 - (sum of the token's scores). They replace a token's last choices, at
 * most `nulls`, whose value is lower. */
static void leave_to_nulls(int nulls, int e, int count, const real *score, const real *value, int *expert) {
  double left = 1;
  for (int i = 0; i < e; i++) left -= (double)score[i];
  for (int j = count > nulls ? count - nulls : 0; j < count; j++)
    if ((double)value[j] < left / nulls) expert[j] = -1;
}

/* Tokens that are not valid get no expert. */
static void drop_invalid(int n, int count, const uint8_t *valid, int *choice) {
  for (int64_t c = 0; c < (int64_t)n * count && valid; c++)
    if (!valid[c / count]) choice[c] = -1;
}

CH_REF_OP(best) {
  int e = a->e, count = a->count;
#pragma omp parallel for num_threads(x->threads)
  for (int t = 0; t < a->n; t++) {
    const real *score = a->score + (int64_t)t * e;
    int *expert = a->choice + (int64_t)t * count;
    real *value = a->value + (int64_t)t * count;
    if (count > 2 && a->shift)
      best_of(e, count, score, a->shift, expert, value);
    else if (count > 2)
      best_of(e, count, score, NULL, expert, value);
    else if (a->shift)
      best_two(e, count, score, a->shift, expert, value);
    else
      best_two(e, count, score, NULL, expert, value);
    if (a->nulls) leave_to_nulls(a->nulls, e, count, score, value, expert);
    if (a->margin) subtract(e, score, (value[count - 2] + value[count - 1]) / 2, a->margin + (int64_t)t * e);
  }
  drop_invalid(a->n, count, a->valid, a->choice);
}

CH_REF_OP(modulo) {
  for (int t = 0; t < a->n; t++) a->choice[t] = a->e > 1 ? a->id[t] % a->e : 0;
  drop_invalid(a->n, 1, a->valid, a->choice);
}

CH_REF_OP(sample_second) {
#pragma omp parallel for num_threads(x->threads)
  for (int t = 0; t < a->n; t++) {
    const real *value = a->value + 2 * (int64_t)t;
    real sum = value[0] + value[1];
    if (sum == 0) sum = 1;
    if (!(ch_rng_uniform(a->rng, a->rng_base + (uint64_t)t) < 2 * (double)(value[1] / sum))) a->choice[2 * t + 1] = -1;
  }
}

typedef struct {
  real value;
  int token;
} ordered_token;

static int compare_turns(const void *left, const void *right) {
  const ordered_token *a = left, *b = right;
  return a->value != b->value ? (a->value < b->value ? 1 : -1) : a->token - b->token;
}

/* Sorts tokens by their first value, descending. */
static void order_tokens(const ch_place_args *a, ordered_token *order) {
  int n = a->record->tokens;
  for (int t = 0; t < n; t++) {
    real value = a->value[(int64_t)t * a->count];
    order[t] = (ordered_token){isnan(value) ? (real)-INFINITY : value, t};
  }
  qsort(order, (size_t)n, sizeof *order, compare_turns);
}

/* Enforces capacities: choices of full experts become -1. held: [e] counts; order: [n], or NULL for token order. */
static void admit(const ch_place_args *a, int *held, const ordered_token *order) {
  int e = a->record->experts, n = a->record->tokens, K = a->count, capacity = a->capacity, *demand = a->demand;
  int64_t dropped = 0;
  memset(demand, 0, (size_t)e * sizeof *demand);
  memset(held, 0, (size_t)e * sizeof *held);
  for (int j = 0; j < K; j++)
    for (int at = 0; at < n; at++) {
      int64_t t = order ? order[at].token : at;
      int i = a->choice[t * K + j];
      if (i < 0) continue;
      demand[i]++;
      if (held[i] < capacity) {
        held[i]++;
      } else {
        dropped++;
        a->choice[t * K + j] = -1;
      }
    }
  *a->dropped = dropped;
}

/* A counting sort by expert; a token has each expert at most once, so an expert's slots are in ascending token
 * order. */
CH_REF_SCRATCH_OP(place) {
  const ch_record *r = a->record;
  CH_SCRATCH(x);
  int *next = CH_NEW(&x->scratch, int, r->experts);
  ordered_token *order = a->value ? CH_NEW(&x->scratch, ordered_token, r->tokens) : NULL;
  if (ch_counting(x)) return;
  if (order) order_tokens(a, order);
  admit(a, next, order);
  int sum = 0;
  for (int i = 0; i < r->experts; i++) {
    r->expert_begin[i] = sum;
    sum += next[i];
    next[i] = r->expert_begin[i]; /* now the expert's next slot */
  }
  r->expert_begin[r->experts] = sum;
  const int *choice = a->choice;
  for (int t = 0, n = r->tokens, K = a->count; t < n; t++)
    for (int j = 0; j < K; j++, choice++)
      if (*choice >= 0) r->slot_token[next[*choice]++] = t;
}
