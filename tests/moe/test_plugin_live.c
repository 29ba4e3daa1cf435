/* A plug-in's router under a live model: what a step that it breaks leaves, and which definition the model has. */
#include <unistd.h>

#include "base/hash.h"
#include "file/dir.h"
#include "model_testing.h"
#include "moe/plugin.h"
#include "plugin_routers.h"
#include "train/run.h"

static char directory[] = "/tmp/test_plugin_XXXXXX";

static int make_directory(void **state) { return !mkdtemp(directory); }

static int remove_directory(void **state) { return ch_dir_remove(directory); }

static int calls_left; /* of `failing_observe`, until it fails; negative: never */

static int failing_observe(void *context, const choir_plugin_call *call, const int64_t *demand, double *state) {
  strcpy(call->message, "there is no tea");
  return !calls_left-- ? 1 : move_prices(context, call, demand, state);
}

/* An `observe` that fails, in the first MoE layer or behind it, ends its own step. What then is half a step is neither
 * saved nor trained, with updates in the backward pass or after it, until a checkpoint is loaded. */
static void observe_ends_its_step(void **state) {
  choir_plugin_router router = own_bias;
  router.name = "forgetful";
  router.observe = failing_observe;
  test_ok(choir_router_register(&router));
  for (int variant = 0; variant < 4; variant++) {
    const char *const names[] = {"0", "1", "2", "3"}, *saved = CH_IN(directory, names[variant]);
    choir_trainer *trainer;
    choir_trainer_result r;
    int32_t tokens[MODEL_B * MODEL_T];
    choir_config c = model_config("forgetful");
    test_set(&c, "layers=4 clip_norm=%d", variant / 2);
    choir_model *model = model_fresh(&c);
    calls_left = -1;
    model_tokens(tokens, MODEL_B * MODEL_T, 4);
    test_ok(choir_trainer_create(model, NULL, &trainer));
    test_ok(choir_trainer_step(trainer, tokens, NULL, &r));
    test_ok(choir_trainer_save(trainer, NULL, saved));
    test_ok(choir_trainer_step(trainer, tokens, NULL, &r));
    uint64_t after = XXH64(model->weights.base, model->weights.size, 0);
    test_ok(choir_trainer_resume(trainer, saved));
    calls_left = variant % 2;
    assert_int_equal(choir_trainer_step(trainer, tokens, NULL, &r), CHOIR_ERROR_ARGUMENT);
    assert_string_equal(choir_error_message(), variant % 2 ? "layer 3: router 'forgetful': there is no tea"
                                                           : "layer 1: router 'forgetful': there is no tea");
    const char *lost = CH_IN(directory, "lost");
    assert_int_equal(choir_trainer_save(trainer, NULL, lost), CHOIR_ERROR_ARGUMENT);
    assert_non_null(strstr(choir_error_message(), "step 2 ended between"));
    assert_int_equal(choir_model_save(model, NULL, lost), CHOIR_ERROR_ARGUMENT);
    assert_int_equal(choir_trainer_step(trainer, tokens, NULL, &r), CHOIR_ERROR_ARGUMENT);
    assert_int_not_equal(access(lost, F_OK), 0);
    test_ok(choir_trainer_resume(trainer, saved));
    test_ok(choir_trainer_step(trainer, tokens, NULL, &r));
    assert_true(r.step == 2 && after == XXH64(model->weights.base, model->weights.size, 0));
    choir_trainer_free(trainer);
    choir_model_free(model);
  }
}

/* A checkpoint goes on with the version of the router that it was trained by. */
static void another_version(void **state) {
  choir_plugin_router router = own_top2;
  const char *path = CH_IN(directory, "dated");
  router.name = "dated", router.version = "1";
  test_ok(choir_router_register(&router));
  choir_trainer *trainer, *other;
  int32_t tokens[MODEL_B * MODEL_T];
  choir_model *model = model_after_step("dated", tokens, &trainer), *loaded;
  test_ok(choir_trainer_save(trainer, NULL, path));
  choir_notices();
  test_ok(choir_trainer_resume(trainer, path));
  assert_string_equal(choir_notices(), "");
  router.version = "2";
  test_ok(choir_router_register(&router));
  test_ok(choir_trainer_resume(trainer, path)); /* it has version 1 */
  assert_string_equal(choir_notices(), "");
  choir_model *later = model_after_step("dated", tokens, &other);
  test_fails(choir_trainer_resume(other, path), CHOIR_ERROR_ARGUMENT, "another rule");
  choir_trainer_free(other);
  choir_model_free(later);
  test_ok(choir_model_load(path, NULL, &loaded, NULL));
  assert_non_null(strstr(choir_notices(), "of version 1, and that of the program is 2"));
  choir_model_free(loaded);
  choir_trainer_free(trainer);
  choir_model_free(model);
}

static uint64_t outcome_of(choir_trainer *trainer, choir_model *model, const int32_t *tokens) {
  choir_trainer_result r;
  for (int s = 0; s < 3; s++) test_ok(choir_trainer_step(trainer, tokens, NULL, &r));
  return XXH64(model->weights.base, model->weights.size, 0);
}

/* A router that is defined anew under its name, in any way, leaves a model that lives as it is; configs of before give
 * later models the new one, with what was set. */
static void defined_anew(void **state) {
  int32_t tokens[MODEL_B * MODEL_T];
  choir_trainer *trainer, *second;
  choir_plugin_router first = own_top2;
  first.name = "moved", first.version = "1";
  first.options[0] = (choir_plugin_option){.name = "share", .value = 0.5, .high = 1};
  first.options[1] = (choir_plugin_option){.name = "tilt", .value = 1};
  test_ok(choir_router_register(&first));
  choir_model *model = model_after_step("moved", tokens, &trainer);
  uint64_t undisturbed = outcome_of(trainer, model, tokens);
  choir_trainer_free(trainer);
  choir_model_free(model);
  for (int way = 0; way < 4; way++) {
    test_ok(choir_router_register(&first));
    model = model_after_step("moved", tokens, &trainer);
    choir_config before = model->config, after;
    test_set(&before, "router.share=0.25 router.normalize_gates=true router.z_loss_weight=0.5");
    choir_plugin_router anew = first;
    anew.version = "2";
    anew.options[0] = first.options[1], anew.options[1] = first.options[0];
    anew.choices = way == 0 ? MODEL_E : 2;
    if (way == 1) anew = own_bias, anew.name = "moved", anew.options[1] = first.options[0];
    if (way == 2) anew.loss = balance_two, anew.aux_loss_weight = 1;
    if (way == 3) anew.looks = CHOIR_LOOKS_AROUND, anew.choices = 0, anew.capacity_factor = 2, anew.aux_loss_weight = 0;
    test_ok(choir_router_register(&anew));
    assert_true(outcome_of(trainer, model, tokens) == undisturbed);
    assert_string_equal(ch_plugin_of(model->config.model.router.kind)->given.version, "1");
    choir_trainer_free(trainer);
    choir_model_free(model);
    if (way == 0 || way == 2) {
      model = model_fresh(&before);
      after = *choir_model_config(model);
      assert_ptr_equal(after.model.router.kind, ch_router_find("moved"));
      assert_true(after.model.router.plugin_options[0] == 1 && after.model.router.plugin_options[1] == 0.25);
      assert_true(after.model.router.normalize_gates && after.model.router.z_loss_weight == 0.5f);
      assert_true(after.model.router.aux_loss_weight == anew.aux_loss_weight);
      test_ok(choir_trainer_create(model, NULL, &second));
      choir_trainer_result r;
      test_ok(choir_trainer_step(second, tokens, NULL, &r));
      choir_trainer_free(second);
      choir_model_free(model);
    }
  }
}

/* What a config of before sets, and the definition anew does not have, is refused; at its default it is left out. */
static void option_that_is_gone(void **state) {
  choir_plugin_router router = own_top2;
  choir_model *model;
  router.name = "shrunk", router.version = "1";
  router.options[0] = (choir_plugin_option){.name = "share", .value = 0.5, .high = 1};
  test_ok(choir_router_register(&router));
  choir_config c = model_config("shrunk"), set = c;
  test_set(&set, "router.share=0.25");
  router.version = "2", router.options[0] = (choir_plugin_option){0};
  test_ok(choir_router_register(&router));
  choir_model_free(model_fresh(&c));
  test_fails(ch_model_create(&set, NULL, &model), CHOIR_ERROR_ARGUMENT,
             "model.router.share is 0.25 in a config of before router 'shrunk' was defined anew");
}

/* A model of a definition of before starts from a checkpoint of the same router, whose name means another definition by
 * now: also with what the router learned, but for its rule. */
static void started_from_a_checkpoint(void **state) {
  choir_plugin_router router = own_bias;
  const char *path = CH_IN(directory, "ageing");
  router.name = "ageing", router.version = "1";
  test_ok(choir_router_register(&router));
  choir_trainer *trainer;
  int32_t tokens[MODEL_B * MODEL_T];
  choir_model *model = model_after_step("ageing", tokens, &trainer);
  test_ok(choir_trainer_save(trainer, NULL, path));
  choir_config c = model->config;
  choir_model *started = model_fresh(&c);
  router.version = "2";
  test_ok(choir_router_register(&router));
  choir_model *later = model_fresh(&c);
  router.version = "3";
  test_ok(choir_router_register(&router));
  choir_notices();
  test_ok(ch_start_weights(started, path));
  assert_string_equal(choir_notices(), ""); /* both are of version 1 */
  assert_true(XXH64(started->weights.base, started->weights.size, 0) ==
              XXH64(model->weights.base, model->weights.size, 0));
  test_ok(ch_start_weights(later, path));
  assert_non_null(strstr(choir_notices(), "of version 1, and that of the program is 2"));
  choir_model_free(later);
  choir_model_free(started);
  choir_trainer_free(trainer);
  choir_model_free(model);
}

TEST_MAIN(make_directory, remove_directory, observe_ends_its_step, another_version, defined_anew, option_that_is_gone,
          started_from_a_checkpoint)
