/* Passes that ask for the logits of a few positions: as if all had been asked for and the others had no target. */
#include "model_testing.h"

enum { ROWS = 7 };

typedef struct {
  double loss, aux;
  real *gradients, *logits;
} outcome;

static int64_t gradient_count(const choir_model *m) { return ch_params_total(&m->net.params); }

static outcome run(choir_model *model, ch_pass pass) {
  int64_t at = 0, positions = pass.row ? pass.rows : MODEL_B * MODEL_T;
  outcome o = {.gradients = test_new(gradient_count(model)), .logits = test_new(positions * MODEL_V)};
  pass.logits = o.logits;
  ch_pass plan = pass;
  test_ok(ch_model_plan_passes(model, &plan, 1));
  test_poison(o.logits, positions * MODEL_V);
  memset(model->x.tape.base, 0xFF, model->x.tape.size); /* NaN */
  memset(model->x.scratch.base, 0xFF, model->x.scratch.size);
  ch_transformer_run(&model->x, &model->net, &pass);
  o.loss = pass.loss_sum;
  o.aux = pass.aux_loss;
  for (int i = 0; i < model->net.params.count; i++) {
    memcpy(o.gradients + at, model->net.params.p[i].g, (size_t)model->net.params.p[i].count * sizeof(real));
    at += model->net.params.p[i].count;
  }
  return o;
}

static void check(const char *router, double consistency, const char *backend) {
  choir_config config = model_config(router);
  config.model.router.consistency_weight = consistency;
  choir_model *model = model_new(&config, backend, "fp32");
  test_ok(ch_model_make_gradients(model));
  int32_t token[MODEL_B * MODEL_T], target[MODEL_B * MODEL_T], row[2 * ROWS], wanted[2 * ROWS];
  int half = MODEL_B / 2 * MODEL_T, rows = consistency > 0 ? 2 * ROWS : ROWS;
  model_tokens(token, MODEL_B * MODEL_T, 3);
  for (int t = 0; t < half && consistency > 0; t++) token[half + t] = token[t];
  for (int t = 0; t < MODEL_B * MODEL_T; t++) target[t] = -1;
  for (int i = 0; i < rows; i++) {
    row[i] = i / ROWS * half + 5 + 11 * (i % ROWS);
    wanted[i] = target[row[i]] = i % ROWS == 2 ? -1 : (13 * (i % ROWS)) % MODEL_V; /* one position without a target */
  }
  token[4 * MODEL_T - 1] = token[half + 4 * MODEL_T - 1] = -1; /* padding */
  ch_pass pass = {.B = MODEL_B,
                  .T = MODEL_T,
                  .token = token,
                  .target = target,
                  .route = {.training = 1},
                  .gradients = 1,
                  .paired = consistency > 0,
                  .weight = 0.25f,
                  .aux_scale = 1,
                  .seed = 3};
  outcome all = run(model, pass);
  pass.row = row;
  pass.rows = rows;
  pass.target = wanted;
  outcome few = run(model, pass);
  assert_true(all.loss > 1 && fabs(all.loss - few.loss) <= 1e-5 * all.loss);
  assert_true(fabs(all.aux - few.aux) <= 1e-5 * (1 + fabs(all.aux)));
  test_close(few.gradients, all.gradients, gradient_count(model), 1e-5);
  for (int i = 0; i < rows; i++)
    test_close(few.logits + i * MODEL_V, all.logits + (int64_t)row[i] * MODEL_V, MODEL_V, 1e-5);
  free(all.gradients), free(all.logits), free(few.gradients), free(few.logits);
  choir_model_free(model);
}

static void few_positions(void **state) {
  check("expert_choice", 0, "cpu");
  check("expert_choice", 0, "reference");
  check("switch_top1", 0, "cpu");
  check("dense", 0, "cpu");
}

static void pairs_of_positions(void **state) {
  check("random", 3, "cpu");
  check("random", 3, "reference");
}

TEST_MAIN(NULL, NULL, few_positions, pairs_of_positions)
