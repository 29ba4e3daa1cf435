/* Random experts (THOR, Zuo et al. 2022): K experts a token, drawn without replacement, gate 1/K, nothing learned.
 * Training draws anew for every token; elsewhere the draw is a function of the token's id, so that a token alone meets
 * the same experts as in a batch. */
#include "moe/routers/token_choice.h"

static void choose_at_random(ch_exec *x, const ch_route_args *a, int training) {
  ch_rng fixed = ch_rng_make(0, CH_STREAM_SECOND_EXPERT, a->draws.rng.sub);
  ch_drawn_route(x, a, training ? CH_DRAW_BY_PLACE : CH_DRAW_BY_ID, a->options->experts_per_token,
                 training ? a->draws.rng : fixed);
}

static void route_random(ch_exec *x, const ch_route_args *a) { choose_at_random(x, a, a->training); }

static void causal(ch_exec *x, const ch_route_args *a) { choose_at_random(x, a, 0); }

const ch_router ch_router_random = {
    .name = "random",
    .summary = "K experts a token, drawn (Zuo et al. 2022)",
    .reads = CH_READS_IDS,
    .options = CH_ROUTER_TAKES(experts_per_token) | CH_ROUTER_TAKES(consistency_weight),
    .draws = 1,
    .defaults = {.experts_per_token = 2, .capacity_factor = 1},
    .check = ch_token_choice_check,
    .max_slots = ch_token_choice_slots,
    .route = route_random,
    .causal = causal,
};
