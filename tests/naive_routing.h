/* The routers again, written from their definitions with double loops and no record: gates [n,e], counts and auxiliary
 * loss. Shares no code with src/moe. */
#ifndef CH_TESTS_NAIVE_ROUTING_H
#define CH_TESTS_NAIVE_ROUTING_H

#include "testing.h"

typedef struct {
  const choir_router_options *o;
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

/* The best k tokens of [begin,end) for expert i, one after the other. */
static inline void naive_take(naive_routing *q, int i, int begin, int end, int k) {
  for (int taken = 0; taken < k; taken++) {
    int best = -1;
    for (int t = begin; t < end; t++)
      if (naive_valid(q, t) && isnan(q->gate[t * q->e + i]) &&
          (best < 0 || naive_score(q, t, i) > naive_score(q, best, i)))
        best = t;
    q->gate[best * q->e + i] = naive_score(q, best, i);
  }
}

static inline void naive_expert_choice(naive_routing *q, double factor) {
  int size = !strcmp(q->o->pool, "sequence") && q->T > 0 ? q->T : q->n;
  for (int j = 0; j < q->n * q->e; j++) q->gate[j] = (double)NAN; /* not taken yet */
  for (int begin = 0; begin < q->n; begin += size) {
    int end = begin + size < q->n ? begin + size : q->n, valid = 0;
    for (int t = begin; t < end; t++) valid += naive_valid(q, t);
    int k = (int)lround(factor * valid / q->e); /* halves go up: nothing is negative here */
    if (k < 1) k = 1;
    if (k > valid) k = valid;
    for (int i = 0; i < q->e; i++) naive_take(q, i, begin, end, k);
  }
  for (int j = 0; j < q->n * q->e; j++)
    if (isnan(q->gate[j])) q->gate[j] = 0;
}

/* The expert that token t likes best, but for `except`. */
static inline int naive_best(const naive_routing *q, int t, int except) {
  int best = -1;
  for (int i = 0; i < q->e; i++)
    if (i != except && (best < 0 || naive_score(q, t, i) > naive_score(q, t, best))) best = i;
  return best;
}

static inline void naive_token_choice(naive_routing *q, double factor, int choices) {
  int valid = 0, room[256] = {0}, first_choices[256] = {0};
  double mean[256] = {0};
  for (int t = 0; t < q->n; t++) valid += naive_valid(q, t);
  for (int i = 0; i < q->e; i++) room[i] = (int)ceil(factor * choices * valid / q->e - 1e-9);
  for (int round = 0; round < choices; round++)
    for (int t = 0; t < q->n; t++) {
      if (!naive_valid(q, t)) continue;
      int first = naive_best(q, t, -1), second = naive_best(q, t, first), mine = round ? second : first;
      double g1 = naive_score(q, t, first), g2 = second < 0 ? 0 : naive_score(q, t, second);
      double gate = choices == 1 ? g1 : (round ? g2 : g1) / (g1 + g2);
      if (round && q->training && q->o->random_second &&
          ch_rng_uniform(q->rng, q->rng_base + (uint64_t)t) >= 2 * g2 / (g1 + g2))
        continue;
      if (room[mine]-- > 0)
        q->gate[t * q->e + mine] = gate;
      else
        q->dropped++;
      if (!round) first_choices[mine]++;
    }
  for (int t = 0; t < q->n; t++)
    for (int i = 0; i < q->e && naive_valid(q, t); i++) mean[i] += naive_score(q, t, i) / valid;
  for (int i = 0; i < q->e && valid; i++) q->aux += q->e * ((double)first_choices[i] / valid) * mean[i];
}

static inline void naive_route(naive_routing *q) {
  const char *name = q->o->name;
  double factor = !q->training && q->o->eval_capacity_factor > 0 ? q->o->eval_capacity_factor : q->o->capacity_factor;
  for (int j = 0; j < q->n * q->e; j++) q->gate[j] = 0;
  q->dropped = 0;
  q->aux = 0;
  if (!strcmp(name, "expert_choice")) naive_expert_choice(q, factor);
  if (!strcmp(name, "gshard_top2")) naive_token_choice(q, factor, 2);
  if (!strcmp(name, "switch_top1")) naive_token_choice(q, factor, 1);
  if (!strcmp(name, "hash") || !strcmp(name, "dense"))
    for (int t = 0; t < q->n; t++)
      if (naive_valid(q, t)) q->gate[t * q->e + (q->e > 1 ? q->token[t] % q->e : 0)] = 1;
}

#endif
