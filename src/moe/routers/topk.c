/* Routers whose tokens choose, with an optional capacity: `topk`, and its predecessors.
 *
 * topk, used by most models since Mixtral and OLMoE: every token has its top-K experts, and no token is dropped unless
 * a capacity factor is set. The gate is the score; with normalize_gates it is divided by the sum of the token's K
 * scores.
 *
 * switch_top1 (Fedus et al. 2021): each token chooses its best expert; experts accept tokens in token order, up to
 * their capacity. The gate is the score. The layer multiplies the router's input by U[1-jitter, 1+jitter] in training.
 *
 * gshard_top2 (Lepikhin et al. 2020): each token chooses its two best experts; all first choices are placed before the
 * second ones, in token order. Gates are g1/(g1+g2) and g2/(g1+g2), even if one choice is dropped. In training with
 * random_second, the second choice is kept with probability 2 g2 (at most 1: g2 is the smaller share). */
#include "moe/routers/token_choice.h"

#define TOPK                                                                                                 \
  .depends_on_with = ch_token_choice_depends_on, .loss = CHOIR_LOSS_BALANCE, .check = ch_token_choice_check, \
  .max_slots = ch_token_choice_max_slots, .route = ch_token_choice_route, .causal = ch_token_choice_causal,  \
  .backward = ch_token_choice_backward

const ch_router ch_router_topk = {
    TOPK,
    .name = "topk",
    .summary =
        "each token selects its K best experts, without a capacity limit; a loss balances loads (Shazeer et al. 2017)",
    .reads = CHOIR_READS_SCORES,
    .depends_on = CHOIR_DEPENDS_ON_ALL,
    .gates = CHOIR_GATES_SCORE,
    .takes = {.capacity = 1, .priority = 1, .experts_per_token = 1, .null_experts = 1},
    .defaults = {.experts_per_token = 2, .capacity_factor = 0, .aux_loss_weight = 0.01},
};

const ch_router ch_router_switch_top1 = {
    TOPK,
    .name = "switch_top1",
    .summary =
        "each token selects its best expert; experts fill in token order, up to their capacity (Fedus et al. 2021)",
    .reads = CHOIR_READS_SCORES,
    .depends_on = CHOIR_DEPENDS_ON_PAST,
    .gates = CHOIR_GATES_SCORE,
    .choices = 1,
    .takes = {.capacity = 1, .priority = 1, .jitter = 1},
    .defaults = {.capacity_factor = 1.25, .aux_loss_weight = 0.01, .jitter = 0.01},
};

const ch_router ch_router_gshard_top2 = {
    TOPK,
    .name = "gshard_top2",
    .summary =
        "each token selects its two best experts; first choices are placed before second ones (Lepikhin et al. 2020)",
    .reads = CHOIR_READS_SHARES,
    .depends_on = CHOIR_DEPENDS_ON_ALL,
    .gates = CHOIR_GATES_SHARE,
    .choices = 2,
    .takes = {.capacity = 1, .priority = 1, .random_second = 1},
    .defaults = {.capacity_factor = 1, .aux_loss_weight = 0.01},
};
