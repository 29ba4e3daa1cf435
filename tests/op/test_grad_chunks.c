/* train.grad_chunks: what a micro-batch's shards give is what a process for each of them would give, added in a fixed
 * tree.
 */
#include "model_testing.h"
#include "moe_testing.h"
#include "op/grad_chunks.h"
#include "train/step.h"

enum { TOKENS = MODEL_B * MODEL_T };

/* ---- sums ---- */

enum { SIZE = 5 };

/* A shard's part: numbers whose sum depends on the order. */
static real part_of(int shard, int i) { return (real)(1.0 / (3 + shard) + i * 1e-3 * shard * shard); }

static void part(ch_exec *x, void *context, int shard, real CH_DEV *const *y, int accumulate) {
  (void)x;
  int *next = context;
  assert_int_equal(shard, (*next)++);
  for (int i = 0; i < SIZE; i++) {
    y[0][i] = accumulate ? y[0][i] + part_of(shard, i) : part_of(shard, i);
    y[1][i] += part_of(shard, i);
  }
}

static real naive_tree(int lo, int hi, int i) {
  int mid = (lo + hi) / 2;
  return hi - lo == 1 ? part_of(lo, i) : naive_tree(lo, mid, i) + naive_tree(mid, hi, i);
}

static void check_sum(ch_exec *x, int shards, int accumulate) {
  real y[2][SIZE] = {{NAN, NAN, NAN, NAN, NAN}, {0}};
  for (int i = 0; i < SIZE && accumulate; i++) y[0][i] = y[1][i] = (real)0.7;
  const ch_sum sum[] = {{.y = y[0], .count = SIZE}, {.y = y[1], .count = SIZE, .adds = 1}};
  int next = 0;
  ch_sum_grad_chunks(x, shards, sum, 2, accumulate, part, &next);
  assert_int_equal(next, shards);
  for (int i = 0; i < SIZE; i++) {
    real want = naive_tree(0, shards, i) + (accumulate ? (real)0.7 : 0);
    assert_true(y[0][i] == want && y[1][i] == want);
  }
}

static void a_tree_whatever_the_order(void **state) {
  ch_exec x;
  test_ok(ch_exec_init(&x, "cpu", CH_COMPUTE_FP32, 0, 2));
  x.scratch.peak = 1 << 16;
  test_ok(ch_exec_commit(&x));
  for (int shards = 1; shards <= 9; shards++)
    for (int accumulate = 0; accumulate < 2; accumulate++) check_sum(&x, shards, accumulate);
  ch_exec_free(&x);
}

/* ---- passes ---- */

static double backward(choir_model *model, int B, int shards, const int32_t *token) {
  ch_pass pass = {.B = B,
                  .T = MODEL_T,
                  .grad_chunks = shards,
                  .token = token,
                  .target = token,
                  .route = {.training = 1},
                  .gradients = 1,
                  .weight = (real)(1.0 / TOKENS),
                  .aux_scale = 1,
                  .seed = 3};
  memset(model->gradients.base, 0xff, model->gradients.size);
  ch_transformer_run(&model->x, &model->net, &pass);
  return pass.loss_sum;
}

static choir_model *model_of(choir_config config, int B, int shards) {
  config.train.batch_sequences = B;
  config.train.grad_chunks = shards;
  choir_model *model;
  choir_model_options run = {.size = sizeof run, .backend = "cpu", .threads = 2};
  test_ok(choir_model_create(&config, 5, &run, &model));
  test_ok(ch_model_plan(model, B, MODEL_T, 1));
  test_ok(ch_model_make_gradients(model));
  return model;
}

/* The naive tree over processes lo .. hi-1; frees what it adds. */
static real *add_tree(real **of, int lo, int hi, int64_t count) {
  if (hi - lo == 1) return of[lo];
  int mid = (lo + hi) / 2;
  real *left = add_tree(of, lo, mid, count), *right = add_tree(of, mid, hi, count);
  for (int64_t i = 0; i < count; i++) left[i] += right[i];
  free(right);
  return left;
}

static double add_losses(const double *of, int lo, int hi) {
  int mid = (lo + hi) / 2;
  return hi - lo == 1 ? of[lo] : add_losses(of, lo, mid) + add_losses(of, mid, hi);
}

/* Without MoE layers sequences do not meet, so passes over a shard's sequences alone are what its process would run.
 * The lookup's gradient is added to the head's after each has been summed, and here before: the embedding is near only.
 */
static void is_what_processes_give(void **state) {
  choir_config config = model_config("expert_choice");
  config.model.moe_every = 0;
  int32_t token[TOKENS];
  model_tokens(token, TOKENS, 7);
  for (int shards = 1; shards <= MODEL_B; shards *= 2) {
    int B = MODEL_B / shards;
    real *of[MODEL_B];
    double loss[MODEL_B];
    choir_model *all = model_of(config, MODEL_B, shards), *one = model_of(config, B, 1);
    int64_t count = ch_params_total(&all->net.params), embed = all->net.embed->count;
    for (int i = 0; i < shards; i++) {
      loss[i] = backward(one, B, 1, token + i * B * MODEL_T);
      of[i] = model_gradients(one);
    }
    double sum = backward(all, MODEL_B, shards, token);
    real *want = add_tree(of, 0, shards, count), *got = model_gradients(all);
    assert_string_equal(all->net.params.p[0].name, "embed.weight");
    assert_memory_equal(want + embed, got + embed, (size_t)(count - embed) * sizeof *want);
    test_close(got, want, embed, 1e-5);
    assert_true(sum == add_losses(loss, 0, shards));
    free(want), free(got);
    choir_model_free(all), choir_model_free(one);
  }
}

/* The same function of the same tokens, whatever the router: shards change the order of sums. */
static void changes_rounding_only(void **state) {
  for (int which = 0; ch_router_names[which]; which++) {
    choir_config config = model_config(ch_router_names[which]);
    int32_t token[TOKENS];
    model_tokens(token, TOKENS, 8);
    real *got[2];
    double loss[2];
    int64_t count = 0;
    for (int i = 0; i < 2; i++) {
      choir_model *model = model_of(config, MODEL_B, i ? 4 : 1);
      loss[i] = backward(model, MODEL_B, i ? 4 : 1, token);
      count = ch_params_total(&model->net.params);
      got[i] = model_gradients(model);
      choir_model_free(model);
    }
    test_close(got[1], got[0], count, 1e-4);
    assert_true(fabs(loss[1] - loss[0]) < 1e-6 * loss[0]);
    free(got[0]), free(got[1]);
  }
}

/* Whole steps, with updates within the backward pass and after it: the same weights. */
static void steps(void **state) {
  real *want = NULL;
  int32_t token[TOKENS];
  model_tokens(token, TOKENS, 9);
  for (int clip = 0; clip < 2; clip++) {
    choir_config config = model_config("expert_choice");
    config.train.grad_chunks = 4;
    config.train.clip_norm = clip ? 1e20 : 0;
    ch_trainer t;
    choir_trainer_result r;
    choir_model *model;
    choir_model_options run = {.size = sizeof run, .backend = "cpu", .threads = 1 + clip};
    test_ok(choir_model_create(&config, 1, &run, &model));
    model_trainer(model, &t);
    for (int i = 0; i < 3; i++) test_ok(ch_trainer_step(&t, token, token, &r));
    model_same_weights(t.model, &want);
    ch_trainer_free(&t);
  }
  free(want);
}

static void refusals(void **state) {
  choir_config c = model_config("random");
  c.train.grad_chunks = 3;
  test_fails(choir_config_check(&c), CHOIR_ERROR_ARGUMENT,
             "train.grad_chunks is 3: it must divide train.batch_sequences, which is 8");
  c.train.grad_chunks = 4;
  test_ok(choir_config_check(&c));
  c.model.router.consistency_weight = 1;
  test_fails(choir_config_check(&c), CHOIR_ERROR_ARGUMENT, "consistency_weight");
}

TEST_MAIN(NULL, NULL, a_tree_whatever_the_order, is_what_processes_give, changes_rounding_only, steps, refusals)
