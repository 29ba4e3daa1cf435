/* What a plug-in looks at is measured before it routes anything (ch_plugin_measure). */
#include "model_testing.h"
#include "plugin_routers.h"

enum { N = 24, E = 4 };

/* Experts by the token's number alone, which is its own when it is measured alone, too. */
static int draw(void *context, const choir_plugin_call *call, uint8_t *chosen) {
  for (int t = 0; t < call->n; t++)
    chosen[t * call->e + (int)((call->first + (uint64_t)t) % (uint64_t)call->e)] = call->valid[t];
  return 0;
}

static void draws_by_number(void **state) {
  choir_plugin_router r = {.name = "lots", .summary = "", .looks = CHOIR_LOOKS_NOWHERE, .choices = 1, .choose = draw};
  test_ok(choir_router_register(&r));
  ch_router_spec o = test_router("lots");
  float scores[N * E], gates[N * E];
  fill_scores(scores, N, E, 5);
  test_ok(
      choir_route(&(choir_route_request){.config = test_config_of(&o), .n = N, .e = E, .scores = scores}, gates, 0));
}

/* Looks at another token where there are more than 64; with a context takes padding, too. */
static int sly(void *context, const choir_plugin_call *call, uint8_t *chosen) {
  for (int t = 0; t < call->n; t++)
    chosen[t * call->e] = context || (call->valid[t] && (call->n <= 64 || call->scores[0] > call->scores[1]));
  return 0;
}

/* What a short call without padding would not show is found before anything is trained. */
static void long_calls_and_padding_are_measured(void **state) {
  enum { MANY = 80 };
  choir_plugin_router r = {.name = "sly", .looks = CHOIR_LOOKS_NOWHERE, .choices = 1, .choose = sly};
  float scores[MANY * E], gates[MANY * E];
  fill_scores(scores, MANY, E, 5);
  test_ok(choir_router_register(&r));
  ch_router_spec o = test_router("sly");
  choir_route_request all = {.config = test_config_of(&o), .n = MANY, .e = E, .scores = scores}, few = all;
  few.n = N;
  test_ok(choir_route(&few, gates, NULL));
  test_fails(choir_route(&all, gates, NULL), CHOIR_ERROR_ARGUMENT, "change with the scores of token 0");
  r.name = "greedy", r.context = &r, r.looks = CHOIR_LOOKS_AROUND, r.capacity_factor = E;
  test_ok(choir_router_register(&r));
  o = test_router("greedy");
  few.config = test_config_of(&o);
  test_fails(choir_route(&few, gates, NULL), CHOIR_ERROR_ARGUMENT, "is padding");
}

TEST_MAIN(NULL, NULL, draws_by_number, long_calls_and_padding_are_measured)
