/* Assignments pool by pool: gathers the rows, runs a solver, computes the certificate, and writes the marks. */
#include "moe/assign/assign.h"

#include <math.h>
#include <string.h>

int ch_assign_k(int k, int valid, int e, int cap) {
  int64_t max = (int64_t)cap * valid / e;
  if (k > valid) k = valid;
  return k > max ? (int)max : k;
}

/* A score so low that no path of moves can compensate for it, so that it is assigned only if there is no other
 * assignment. */
static real floor_of(int64_t count, int e, const real *score) {
  double min = INFINITY, max = -INFINITY;
  for (int64_t j = 0; j < count; j++) {
    if (!isfinite(score[j])) continue;
    min = fmin(min, (double)score[j]);
    max = fmax(max, (double)score[j]);
  }
  if (!(min <= max)) return 0;
  real floor = (real)(min - 2 * (e + 1) * fmax(max - min, 1e-3 * fabs(max) + 1e-6));
  return isfinite(floor) ? floor : (real)min;
}

/* The valid tokens of a pool; returns how many. */
static int find_rows(const ch_assign_args *a, int pool, int *token) {
  int rows = 0;
  for (int j = a->pool_begin[pool]; j < a->pool_begin[pool + 1]; j++) {
    int t = a->order ? a->order[j] : j;
    if (!a->valid || a->valid[t]) token[rows++] = t;
  }
  return rows;
}

static void gather(const ch_assign_args *a, int rows, const int *token, real *score) {
  int64_t e = a->e, count = rows * e;
  int finite = 1;
  for (int r = 0; r < rows; r++) memcpy(score + r * e, a->score + token[r] * e, (size_t)e * sizeof *score);
  for (int64_t j = 0; j < count; j++) finite &= isfinite(score[j]) != 0;
  if (finite) return;
  real floor = floor_of(count, a->e, score);
  for (int64_t j = 0; j < count; j++)
    if (!isfinite(score[j])) score[j] = floor;
}

static void solve(ch_exec *x, const ch_assign_args *a, ch_pool *p) {
  if (!p->balanced && p->cap >= p->e)
    ch_assign_uncapped(x, p);
  else if (p->balanced || a->solver == CH_SOLVER_EXACT)
    ch_assign_exact(x, p);
  else
    ch_assign_dykstra(x, p, a->lambda, a->iterations, a->stages);
}

/* Writes a pool's result, indexed by token. */
static void scatter(const ch_assign_args *a, int pool, const ch_pool *p, const int *token) {
  for (int i = 0; i < a->e; i++) {
    const uint8_t *assigned = p->assigned + (int64_t)i * p->rows;
    for (int r = 0; r < p->rows; r++) a->assigned[(int64_t)token[r] * a->e + i] = assigned[r];
    a->beta[(int64_t)pool * a->e + i] = p->rows ? (real)p->beta[i] : (real)INFINITY;
  }
  if (a->alpha)
    for (int r = 0; r < p->rows; r++) a->alpha[token[r]] = (real)p->alpha[r];
}

static void assign_pool(ch_exec *x, const ch_assign_args *a, int pool) {
  CH_SCRATCH(x);
  int *token = CH_NEW_HOST(&x->scratch, int, a->largest);
  ch_pool p = {.rows = a->largest, .e = a->e, .cap = a->cap, .balanced = a->balanced};
  real *score = CH_NEW_HOST(&x->scratch, real, (int64_t)p.rows * p.e);
  p.assigned = CH_NEW_HOST(&x->scratch, uint8_t, (int64_t)p.rows * p.e);
  p.beta = CH_NEW_HOST(&x->scratch, double, p.e);
  p.alpha = CH_NEW_HOST(&x->scratch, double, p.rows);
  p.score = score;
  if (!ch_counting(x)) {
    p.rows = find_rows(a, pool, token);
    p.k = a->balanced ? 0 : a->k[pool];
    if (!a->balanced && !p.k) p.rows = 0; /* too few tokens for every expert to have one */
    gather(a, p.rows, token, score);
    memset(p.assigned, 0, (size_t)p.rows * (size_t)p.e);
  }
  if (p.rows) {
    solve(x, a, &p);
    ch_assign_prove(x, &p, a->certificate);
  }
  if (!ch_counting(x)) scatter(a, pool, &p, token);
}

void ch_assign(ch_exec *x, const ch_assign_args *a) {
  if (ch_counting(x)) {
    assign_pool(x, a, 0);
  } else {
    memset(a->assigned, 0, (size_t)a->e * (size_t)a->n);
    *a->certificate = (choir_certificate){0};
    if (a->alpha) memset(a->alpha, 0, (size_t)a->n * sizeof *a->alpha);
    for (int p = 0; p < a->pools; p++) assign_pool(x, a, p);
  }
}
