/* The certificate: by linear programming duality, any prices give an upper bound of the total score, so the gap between
 * bound and value limits how far any given assignment is from the optimum. */
#include <math.h>

#include "moe/assign/assign.h"
#include "moe/route_stats.h"

/* The sum of the `count` largest of value [e]; *min: the smallest of these. Reorders value. */
static double best_sum(double *value, int e, int count, double *min) {
  double sum = 0;
  for (int j = 0; j < count; j++) {
    int best = j;
    for (int i = j + 1; i < e; i++)
      if (value[i] > value[best]) best = i;
    double swap = value[j];
    value[j] = value[best];
    value[best] = swap;
    sum += value[j];
    *min = value[j];
  }
  return sum;
}

/* Upper bound of a row's contribution at the given prices: its best experts of positive value, at most cap, or exactly
 * one if balanced. *alpha is the row's optimal price, which minimizes b alpha + sum of max(0, S - alpha - beta). */
static double row_bound(const ch_pool *p, int row, double *worth, double *alpha) {
  const real *score = p->score + (int64_t)row * p->e;
  int count = 0, all = p->balanced;
  for (int i = 0; i < p->e; i++) {
    double value = (double)score[i] - p->beta[i];
    if (all || value > 0) worth[count++] = value;
  }
  int max = all ? 1 : p->cap;
  *alpha = 0;
  if (count < max) max = count;
  double min = 0, sum = best_sum(worth, count, max, &min);
  if (all || max == p->cap) *alpha = min;
  return sum;
}

/* The experts' part of the bound: loads times prices. In a balanced pool the experts with the highest prices have the
 * loads that are rounded up. */
static double expert_bound(const ch_pool *p, double *price) {
  double sum = 0, min;
  for (int i = 0; i < p->e; i++) price[i] = p->beta[i];
  if (!p->balanced) {
    for (int i = 0; i < p->e; i++) sum += p->k * price[i];
    return sum;
  }
  const int share = p->rows / p->e;
  for (int i = 0; i < p->e; i++) sum += share * price[i];
  return sum + best_sum(price, p->e, p->rows % p->e, &min);
}

/* Violations of loads and caps by the assignment. */
static void count_violations(const ch_pool *p, const int *experts_of, choir_certificate *c) {
  int max = ch_pool_max(p), min = p->balanced ? p->rows / p->e : max, cap = p->balanced ? 1 : p->cap;
  for (int i = 0; i < p->e; i++) {
    int load = 0;
    for (int r = 0; r < p->rows; r++) load += p->assigned[(int64_t)i * p->rows + r];
    int off = load > max ? load - max : load < min ? min - load : 0;
    if (off > c->expert_after) c->expert_after = off;
  }
  for (int r = 0; r < p->rows; r++) {
    int over = experts_of[r] - cap;
    if (p->balanced && over < 0) over = -over;
    if (over > c->token_after) c->token_after = over;
    c->over_cap += over > 0;
  }
}

/* Per row: value [rows] of the assignment, bound [rows]. */
static void rows_of(ch_exec *x, const ch_pool *p, double *worth, double *value, double *bound, int *experts_of) {
#pragma omp parallel for num_threads(x->threads)
  for (int block = 0; block < (p->rows + 63) / 64; block++)
    for (int r = block * 64; r < p->rows && r < block * 64 + 64; r++) {
      value[r] = 0;
      experts_of[r] = 0;
      for (int i = 0; i < p->e; i++)
        if (p->assigned[(int64_t)i * p->rows + r]) {
          value[r] += (double)p->score[(int64_t)r * p->e + i];
          experts_of[r]++;
        }
      bound[r] = row_bound(p, r, worth + (int64_t)block * p->e, &p->alpha[r]);
    }
}

void ch_assign_prove(ch_exec *x, const ch_pool *p, choir_certificate *c) {
  CH_SCRATCH(x);
  double *worth = CH_NEW_HOST(&x->scratch, double, (int64_t)(p->rows + 63) / 64 * p->e + p->e);
  double *value = CH_NEW_HOST(&x->scratch, double, p->rows), *bound = CH_NEW_HOST(&x->scratch, double, p->rows);
  int *experts_of = CH_NEW_HOST(&x->scratch, int, p->rows);
  if (ch_counting(x)) return;
  rows_of(x, p, worth, value, bound, experts_of);
  double reached = 0, possible = expert_bound(p, worth);
  for (int r = 0; r < p->rows; r++) {
    reached += value[r];
    possible += bound[r];
  }
  double size = fmax(fabs(possible), fabs(reached));
  choir_certificate mine = {.assignments = 1,
                            .iterations = p->iterations,
                            .gap = size > 0 ? (possible - reached) / size : 0,
                            .expert_before = p->expert_before,
                            .token_before = p->token_before};
  count_violations(p, experts_of, &mine);
  ch_certificate_add(c, &mine);
}
