/* The exact solver's network from inside: what it remembers of cheapest moves is what a fresh look finds. Results alone
 * hardly show a move that was forgotten, since nodes look again whenever they lose a row. */
#include "moe/assign/flow.h"
#include "testing.h"

static double uniform(uint32_t seed, uint64_t i) { return ch_rng_uniform(ch_rng_make(seed, CH_STREAM_TEST, 81), i); }

typedef struct {
  int rows, e, cap, share;
  uint32_t seed;
  int levels; /* of scores, for ties; 0: all distinct */
} network;

/* Prices 0: every row takes the best experts that are worth more than nothing, up to its cap. */
static void set_up(ch_mincost_flow *f, const network *c) {
  int64_t free_slack = 0;
  for (int64_t r = 0; r < c->rows; r++) {
    real *score = f->score + r * f->ld;
    for (int64_t j = 0; j < f->ld; j++) {
      double s = 2 * uniform(c->seed, (uint64_t)(r * f->ld + j)) - 0.5;
      if (c->levels) s = floor(s * c->levels) / c->levels;
      score[j] = j < c->e ? (real)s : j == c->e ? 0 : (real)-INFINITY;
    }
    memcpy(f->open + r * f->ld, score, (size_t)f->ld * sizeof *score);
    f->slack[r] = c->cap;
  }
  ch_flow_clear(f);
  for (int j = 0; j < f->ld; j++) f->beta[j] = 0;
  for (int r = 0; r < c->rows; r++) {
    while (f->slack[r] > 0) {
      const real *open = f->open + r * f->ld;
      int best = 0;
      for (int i = 1; i < c->e; i++)
        if (open[i] > open[best]) best = i;
      if (!(open[best] > 0)) break;
      ch_flow_take(f, r, best);
    }
    free_slack += f->slack[r];
  }
  for (int i = 0; i < c->e; i++) f->excess[i] = f->held[i] - c->share;
  f->excess[c->e] = (int)(free_slack - ((int64_t)c->cap * c->rows - (int64_t)c->share * c->e));
}

static int holds(const ch_mincost_flow *f, int r, int node) {
  return node == f->e ? f->slack[r] > 0 : f->open[r * f->ld + node] == (real)-INFINITY;
}

/* The least loss of a move from u to v, of the rows in [begin, end). */
static double min_of(const ch_mincost_flow *f, int u, int v, int begin, int end) {
  double min = INFINITY;
  for (int r = begin; r < end; r++)
    if (holds(f, r, u) && (v == f->e || !holds(f, r, v)))
      min = fmin(min, (double)f->score[r * f->ld + u] - (double)f->score[r * f->ld + v]);
  return min;
}

/* Checks what a part that is not stale remembers of the rows [begin, end). */
static void check_part(const ch_mincost_flow *f, const network *c, int u, int part, int begin, int end) {
  for (int v = 0; v < f->nodes; v++) {
    if (v == u) continue;
    double min = min_of(f, u, v, begin, end), cost = f->out[u].cost[part * f->ld + v];
    int carrier = f->out[u].carrier[part * f->ld + v];
    if (cost != min)
      fail_msg("seed %u: %d to %d costs %g in part %d, remembered is %g", c->seed, u, v, min, part, cost);
    if (isinf(min)) continue;
    assert_true(carrier >= begin && carrier < end);
    assert_true(min_of(f, u, v, carrier, carrier + 1) == min);
    assert_true(min - f->beta[u] + f->beta[v] >= -1e-9); /* and at the prices none gains */
  }
}

/* Nodes know their rows and, in every part that is not stale, the cheapest moves; a part above a stale one is stale.
 * Returns how many parts above blocks there were to look at. */
static int check_memory(const ch_mincost_flow *f, const network *c) {
  int fresh = 0;
  for (int u = 0; u < f->nodes; u++) {
    const ch_cheapest *m = &f->out[u];
    for (int r = 0; r < c->rows; r++) assert_int_equal(ch_cheapest_holds(m, r), holds(f, r, u));
    for (int level = 0, size = m->block; level < m->levels; level++, size *= CH_CHEAPEST_FAN)
      for (int i = 0; i < m->parts[level]; i++) {
        int part = m->first[level] + i, end = (i + 1) * size < c->rows ? (i + 1) * size : c->rows;
        for (int below = i * CH_CHEAPEST_FAN; level && below < (i + 1) * CH_CHEAPEST_FAN; below++)
          if (below < m->parts[level - 1] && m->stale[m->first[level - 1] + below]) assert_true(m->stale[part]);
        if (m->stale[part]) continue;
        check_part(f, c, u, part, i * size, end);
        fresh += level > 0;
      }
  }
  return fresh;
}

static void check_balance(const ch_mincost_flow *f, const network *c) {
  for (int v = 0; v < f->nodes; v++) assert_int_equal(f->excess[v], 0);
  for (int i = 0; i < c->e; i++) assert_int_equal(f->held[i], c->share);
  for (int r = 0; r < c->rows; r++) {
    int has = 0;
    for (int i = 0; i < c->e; i++) has += holds(f, r, i);
    assert_true(f->slack[r] >= 0);
    assert_int_equal(has + f->slack[r], c->cap);
  }
}

static void memory_is_what_a_fresh_look_finds(void **state) {
  int fresh = 0;
  for (uint32_t seed = 0; seed < 1500; seed++) {
    double max = seed % 50 ? 150 : 2000; /* rows: two levels of parts, or three */
    network c = {.rows = 6 + (int)(max * uniform(seed, 1u << 20)), .e = 3 + (int)seed % 7, .seed = seed};
    c.cap = 2 + (int)(seed / 7) % (c.e - 1);
    c.share = (int)((double)c.cap * c.rows / c.e * (0.3 + 0.7 * uniform(seed, 2u << 20)));
    if (c.share > c.rows) c.share = c.rows;
    c.levels = seed % 3 == 2 ? 4 : 0;
    TEST_EXEC("cpu", CH_COMPUTE_FP32, 1, {
      ch_mincost_flow f;
      ch_flow_alloc(&x, &f, c.rows, c.e, 1);
      if (pass_) {
        set_up(&f, &c);
        ch_flow_balance(&f);
        check_balance(&f, &c);
        fresh += check_memory(&f, &c);
      } else {
        x.ops->exchange(&x, &(ch_exchange_args){.ld = f.ld});
      }
      ch_arena_release(&x.scratch, 0);
    });
  }
  assert_true(fresh > 1000); /* there was something to look at */
}

TEST_MAIN(NULL, NULL, memory_is_what_a_fresh_look_finds)
