/* Every recipe at every scale: arms of equal cost, and runs that are known by what they compute. */
#include "study/study.h"
#include "testing.h"

/* As `choir study run` makes it, without data. */
static void plan(const char *recipe, const char *scale, int64_t tokens, ch_study *s) {
  *s = (ch_study){.vocab_size = 4096, .seeds = 3, .data_hash = 7};
  test_ok(ch_recipe_load(recipe, &s->recipe));
  test_ok(ch_scale_load(scale, &s->scale));
  snprintf(s->name, sizeof s->name, "%s", recipe);
  snprintf(s->scale_name, sizeof s->scale_name, "%s", scale);
  int code = ch_study_plan(s, tokens);
  if (code) fail_msg("%s at %s: %s", recipe, scale, choir_error_message());
}

/* Recipes whose arms differ in cost because that is their question; all others are within 4 %: routers' weights, and
 * experts that are a power of two many. */
static int about_cost(const char *recipe) {
  return !strcmp(recipe, "finetune") || !strcmp(recipe, "capacity") || !strcmp(recipe, "leak") ||
         !strcmp(recipe, "dense") || !strcmp(recipe, "balanced");
}

static void equal_costs(void **state) {
  (void)state;
  static const char *const scales[] = {"pico", "nano", "small", "0.1b"};
  choir_study_recipe_info info;
  int recipes = 0;
  for (; choir_study_recipe(recipes, &info); recipes++)
    for (int i = 0; i < 4; i++) {
      ch_study s;
      plan(info.name, scales[i], 0, &s);
      assert_int_equal(s.arms, info.arms);
      for (int a = 0; a < s.arms; a++) {
        double times = s.arm[a].costs.train_flops_per_token / s.arm[0].costs.train_flops_per_token;
        if (!about_cost(info.name) && !(times > 0.96 && times < 1.04))
          fail_msg("%s at %s, %s: %.3f of the first arm's FLOPs", info.name, scales[i], s.arm[a].name, times);
        assert_int_equal(s.arm[s.arm[a].rate_of].rate_of, s.arm[a].rate_of);
      }
      assert_int_equal(s.steps % s.eval_every, 0);
      assert_int_equal(s.rate_steps % s.eval_every, 0);
      ch_study_free(&s);
    }
  assert_int_equal(recipes, 11);
}

/* The exceptions are meant: what stands for the same number of experts costs the same. */
static void pairs_of_equal_cost(void **state) {
  (void)state;
  static const char *const pairs[][3] = {{"balanced", "EC c=2", "hash, wide"},
                                         {"balanced", "EC c=2", "BASE, wide"},
                                         {"balanced", "EC c=2", "k-means, wide"},
                                         {"balanced", "EC c=1", "hash"},
                                         {"capacity", "EC c=1", "Switch"},
                                         {"finetune", "EC c=1", "Switch"},
                                         {"finetune", "EC c=1", "hash"},
                                         {"finetune", "EC c=2", "top-2"},
                                         {"finetune", "EC c=2", "cap 2"},
                                         {"finetune", "EC c=2", "dense, wide"},
                                         {"dense", "EC c=2, 4 x expert size", "dense, 4 x expert size"},
                                         {"dense", "EC c=2, 1 x expert size", "dense, 1 x expert size"}};
  for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
    ch_study s;
    plan(pairs[i][0], "pico", 0, &s);
    int a = ch_study_arm_find(&s, pairs[i][1]), b = ch_study_arm_find(&s, pairs[i][2]);
    assert_true(a >= 0 && b >= 0);
    double times = s.arm[b].costs.train_flops_per_token / s.arm[a].costs.train_flops_per_token;
    if (!(times > 0.98 && times < 1.02))
      fail_msg("%s: %s costs %.3f of %s", pairs[i][0], pairs[i][2], times, pairs[i][1]);
    ch_study_free(&s);
  }
}

static void name_of(const ch_study *s, const char *arm, double rate, int seed, int64_t steps, char *name) {
  choir_config config;
  int number = ch_study_arm_find(s, arm);
  if (number < 0) fail_msg("no arm '%s'", arm);
  ch_study_config(s, number, rate, seed, steps, &config);
  test_ok(ch_study_run_name(s, &config, name));
}

/* The same arm of two recipes is one run, however long; another rate, seed, data or router is another. */
static void names_of_runs(void **state) {
  (void)state;
  ch_study a, b, c;
  char one[CH_RUN_NAME], other[CH_RUN_NAME];
  plan("efficiency", "pico", 0, &a);
  plan("dense", "pico", 1000000, &b);
  plan("experts", "pico", 0, &c);
  name_of(&a, "EC c=2", 0.04, 2, 100, one);
  name_of(&b, "EC c=2, 1 x expert size", 0.04, 2, 9000, other);
  assert_string_equal(one, other);
  name_of(&c, "EC c=2, 32 experts", 0.04, 2, 9000, other);
  assert_string_equal(one, other);
  name_of(&c, "EC c=2, 64 experts", 0.04, 2, 9000, other);
  assert_string_not_equal(one, other);
  name_of(&a, "EC c=2", 0.02, 2, 100, other);
  assert_string_not_equal(one, other);
  name_of(&a, "EC c=2", 0.04, 1, 100, other);
  assert_string_not_equal(one, other);
  name_of(&a, "top-2", 0.04, 2, 100, other);
  assert_string_not_equal(one, other);
  b.data_hash = 8;
  name_of(&b, "EC c=2, 1 x expert size", 0.04, 2, 9000, other);
  assert_string_not_equal(one, other);
  ch_study_free(&a);
  ch_study_free(&b);
  ch_study_free(&c);
}

/* Who has run the other studies has all that fine-tuning begins with. */
static void finetuning_trains_nothing(void **state) {
  (void)state;
  static const char *const same[][3] = {{"dense, wide", "efficiency", "dense, wide"},
                                        {"Switch", "capacity", "Switch"},
                                        {"top-2", "capped", "top-2"},
                                        {"EC c=2", "efficiency", "EC c=2"},
                                        {"EC c=1", "capacity", "EC c=1"},
                                        {"EC c=0.5", "capacity", "EC c=0.5"},
                                        {"cap 2", "capped", "cap 2"},
                                        {"cap 3", "capped", "cap 3"},
                                        {"hash", "balanced", "hash"}};
  ch_study tuned, other;
  char one[CH_RUN_NAME], two[CH_RUN_NAME];
  plan("finetune", "pico", 0, &tuned);
  assert_int_equal(tuned.arms, sizeof same / sizeof *same);
  for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
    plan(same[i][1], "pico", 0, &other);
    name_of(&tuned, same[i][0], 0.04, 2, 100, one);
    name_of(&other, same[i][2], 0.04, 2, 100, two);
    assert_string_equal(one, two);
    assert_int_equal(tuned.steps, other.steps);
    ch_study_free(&other);
  }
  ch_study_free(&tuned);
}

/* A fine-tuning run is another one wherever anything that it computes is. */
static void names_of_tuned_runs(void **state) {
  (void)state;
  ch_study s;
  ch_study_task task[2] = {{.name = "RTE", .hash = 1}, {.name = "RTE", .hash = 2}};
  char one[CH_RUN_NAME], other[CH_RUN_NAME];
  int64_t *const fields[] = {&s.tune.steps, &s.tune.eval_every, &s.tune.rows, &s.steps};
  plan("finetune", "pico", 0, &s);
  s.arm[3].rate = 0.04;
  s.tune.task = task;
  test_ok(ch_study_tuned_name(&s, 0, 3, 2, one));
  test_ok(ch_study_tuned_name(&s, 0, 3, 2, other));
  assert_string_equal(one, other);
  test_ok(ch_study_tuned_name(&s, 1, 3, 2, other));
  assert_string_not_equal(one, other);
  test_ok(ch_study_tuned_name(&s, 0, 3, 1, other));
  assert_string_not_equal(one, other);
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
    ++*fields[i];
    test_ok(ch_study_tuned_name(&s, 0, 3, 2, other));
    assert_string_not_equal(one, other);
    --*fields[i];
  }
  json_object_set_new(json_object_get(s.recipe, "tune"), "set", json_pack("{s:f}", "train.dropout", 0.1));
  test_ok(ch_study_tuned_name(&s, 0, 3, 2, other));
  assert_string_not_equal(one, other);
  s.tune.task = NULL;
  ch_study_free(&s);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(equal_costs), cmocka_unit_test(pairs_of_equal_cost),
                                     cmocka_unit_test(names_of_runs), cmocka_unit_test(finetuning_trains_nothing),
                                     cmocka_unit_test(names_of_tuned_runs)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
