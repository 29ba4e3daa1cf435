/* Top-K, what most models train with since Mixtral and OLMoE: every token takes its K best experts, and no token is
 * dropped unless a capacity factor is set. The gate is the score, or with normalize_gates its share of the token's K.
 */
#include "moe/routers/token_choice.h"

const ch_router ch_router_topk = {
    .name = "topk",
    .summary = "each token takes its K best experts, without drops; a loss balances loads (Shazeer et al. 2017)",
    .reads = CH_READS_SCORES,
    .looks = CH_LOOKS_AROUND,
    .looks_with = ch_token_choice_looks,
    .options = CH_ROUTER_TAKES(normalize_gates) | CH_ROUTER_TAKES(score) | CH_ROUTER_TAKES(z_loss_weight) |
               CH_ROUTER_TAKES_CAPACITY | CH_ROUTER_TAKES_BALANCE | CH_ROUTER_TAKES(priority) |
               CH_ROUTER_TAKES(experts_per_token) | CH_ROUTER_TAKES(null_experts) | CH_ROUTER_TAKES(gate_on),
    .defaults = {.experts_per_token = 2, .capacity_factor = 0, .aux_loss_weight = 0.01},
    .check = ch_token_choice_check,
    .max_slots = ch_token_choice_room,
    .route = ch_token_choice_route,
    .causal = ch_token_choice_causal,
    .backward = ch_token_choice_backward,
};
