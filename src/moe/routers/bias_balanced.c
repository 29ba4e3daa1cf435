/* Load balancing by biases, without an auxiliary loss (Wang et al. 2024, 2408.15664; DeepSeek-V3): every token has the
 * top-K experts of S - beta. After each step, beta of an expert increases by bias_rate if its demand is above the mean,
 * and decreases if below. beta only affects the choice: the gate is the raw score. A step uses beta of the previous
 * step, so a token's experts depend on no other token. */
#include "moe/gates.h"
#include "moe/routers/token_choice.h"

static void route_bias_balanced(ch_exec *x, const ch_route_args *a) {
  CH_SCRATCH(x);
  ch_choices c = ch_choices_alloc(x, a, a->options->experts_per_token);
  CH_OP(x, copy, .count = a->e, .x = a->router_state.thresholds, .y = a->routing->counts.cutoff);
  ch_choices_best(x, a, a->routing->scores, a->router_state.thresholds, &c);
  ch_choices_place(x, a, &c, 0);
  ch_router_gates_from_scores(x, a);
}

/* Called once a training step. Updates the biases that this step used, also in the first step of a run that starts from
 * another run's weights. */
static void observe(ch_exec *x, const ch_route_args *a) {
  CH_OP(x, update_bias, .e = a->e, .fresh = !a->router_state.observed && !a->router_state.thresholds,
        .rate = a->options->bias_rate, .demand = a->routing->counts.demand, .price = a->router_state.updated);
}

const ch_router ch_router_bias_balanced = {
    .name = "bias_balanced",
    .summary =
        "each token selects its K best experts; biases, updated after each step, balance the loads (Wang et al. 2024)",
    .reads = CHOIR_READS_SCORES,
    .depends_on = CHOIR_DEPENDS_ON_NONE,
    .gates = CHOIR_GATES_SCORE,
    .update_per_step = 1,
    .takes = {.experts_per_token = 1, .bias_rate = 1},
    .defaults = {.experts_per_token = 2, .score = CH_SIGMOID, .capacity_factor = 1},
    .check = ch_token_choice_check,
    .max_slots = ch_token_choice_slots,
    .route = route_bias_balanced,
    .observe = observe,
    .backward = ch_router_gates_backward,
};
