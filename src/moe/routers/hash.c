/* Hash layers (Roller et al. 2021), the plain kind: token id mod e, gate 1. No weight, no capacity, no dependence on
 * other tokens. */
#include "moe/routers/token_choice.h"

const ch_router ch_router_hash = {
    .name = "hash",
    .summary = "the token id modulo the number of experts gives the expert (Roller et al. 2021)",
    .reads = CHOIR_READS_IDS,
    .choices = 1,
    .defaults = {.capacity_factor = 1},
    .check = ch_token_choice_check,
    .max_slots = ch_token_choice_slots,
    .route = ch_fixed_route,
};
