/* The paper's solver: op `select` if no cap binds, else entropic assignment by Dykstra's alternating projections,
 * followed by top-k per expert. After a fixed number of iterations the constraints may still be violated; the violation
 * is reported. Stages of decreasing entropy reduce it at the same number of iterations.
 *
 * In KL geometry and the log domain A = exp(min(0, S - alpha - beta) / lambda); the minimum keeps A <= 1. With
 * min(S, alpha + beta) of the last iteration in place of S, an iteration sets
 *   beta[i]  so that expert i has k tokens, then
 *   alpha[t] >= 0 so that no token has more than cap experts. */
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
      for (int s = begin[i]; s < begin[i + 1]; s++) p->assigned[(int64_t)i * p->rows + token[s]] = 1;
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

/* Convergence: relative change of loads per iteration. */
static const double tolerance = 1e-4;

typedef struct {
  const ch_pool *p;
  int threads;
  double lambda;
  double *alpha, *next_alpha, *beta, *next_beta; /* [rows], [e] of the last iteration, and of this one */
} projections;

/* The score with the correction for A <= 1. */
static inline double bounded(const projections *s, int t, int i) {
  double score = (double)s->p->score[(int64_t)t * s->p->e + i], largest = s->alpha[t] + s->beta[i];
  return score < largest ? score : largest;
}

/* exp(z / lambda) of z <= 0, in single precision, which is sufficient; most of the time is spent here. */
static inline double power(double z, double lambda) { return z < -90 * lambda ? 0 : (double)expf((float)(z / lambda)); }

/* lambda log(sum exp(z / lambda)), one term at a time. */
typedef struct {
  double largest, sum;
} log_sum;

static inline void add_term(log_sum *l, double z, double lambda) {
  if (z <= l->largest) {
    l->sum += power(z - l->largest, lambda);
  } else {
    l->sum = l->sum * power(l->largest - z, lambda) + 1;
    l->largest = z;
  }
}

static double value(const log_sum *l, double lambda) { return l->largest + lambda * log(l->sum); }

static double new_beta(const projections *s, int i) {
  log_sum l = {-INFINITY, 0};
  for (int t = 0; t < s->p->rows; t++) add_term(&l, bounded(s, t, i) - s->alpha[t], s->lambda);
  return value(&l, s->lambda) - s->lambda * log(s->p->k);
}

static double new_alpha(const projections *s, int t) {
  log_sum l = {-INFINITY, 0};
  for (int i = 0; i < s->p->e; i++) add_term(&l, bounded(s, t, i) - s->next_beta[i], s->lambda);
  return fmax(0, value(&l, s->lambda) - s->lambda * log(s->p->cap));
}

static void swap(double **a, double **b) {
  double *kept = *a;
  *a = *b;
  *b = kept;
}

/* One iteration over all constraint sets; returns 0, without a change, after convergence. */
static int iterate(projections *s) {
  double moved = 0;
#pragma omp parallel for num_threads(s->threads) reduction(max : moved)
  for (int i = 0; i < s->p->e; i++) {
    s->next_beta[i] = new_beta(s, i);
    moved = fmax(moved, fabs(s->next_beta[i] - s->beta[i]));
  }
  if (moved <= tolerance * s->lambda) return 0;
#pragma omp parallel for num_threads(s->threads)
  for (int t = 0; t < s->p->rows; t++) s->next_alpha[t] = new_alpha(s, t);
  swap(&s->alpha, &s->next_alpha);
  swap(&s->beta, &s->next_beta);
  return 1;
}

/* lambda log A. */
static double margin_of(const projections *s, int t, int i) {
  return fmin(0, (double)s->p->score[(int64_t)t * s->p->e + i] - s->alpha[t] - s->beta[i]);
}

/* How far A is from the constraints; margin [rows,e] = lambda log A. */
static void measure_pool(const projections *s, ch_pool *p, real *margin) {
  double expert = 0, token = 0;
#pragma omp parallel for num_threads(s->threads) reduction(max : expert)
  for (int i = 0; i < p->e; i++) {
    double load = 0;
    for (int t = 0; t < p->rows; t++) load += exp(margin_of(s, t, i) / s->lambda);
    expert = fmax(expert, fabs(load - p->k));
  }
#pragma omp parallel for num_threads(s->threads) reduction(max : token)
  for (int t = 0; t < p->rows; t++) {
    double assigned = 0;
    for (int i = 0; i < p->e; i++) {
      margin[(int64_t)t * p->e + i] = (real)margin_of(s, t, i);
      assigned += exp(margin_of(s, t, i) / s->lambda);
    }
    token = fmax(token, assigned - p->cap);
  }
  p->expert_before = expert;
  p->token_before = token;
}

static double width_of(const ch_pool *p) {
  double min = INFINITY, largest = -INFINITY;
  for (int64_t j = 0; j < (int64_t)p->rows * p->e; j++) {
    min = fmin(min, (double)p->score[j]);
    largest = fmax(largest, (double)p->score[j]);
  }
  return largest - min;
}

/* Epsilon scaling: lambda decreases from the largest difference of scores, where few iterations converge, to its final
 * value; each stage starts from the prices of the previous stage (Schmitzer 2019; 2304.04947). */
static void project(projections *s, ch_pool *p, double lambda, int iterations, int stages) {
  double wide = fmax(lambda, width_of(p));
  for (int t = 0; t < p->rows; t++) s->alpha[t] = 0;
  for (int i = 0; i < p->e; i++) s->beta[i] = INFINITY; /* no correction in the first iteration */
  p->iterations = 0;
  for (int stage = 0; stage < stages; stage++) {
    int left = iterations / stages + (stage < iterations % stages);
    s->lambda = stage + 1 < stages ? wide * pow(lambda / wide, (double)stage / (stages - 1)) : lambda;
    for (; left && iterate(s); left--) p->iterations++;
  }
}

void ch_assign_dykstra(ch_exec *x, ch_pool *p, double lambda, int iterations, int stages) {
  CH_SCRATCH(x);
  projections s = {.p = p, .threads = x->threads};
  s.alpha = CH_NEW_HOST(&x->scratch, double, p->rows);
  s.next_alpha = CH_NEW_HOST(&x->scratch, double, p->rows);
  s.beta = CH_NEW_HOST(&x->scratch, double, p->e);
  s.next_beta = CH_NEW_HOST(&x->scratch, double, p->e);
  real *margin = CH_NEW_HOST(&x->scratch, real, (int64_t)p->rows * p->e);
  if (!ch_counting(x)) {
    project(&s, p, lambda, iterations, stages);
    measure_pool(&s, p, margin);
    for (int i = 0; i < p->e; i++) p->beta[i] = s.beta[i];
  }
  ch_assign_top(x, p, margin, NULL);
}
