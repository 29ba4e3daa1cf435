/* Routers that choir has never seen (choir/plugin.h) on several ranks: every one asks the router, for all tokens, and
 * all must get the same answer. */
#include "base/hash.h"
#include "comm/collective.h"
#include "forked_comm.h"
#include "handle/ranks.h"
#include "model_testing.h"
#include "plugin_routers.h"

static int register_all(void **state) {
  register_plugin_routers();
  return 0;
}

static uint64_t *of_one;      /* what one process found, in memory that all share */
static int this_rank, served; /* whether training is over */

/* The loss with threshold routing counts, too, where the router has thresholds. */
static int step_on(const ch_comm *comm, const char *router, uint64_t *weights) {
  choir_config c = model_config(router);
  test_set(&c, "shards=4 accumulate=2");
  const choir_ranks ranks = {.comm = comm, .replicas = 1, .hidden = 1};
  choir_model_options run = {.size = sizeof run, .threads = 1 + comm->size % 2, .ranks = &ranks};
  choir_trainer_result r;
  choir_model *model;
  ch_trainer t;
  static int32_t token[2 * MODEL_B * MODEL_T];
  model_tokens(token, 2 * MODEL_B * MODEL_T, 4);
  test_ok(ch_model_prepare(&c, &run, &model));
  model_trainer(model, &t);
  test_ok(ch_params_init(&model->net.params, model->x.memory, 5, 1));
  ch_model_weights_changed(model);
  int code = ch_trainer_step(&t, token, token, &r);
  if (!code) code = ch_trainer_step(&t, token, token, &r); /* what is wrong in `observe` ends the next step */
  *weights = 1;
  for (int i = 0; i < model->net.params.count + model->net.params.buffers && !code; i++) {
    const ch_param *p = &model->net.params.p[i];
    real *whole = test_new(p->whole);
    test_ok(ch_param_collect(p, &model->x, 0, whole));
    *weights = XXH64(whole, (size_t)p->whole * sizeof *whole, *weights);
    free(whole);
  }
  choir_forward_result f;
  if (!code && ch_router_calibrates(c.model.router.kind)) {
    served = 1;
    test_ok(choir_model_set_routing(model, "threshold"));
    code = choir_model_forward(model, MODEL_B, MODEL_T, token, NULL, 0, &f);
    if (!code) *weights = XXH64(&f.loss, sizeof f.loss, *weights);
  }
  ch_trainer_free(&t);
  return code;
}

static int step_alike(const ch_comm *comm, void *context) {
  uint64_t weights;
  test_ok(step_on(comm, context, &weights));
  if (comm->size == 1) *of_one = weights;
  return weights != *of_one;
}

static void same_on_ranks(void **state) {
  of_one = mmap(NULL, sizeof *of_one, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  const char *const names[] = {"own_ec", "own_min", "own_top2", "own_bias", "own_balance"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    for (int size = 1; size <= 4; size *= 2)
      if (forked_run(size, 0, step_alike, (void *)names[i])) fail_msg("%s: %d ranks", names[i], size);
}

static int choose_by_rank(void *context, const choir_plugin_call *call, uint8_t *chosen) {
  if (this_rank != 1) return best_experts(context, call, chosen);
  for (int t = 0; t < call->n; t++) chosen[(int64_t)t * call->e] = call->valid[t];
  return 0;
}

static int lose_by_rank(void *context, const choir_plugin_call *call, const uint8_t *chosen, double *loss,
                        float *gradient) {
  gradient[call->n * call->e - 1] = this_rank == 1;
  return *loss = 1, 0;
}

static int move_by_rank(void *context, const choir_plugin_call *call, const int64_t *demand, double *state) {
  state[0] += this_rank == 1;
  return 0;
}

/* With a context after training only. */
static int rank_by_rank(void *context, const choir_plugin_call *call, float *ranking) {
  int here = this_rank == 1 && (!context || served);
  for (int i = 0; i < call->n * call->e; i++) ranking[i] = call->scores[i] + (here ? (float)(i % call->e) : 0);
  return 0;
}

static int step_divided(const ch_comm *comm, void *context) {
  uint64_t weights;
  this_rank = comm->rank;
  return step_on(comm, "divided", &weights) != CHOIR_ERROR_ARGUMENT || !strstr(choir_error_message(), "layer 1") ||
         !strstr(choir_error_message(), "divided");
}

static void ranks_that_choose_otherwise(void **state) {
  choir_plugin_router divided = own_top2;
  divided.name = "divided";
  divided.choose = choose_by_rank;
  test_ok(choir_router_register(&divided));
  if (forked_run(2, 0, step_divided, NULL)) fail_msg("what one rank alone chose was believed");
  divided.choose = best_experts;
  divided.loss = lose_by_rank;
  test_ok(choir_router_register(&divided));
  if (forked_run(2, 0, step_divided, NULL)) fail_msg("the gradient of one rank alone was believed");
  divided.loss = NULL;
  divided.observe = move_by_rank;
  test_ok(choir_router_register(&divided));
  if (forked_run(2, 0, step_divided, NULL)) fail_msg("the state of one rank alone was believed");
  choir_experts_choose ranked = own_min;
  ranked.common.name = "divided";
  ranked.common.rank = rank_by_rank;
  test_ok(choir_router_register_experts(&ranked));
  if (forked_run(2, 0, step_divided, NULL)) fail_msg("the ranking of one rank alone was believed");
  ranked.common.context = &ranked;
  test_ok(choir_router_register_experts(&ranked));
  if (forked_run(2, 0, step_divided, NULL)) fail_msg("the ranking of one rank alone served");
}

TEST_MAIN(register_all, NULL, same_on_ranks, ranks_that_choose_otherwise)
