/* When a notice says that a model is served with other numbers of experts per token than it was trained with: the same
 * windows, counted with the router's own choice and with thresholds. */
#include "model_testing.h"
#include "train/evaluate.h"

enum { TOKENS = 100 };

static const int32_t text[2][TOKENS] = {{1, 2, 3}, {1, 2, 4}};

/* As after an evaluation in which the tokens of the MoE layers 1 and 3 had so many experts on average. */
static const char *evaluated(choir_model *model, int causal, const ch_windows *windows, double first, double second) {
  const double experts[] = {first, second};
  for (int i = 0; i < 2; i++) {
    model->net.stats[i].tokens = TOKENS;
    model->net.stats[i].assignments = (int64_t)(TOKENS * experts[i] + 0.5);
  }
  model->causal = causal ? CH_BY_THRESHOLDS : 0;
  choir_notices();
  ch_note_served_cost(model, windows, MODEL_B, windows->count);
  return choir_notices();
}

static void test_the_layer(void **state) {
  choir_config c = model_config("expert_choice");
  choir_model *model = model_fresh(&c);
  const ch_windows windows = ch_windows_text(text[0], TOKENS, MODEL_T);
  assert_int_equal(model->net.moe_layers, 2);
  assert_string_equal(evaluated(model, 0, &windows, 2, 2), "");
  assert_string_equal(evaluated(model, 1, &windows, 2.19, 1.81), ""); /* within 10 % */
  const char *told = evaluated(model, 1, &windows, 2.5, 2);
  assert_non_null(strstr(told, "layer 1: threshold routing assigns 2.50 experts per token"));
  assert_non_null(strstr(told, "'expert_choice' itself, as in training, 2.00; 1 of 2 MoE layers"));
  told = evaluated(model, 1, &windows, 2.5, 1);
  assert_non_null(strstr(told, "layer 3: threshold routing assigns 1.00 experts per token"));
  assert_non_null(strstr(told, "2 of 2 MoE layers"));
  assert_string_equal(evaluated(model, 0, &windows, 2.5, 1), ""); /* in the other order, too */
  choir_model_free(model);
}

/* Numbers over other windows, before the thresholds moved, or during a training are not compared. */
static void test_what_is_not_compared(void **state) {
  choir_config c = model_config("expert_choice");
  choir_model *model = model_fresh(&c);
  const ch_windows windows = ch_windows_text(text[0], TOKENS, MODEL_T);
  const ch_windows others[] = {ch_windows_text(text[1], TOKENS, MODEL_T),
                               ch_windows_text(text[0], TOKENS, MODEL_T / 2)};
  ch_windows observing = windows, unfinished = windows;
  observing.observe = unfinished.unfinished = 1;
  assert_string_equal(evaluated(model, 0, &windows, 2, 2), "");
  for (int i = 0; i < 2; i++) assert_string_equal(evaluated(model, 1, &others[i], 3, 3), "");
  assert_string_equal(evaluated(model, 1, &unfinished, 3, 3), "");
  assert_string_equal(evaluated(model, 0, &observing, 2, 2), "");
  assert_string_equal(evaluated(model, 1, &windows, 3, 3), "");
  assert_string_not_equal(evaluated(model, 0, &windows, 2, 2), "");
  ch_model_weights_changed(model);
  assert_string_equal(evaluated(model, 0, &windows, 2, 2), "");
  choir_model_free(model);
}

/* Where training and evaluation have other capacities on purpose, and where no thresholds serve. */
static void test_settings(void **state) {
  static const struct {
    const char *router, *set;
    int compared;
  } cases[] = {
      {"expert_choice", "router.eval_capacity_factor=0", 1},
      {"expert_choice", "router.eval_capacity_factor=3", 0},
      {"expert_choice",
       "train.objective=masked_diffusion model.attention=bidirectional router.pool=sequence "
       "router.capacity_schedule=linear",
       0},
      {"expert_choice", "train.objective=masked_diffusion model.attention=bidirectional router.pool=sequence", 1},
      {"topk", "router.experts_per_token=2", 0}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    choir_config c = model_config(cases[i].router);
    test_set(&c, "%s", cases[i].set);
    choir_model *model = model_fresh(&c);
    const ch_windows windows = ch_windows_text(text[0], TOKENS, MODEL_T);
    evaluated(model, 0, &windows, 2, 2);
    assert_int_equal(*evaluated(model, 1, &windows, 3, 3) != 0, cases[i].compared);
    choir_model_free(model);
  }
}

TEST_MAIN(NULL, NULL, test_the_layer, test_what_is_not_compared, test_settings)
