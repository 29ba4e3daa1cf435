/* A router of your own in C. Each expert takes the tokens that score at least `least` even shares for it, best first,
 * as many as it has room for.
 *
 *   cc -shared -fPIC -O2 -Iinclude -Ibuild/include examples/own_router.c -o own_router.so
 *   choir train --plugin ./own_router.so --config nano --set router.name=even_share --data data --out run */
#include <stdlib.h>

#include "choir/plugin.h"

typedef struct {
  float score;
  int token;
} candidate;

static int by_score(const void *a, const void *b) {
  const candidate *x = a, *y = b;
  if (x->score != y->score) return x->score < y->score ? 1 : -1;
  return x->token - y->token; /* equal ones always in the same order */
}

static int choose(void *context, const choir_plugin_call *call, uint8_t *chosen) {
  (void)context;
  float min = (float)call->options[0] / (float)call->e;
  candidate *list = malloc((size_t)call->n * sizeof *list);
  if (!list) return 1;
  for (int i = 0; i < call->e; i++) {
    int found = 0;
    for (int t = 0; t < call->n; t++) {
      float score = call->scores[(size_t)t * (size_t)call->e + (size_t)i];
      if (call->valid[t] && score >= min) list[found++] = (candidate){score, t};
    }
    qsort(list, (size_t)found, sizeof *list, by_score);
    for (int j = 0; j < found && j < call->capacity; j++)
      chosen[(size_t)list[j].token * (size_t)call->e + (size_t)i] = 1;
  }
  free(list);
  return 0;
}

int choir_plugin_routers(const choir_plugin_registry *registry) {
  static const choir_plugin_option min = {
      .name = "least", .help = "even shares that a score must reach", .value = 1, .low = 0, .high = 100};
  const choir_experts_choose even_share = {
      .common = {.size = sizeof even_share,
                 .name = "even_share",
                 .summary = "each expert takes the tokens that score an even share for it, best first",
                 .options = {min},
                 .choose = choose},
      .depends_on = CHOIR_DEPENDS_ON_ALL,
      .capacity_factor = 2,
  };
  return registry->experts_choose(&even_share);
}
