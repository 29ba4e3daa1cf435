/* Capacity by MoE layer (layer_capacity) and over the steps of training (capacity_start). */
#include "choir/trainer.h"
#include "model_testing.h"

enum { N = MODEL_B * MODEL_T, LAYERS = 2 };

static void set(choir_config *c, const char *key, const char *value) { test_ok(choir_config_set(c, key, value)); }

/* Capacities of the layers of a forward pass, `pools` to a layer: those of a router that is given these factors. */
static void expect_layers(const choir_config *c, const double *factor, int pools) {
  choir_model *model = model_fresh(c);
  choir_forward_result r;
  choir_route_stats stats;
  int32_t token[N];
  model_tokens(token, N, 9);
  test_ok(choir_model_forward(model, MODEL_B, MODEL_T, token, NULL, 1, &r));
  for (int i = 0; i < LAYERS; i++) {
    test_ok(choir_model_get_route_stats(model, i, &stats));
    int choices = ch_router_choices(&c->model.router);
    assert_int_equal(stats.capacity, choices ? ch_router_capacity(factor[i], choices, N, MODEL_E)
                                             : pools * ch_router_k(factor[i], N / pools, MODEL_E));
    if (!choices) assert_int_equal(stats.assignments, MODEL_E * stats.capacity);
    choir_route_stats_clear(&stats);
  }
  choir_model_free(model);
}

static void by_layer(void **state) {
  choir_config c = model_config("expert_choice");
  set(&c, "layer_capacity", "1,3");
  expect_layers(&c, (const double[]){1, 3}, 1);
  set(&c, "router.eval_capacity_factor", "1");
  expect_layers(&c, (const double[]){0.5, 1.5}, 1);
  set(&c, "router.eval_capacity_factor", "0");
  set(&c, "router.pool", "sequence");
  set(&c, "layer_capacity", "0.75,0.25");
  expect_layers(&c, (const double[]){3, 1}, MODEL_B);
  c = model_config("gshard_top2");
  set(&c, "layer_capacity", "3,1");
  expect_layers(&c, (const double[]){1.5, 0.5}, 1);
  c = model_config("topk");
  set(&c, "router.capacity_factor", "1");
  set(&c, "layer_capacity", "1,1.5");
  expect_layers(&c, (const double[]){0.8, 1.2}, 1);
}

/* Equal weights are no weights, to the bit. */
static void equal_weights(void **state) {
  choir_config c = model_config("expert_choice");
  choir_forward_result r[2];
  int32_t token[N];
  model_tokens(token, N, 9);
  for (int i = 0; i < 2; i++) {
    if (i) set(&c, "layer_capacity", "3,3");
    choir_model *model = model_fresh(&c);
    test_ok(choir_model_forward(model, MODEL_B, MODEL_T, token, NULL, 0, &r[i]));
    choir_model_free(model);
  }
  assert_memory_equal(&r[0], &r[1], sizeof *r);
}

/* From 4 to 2 and from 1 to 2 in five steps, and 2 from there on; evaluation has 2 all the time. */
static void over_training(void **state) {
  static const double factor[2][7] = {{4, 3.5, 3, 2.5, 2, 2, 2}, {1, 1.25, 1.5, 1.75, 2, 2, 2}};
  for (int way = 0; way < 2; way++) {
    choir_config c = model_config("expert_choice");
    choir_trainer *trainer;
    choir_trainer_result r;
    choir_forward_result forward;
    choir_route_stats stats;
    int32_t token[N];
    c.train.steps = 5;
    set(&c, "capacity_start", way ? "1" : "4");
    set(&c, "layer_capacity", "1,3");
    choir_model *model = model_fresh(&c);
    test_ok(choir_trainer_create(model, NULL, &trainer));
    for (int step = 0; step < 7; step++) {
      model_tokens(token, N, 20 + (uint32_t)step);
      test_ok(choir_trainer_step(trainer, token, NULL, &r));
      for (int i = 0; i < 2 * LAYERS; i++) {
        if (i == LAYERS) test_ok(choir_model_forward(model, MODEL_B, MODEL_T, token, NULL, 0, &forward));
        test_ok(choir_model_get_route_stats(model, i % LAYERS, &stats));
        double c_now = (i < LAYERS ? factor[way][step] : 2) * (i % LAYERS ? 1.5 : 0.5);
        assert_int_equal(stats.capacity, ch_router_k(c_now, N, MODEL_E));
        choir_route_stats_clear(&stats);
      }
    }
    choir_trainer_free(trainer);
    choir_model_free(model);
  }
}

static void refused(const char *router, const char *key, const char *value, const char *part) {
  choir_config c = model_config(router);
  int code = choir_config_set(&c, key, value);
  if (!code) code = choir_config_check(&c);
  test_fails(code, CHOIR_ERROR_ARGUMENT, part);
}

static void refuses(void **state) {
  static const char *const weights[] = {"1",   "1,2,3", "1,,2",  "1,2,",   "1,x",         "1,0",    "1,-2",
                                        "1 2", "nan,1", "inf,1", "0x10,1", "1e308,1e308", "1e308,1"};
  for (size_t i = 0; i < sizeof weights / sizeof *weights; i++)
    refused("expert_choice", "layer_capacity", weights[i], "each of the 2 MoE layers");
  refused("hash", "layer_capacity", "1,2", "router 'hash' has no capacity");
  refused("topk", "layer_capacity", "1,2", "router 'topk' has no capacity");
  refused("expert_choice", "layer_capacity", "1,30000", "weight 1: router 'expert_choice': k = n c / e is 0");
  refused("expert_choice", "layer_capacity", "1.00000000000000000000000000000000000000000000000000000000000001,1",
          "at most 63 bytes");
  refused("topk", "capacity_start", "1", "capacity_factor 0");
  refused("hash", "capacity_start", "1", "router 'hash' does not take it");
  refused("expert_choice", "capacity_start", "9", "capacity_start: router 'expert_choice': capacity_factor 9");
  choir_config c = model_config("expert_choice");
  c.model.moe_every = 0;
  set(&c, "layer_capacity", "1,2");
  test_fails(choir_config_check(&c), CHOIR_ERROR_ARGUMENT, "no MoE layer");
}

TEST_MAIN(NULL, NULL, by_layer, equal_weights, over_training, refuses)
