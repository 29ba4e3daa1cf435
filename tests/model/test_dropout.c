/* Dropout: what the op draws, and which passes of a model it touches. */
#include "model_testing.h"

enum { COUNT = 20001 };

static void draw(uint64_t seed, uint32_t place, uint64_t number, double rate, int threads, real *y) {
  real *ones = test_new(COUNT);
  for (int i = 0; i < COUNT; i++) ones[i] = 1;
  TEST_EXEC("cpu", CH_COMPUTE_FP32, threads, {
    x.ops->dropout(&x,
                   &(ch_dropout_args){
                       .count = COUNT, .rate = rate, .seed = seed, .place = place, .draw = number, .x = ones, .y = y});
  });
  free(ones);
}

/* Elements in which two draws agree. */
static int agree(const real *a, const real *b) {
  int count = 0;
  for (int i = 0; i < COUNT; i++) count += a[i] == b[i];
  return count;
}

/* A share of `rate` is dropped, the rest scaled so that the mean stays; all of it whatever the number of threads. */
static void shares(void **state) {
  real *y = test_new(COUNT), *again = test_new(COUNT);
  for (double rate = 0.1; rate < 0.95; rate += 0.4) {
    int dropped = 0;
    draw(1, 3, 7, rate, 1, y);
    for (int i = 0; i < COUNT; i++) {
      dropped += y[i] == 0;
      if (y[i] != 0) assert_true(fabs((double)y[i] * (1 - rate) - 1) < 1e-4);
    }
    assert_true(fabs((double)dropped / COUNT - rate) < 5 * sqrt(rate * (1 - rate) / COUNT));
    draw(1, 3, 7, rate, 3, again);
    assert_memory_equal(y, again, COUNT * sizeof *y);
  }
  free(y), free(again);
}

/* Other seeds, places and draws drop other elements, independently: half of them agree at a rate of one half. */
static void independent(void **state) {
  const struct {
    uint64_t seed;
    uint32_t place;
    uint64_t number;
  } other[] = {{2, 3, 7}, {1, 4, 7}, {1, 3, 8}};
  real *y = test_new(COUNT), *o = test_new(COUNT);
  draw(1, 3, 7, 0.5, 2, y);
  for (int k = 0; k < 3; k++) {
    draw(other[k].seed, other[k].place, other[k].number, 0.5, 2, o);
    assert_true(abs(agree(y, o) - COUNT / 2) < 5 * sqrt(COUNT) / 2);
  }
  free(y), free(o);
}

/* y += of what = gives; NaN stays; x may be y. */
static void accumulates(void **state) {
  real in[9] = {1, 2, 3, NAN, 5, 6, 7, 8, 9}, y[9], sum[9];
  ch_dropout_args a = {.count = 9, .rate = 0.5, .seed = 1, .x = in, .y = y};
  TEST_EXEC("reference", CH_COMPUTE_FP32, 1, { x.ops->dropout(&x, &a); });
  for (int i = 0; i < 9; i++) sum[i] = 100;
  a.y = sum, a.accumulate = 1;
  TEST_EXEC("reference", CH_COMPUTE_FP32, 1, {
    if (!ch_counting(&x)) x.ops->dropout(&x, &a);
  });
  assert_true(isnan(y[3]) && isnan(sum[3]));
  for (int i = 0; i < 9; i++)
    if (i != 3) assert_true(sum[i] == 100 + y[i] && (y[i] == 0 || y[i] == 2 * in[i]));
  a.y = in, a.accumulate = 0;
  TEST_EXEC("reference", CH_COMPUTE_FP32, 1, {
    if (!ch_counting(&x)) x.ops->dropout(&x, &a);
  });
  for (int i = 0; i < 9; i++) assert_true(i == 3 ? isnan(in[i]) : in[i] == y[i]);
}

static double loss(choir_model *model, ch_pass pass) {
  int32_t token[MODEL_B * MODEL_T];
  model_tokens(token, MODEL_B * MODEL_T, 3);
  pass.B = MODEL_B, pass.T = MODEL_T, pass.token = token, pass.target = token, pass.seed = 1;
  test_ok(ch_model_plan_passes(model, &pass, 1));
  ch_transformer_run(&model->x, &model->net, &pass);
  return pass.loss_sum;
}

/* Training passes alone drop, another part in every micro-batch. */
static void training_only(void **state) {
  choir_config config = model_config("expert_choice");
  choir_model *model = model_new(&config, "cpu", "fp32");
  double plain = loss(model, (ch_pass){.route = {.training = 1}}),
         a = loss(model, (ch_pass){.route = {.training = 1}, .dropout = 0.1}),
         again = loss(model, (ch_pass){.route = {.training = 1}, .dropout = 0.1}),
         b = loss(model, (ch_pass){.route = {.training = 1}, .dropout = 0.1, .micro = 1});
  assert_true(a == again && a != plain && a != b);
  assert_true(loss(model, (ch_pass){.dropout = 0.1}) == loss(model, (ch_pass){0}));
  choir_model_free(model);
}

TEST_MAIN(NULL, NULL, shares, independent, accumulates, training_only)
