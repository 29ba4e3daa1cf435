/* A plug-in as 0.4 and 0.5 had it: examples/own_router.c of then, with less of a choice. The first expert_capacity
 * tokens that score an even share. */
#include <stdio.h>
#include <stdlib.h>

#include "choir/plugin.h"

/* Changes the file that this variable of the environment names, if there is one. */
static void change(const char *variable) {
  FILE *file = getenv(variable) ? fopen(getenv(variable), "ab") : NULL;
  if (!file) return;
  fputc('x', file);
  fclose(file);
}

__attribute__((constructor)) static void load(void) { change("CHANGES_WHEN_LOADED"); }

static int choose(void *context, const choir_plugin_call *call, uint8_t *chosen) {
  (void)context;
  float min = (float)call->options[0] / (float)call->e;
  for (int i = 0; i < call->e; i++)
    for (int t = 0, taken = 0; t < call->n && taken < call->capacity; t++)
      if (call->valid[t] && call->scores[t * call->e + i] >= min) taken += chosen[t * call->e + i] = 1;
  return 0;
}

int choir_plugin(choir_plugin_add add) {
  change("CHANGES_WHEN_CALLED");
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
