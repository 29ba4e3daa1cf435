/* GShard top-2 (Lepikhin et al. 2020): each token asks its two best experts; all first choices are placed before the
 * second ones, in token order, up to capacity. Gates are g1/(g1+g2) and g2/(g1+g2), whether or not both find room. In
 * training with random_second, the second choice stays with probability 2 g2 (at most 1: g2 is the smaller share). */
#include "moe/routers/token_choice.h"

const ch_router ch_router_gshard_top2 = {
    .name = "gshard_top2",
    .summary = "each token asks its two best experts, first choices go first (Lepikhin et al. 2020)",
    .reads = CH_READS_SHARES,
    .looks = CH_LOOKS_AROUND,
    .looks_with = ch_token_choice_looks,
    .options = CH_ROUTER_TAKES(normalize_gates) | CH_ROUTER_TAKES(score) | CH_ROUTER_TAKES(z_loss_weight) |
               CH_ROUTER_TAKES(gate_on) | CH_ROUTER_TAKES_CAPACITY | CH_ROUTER_TAKES_BALANCE |
               CH_ROUTER_TAKES(priority) | CH_ROUTER_TAKES(random_second),
    .choices = 2,
    .defaults = {.capacity_factor = 1, .aux_loss_weight = 0.01},
    .check = ch_token_choice_check,
    .max_slots = ch_token_choice_room,
    .route = ch_token_choice_route,
    .causal = ch_token_choice_causal,
    .backward = ch_token_choice_backward,
};
