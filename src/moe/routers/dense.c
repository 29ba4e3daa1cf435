/* One expert that holds every token, gate 1: the layer becomes a dense feed-forward layer, the paper's baseline. */
#include "base/error.h"
#include "moe/routers/token_choice.h"

static int check_dense(const ch_router_spec *o, int n, int e, int sequence_length) {
  (void)sequence_length;
  CH_TRY(ch_router_check_sizes(o, n, e));
  if (e != 1)
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "router 'dense' has one expert that holds every token; experts is %d, make it 1", e);
  return CHOIR_OK;
}

const ch_router ch_router_dense = {
    .name = "dense",
    .summary = "one expert processes every token: a dense layer",
    .reads = CHOIR_READS_NOTHING,
    .choices = 1,
    .defaults = {.capacity_factor = 1},
    .check = check_dense,
    .max_slots = ch_token_choice_slots,
    .route = ch_fixed_route,
};
