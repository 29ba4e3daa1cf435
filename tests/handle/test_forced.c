/* Forced routing (choir_model_force_routing): choices that were given take the place of the router's. */
#include "model_testing.h"

enum { N = MODEL_B * MODEL_T, LAYERS = 2, CELLS = LAYERS * N * MODEL_E };

static void mark(void *context, const choir_routing *r) {
  uint8_t *assignment = (uint8_t *)context + (int64_t)r->moe * N * MODEL_E;
  for (int i = 0; i < r->experts; i++)
    for (int s = r->expert_begin[i]; s < r->expert_begin[i + 1]; s++) assignment[r->slot_token[s] * MODEL_E + i] = 1;
}

/* Logits, gradients (malloc'd) and who took whom of a pass. */
typedef struct {
  float logits[N * MODEL_V];
  real *gradients;
  uint8_t assignment[CELLS];
  choir_forward_result result;
} outcome;

static outcome *run(choir_model *model, const int32_t *token, int gradients) {
  outcome *o = calloc(1, sizeof *o);
  choir_model_on_routing(model, mark, o->assignment);
  test_ok(choir_model_forward(model, MODEL_B, MODEL_T, token, o->logits, gradients, &o->result));
  choir_model_on_routing(model, NULL, NULL);
  o->gradients = gradients ? model_gradients(model) : NULL;
  return o;
}

static void release(outcome *o) {
  free(o->gradients);
  free(o);
}

static int takes(const ch_router *router) { return router->reads == CHOIR_READS_SCORES; }

/* Other tokens, as many for each expert, need no other plan; and get what a plan of their own gives. */
static void others_of_the_same_plan(choir_model *model, const int32_t *token, outcome *own) {
  uint64_t plan = model->forced_plan;
  uint8_t was[MODEL_E];
  assert_true(plan != 0);
  for (int layer = 0; layer < LAYERS; layer++) { /* each token's marks go to the one before it */
    uint8_t *mark = own->assignment + layer * N * MODEL_E;
    memcpy(was, mark, MODEL_E);
    memmove(mark, mark + MODEL_E, (N - 1) * MODEL_E);
    memcpy(mark + (N - 1) * MODEL_E, was, MODEL_E);
  }
  outcome *again = run(model, token, 1), *anew;
  assert_true(model->forced_plan == plan);
  ch_model_drop_plan(model);
  anew = run(model, token, 1);
  assert_memory_equal(again->logits, anew->logits, sizeof anew->logits);
  assert_memory_equal(again->gradients, anew->gradients, (size_t)ch_params_total(&model->net.params) * sizeof(real));
  release(again);
  release(anew);
}

/* A routing that is replayed is the routing: to the bit, gradients too. */
static void replays(void **state) {
  int32_t token[N];
  model_tokens(token, N, 9);
  for (int i = 0; ch_routers[i]; i++) {
    if (!takes(ch_routers[i])) continue;
    choir_config c = model_config(ch_routers[i]->name);
    c.model.router.aux_loss_weight = 0; /* no one balances what was given */
    c.model.router.z_loss_weight = 0.1;
    choir_model *model = model_new(&c, "cpu", "fp32");
    outcome *own = run(model, token, 1), *replayed;
    test_ok(choir_model_force_routing(model, MODEL_B, MODEL_T, own->assignment));
    replayed = run(model, token, 1);
    assert_memory_equal(own->assignment, replayed->assignment, CELLS);
    assert_memory_equal(own->logits, replayed->logits, sizeof own->logits);
    assert_memory_equal(own->gradients, replayed->gradients,
                        (size_t)ch_params_total(&model->net.params) * sizeof(real));
    assert_memory_equal(&own->result, &replayed->result, sizeof own->result);
    release(replayed);
    if (!strcmp(ch_routers[i]->name, "topk")) others_of_the_same_plan(model, token, own);
    test_ok(choir_model_force_routing(model, 0, 0, NULL));
    replayed = run(model, token, 1); /* and the router chooses again */
    assert_memory_equal(own->logits, replayed->logits, sizeof own->logits);
    release(own);
    release(replayed);
    choir_model_free(model);
  }
}

/* Any marks: none, all, some; under routing by thresholds, too, which they take the place of. */
static void any_marks(void **state) {
  static const uint64_t percent[] = {0, 100, 30, 5};
  int32_t token[N];
  uint8_t assignment[CELLS];
  model_tokens(token, N, 9);
  for (int kind = 0; kind < 4; kind++) {
    choir_config c = model_config(kind == 1 ? "topk" : "expert_choice");
    choir_model *model = model_new(&c, kind == 2 ? "reference" : "cpu", "fp32");
    ch_rng rng = ch_rng_make(3, CH_STREAM_TEST, (uint32_t)kind);
    for (int i = 0; i < CELLS; i++) assignment[i] = ch_rng_below(rng, (uint64_t)i, 100) < percent[kind];
    test_ok(choir_model_force_routing(model, MODEL_B, MODEL_T, assignment));
    outcome *a = run(model, token, 1), *b;
    assert_memory_equal(a->assignment, assignment, CELLS);
    assert_true(a->result.aux_loss == 0);
    if (kind != 1) test_ok(choir_model_set_routing(model, "threshold"));
    b = run(model, token, 0);
    assert_memory_equal(b->assignment, assignment, CELLS);
    test_close(b->logits, a->logits, N * MODEL_V, 1e-5);
    release(a);
    release(b);
    choir_model_free(model);
  }
}

static void refuses(void **state) {
  static uint8_t assignment[CELLS];
  int32_t token[N];
  choir_forward_result r;
  model_tokens(token, N, 9);
  for (int i = 0; ch_routers[i]; i++) {
    choir_config c = model_config(ch_routers[i]->name);
    choir_model *model = model_new(&c, "cpu", "fp32");
    if (!takes(ch_routers[i]))
      test_fails(choir_model_force_routing(model, MODEL_B, MODEL_T, assignment), CHOIR_ERROR_UNSUPPORTED,
                 "are not scores");
    choir_model_free(model);
  }
  choir_config c = model_config("expert_choice");
  choir_model *model = model_new(&c, "cpu", "fp32");
  assignment[N * MODEL_E + 2 * MODEL_E + 3] = 2;
  test_fails(choir_model_force_routing(model, MODEL_B, MODEL_T, assignment), CHOIR_ERROR_ARGUMENT, "assignment[1,2,3]");
  assignment[N * MODEL_E + 2 * MODEL_E + 3] = 0;
  test_fails(choir_model_force_routing(model, 0, MODEL_T, assignment), CHOIR_ERROR_ARGUMENT, "0 sequences");
  test_ok(choir_model_force_routing(model, MODEL_B, MODEL_T, assignment));
  test_fails(choir_model_forward(model, MODEL_B, MODEL_T - 1, token, NULL, 0, &r), CHOIR_ERROR_ARGUMENT,
             "forced routing is for 8 sequences of 24 tokens, and 8 of 23");
  choir_model_free(model);
  c.model.moe_every = 0;
  choir_model *dense = model_new(&c, "cpu", "fp32");
  test_fails(choir_model_force_routing(dense, MODEL_B, MODEL_T, assignment), CHOIR_ERROR_UNSUPPORTED, "no MoE layer");
  choir_model_free(dense);
}

TEST_MAIN(NULL, NULL, replays, any_marks, refuses)
