/* Reference: the entropic assignment by Dykstra's alternating projections. */
#include <math.h>

#include "cpu/ref/ref.h"

static int takes_part(const ch_dykstra_args *a, int t) { return !a->valid || a->valid[t]; }

/* The score under the entry's own correction: log A stays at or below 0. */
static double bounded(const ch_dykstra_args *a, const double *alpha, const double *beta, int t, int i) {
  return fmin((double)a->score[(int64_t)t * a->e + i], alpha[t] + beta[i]);
}

/* lambda log(sum exp(z / lambda)), one term at a time. */
typedef struct {
  double largest, sum;
} log_sum;

static void add_term(log_sum *l, double z, double lambda) {
  if (z <= l->largest) {
    l->sum += exp((z - l->largest) / lambda);
  } else {
    l->sum = l->sum * exp((l->largest - z) / lambda) + 1;
    l->largest = z;
  }
}

static double value(const log_sum *l, double lambda) { return l->largest + lambda * log(l->sum); }

/* One round over the sets; returns how far the furthest beta moved. */
static double iterate(const ch_dykstra_args *a, const double *alpha, const double *beta, double *new_alpha,
                      double *new_beta) {
  double moved = 0;
  for (int i = 0; i < a->e; i++) {
    log_sum l = {-INFINITY, 0};
    for (int t = 0; t < a->n; t++)
      if (takes_part(a, t)) add_term(&l, bounded(a, alpha, beta, t, i) - alpha[t], a->lambda);
    new_beta[i] = value(&l, a->lambda) - a->lambda * log(a->k);
    moved = fmax(moved, fabs(new_beta[i] - beta[i]));
  }
  for (int t = 0; t < a->n; t++) {
    log_sum l = {-INFINITY, 0};
    for (int i = 0; i < a->e; i++) add_term(&l, bounded(a, alpha, beta, t, i) - new_beta[i], a->lambda);
    new_alpha[t] = takes_part(a, t) ? fmax(0, value(&l, a->lambda) - a->lambda * log(a->b)) : 0;
  }
  return moved;
}

static void results(const ch_dykstra_args *a, const double *alpha, const double *beta) {
  for (int i = 0; i < a->e; i++) {
    a->beta[i] = (real)beta[i];
    a->load[i] = 0;
  }
  for (int t = 0; t < a->n; t++) {
    a->alpha[t] = (real)alpha[t];
    a->taken[t] = 0;
    for (int i = 0; i < a->e; i++) {
      double margin = fmin(0, (double)a->score[(int64_t)t * a->e + i] - alpha[t] - beta[i]);
      a->margin[(int64_t)t * a->e + i] = (real)margin;
      if (!takes_part(a, t)) continue;
      a->load[i] += exp(margin / a->lambda);
      a->taken[t] += exp(margin / a->lambda);
    }
  }
}

CH_REF_SCRATCH_OP(dykstra) {
  CH_SCRATCH(x);
  double *alpha[2], *beta[2];
  for (int i = 0; i < 2; i++) {
    alpha[i] = CH_NEW(&x->scratch, double, a->n);
    beta[i] = CH_NEW(&x->scratch, double, a->e);
  }
  if (ch_counting(x)) return;
  for (int t = 0; t < a->n; t++) alpha[0][t] = a->warm && takes_part(a, t) ? (double)a->alpha[t] : 0;
  for (int i = 0; i < a->e; i++) beta[0][i] = a->warm ? (double)a->beta[i] : INFINITY; /* no entry is corrected yet */
  int now = 0;
  for (*a->done = 0; *a->done < a->iterations; ++*a->done, now = !now)
    if (iterate(a, alpha[now], beta[now], alpha[!now], beta[!now]) <= a->tolerance * a->lambda) break;
  results(a, alpha[now], beta[now]);
}
