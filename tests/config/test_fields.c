/* Configs as handles: what is set comes back, and every field says what it takes. */
#include "base/options.h"
#include "choir/choir.h"
#include "model/config.h"
#include "testing.h"

/* A handle gives back what it was set to, exactly, a copy is its own, and every field says what it takes. */
static void handles_tell_what_they_hold(void **state) {
  choir_config *c, *copy;
  choir_field f;
  char value[CHOIR_VALUE_BYTES], small[4];
  test_ok(choir_config_create(&c));
  test_ok(choir_config_set(c, "seed", "9007199254740991"));
  test_ok(choir_config_set(c, "router.name", "switch_top1"));
  test_ok(choir_config_set(c, "learning_rate", "0.30000000000000004"));
  test_ok(choir_config_copy(c, &copy));
  test_ok(choir_config_set(c, "learning_rate", "1"));
  test_ok(choir_config_get(copy, "train.learning_rate", value, sizeof value));
  assert_string_equal(value, "0.30000000000000004");
  assert_true(choir_config_number(copy, "seed") == 0x1p53 - 1 && choir_config_number(copy, "tied") == 1);
  assert_true(choir_config_number(copy, "router.capacity_factor") == 1.25);
  test_fails(choir_config_get(copy, "router.name", small, sizeof small), CHOIR_ERROR_ARGUMENT, "11 bytes");
  test_fails(choir_config_get(copy, "router.nam", value, sizeof value), CHOIR_ERROR_ARGUMENT,
             "did you mean 'router.name'?");
  assert_true(isnan(choir_config_number(copy, "router.name")) && isnan(choir_config_number(copy, "nobody")));
  for (int i = 0; i < choir_config_field_count(); i++) {
    choir_field by_name;
    test_ok(choir_config_field_at(i, &f));
    test_ok(choir_config_describe(f.key, &by_name));
    assert_memory_equal(&f, &by_name, sizeof f);
    assert_true((f.words != NULL) == (f.kind == CHOIR_FIELD_WORD) && *f.help);
    if (f.kind == CHOIR_FIELD_WORD || *f.value) continue;
    assert_int_equal(f.kind, CHOIR_FIELD_TEXT);
  }
  test_ok(choir_config_describe("learning_rate", &f));
  assert_true(f.above && f.low == 0 && f.high == 1000 && f.kind == CHOIR_FIELD_NUMBER);
  test_fails(choir_config_field_at(CH_FIELDS, &f), CHOIR_ERROR_ARGUMENT, "no field number");
  test_fails(choir_config_describe("name", &f), CHOIR_ERROR_ARGUMENT, "model.name or model.router.name");
  choir_config_free(c), choir_config_free(copy), choir_config_free(NULL);
}

/* Structs of callers that were built with other versions: shorter, longer, and one that nobody initialised. */
static void options_of_other_versions(void **state) {
  struct {
    choir_eval_options known;
    int64_t later;
  } longer = {.known = CHOIR_EVAL_OPTIONS_INIT};
  choir_eval_options own, shorter = CHOIR_EVAL_OPTIONS_INIT;
  longer.known.mask_samples = shorter.mask_samples = 7;
  longer.known.size = sizeof longer;
  test_ok(ch_options_read(&own, sizeof own, &longer, "choir_eval_options"));
  assert_true(own.size == sizeof own && own.mask_samples == 7);
  longer.later = 1;
  test_fails(ch_options_read(&own, sizeof own, &longer, "choir_eval_options"), CHOIR_ERROR_UNSUPPORTED, "not know yet");
  shorter.size = offsetof(choir_eval_options, mask_samples);
  shorter.in_order = 1;
  test_ok(ch_options_read(&own, sizeof own, &shorter, "choir_eval_options"));
  assert_true(own.in_order == 1 && own.mask_samples == 0);
  test_fails(choir_train(&(choir_train_options){0}), CHOIR_ERROR_ARGUMENT, "choir_train_options.size is 0");
  choir_model *model;
  choir_layer *layer;
  test_fails(choir_model_load("run", &(choir_model_options){0}, &model, NULL), CHOIR_ERROR_ARGUMENT, "size is 0");
  test_fails(choir_layer_create(&(choir_layer_options){0}, &layer), CHOIR_ERROR_ARGUMENT, "size is 0");
  choir_train_options tune = CHOIR_TRAIN_OPTIONS_INIT;
  tune.epochs = 1;
  test_fails(choir_train(&tune), CHOIR_ERROR_ARGUMENT, "options of choir_finetune");
  choir_train_options small[2];
  memset(small, 7, sizeof small);
  choir_train_options_default(small, offsetof(choir_train_options, patience));
  assert_true(small[0].size == offsetof(choir_train_options, patience) && small[0].disk_minutes == 60);
  assert_true(small[0].patience != 0); /* beyond the caller's */
}

TEST_MAIN(NULL, NULL, handles_tell_what_they_hold, options_of_other_versions)
