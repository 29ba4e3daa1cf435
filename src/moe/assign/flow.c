/* Successive shortest paths on the network of assign_flow.h. Prices stay such that no move gains anything, so every
 * result is the best one for the loads it has; each path takes one unit (or several of the same cost) from a node that
 * holds too many to one that holds too few. */
#include "moe/assign/flow.h"

#include <math.h>
#include <string.h>

enum { BLOCK = 64, PAD = 16 };

void ch_flow_alloc(ch_exec *x, ch_flow *f, int rows, int e, int keeps_slack) {
  ch_arena *a = &x->scratch;
  *f = (ch_flow){.x = x, .rows = rows, .e = e, .nodes = e + keeps_slack};
  int64_t nodes = f->nodes, ld = f->ld = (nodes + PAD - 1) / PAD * PAD;
  f->score = CH_NEW_HOST(a, real, rows * ld);
  f->open = CH_NEW_HOST(a, real, rows * ld);
  f->slack = CH_NEW_HOST(a, int, rows);
  f->excess = CH_NEW_HOST(a, int, nodes);
  f->list = CH_NEW_HOST(a, int, (int64_t)e *rows);
  f->held = CH_NEW_HOST(a, int, e);
  f->beta = CH_NEW_HOST(a, double, ld);
  f->cost = CH_NEW_HOST(a, double, nodes *ld);
  f->carrier = CH_NEW_HOST(a, int, nodes *ld);
  f->stale = CH_NEW_HOST(a, uint8_t, nodes);
  f->blocks = keeps_slack ? (rows + BLOCK - 1) / BLOCK : 0;
  f->block_cost = CH_NEW_HOST(a, double, f->blocks *ld);
  f->block_carrier = CH_NEW_HOST(a, int, f->blocks *ld);
  f->block_stale = CH_NEW_HOST(a, uint8_t, f->blocks);
  f->some_rows = CH_NEW_HOST(a, int, rows);
  f->distance = CH_NEW_HOST(a, double, nodes);
  f->previous = CH_NEW_HOST(a, int, nodes);
  f->settled = CH_NEW_HOST(a, uint8_t, nodes);
  f->step_cost = CH_NEW_HOST(a, double, nodes);
  f->step_row = CH_NEW_HOST(a, int, nodes);
}

static int is_room(const ch_flow *f, int node) { return node == f->e; }

/* --- the cheapest moves out of a node --- */

static void cheapest(ch_flow *f, int rows, const int *row, int from, double *cost, int *carrier) {
  f->x->ops->exchange(f->x, &(ch_exchange_args){.rows = rows,
                                                .from = from,
                                                .row = CH_AS_DEV(const int, row),
                                                .ld = f->ld,
                                                .score = CH_AS_DEV(const real, f->score),
                                                .open = CH_AS_DEV(const real, f->open),
                                                .cost = CH_AS_DEV(double, cost),
                                                .carrier = CH_AS_DEV(int, carrier)});
}

static void refresh_block(ch_flow *f, int block) {
  int end = (block + 1) * BLOCK < f->rows ? (block + 1) * BLOCK : f->rows, rows = 0;
  for (int r = block * BLOCK; r < end; r++)
    if (f->slack[r] > 0) f->some_rows[rows++] = r;
  cheapest(f, rows, f->some_rows, f->e, f->block_cost + block * f->ld, f->block_carrier + block * f->ld);
  f->block_stale[block] = 0;
}

static void refresh_room(ch_flow *f) {
  double *cost = f->cost + f->e * f->ld;
  int *carrier = f->carrier + f->e * f->ld;
  for (int b = 0; b < f->blocks; b++) {
    if (f->block_stale[b]) refresh_block(f, b);
    const double *of_block = f->block_cost + b * f->ld;
    const int *who = f->block_carrier + b * f->ld;
    for (int64_t j = 0; j < f->ld; j++) {
      int better = b == 0 || of_block[j] < cost[j];
      cost[j] = better ? of_block[j] : cost[j];
      carrier[j] = better ? who[j] : carrier[j];
    }
  }
}

static void refresh(ch_flow *f, int node) {
  if (!f->stale[node]) return;
  f->stale[node] = 0;
  if (is_room(f, node))
    refresh_room(f);
  else
    cheapest(f, f->held[node], f->list + (int64_t)node * f->rows, node, f->cost + node * f->ld,
             f->carrier + node * f->ld);
}

/* --- moving a row --- */

/* Row r, which the expert holds, is one more that may go to node `to`. */
static void offer(ch_flow *f, int expert, int r, int to) {
  int64_t at = expert * f->ld + to, row = r * f->ld;
  double loss = (double)f->score[row + expert] - (double)f->open[row + to];
  if (f->stale[expert] || !(loss < f->cost[at])) return;
  f->cost[at] = loss;
  f->carrier[at] = r;
}

static void append(ch_flow *f, int expert, int r) {
  f->list[(int64_t)expert * f->rows + f->held[expert]++] = r;
  f->open[r * f->ld + expert] = (real)-INFINITY;
}

static void drop(ch_flow *f, int expert, int r) {
  int *list = f->list + (int64_t)expert * f->rows, at = 0;
  while (list[at] != r) at++;
  list[at] = list[--f->held[expert]];
  f->open[r * f->ld + expert] = f->score[r * f->ld + expert];
}

/* What the row's other experts knew about it. */
static void tell_others(ch_flow *f, int r, int from, int to) {
  const real *open = f->open + r * f->ld;
  for (int i = 0; i < f->e; i++) {
    if (open[i] != (real)-INFINITY || i == to) continue;
    if (!is_room(f, to) && f->carrier[i * f->ld + to] == r) f->stale[i] = 1;
    if (!is_room(f, from)) offer(f, i, r, from);
  }
}

/* What `to` remembers need not be told of its new row: it is stale. A path's end was never looked at while it held too
 * few, and a node on the way has just given up a row itself. */
static void move(ch_flow *f, int r, int from, int to) {
  int had_slack = f->slack[r] > 0;
  f->moves++;
  if (is_room(f, from)) {
    f->slack[r]--;
  } else {
    drop(f, from, r);
    f->stale[from] = 1;
  }
  if (is_room(f, to)) {
    f->slack[r]++;
  } else {
    append(f, to, r);
  }
  tell_others(f, r, from, to);
  if (f->blocks && (had_slack || f->slack[r] > 0)) f->block_stale[r / BLOCK] = f->stale[f->e] = 1;
}

/* --- shortest paths --- */

static int nearest(const ch_flow *f) {
  int best = -1;
  for (int v = 0; v < f->nodes; v++)
    if (!f->settled[v] && f->distance[v] < INFINITY && (best < 0 || f->distance[v] < f->distance[best])) best = v;
  return best;
}

static void relax(ch_flow *f, int u) {
  const double *cost = f->cost + u * f->ld;
  double here = f->distance[u] - f->beta[u];
  for (int v = 0; v < f->nodes; v++) {
    double there = fmax(here + cost[v] + f->beta[v], f->distance[u]); /* rounding must not make a way shorter */
    if (f->settled[v] || !(there < f->distance[v])) continue;
    f->distance[v] = there;
    f->previous[v] = u;
  }
}

/* The nearest node that holds too few, or -1: prices then account for the way there. */
static int search(ch_flow *f, int source) {
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
    refresh(f, u);
    relax(f, u);
  }
  return -1;
}

/* Up to `most` rows that can make the path's step from u to v at its cost, into some_rows. */
static int carriers(ch_flow *f, int u, int v, int most) {
  if (most == 1) {
    f->some_rows[0] = f->step_row[v];
    return 1;
  }
  int rows = is_room(f, u) ? f->rows : f->held[u], count = 0;
  const int *list = is_room(f, u) ? NULL : f->list + (int64_t)u * f->rows;
  for (int i = 0; i < rows && count < most; i++) {
    int r = list ? list[i] : i;
    if (!list && f->slack[r] <= 0) continue;
    if ((double)f->score[r * f->ld + u] - (double)f->open[r * f->ld + v] == f->step_cost[v]) f->some_rows[count++] = r;
  }
  return count;
}

/* Along the path to `target`, as much as its ends, and moves of the same cost, allow. Rows are found before and again
 * while others move: a step's rows hold u and not v, and no other step of the path takes from u or gives to v. */
static void augment(ch_flow *f, int source, int target) {
  int amount = f->excess[source] < -f->excess[target] ? f->excess[source] : -f->excess[target];
  for (int v = target; v != source; v = f->previous[v]) {
    int64_t at = f->previous[v] * f->ld + v;
    f->step_cost[v] = f->cost[at];
    f->step_row[v] = f->carrier[at];
    if (amount > 1) amount = carriers(f, f->previous[v], v, amount);
  }
  for (int v = target; v != source; v = f->previous[v]) {
    int u = f->previous[v], count = carriers(f, u, v, amount);
    for (int i = 0; i < count; i++) move(f, f->some_rows[i], u, v);
  }
  f->excess[source] -= amount;
  f->excess[target] += amount;
}

void ch_flow_take(ch_flow *f, int row, int expert) {
  append(f, expert, row);
  f->slack[row]--;
}

void ch_flow_balance(ch_flow *f) {
  memset(f->stale, 1, (size_t)f->nodes);
  memset(f->block_stale, 1, (size_t)f->blocks);
  for (int u = 0; u < f->nodes; u++)
    while (f->excess[u] > 0) {
      int target = search(f, u);
      if (target < 0) return; /* no feasible loads: the caller saw to it that there are */
      augment(f, u, target);
    }
}
