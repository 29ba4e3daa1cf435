/* The rows of a node of the network, and the cheapest moves out of it. Adding or removing a row makes only its block
 * and the block's ancestors stale, so the work of an update rarely grows with the number of rows. */
#include <string.h>

#include "moe/assign/flow.h"

static int parts_of(int rows, int size) { return (rows + size - 1) / size; }

void ch_cheapest_alloc(ch_mincost_flow *f, ch_cheapest *c, int block) {
  ch_arena *a = &f->x->scratch;
  ch_cheapest m = {.block = block};
  int blocks = parts_of(f->rows, block), all = 0;
  for (int parts = blocks;; parts = parts_of(parts, CH_CHEAPEST_FAN)) {
    m.first[m.levels] = all;
    m.parts[m.levels++] = parts;
    all += parts;
    if (parts <= 1) break;
  }
  m.holds = CH_NEW_HOST(a, uint64_t, (int64_t)blocks * (block / 64));
  m.cost = CH_NEW_HOST(a, double, all * f->ld);
  m.carrier = CH_NEW_HOST(a, int, all * f->ld);
  m.stale = CH_NEW_HOST(a, uint8_t, all);
  if (!ch_counting(f->x)) *c = m;
}

void ch_cheapest_clear(ch_cheapest *c) {
  memset(c->holds, 0, (size_t)c->parts[0] * (size_t)(c->block / 64) * sizeof *c->holds);
  memset(c->stale, 1, (size_t)c->first[c->levels - 1] + 1);
}

static void make_stale(ch_cheapest *c, int row) {
  for (int level = 0, part = row / c->block; level < c->levels; level++, part /= CH_CHEAPEST_FAN) {
    uint8_t *stale = &c->stale[c->first[level] + part];
    if (*stale) return;
    *stale = 1;
  }
}

void ch_cheapest_put(ch_cheapest *c, int row, int holds) {
  uint64_t bit = (uint64_t)1 << row % 64;
  c->holds[row / 64] = holds ? c->holds[row / 64] | bit : c->holds[row / 64] & ~bit;
  make_stale(c, row);
}

void ch_cheapest_withdraw(const ch_mincost_flow *f, ch_cheapest *c, int row, int to) {
  if (c->carrier[row / c->block * f->ld + to] == row) make_stale(c, row);
}

void ch_cheapest_offer(const ch_mincost_flow *f, ch_cheapest *c, int row, int to, double loss) {
  for (int level = 0, part = row / c->block; level < c->levels; level++, part /= CH_CHEAPEST_FAN) {
    int64_t at = (c->first[level] + part) * f->ld + to;
    if (c->stale[c->first[level] + part] || !(loss < c->cost[at])) return;
    c->cost[at] = loss;
    c->carrier[at] = row;
  }
}

/* --- recomputing stale tree nodes --- */

static int rows_of(const ch_cheapest *c, int block, int *row) {
  int words = c->block / 64, count = 0;
  for (int word = block * words; word < (block + 1) * words; word++)
    for (uint64_t bits = c->holds[word]; bits; bits &= bits - 1) row[count++] = word * 64 + __builtin_ctzll(bits);
  return count;
}

static void refresh_block(ch_mincost_flow *f, int node, int block) {
  ch_cheapest *c = &f->out[node];
  int rows = rows_of(c, block, f->some_rows);
  CH_OP(f->x, exchange, .rows = rows, .from = node, .row = CH_AS_DEV(const int, f->some_rows), .ld = f->ld,
        .score = CH_AS_DEV(const real, f->score), .open = CH_AS_DEV(const real, f->open),
        .cost = CH_AS_DEV(double, c->cost + block * f->ld), .carrier = CH_AS_DEV(int, c->carrier + block * f->ld));
}

/* Merges the tree nodes [begin, end) of one level into their parent. */
static void merge(const ch_mincost_flow *f, ch_cheapest *c, int begin, int end, int into) {
  double *cost = c->cost + into * f->ld;
  int *carrier = c->carrier + into * f->ld;
  memcpy(cost, c->cost + begin * f->ld, (size_t)f->ld * sizeof *cost);
  memcpy(carrier, c->carrier + begin * f->ld, (size_t)f->ld * sizeof *carrier);
  for (int part = begin + 1; part < end; part++) {
    const double *other = c->cost + part * f->ld;
    const int *who = c->carrier + part * f->ld;
    for (int64_t j = 0; j < f->ld; j++) {
      int better = other[j] < cost[j];
      cost[j] = better ? other[j] : cost[j];
      carrier[j] = better ? who[j] : carrier[j];
    }
  }
}

static void refresh(ch_mincost_flow *f, int node, int level, int part) {
  ch_cheapest *c = &f->out[node];
  uint8_t *stale = &c->stale[c->first[level] + part];
  if (!*stale) return;
  *stale = 0;
  if (level == 0) {
    refresh_block(f, node, part);
    return;
  }
  int begin = part * CH_CHEAPEST_FAN,
      end = begin + CH_CHEAPEST_FAN < c->parts[level - 1] ? begin + CH_CHEAPEST_FAN : c->parts[level - 1];
  for (int below = begin; below < end; below++) refresh(f, node, level - 1, below);
  merge(f, c, c->first[level - 1] + begin, c->first[level - 1] + end, c->first[level] + part);
}

void ch_cheapest_refresh(ch_mincost_flow *f, int node) { refresh(f, node, f->out[node].levels - 1, 0); }

/* --- all rows of one cost --- */

/* Stale blocks (rows have moved since the last refresh) are always searched, other blocks only if their cost is equal
 * to `cost`. */
int ch_cheapest_carriers(const ch_mincost_flow *f, int node, int to, double cost, int max, int *row) {
  const ch_cheapest *c = &f->out[node];
  int count = 0;
  for (int block = 0; block < c->parts[0] && count < max; block++) {
    if (!c->stale[block] && c->cost[block * f->ld + to] > cost) continue;
    for (int word = block * (c->block / 64); word < (block + 1) * (c->block / 64); word++)
      for (uint64_t bits = c->holds[word]; bits && count < max; bits &= bits - 1) {
        int64_t r = word * 64 + __builtin_ctzll(bits), at = r * f->ld;
        if ((double)f->score[at + node] - (double)f->open[at + to] == cost) row[count++] = (int)r;
      }
  }
  return count;
}
