/* The routers again, written from their definitions with double loops and no record: gates [n,e], counts and auxiliary
 * loss. Shares no code with src/moe. */
#ifndef CH_TESTS_NAIVE_ROUTING_H
#define CH_TESTS_NAIVE_ROUTING_H

#include "testing.h"

typedef struct {
  const ch_router_spec *o;
  int n, e, T; /* T 0: one sequence */
  const real *scores;
  const int32_t *token;
  const uint8_t *valid;
  int training;
  ch_rng rng; /* of second experts */
  uint64_t rng_base;
  /* out */
  double *gate; /* [n,e] */
  int64_t dropped;
  double aux;
} naive_routing;

static inline int naive_valid(const naive_routing *q, int t) { return !q->valid || q->valid[t]; }

static inline double naive_score(const naive_routing *q, int t, int i) { return (double)q->scores[t * q->e + i]; }

/* The best k tokens for expert i, one after the other. */
static inline void naive_take(naive_routing *q, int i, int k) {
  for (int taken = 0; taken < k; taken++) {
    int best = -1;
    for (int t = 0; t < q->n; t++)
      if (naive_valid(q, t) && isnan(q->gate[t * q->e + i]) &&
          (best < 0 || naive_score(q, t, i) > naive_score(q, best, i)))
        best = t;
    q->gate[best * q->e + i] = naive_score(q, best, i);
  }
}

static inline int naive_valid_count(const naive_routing *q) {
  int valid = 0;
  for (int t = 0; t < q->n; t++) valid += naive_valid(q, t);
  return valid;
}

static inline void naive_expert_choice(naive_routing *q, double factor) {
  int valid = naive_valid_count(q), k = (int)lround(factor * valid / q->e); /* halves go up: nothing is negative here */
  if (k < 1) k = 1;
  if (k > valid) k = valid;
  for (int j = 0; j < q->n * q->e; j++) q->gate[j] = (double)NAN; /* not taken yet */
  for (int i = 0; i < q->e; i++) naive_take(q, i, k);
  for (int j = 0; j < q->n * q->e; j++)
    if (isnan(q->gate[j])) q->gate[j] = 0;
}

/* The pool of token t. */
static inline int naive_pool(const naive_routing *q, int t) {
  int T = q->T > 0 ? q->T : q->n;
  if (q->o->pool == CH_POOL_SEQUENCE) return t / T;
  if (q->o->pool == CH_POOL_POSITION) return t % T;
  return q->o->pool != CH_POOL_GROUP ? 0 : t / q->o->group_size;
}

/* Applies the rule to the tokens of each pool separately. */
static inline void naive_by_pools(naive_routing *q, double factor, void (*rule)(naive_routing *, double)) {
  int *token = malloc(sizeof *token * (size_t)q->n);
  uint8_t *valid = malloc((size_t)q->n);
  real *scores = test_new(q->n * q->e);
  double *gate = malloc(sizeof *gate * (size_t)(q->n * q->e));
  for (int p = 0; p < q->n; p++) {
    naive_routing pool = *q;
    pool.n = 0, pool.scores = scores, pool.valid = valid, pool.gate = gate;
    for (int t = 0; t < q->n; t++) {
      if (naive_pool(q, t) != p) continue;
      valid[pool.n] = (uint8_t)naive_valid(q, t);
      memcpy(scores + pool.n * q->e, q->scores + t * q->e, sizeof *scores * (size_t)q->e);
      token[pool.n++] = t;
    }
    for (int j = 0; j < pool.n * q->e; j++) gate[j] = 0;
    pool.dropped = 0;
    rule(&pool, factor);
    q->dropped += pool.dropped;
    for (int j = 0; j < pool.n * q->e; j++) q->gate[token[j / q->e] * q->e + j % q->e] = gate[j];
  }
  free(token);
  free(valid);
  free(scores);
  free(gate);
}

/* The expert that token t likes best after `before` others. */
static inline int naive_choice(const naive_routing *q, int t, int before) {
  uint8_t gone[256] = {0};
  for (int best;; before--) {
    best = -1;
    for (int i = 0; i < q->e; i++)
      if (!gone[i] && (best < 0 || naive_score(q, t, i) > naive_score(q, t, best))) best = i;
    if (!before || best < 0) return best;
    gone[best] = 1;
  }
}

static inline double naive_null(const naive_routing *q, int t) {
  double left = 1; /* which all null experts share */
  for (int i = 0; i < q->e; i++) left -= naive_score(q, t, i);
  return left;
}

/* Whether token t has its expert number `round` among `choices` choices, some of which null experts may have before. */
static inline int naive_has(const naive_routing *q, int t, int round, int choices) {
  int nulls = q->o->null_experts;
  return round + (naive_null(q, t) > nulls * naive_score(q, t, naive_choice(q, t, round)) ? nulls : 0) < choices;
}

/* e sum f P over the tokens of each group of `span`, P of scores divided by their sum where they are sigmoids; the mean
 * of the groups that have a valid token. Null experts are experts, with the highest numbers. */
static inline void naive_balance(naive_routing *q, int counted, int span) {
  int groups = 0, sigmoid = q->o->score == CH_SIGMOID, nulls = q->o->null_experts;
  for (int begin = 0; begin < q->n; begin += span) {
    double f[256] = {0}, P[256] = {0}, valid = 0;
    for (int t = begin; t < begin + span && t < q->n; t++) {
      if (!naive_valid(q, t)) continue;
      double whole = 1 - naive_null(q, t);
      for (int j = 0; j < counted; j++) f[naive_has(q, t, j, counted) ? naive_choice(q, t, j) : q->e] += 1.0 / counted;
      if (nulls) P[q->e] += naive_null(q, t) / nulls; /* all null experts count as one: sum of f, mean of P */
      for (int i = 0; i < q->e; i++) P[i] += naive_score(q, t, i) / (sigmoid ? whole : 1);
      valid++;
    }
    groups += valid > 0;
    for (int i = 0; i <= q->e && valid > 0; i++) q->aux += (q->e + nulls) * (f[i] / valid) * (P[i] / valid);
  }
  if (groups) q->aux /= groups;
}

/* How many tokens have their turn before t. */
static inline int naive_place(const naive_routing *q, int t) {
  int before = 0;
  for (int u = 0; u < q->n; u++) {
    double mine = naive_score(q, t, naive_choice(q, t, 0)), other = naive_score(q, u, naive_choice(q, u, 0));
    before += q->o->priority != CH_BY_SCORE ? u < t : other > mine || (other == mine && u < t);
  }
  return before;
}

/* shares: a gate is the score's share of the two, and the loss is about first choices. */
static inline void naive_token_choice(naive_routing *q, double factor, int choices, int shares) {
  int valid = naive_valid_count(q), room[256] = {0}, order[1024], all = q->e + q->o->null_experts;
  for (int i = 0; i < q->e; i++) room[i] = factor > 0 ? (int)ceil(factor * choices * valid / all - 1e-9) : valid;
  for (int t = 0; t < q->n; t++) order[naive_place(q, t)] = t;
  for (int round = 0; round < choices; round++)
    for (int at = 0; at < q->n; at++) {
      int t = order[at], mine = naive_choice(q, t, round);
      if (!naive_valid(q, t) || !naive_has(q, t, round, choices)) continue;
      double gate = naive_score(q, t, mine), both = 0;
      if (shares) both = naive_score(q, t, naive_choice(q, t, 0)) + naive_score(q, t, naive_choice(q, t, 1));
      if (round && shares && q->training && q->o->random_second &&
          ch_rng_uniform(q->rng, q->rng_base + (uint64_t)t) >= 2 * gate / both)
        continue;
      if (room[mine]-- > 0)
        q->gate[t * q->e + mine] = shares ? gate / both : gate;
      else
        q->dropped++;
    }
  naive_balance(q, shares ? 1 : choices, q->o->aux_scope != CH_SCOPE_SEQUENCE || q->T < 1 ? q->n : q->T);
}

/* Half-way between the k-th and the next largest of count values, which lose them; the k-th where it is the last. */
static inline real naive_between(real *value, int count, int k) {
  real kth = 0, next = 0;
  for (int rank = 0; rank <= k && rank < count; rank++) {
    int best = rank;
    for (int j = rank + 1; j < count; j++)
      if (value[j] > value[best]) best = j;
    real swap = value[rank];
    value[rank] = value[best];
    value[best] = swap;
    if (rank < k) kth = next = value[rank];
    next = value[rank];
  }
  return k < count ? (kth + next) / 2 : kth;
}

/* Every token its K best of S - beta; margins as rounded as the router's, lest ties fall otherwise. */
static inline void naive_quantile_balanced(naive_routing *q, double factor) {
  (void)factor;
  int K = q->o->experts_per_token, e = q->e, valid = 0;
  real beta[256] = {0}, alpha[1024] = {0}, room[1024];
  for (int t = 0; t < q->n; t++) valid += naive_valid(q, t);
  int k = (int)fmax(1, (double)lround((double)valid * K / e));
  for (int round = 0; round < 16 && q->training && valid && K < e; round++) {
    double sum = 0;
    int apart = 0;
    for (int t = 0; t < q->n; t++) {
      for (int i = 0; i < e; i++) room[i] = q->scores[t * e + i] - beta[i];
      alpha[t] = naive_between(room, e, K);
    }
    for (int i = 0; i < e; i++) {
      int count = 0;
      for (int t = 0; t < q->n; t++)
        if (naive_valid(q, t)) room[count++] = q->scores[t * e + i] - alpha[t];
      beta[i] = naive_between(room, count, k);
      apart |= k < count && room[k - 1] != room[k]; /* which are sorted so far */
    }
    for (int i = 0; i < e && !apart; i++) beta[i] = 0;
    for (int i = 0; i < e; i++) sum += (double)beta[i];
    for (int i = 0; i < e; i++) beta[i] = (real)((double)beta[i] - (sum - 1) / e);
  }
  for (int t = 0; t < q->n; t++)
    for (int j = 0; j < K && naive_valid(q, t); j++) {
      int best = -1;
      for (int i = 0; i < e; i++)
        if (q->gate[t * e + i] == 0 &&
            (best < 0 || q->scores[t * e + i] - beta[i] > q->scores[t * e + best] - beta[best]))
          best = i;
      q->gate[t * e + best] = naive_score(q, t, best);
    }
}

/* Every token its K best of S: without thresholds, prices are 0. */
static inline void naive_bias_balanced(naive_routing *q, double factor) {
  naive_routing unpriced = *q;
  unpriced.training = 0;
  naive_quantile_balanced(&unpriced, factor);
}

/* Expert number `drawn` of those without a gate, K times for each token. */
static inline void naive_random(naive_routing *q, double factor) {
  (void)factor;
  for (int t = 0, K = q->o->experts_per_token; t < q->n; t++)
    for (int j = 0; j < K && naive_valid(q, t); j++) {
      ch_rng rng = q->training ? q->rng : ch_rng_make(0, q->rng.stream, q->rng.sub);
      uint64_t index = q->training ? q->rng_base + (uint64_t)t : (uint64_t)q->token[t];
      int drawn = (int)ch_rng_below(rng, index * (uint64_t)K + (uint64_t)j, (uint64_t)(q->e - j)), i = 0;
      while (q->gate[t * q->e + i] != 0 || drawn-- > 0) i++;
      q->gate[t * q->e + i] = 1.0 / K;
    }
}

/* The best pair that is left, again and again. */
static inline void naive_global_topk(naive_routing *q, double factor) {
  int n = q->n, e = q->e, valid = 0, held[256] = {0}, had[1024] = {0}, cap = q->o->cap ? q->o->cap : e;
  uint8_t *gone = calloc((size_t)(n * e), 1);
  for (int t = 0; t < n; t++) valid += naive_valid(q, t);
  int left = (int)lround(factor * valid), room = (int)ceil(2 * factor * valid / e - 1e-9);
  if (left < 1) left = valid > 0;
  if (left > cap * valid) left = cap * valid;
  if (room > valid) room = valid;
  while (left) {
    int best = -1;
    for (int at = 0; at < n * e; at++)
      if (naive_valid(q, at / e) && !gone[at] && (best < 0 || q->scores[at] > q->scores[best])) best = at;
    if (best < 0) break;
    gone[best] = 1;
    if (held[best % e] == room || had[best / e] == cap) {
      q->dropped++;
      continue;
    }
    held[best % e]++, had[best / e]++, left--;
    q->gate[best] = (double)q->scores[best];
  }
  free(gone);
}

/* A network of units: source, experts, tokens, sink. */
typedef struct {
  int from, to, room;
  double cost;
} naive_arc;

/* One unit more along the cheapest way from node 0 to the last node, if there is one. arcs come in pairs, there and
 * back. */
static inline int naive_push(naive_arc *arc, int arcs, int nodes) {
  double distance[2048] = {0};
  int by[2048] = {0}, changed = 1;
  for (int v = 0; v < nodes; v++) distance[v] = v ? INFINITY : 0;
  while (changed) {
    changed = 0;
    for (int j = 0; j < arcs; j++) {
      double there = distance[arc[j].from] + arc[j].cost;
      if (!arc[j].room || !(there < distance[arc[j].to] - 1e-12)) continue;
      distance[arc[j].to] = there;
      by[arc[j].to] = j;
      changed = 1;
    }
  }
  if (isinf(distance[nodes - 1])) return 0;
  for (int v = nodes - 1; v; v = arc[by[v]].from) {
    arc[by[v]].room--;
    arc[by[v] ^ 1].room++;
  }
  return 1;
}

/* The best way to give experts `least` to `most` of the tokens begin .. end-1, `units` in all, a token having at most
 * cap: gates are marked 1. */
static inline void naive_assign(naive_routing *q, int begin, int end, int min, int max, int units, int cap) {
  int e = q->e, nodes = 2 + e + end - begin, arcs = 0;
  naive_arc *arc = calloc((size_t)(2 * (2 * e + (e + 1) * (end - begin))), sizeof *arc);
#define NAIVE_ARC(a, b, space, price)                                                    \
  do {                                                                                   \
    arc[arcs++] = (naive_arc){.from = (a), .to = (b), .room = (space), .cost = (price)}; \
    arc[arcs++] = (naive_arc){.from = (b), .to = (a), .cost = -(price)};                 \
  } while (0)
  for (int t = begin; t < end; t++) {
    if (!naive_valid(q, t)) continue;
    for (int i = 0; i < e; i++) NAIVE_ARC(1 + i, 1 + e + t - begin, 1, -naive_score(q, t, i));
    NAIVE_ARC(1 + e + t - begin, nodes - 1, cap, 0);
  }
  int pairs = arcs;
  for (int i = 0; i < e; i++) {
    NAIVE_ARC(0, 1 + i, min, -1e4); /* what every expert must have first */
    NAIVE_ARC(0, 1 + i, max - min, 0);
  }
#undef NAIVE_ARC
  for (int unit = 0; unit < units; unit++) naive_push(arc, arcs, nodes);
  for (int j = 0; j < pairs; j += 2)
    if (arc[j].from <= e && !arc[j].room) q->gate[(begin + arc[j].to - 1 - e) * e + arc[j].from - 1] = 1;
  free(arc);
}

static inline void naive_capped(naive_routing *q, double factor) {
  int valid = naive_valid_count(q), cap = q->o->cap ? q->o->cap : q->e, k = (int)lround(factor * valid / q->e);
  if (k < 1) k = 1;
  while (k > valid || k * q->e > cap * valid) k--;
  naive_assign(q, 0, q->n, k, k, k * q->e, cap);
  for (int j = 0; j < q->n * q->e; j++) q->gate[j] *= naive_score(q, j / q->e, j % q->e);
}

static inline void naive_base(naive_routing *q, double factor) {
  (void)factor;
  int valid = 0;
  for (int t = 0; t < q->n; t++) valid += naive_valid(q, t);
  if (q->training) naive_assign(q, 0, q->n, valid / q->e, (valid + q->e - 1) / q->e, valid, 1);
  for (int t = 0; t < q->n; t++) {
    if (!q->training && naive_valid(q, t)) q->gate[t * q->e + naive_choice(q, t, 0)] = 1;
    for (int i = 0; i < q->e; i++) q->gate[t * q->e + i] /= 1 + exp(-naive_score(q, t, i));
  }
}

static inline void naive_pooled_expert_choice(naive_routing *q, double factor) {
  naive_by_pools(q, factor, naive_expert_choice);
}

static inline void naive_pooled_global_topk(naive_routing *q, double factor) {
  naive_by_pools(q, factor, naive_global_topk);
}

static inline void naive_pooled_capped(naive_routing *q, double factor) { naive_by_pools(q, factor, naive_capped); }

static inline void naive_topk(naive_routing *q, double factor) {
  naive_token_choice(q, factor, q->o->experts_per_token, 0);
}

static inline void naive_gshard(naive_routing *q, double factor) { naive_token_choice(q, factor, 2, 1); }

static inline void naive_switch(naive_routing *q, double factor) { naive_token_choice(q, factor, 1, 0); }

static inline void naive_kmeans(naive_routing *q, double factor) {
  (void)factor;
  for (int t = 0; t < q->n; t++)
    if (naive_valid(q, t)) q->gate[t * q->e + naive_choice(q, t, 0)] = 1;
}

static inline void naive_by_id(naive_routing *q, double factor) {
  (void)factor;
  for (int t = 0; t < q->n; t++)
    if (naive_valid(q, t)) q->gate[t * q->e + (q->e > 1 ? q->token[t] % q->e : 0)] = 1;
}

/* Every router has its definition here; a router without one fails the test. */
static inline void naive_route(naive_routing *q) {
  static const struct {
    const char *name;
    void (*rule)(naive_routing *q, double factor);
  } definitions[] = {{"expert_choice", naive_pooled_expert_choice},
                     {"topk", naive_topk},
                     {"gshard_top2", naive_gshard},
                     {"switch_top1", naive_switch},
                     {"hash", naive_by_id},
                     {"dense", naive_by_id},
                     {"quantile_balanced", naive_quantile_balanced},
                     {"bias_balanced", naive_bias_balanced},
                     {"random", naive_random},
                     {"kmeans", naive_kmeans},
                     {"global_topk", naive_pooled_global_topk},
                     {"capped_expert_choice", naive_pooled_capped},
                     {"base", naive_base}};
  double factor = !q->training && q->o->eval_capacity_factor > 0 ? q->o->eval_capacity_factor : q->o->capacity_factor;
  for (int j = 0; j < q->n * q->e; j++) q->gate[j] = 0;
  q->dropped = 0;
  q->aux = 0;
  for (size_t i = 0; i < sizeof definitions / sizeof *definitions; i++)
    if (!strcmp(q->o->kind->name, definitions[i].name)) {
      definitions[i].rule(q, factor);
      return;
    }
  fail_msg("router '%s' has no definition in tests/support/naive_routing.h", q->o->kind->name);
}

#endif
