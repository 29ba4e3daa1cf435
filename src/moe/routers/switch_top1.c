/* Switch top-1 (Fedus et al. 2021): each token asks its best expert, in token order, up to capacity. The gate is the
 * score. The layer multiplies the router's input by U[1-jitter, 1+jitter] in training. */
#include "moe/routers/token_choice.h"

const ch_router ch_router_switch_top1 = {
    .name = "switch_top1",
    .summary = "each token asks its best expert, in token order, up to capacity (Fedus et al. 2021)",
    .reads = CH_READS_SCORES,
    .looks = CH_LOOKS_BACK,
    .looks_with = ch_token_choice_looks,
    .options = CH_ROUTER_TAKES(normalize_gates) | CH_ROUTER_TAKES(score) | CH_ROUTER_TAKES(z_loss_weight) |
               CH_ROUTER_TAKES(gate_on) | CH_ROUTER_TAKES_CAPACITY | CH_ROUTER_TAKES_BALANCE |
               CH_ROUTER_TAKES(priority) | CH_ROUTER_TAKES(jitter),
    .choices = 1,
    .defaults = {.capacity_factor = 1.25, .aux_loss_weight = 0.01, .jitter = 0.01},
    .check = ch_token_choice_check,
    .max_slots = ch_token_choice_room,
    .route = ch_token_choice_route,
    .causal = ch_token_choice_causal,
    .backward = ch_token_choice_backward,
};
