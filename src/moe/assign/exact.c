/* The exact solver. Multilevel: initial prices come from the same problem on every fourth row, whose prices come from
 * every sixteenth row, and so on; the coarsest level starts from the cut-offs without a cap. At these prices each row
 * gets its best experts, and remaining imbalance is removed along shortest paths (flow.c). */
#include <math.h>
#include <string.h>

#include "base/order.h"
#include "moe/assign/flow.h"

enum { COARSER = 4, ROWS_MIN = 256, SHARE_MIN = 4 };

/* A problem on every `stride`-th row. Balanced: a last row without scores fills the loads that are rounded up. */
typedef struct {
  const ch_pool *pool;
  int stride, rows, extra; /* rows of the pool at this level; extra 1: plus the row without scores */
  int share;               /* rows per expert */
} level;

static level make_level(const ch_pool *p, int stride) {
  level l = {.pool = p, .stride = stride, .rows = (p->rows + stride - 1) / stride};
  if (p->balanced) {
    l.share = (l.rows + p->e - 1) / p->e;
    l.extra = (int64_t)l.share * p->e > l.rows;
  } else {
    int64_t max = (int64_t)p->cap * l.rows / p->e, share = ((int64_t)p->k * l.rows + p->rows / 2) / p->rows;
    l.share = (int)(share < max ? share : max);
    if (l.share > l.rows) l.share = l.rows;
  }
  return l;
}

/* Max experts of a row. */
static int slack_of(const level *l, int row) {
  const ch_pool *p = l->pool;
  if (!p->balanced) return p->cap;
  return row < l->rows ? 1 : l->share * p->e - l->rows;
}

static void set_up_flow(ch_mincost_flow *f, const level *l) {
  int e = f->e;
  for (int64_t r = 0; r < f->rows; r++) {
    real *score = f->score + r * f->ld;
    if (r < l->rows)
      memcpy(score, l->pool->score + r * l->stride * e, (size_t)e * sizeof *score);
    else
      memset(score, 0, (size_t)e * sizeof *score);
    for (int64_t j = e; j < f->ld; j++) score[j] = j < f->nodes ? 0 : (real)-INFINITY;
    memcpy(f->open + r * f->ld, score, (size_t)f->ld * sizeof *score);
    f->slack[r] = slack_of(l, (int)r);
  }
  ch_flow_clear(f);
}

/* Initial prices: the experts' cut-offs without a cap. `column` is scratch [rows]. */
static void first_prices(ch_mincost_flow *f, const level *l, real *column) {
  for (int i = 0; i < f->e; i++) {
    for (int r = 0; r < l->rows; r++) column[r] = f->score[r * f->ld + i];
    f->beta[i] = (double)ch_kth_largest(column, l->rows, l->share < 1 ? 1 : l->share);
  }
}

/* Assigns a row to its best experts at the prices, up to its cap; with keeps_slack only to experts of positive value.
 * Ties: the lower expert. */
static void take_best(ch_mincost_flow *f, int row, int keeps_slack, int *best) {
  const real *score = f->score + row * f->ld;
  int max = f->slack[row], count = 0;
  for (int i = 0; i < f->e; i++) {
    double worth = (double)score[i] - f->beta[i];
    if (keeps_slack && !(worth > 0)) continue;
    if (count == max) {
      if (!(worth > (double)score[best[count - 1]] - f->beta[best[count - 1]])) continue;
      count--;
    }
    int at = count++;
    for (; at > 0 && worth > (double)score[best[at - 1]] - f->beta[best[at - 1]]; at--) best[at] = best[at - 1];
    best[at] = i;
  }
  for (int j = 0; j < count; j++) ch_flow_take(f, row, best[j]);
}

static void count_excess(ch_mincost_flow *f, const level *l, int keeps_slack) {
  int64_t free_slack = 0, kept = 0;
  for (int r = 0; r < f->rows; r++) {
    free_slack += f->slack[r];
    kept += slack_of(l, r);
  }
  for (int i = 0; i < f->e; i++) f->excess[i] = f->held[i] - l->share;
  if (keeps_slack) f->excess[f->e] = (int)(free_slack - (kept - (int64_t)l->share * f->e));
}

/* Solves one level from the prices in pool->beta, or from first prices, and updates them. */
static void solve(ch_exec *x, ch_pool *p, const level *l, int first) {
  CH_SCRATCH(x);
  ch_mincost_flow f;
  int keeps_slack = !p->balanced;
  ch_flow_alloc(x, &f, l->rows + (p->balanced != 0), p->e, keeps_slack);
  real *column = CH_NEW_HOST(&x->scratch, real, l->rows);
  int *best = CH_NEW_HOST(&x->scratch, int, p->e);
  if (ch_counting(x)) return;
  f.rows = l->rows + l->extra;
  set_up_flow(&f, l);
  if (first)
    first_prices(&f, l, column);
  else
    memcpy(f.beta, p->beta, (size_t)p->e * sizeof *f.beta);
  if (keeps_slack) f.beta[p->e] = 0;
  for (int r = 0; r < f.rows; r++) take_best(&f, r, keeps_slack, best);
  count_excess(&f, l, keeps_slack);
  ch_flow_balance(&f);
  for (int i = 0; i < p->e; i++) p->beta[i] = f.beta[i] - (keeps_slack ? f.beta[p->e] : 0);
  if (l->stride == 1)
    for (int i = 0; i < p->e; i++)
      for (int r = 0; r < l->rows; r++)
        p->assigned[(int64_t)i * p->rows + r] = (uint8_t)ch_cheapest_holds(&f.out[i], r);
  p->iterations += f.moves;
}

void ch_assign_exact(ch_exec *x, ch_pool *p) {
  p->iterations = 0;
  p->expert_before = p->token_before = 0;
  int stride = 1;
  if (!ch_counting(x))
    while (p->rows / (stride * COARSER) >= ROWS_MIN && make_level(p, stride * COARSER).share >= SHARE_MIN)
      stride *= COARSER;
  for (int first = 1; stride >= 1; stride /= COARSER, first = 0) {
    level l = make_level(p, stride);
    solve(x, p, &l, first);
  }
}
