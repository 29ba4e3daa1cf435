/* Random experts (THOR, Zuo et al. 2022): K experts a token, drawn without replacement, gate 1/K, nothing learned.
 * Training draws anew for every token; elsewhere the draw is a function of the token's id, so that a token alone meets
 * the same experts as in a batch. */
#include "choir/plugin.h"

/* The j-th number counts among the experts that are not drawn yet. */
static void draw(const choir_plugin_call *call, uint64_t token, uint8_t *mark) {
  uint64_t seed = call->training ? call->seed : 0, index = token * (uint64_t)call->choices;
  for (int j = 0; j < call->choices; j++) {
    uint64_t left = call->below(seed, call->layer, index + (uint64_t)j, (uint64_t)(call->e - j));
    int i = 0;
    for (; mark[i] || left; i++) left -= !mark[i];
    mark[i] = 1;
  }
}

static int choose(void *context, const choir_plugin_call *call, uint8_t *chosen) {
  (void)context;
  for (int t = 0; t < call->n; t++)
    if (call->valid[t])
      draw(call, call->training ? call->first + (uint64_t)t : (uint64_t)call->tokens[t],
           chosen + (size_t)t * (size_t)call->e);
  return 0;
}

const choir_tokens_choose choir_router_random = {
    .common = {.size = sizeof choir_router_random,
               .name = "random",
               .summary = "K experts per token, sampled at random (Zuo et al. 2022)",
               .draws = 1,
               .choose = choose},
    .depends_on = CHOIR_DEPENDS_ON_NONE,
    .reads = CHOIR_READS_IDS,
    .experts_per_token = 2,
    .experts_per_token_option = 1,
    .capacity_factor = 1,
};
