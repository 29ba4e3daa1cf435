/* Every router's dscores, in double: loss = <cotangent, gates> + aux_scale * aux_loss, selection held fixed. */
#include "moe_testing.h"
#include "plugin_routers.h"

enum { N = 30, E = 5 };

/* The loss of a router of somebody's own, of scores in double, which plug-ins do not see: each expert's scores count by
 * who is taken, and a gradient of eighths is exact in single precision. */
static int loss_by_mark(void *context, const choir_plugin_call *call, const uint8_t *chosen, double *loss,
                        float *gradient) {
  layer_case *const *c = context;
  for (int j = *loss = 0; j < call->n * call->e; j++) {
    gradient[j] = (float)(j % 7 - 2 * chosen[j] - j % call->e) / 8;
    if (call->valid[j / call->e]) *loss += (double)gradient[j] * (double)(*c)->scores[j];
  }
  return 0;
}
static layer_case *lost;
static const choir_plugin_router custom_loss = {.name = "own_loss",
                                                .looks = CHOIR_LOOKS_AROUND,
                                                .capacity_factor = 2,
                                                .choose = best_tokens,
                                                .loss = loss_by_mark,
                                                .context = &lost};

static int setup(void **state) { return choir_router_register(&custom_loss); }

static real cotangent[N * E];

static double loss(layer_case *c) {
  router_run(c, NULL);
  double sum = (double)c->aux_scale * *c->counts.aux_loss;
  for (int i = 0; i < E; i++)
    for (int s = c->record.expert_begin[i]; s < c->record.expert_begin[i + 1]; s++)
      sum += (double)cotangent[c->record.slot_token[s] * E + i] * (double)c->record.slot_gate[s];
  return sum;
}

static void check(layer_case *c) {
  real dgate[N * E], dscores[N * E];
  lost = c;
  test_normal(cotangent, N * E, 60);
  router_run(c, NULL);
  for (int i = 0; i < E; i++)
    for (int s = c->record.expert_begin[i]; s < c->record.expert_begin[i + 1]; s++)
      dgate[s] = cotangent[c->record.slot_token[s] * E + i];
  c->dscores = dscores;
  router_run(c, dgate);
  c->dscores = NULL;
  double error = moe_gradient(c, loss, c->scores, N * E, dscores, 80);
  if (!(error < 1e-8)) fail_msg("%s: error %g", c->options.kind->name, error);
  for (int t = 0; t < N && c->valid; t++)
    for (int i = 0; i < E && !c->valid[t]; i++) assert_true(dscores[t * E + i] == 0);
}

static void dscores_of_every_router(void **state) {
  uint8_t mask[N];
  for (int t = 0; t < N; t++) mask[t] = t % 7 != 3;
  for (int router = 0; ch_routers[router]; router++)
    for (int variant = 0; variant < 17; variant++) {
      int nulls = variant == 16 && ch_router_takes(ch_routers[router], CH_OPTION_null_experts);
      if (!ch_routers[router]->backward || (variant == 16 && !nulls)) continue;
      if (ch_routers[router]->loss == CHOIR_LOSS_OWN && variant > 3) continue; /* takes no options */
      layer_case c = {.options = router_options(ch_router_names[router]),
                      .n = N,
                      .e = E,
                      .T = 11,
                      .threads = 1,
                      .backend = "reference",
                      .seed = 5,
                      .scores = test_new_normal(N * E, 61),
                      .aux_scale = (real)3};
      for (int j = 0; j < N * E; j++) c.scores[j] = (real)exp((double)c.scores[j]);
      for (int j = 0; j < N * E && nulls; j++) c.scores[j] /= 10; /* which leaves null experts something of 1 */
      c.options.null_experts = 4 * nulls;
      c.training = variant & 1;
      c.valid = variant & 2 ? mask : NULL;
      c.options.random_second = c.training;
      c.options.capacity_factor = variant & 4 ? 0.7 : 2;
      c.options.cap = variant & 4 ? 1 : 0;
      c.options.experts_per_token = variant & 4 ? 3 : 2;
      if (variant & 8) c.options.pool = variant & 2 ? CH_POOL_POSITION : CH_POOL_SEQUENCE;
      if (variant & 8) c.aux_scale = 0;
      if (variant & 2) c.options.aux_scope = CH_SCOPE_SEQUENCE;
      if (variant & 4) c.options.priority = CH_BY_SCORE;
      if (variant & 1) c.options.score = CH_SIGMOID;
      check(&c);
      record_free(&c.record);
      counts_free(&c.counts);
      free(c.scores);
    }
}

TEST_MAIN(setup, NULL, dscores_of_every_router)
