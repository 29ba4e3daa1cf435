/* A plug-in as 0.4 and 0.5 had it: examples/own_router.c of then, with less of a choice. The first expert_capacity
 * tokens that score an even share. */
#include "choir/plugin.h"

static int choose(void *context, const choir_plugin_call *call, uint8_t *chosen) {
  (void)context;
  float least = (float)call->options[0] / (float)call->e;
  for (int i = 0; i < call->e; i++)
    for (int t = 0, taken = 0; t < call->n && taken < call->capacity; t++)
      if (call->valid[t] && call->scores[t * call->e + i] >= least) taken += chosen[t * call->e + i] = 1;
  return 0;
}

int choir_plugin(choir_plugin_add add) {
  static const choir_plugin_router router = {
      .name = "earlier",
      .summary = "the first tokens that score an even share",
      .looks = CHOIR_LOOKS_AROUND,
      .capacity_factor = 2,
      .options = {{.name = "least", .help = "even shares that a score must reach", .value = 1, .low = 0, .high = 100}},
      .choose = choose,
  };
  return add(&router);
}
