/* The paper's solver: every expert's best rows by the op `select` where no cap binds, else entropic assignment by
 * alternating projections (op `dykstra`), then each expert's k largest entries. A fixed number of iterations need not
 * get near the constraints: what is missing is reported. Stages of falling entropy get nearer with as many. */
#include <math.h>

#include "moe/assign/assign.h"

void ch_assign_top(ch_exec *x, ch_pool *p, const real *value, real *cutoff) {
  CH_SCRATCH(x);
  int *begin = CH_NEW_HOST(&x->scratch, int, p->e + 1), *token = CH_NEW_HOST(&x->scratch, int, (int64_t)p->e * p->rows);
  ch_record r = {
      .tokens = p->rows, .experts = p->e, .expert_begin = CH_AS_DEV(int, begin), .slot_token = CH_AS_DEV(int, token)};
  CH_OP(x, select, .pools = 1, .pool_begin = (int[]){0, p->rows}, .k = &p->k, .score = CH_AS_DEV(const real, value),
        .record = &r, .cutoff = CH_AS_DEV(real, cutoff));
  if (!ch_counting(x))
    for (int i = 0; i < p->e; i++)
      for (int s = begin[i]; s < begin[i + 1]; s++) p->taken[(int64_t)i * p->rows + token[s]] = 1;
}

void ch_assign_uncapped(ch_exec *x, ch_pool *p) {
  CH_SCRATCH(x);
  real *cutoff = CH_NEW_HOST(&x->scratch, real, p->e);
  ch_assign_top(x, p, p->score, cutoff);
  if (!ch_counting(x))
    for (int i = 0; i < p->e; i++) p->beta[i] = (double)cutoff[i];
  p->expert_before = p->token_before = 0;
  p->iterations = 0;
}

/* ---- entropic ---- */

/* Loads move by less than a part in 10,000 from here on. */
static const double tolerance = 1e-4;

static void measure_pool(ch_pool *p, const double *load, const double *taken) {
  p->expert_before = p->token_before = 0;
  for (int i = 0; i < p->e; i++) p->expert_before = fmax(p->expert_before, fabs(load[i] - p->k));
  for (int r = 0; r < p->rows; r++) p->token_before = fmax(p->token_before, taken[r] - p->cap);
}

/* From the largest difference of scores, where a few rounds converge, down to lambda: each stage begins at the prices
 * of the one before (Schmitzer 2019; 2304.04947). Backends compute in units of it: scores beyond 1e30 times lambda,
 * where a float holds no difference near lambda anyway, would overflow, and lambda grows with them. */
static double weight_of(const ch_pool *p, double lambda, int stage, int stages) {
  double least = INFINITY, most = -INFINITY;
  for (int64_t j = 0; j < (int64_t)p->rows * p->e; j++) {
    least = fmin(least, (double)p->score[j]);
    most = fmax(most, (double)p->score[j]);
  }
  lambda = fmax(lambda, 1e-30 * fmax(fabs(least), fabs(most)));
  double wide = fmax(lambda, most - least);
  return stage + 1 < stages ? wide * pow(lambda / wide, (double)stage / (stages - 1)) : lambda;
}

void ch_assign_dykstra(ch_exec *x, ch_pool *p, double lambda, int iterations, int stages) {
  CH_SCRATCH(x);
  real *alpha = CH_NEW_HOST(&x->scratch, real, p->rows), *beta = CH_NEW_HOST(&x->scratch, real, p->e);
  real *margin = CH_NEW_HOST(&x->scratch, real, (int64_t)p->rows * p->e);
  double *load = CH_NEW_HOST(&x->scratch, double, p->e), *taken = CH_NEW_HOST(&x->scratch, double, p->rows);
  int rounds = 0;
  if (ch_counting(x)) stages = 1;
  for (int stage = 0; stage < stages; stage++, rounds += p->iterations)
    CH_OP(x, dykstra, .n = p->rows, .e = p->e, .k = p->k, .b = p->cap, .warm = stage > 0,
          .lambda = ch_counting(x) ? lambda : weight_of(p, lambda, stage, stages), .tolerance = tolerance,
          .iterations = iterations / stages + (stage < iterations % stages), .score = CH_AS_DEV(const real, p->score),
          .alpha = CH_AS_DEV(real, alpha), .beta = CH_AS_DEV(real, beta), .margin = CH_AS_DEV(real, margin),
          .load = CH_AS_DEV(double, load), .taken = CH_AS_DEV(double, taken), .done = CH_AS_DEV(int, &p->iterations));
  p->iterations = rounds;
  ch_assign_top(x, p, margin, NULL);
  if (ch_counting(x)) return;
  measure_pool(p, load, taken);
  for (int i = 0; i < p->e; i++) p->beta[i] = (double)beta[i];
}
