/* Routing of a caller's own scores: any options, sizes and numbers are routed or refused, by every door. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/config.h"
#include "moe/router.h"

enum { MAX = 24 }; /* tokens, and experts */

static const uint8_t *at;
static size_t left;

/* Whatever comes next of the input; then zeros. */
static void take(void *to, size_t size) {
  size_t some = size < left ? size : left;
  memset(to, 0, size);
  memcpy(to, at, some);
  at += some, left -= some;
}

static int take_int(void) {
  int value;
  take(&value, sizeof value);
  return value;
}

/* A number of up to `most`, or now and then anything. */
static int take_size(int max) {
  uint8_t byte;
  take(&byte, 1);
  return byte < 240 ? byte % (max + 1) : take_int();
}

static double take_real(void) {
  uint8_t byte;
  double value;
  take(&byte, 1);
  if (byte < 200) return byte / 40.0;
  take(&value, sizeof value);
  return value;
}

/* Options by their numbers: what a field refuses (a word that there is not) no handle holds, and what it does not (a
 * number out of range) routing refuses. */
static void take_options(ch_router_spec *o) {
  uint8_t which, word;
  take(&which, 1), take(&word, 1);
  if (which & 1) o->capacity_factor = take_real();
  if (which & 2) o->cap = take_size(4);
  if (which & 4) o->experts_per_token = take_size(4);
  if (which & 8) o->pool = word % 4;
  if (which & 16) o->group_size = take_size(8);
  if (which & 32) o->normalize_gates = word & 1;
  if (which & 64) o->eval_capacity_factor = take_real();
  if (word & 128) o->null_experts = take_size(6);
  if (which & 128) o->solver = word & 1 ? CH_SOLVER_EXACT : CH_SOLVER_DYKSTRA, o->solver_iterations = take_size(50);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static float scores[MAX * MAX], gates[MAX * MAX], gradient[MAX * MAX], thresholds[MAX];
  static int32_t tokens[MAX];
  static uint8_t valid[MAX];
  const char *const *names = choir_router_names();
  choir_config o;
  uint8_t router, flags;
  int count = 0;
  at = data, left = size;
  while (names[count]) count++;
  take(&router, 1), take(&flags, 1);
  ch_config_default(&o);
  o.model.router = ch_router_default(ch_router_find(names[router % count]));
  take_options(&o.model.router);
  int n = take_size(MAX), e = take_size(MAX), length = take_size(MAX);
  if (n <= MAX && e <= MAX) {
    take(valid, sizeof valid), take(tokens, sizeof tokens), take(thresholds, sizeof thresholds);
    for (int i = 0; i < MAX * MAX; i++) scores[i] = (float)take_real();
  } else if (n > 0 && e > 0 && n <= INT32_MAX / 2) {
    return 0; /* they may be routed, and there is no such array; more tokens are refused before one is looked at */
  }
  choir_route_request r = {.config = &o,
                           .n = n,
                           .e = e,
                           .scores = scores,
                           .is_logits = flags & 1,
                           .tokens = flags & 2 ? tokens : NULL,
                           .valid = flags & 4 ? valid : NULL,
                           .sequence_length = length,
                           .training = flags >> 3 & 1,
                           .seed = 1};
  choir_route(&r, gates, NULL);
  choir_route_backward(&r, flags & 16 ? gates : NULL, 0.01, gradient);
  r.thresholds = thresholds;
  choir_route(&r, gates, NULL);
  return 0;
}
