/* Routers that choir has never seen (choir/plugin.h). They do what choir's own do, so that whole runs must have the
 * same bits; own_balance sums up its loss in another order. */
#ifndef CH_TESTS_PLUGIN_ROUTERS_H
#define CH_TESTS_PLUGIN_ROUTERS_H

#include "choir/plugin.h"
#include "testing.h"

/* Scores [n,e], uniform on (0,1). */
static inline void fill_scores(float *scores, int n, int e, uint64_t seed) {
  for (int i = 0; i < n * e; i++) scores[i] = (float)ch_rng_uniform(ch_rng_make(seed, CH_STREAM_TEST, 7), (uint64_t)i);
}

/* Each expert's `capacity` tokens of the largest sign * score, of equal ones the earlier. */
static inline int pick_tokens(const choir_plugin_call *call, uint8_t *chosen, float sign) {
  for (int i = 0; i < call->e; i++)
    for (int k = 0; k < call->capacity; k++) {
      int best = -1;
      for (int t = 0; t < call->n; t++) {
        int64_t at = (int64_t)t * call->e + i;
        if (call->valid[t] && !chosen[at] &&
            (best < 0 || sign * call->scores[at] > sign * call->scores[best * call->e + i]))
          best = t;
      }
      if (best >= 0) chosen[(int64_t)best * call->e + i] = 1;
    }
  return 0;
}
static inline int best_tokens(void *context, const choir_plugin_call *call, uint8_t *chosen) {
  return pick_tokens(call, chosen, 1);
}
static inline int min_tokens(void *context, const choir_plugin_call *call, uint8_t *chosen) {
  return pick_tokens(call, chosen, -1);
}

/* Ranks tokens by option 0 times the score: with -1 as least_tokens does, with 1 as best_tokens does. */
static inline int rank_tokens(void *context, const choir_plugin_call *call, float *ranking) {
  for (int i = 0; i < call->n * call->e; i++) ranking[i] = (float)call->options[0] * call->scores[i];
  return 0;
}

/* Each token's two best experts by score less state, of equal ones the lower. */
static inline int best_experts(void *context, const choir_plugin_call *call, uint8_t *chosen) {
  for (int t = 0; t < call->n; t++)
    for (int k = 0; k < 2 && call->valid[t]; k++) {
      const float *score = call->scores + (int64_t)t * call->e;
      uint8_t *mark = chosen + (int64_t)t * call->e;
      int best = -1;
      for (int i = 0; i < call->e; i++)
        if (!mark[i] && (best < 0 || score[i] - (float)call->state[i] > score[best] - (float)call->state[best]))
          best = i;
      mark[best] = 1;
    }
  return 0;
}

/* Prices rise with demand, by the option. */
static inline int move_prices(void *context, const choir_plugin_call *call, const int64_t *demand, double *state) {
  double mean = 0;
  for (int i = 0; i < call->e; i++) mean += (double)demand[i] / call->e;
  for (int i = 0; i < call->e; i++)
    state[i] += call->options[0] * (((double)demand[i] > mean) - ((double)demand[i] < mean));
  return 0;
}

/* The load-balancing loss of two choices a token. */
static inline int balance_two(void *context, const choir_plugin_call *call, const uint8_t *chosen, double *loss,
                              float *gradient) {
  int valid = 0;
  for (int t = 0; t < call->n; t++) valid += call->valid[t];
  *loss = 0;
  for (int i = 0; i < call->e && valid; i++) {
    int held = 0;
    for (int t = 0; t < call->n; t++) held += chosen[(int64_t)t * call->e + i];
    double share = (double)call->e * held / valid / 2 / valid;
    for (int t = 0; t < call->n; t++) {
      int64_t at = (int64_t)t * call->e + i;
      gradient[at] = (float)share;
      if (call->valid[t]) *loss += share * (double)call->scores[at];
    }
  }
  return 0;
}

static const choir_plugin_router own_ec = {.name = "own_ec",
                                           .summary = "as expert_choice",
                                           .looks = CHOIR_LOOKS_AROUND,
                                           .capacity_factor = 2,
                                           .choose = best_tokens};
static const choir_experts_choose own_min = {.common = {.size = sizeof(choir_experts_choose),
                                                        .name = "own_min",
                                                        .summary = "takes the tokens of the lowest scores",
                                                        .options = {{.name = "sign", .value = -1}},
                                                        .choose = min_tokens,
                                                        .rank = rank_tokens},
                                             .depends_on = CHOIR_DEPENDS_ON_ALL,
                                             .capacity_factor = 2};
static const choir_plugin_router own_top2 = {.name = "own_top2",
                                             .summary = "as topk",
                                             .looks = CHOIR_LOOKS_NOWHERE,
                                             .choices = 2,
                                             .aux_loss_weight = 0.01,
                                             .choose = best_experts};
static const choir_plugin_router own_balance = {.name = "own_balance",
                                                .summary = "as topk, which balances by a loss of its own",
                                                .looks = CHOIR_LOOKS_NOWHERE,
                                                .choices = 2,
                                                .aux_loss_weight = 0.01,
                                                .choose = best_experts,
                                                .loss = balance_two};
static const choir_plugin_router own_bias = {.name = "own_bias",
                                             .summary = "as bias_balanced",
                                             .looks = CHOIR_LOOKS_NOWHERE,
                                             .choices = 2,
                                             .options = {{.name = "rate", .value = 0.001, .low = 0, .high = 1}},
                                             .choose = best_experts,
                                             .observe = move_prices};

static inline void register_plugin_routers(void) {
  test_ok(choir_router_register(&own_bias));
  test_ok(choir_router_register(&own_ec));
  test_ok(choir_router_register_experts(&own_min));
  test_ok(choir_router_register(&own_top2));
  test_ok(choir_router_register(&own_balance));
}

#endif
