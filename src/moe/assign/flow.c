/* Successive shortest paths on the network of flow.h. All reduced costs stay nonnegative, so every intermediate
 * assignment is optimal for its loads. Each path moves one unit (or several of the same cost) from an overloaded node
 * to an underloaded one. */
#include "moe/assign/flow.h"

#include <math.h>
#include <string.h>

/* Block sizes of the trees: about 8 e rows for an expert (so 8 c of its n c / e rows), 64 rows for slack. Half and
 * double of either were slower. */
enum { ROWS_AN_EXPERT = 8, FREE_ENTRIES = 64, PAD = 16 };

void ch_flow_alloc(ch_exec *x, ch_mincost_flow *f, int rows, int e, int keeps_slack) {
  ch_arena *a = &x->scratch;
  *f = (ch_mincost_flow){.x = x, .rows = rows, .e = e, .nodes = e + keeps_slack};
  int64_t nodes = f->nodes, ld = f->ld = (nodes + PAD - 1) / PAD * PAD;
  f->score = CH_NEW_HOST(a, real, rows * ld);
  f->open = CH_NEW_HOST(a, real, rows * ld);
  f->slack = CH_NEW_HOST(a, int, rows);
  f->excess = CH_NEW_HOST(a, int, nodes);
  f->held = CH_NEW_HOST(a, int, e);
  f->beta = CH_NEW_HOST(a, double, ld);
  f->out = CH_NEW_HOST(a, ch_cheapest, nodes);
  for (int v = 0; v < f->nodes; v++)
    ch_cheapest_alloc(f, &f->out[v], v == e ? FREE_ENTRIES : (ROWS_AN_EXPERT * e + 63) / 64 * 64);
  f->some_rows = CH_NEW_HOST(a, int, rows);
  f->distance = CH_NEW_HOST(a, double, nodes);
  f->previous = CH_NEW_HOST(a, int, nodes);
  f->settled = CH_NEW_HOST(a, uint8_t, nodes);
  f->step_cost = CH_NEW_HOST(a, double, nodes);
  f->step_row = CH_NEW_HOST(a, int, nodes);
}

static int is_free_node(const ch_mincost_flow *f, int node) { return node == f->e; }

/* --- moving a row --- */

static void append_row(ch_mincost_flow *f, int expert, int r) {
  f->held[expert]++;
  f->open[r * f->ld + expert] = (real)-INFINITY;
  ch_cheapest_put(&f->out[expert], r, 1);
}

static void drop(ch_mincost_flow *f, int expert, int r) {
  f->held[expert]--;
  f->open[r * f->ld + expert] = f->score[r * f->ld + expert];
  ch_cheapest_put(&f->out[expert], r, 0);
}

/* Marks the row's blocks stale at its other experts, because the costs of moving the row from them have changed. */
static void tell_others(ch_mincost_flow *f, int r, int from, int to) {
  const real *score = f->score + r * f->ld, *open = f->open + r * f->ld;
  for (int i = 0; i < f->e; i++) {
    if (open[i] != (real)-INFINITY || i == to) continue;
    if (!is_free_node(f, to)) ch_cheapest_withdraw(f, &f->out[i], r, to);
    if (!is_free_node(f, from)) ch_cheapest_offer(f, &f->out[i], r, from, (double)score[i] - (double)score[from]);
  }
}

static void move(ch_mincost_flow *f, int r, int from, int to) {
  int had_slack = f->slack[r] > 0;
  f->moves++;
  if (is_free_node(f, from))
    f->slack[r]--;
  else
    drop(f, from, r);
  if (is_free_node(f, to))
    f->slack[r]++;
  else
    append_row(f, to, r);
  tell_others(f, r, from, to);
  if (f->nodes > f->e && (had_slack || f->slack[r] > 0)) ch_cheapest_put(&f->out[f->e], r, f->slack[r] > 0);
}

/* --- shortest paths --- */

static int nearest(const ch_mincost_flow *f) {
  int best = -1;
  double min = INFINITY;
  for (int v = 0; v < f->nodes; v++) {
    if (f->settled[v] || !(f->distance[v] < min)) continue;
    min = f->distance[v];
    best = v;
  }
  return best;
}

/* Clamps negative rounded costs to 0, so that no settled node is reached again. */
static void relax(ch_mincost_flow *f, int u) {
  const double *cost = f->out[u].cost + ch_cheapest_all(f, &f->out[u]), *beta = f->beta;
  double *distance = f->distance, so_far = distance[u], here = so_far - beta[u];
  int *previous = f->previous;
  for (int v = 0; v < f->nodes; v++) {
    double there = here + cost[v] + beta[v];
    there = there > so_far ? there : so_far;
    int nearer = there < distance[v];
    distance[v] = nearer ? there : distance[v];
    previous[v] = nearer ? u : previous[v];
  }
}

/* Dijkstra: finds the nearest underloaded node, or -1, and updates prices by the distances. */
static int search(ch_mincost_flow *f, int source) {
  for (int v = 0; v < f->nodes; v++) f->distance[v] = v == source ? 0 : INFINITY;
  memset(f->settled, 0, (size_t)f->nodes);
  f->previous[source] = -1;
  for (int u; (u = nearest(f)) >= 0;) {
    f->settled[u] = 1;
    if (f->excess[u] < 0) {
      for (int v = 0; v < f->nodes; v++)
        if (f->settled[v]) f->beta[v] += f->distance[u] - f->distance[v];
      return u;
    }
    ch_cheapest_refresh(f, u);
    relax(f, u);
  }
  return -1;
}

/* Finds up to `max` rows that can make the path's step from u to v at its cost; writes them to some_rows. */
static int carriers(ch_mincost_flow *f, int u, int v, int max) {
  if (max > 1) return ch_cheapest_carriers(f, u, v, f->step_cost[v], max, f->some_rows);
  f->some_rows[0] = f->step_row[v];
  return 1;
}

/* Moves as many units along the path to `target` as its ends need and as there are moves of the same cost. The rows of
 * a step are searched twice, to count them and to move them. Both searches find the same rows: no other step of the
 * path takes rows from u or gives rows to v. */
static void augment(ch_mincost_flow *f, int source, int target) {
  int amount = f->excess[source] < -f->excess[target] ? f->excess[source] : -f->excess[target];
  for (int v = target; v != source; v = f->previous[v]) {
    const ch_cheapest *c = &f->out[f->previous[v]];
    int64_t at = ch_cheapest_all(f, c) + v;
    f->step_cost[v] = c->cost[at];
    f->step_row[v] = c->carrier[at];
    if (amount > 1) amount = carriers(f, f->previous[v], v, amount);
  }
  for (int v = target; v != source; v = f->previous[v]) {
    int u = f->previous[v], count = carriers(f, u, v, amount);
    for (int i = 0; i < count; i++) move(f, f->some_rows[i], u, v);
  }
  f->excess[source] -= amount;
  f->excess[target] += amount;
}

void ch_flow_clear(ch_mincost_flow *f) {
  memset(f->held, 0, (size_t)f->e * sizeof *f->held);
  for (int v = 0; v < f->nodes; v++) ch_cheapest_clear(&f->out[v]);
}

void ch_flow_take(ch_mincost_flow *f, int row, int expert) {
  append_row(f, expert, row);
  f->slack[row]--;
}

void ch_flow_balance(ch_mincost_flow *f) {
  for (int r = 0; r < f->rows && f->nodes > f->e; r++)
    if (f->slack[r] > 0) ch_cheapest_put(&f->out[f->e], r, 1);
  for (int u = 0; u < f->nodes; u++)
    while (f->excess[u] > 0) {
      int target = search(f, u);
      if (target < 0) return; /* loads are infeasible, which the caller excludes */
      augment(f, u, target);
    }
}
