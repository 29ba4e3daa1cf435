/* A run is resumed with every field of training changed, one after the other. The log counts the tokens that steps
 * really had, the best checkpoint is the best of what was measured alike, and values that jump are said. */
#include "base/text.h"
#include "choir/choir.h"
#include "config/config.h"
#include "file/json.h"
#include "program.h"

enum { STEPS = 12, FROM = 6 }; /* it goes on behind this step */

#define BASE                                                                                                     \
  "choir train --threads 1 --config config.json --data data --out base --set steps=12 --set eval_every=2 --set " \
  "eval_sequences=4 --set checkpoint_every=6 --set keep_checkpoints=0 --set batch_sequences=4 --set "            \
  "router.capacity_start=1 "

/* Fields without another value that goes with the config; that the optimizer's state depends on; by which evaluations
 * measure. */
#define FIXED "train.objective train.mask_schedule train.beta1 train.weight_decay"
#define STATE "train.optimizer train.freeze"
#define MEASURE "train.eval_sequences train.sequence_length"

static void make_base(void **state) { program_must(BASE "&& cd base/checkpoints && rm -rf 0000000[789] 0000001*"); }

/* Values to try until one is another than the present one and goes with the other fields. 0: no value does. */
static int set_other(choir_config *config, const choir_field *f, char *value) {
  static const char *const numbers[] = {"2", "3", "1", "16", "0.5", "0", "8", "64", "0.25", "1.5", "1000"};
  static const char *const flags[] = {"true", "false"}, *const texts[] = {"*.attn.*"};
  const choir_config before = *config;
  const char *const *values = f->kind == CHOIR_FIELD_TEXT ? texts : f->kind == CHOIR_FIELD_FLAG ? flags : f->words;
  int count = f->kind == CHOIR_FIELD_TEXT ? 1 : f->kind == CHOIR_FIELD_FLAG ? 2 : 0;
  if (!values) values = numbers, count = (int)(sizeof numbers / sizeof *numbers);
  while (f->words && f->words[count]) count++;
  for (int i = 0; i < count; i++) {
    char is[CHOIR_VALUE_BYTES], was[CHOIR_VALUE_BYTES];
    *config = before;
    if (!strcmp(f->key, "train.steps") && strcmp(values[i], "16")) continue;
    if (choir_config_set(config, f->key, values[i]) || choir_config_check(config)) continue;
    test_ok(choir_config_get(config, f->key, is, sizeof is));
    test_ok(choir_config_get(&before, f->key, was, sizeof was));
    if (strcmp(is, was)) return snprintf(value, CHOIR_VALUE_BYTES, "%s", values[i]);
  }
  return 0;
}

typedef struct {
  int64_t tokens, steps, best; /* best: of the evaluations from step `since` on */
  double rate, loss;           /* of the first step of the resumed run; of `best` */
} log_summary;

/* Reads metrics.jsonl, whose steps have `before` tokens each, then `after`. */
static log_summary read_log(const char *run, int64_t before, int64_t after, int64_t since) {
  char path[64], line[1 << 15];
  log_summary s = {.loss = INFINITY};
  snprintf(path, sizeof path, "%s/metrics.jsonl", run);
  FILE *file = fopen(path, "r");
  assert_non_null(file);
  while (fgets(line, sizeof line, file)) {
    json_t *root = json_loads(line, 0, NULL);
    const char *event = json_string_value(json_object_get(root, "event"));
    int64_t step = (int64_t)json_integer_value(json_object_get(root, "step"));
    if (!strcmp(event, "step")) {
      s.steps++;
      s.tokens += step <= FROM ? before : after;
      if (step == FROM + 1) s.rate = json_at(root, "learning_rate");
      if ((int64_t)json_at(root, "tokens") != s.tokens)
        fail_msg("%s, step %lld: %lld tokens, and they were %lld", run, (long long)step,
                 (long long)json_at(root, "tokens"), (long long)s.tokens);
    }
    if (!strcmp(event, "eval") && step >= since) {
      const json_t *causal = json_object_get(root, "threshold");
      double loss = json_at(causal ? causal : root, "loss");
      if (loss < s.loss) s.loss = loss, s.best = step;
    }
    json_decref(root);
  }
  fclose(file);
  return s;
}

static int64_t step_tokens(const choir_config *c) {
  return (int64_t)c->train.batch_sequences * c->train.sequence_length * c->train.accumulate;
}

static int output_has(const char *text) { return strstr(program_output, text) != NULL; }

/* Whether the field was accepted. */
static int resume_with(const choir_config *base, const choir_field *f) {
  char value[CHOIR_VALUE_BYTES], changed[CHOIR_KEY_BYTES + CHOIR_VALUE_BYTES];
  choir_config config = *base;
  size_t size;
  if (!set_other(&config, f, value)) {
    if (!ch_has_word(FIXED, f->key)) fail_msg("%s: no other value goes with the config", f->key);
    return 0;
  }
  assert_false(ch_has_word(FIXED, f->key));
  program_must("rm -rf changed && cp -r base changed");
  int status = program_run("choir train --threads 1 --emulate-bf16 --resume --out changed --set %s=%s", f->key, value);
  if (status) {
    if (status != 1 || !ch_has_word(STATE, f->key)) fail_msg("%s=%s: %s", f->key, value, program_output);
    return 0;
  }
  int other = ch_has_word(MEASURE, f->key);
  log_summary s = read_log("changed", step_tokens(base), step_tokens(&config), other ? FROM + 1 : 0),
              b = read_log("base", step_tokens(base), step_tokens(base), 0);
  snprintf(changed, sizeof changed, "%s=%s", f->key, value);
  assert_int_equal(s.steps, config.train.steps);
  if (output_has("do not compare with those before") != other) fail_msg("%s: %s", changed, program_output);
  if (output_has("the learning rate of step 7 is") != (s.rate != b.rate)) fail_msg("%s: %s", changed, program_output);
  if (output_has("the capacity factor of step 7 is") != (config.train.steps != base->train.steps))
    fail_msg("%s: %s", changed, program_output);
  char *best = program_read("changed/best", &size);
  assert_non_null(best);
  if (strtoll(best, NULL, 10) != s.best) fail_msg("%s: best is %.8s, not %lld", changed, best, (long long)s.best);
  free(best);
  return 1;
}

static void every_field_may_change_once(void **state) {
  choir_config *base;
  int accepted = 0;
  test_ok(choir_config_load("base/config.json", &base));
  for (int i = 0; i < choir_config_field_count(); i++) {
    choir_field f;
    test_ok(choir_config_field_at(i, &f));
    if (strncmp(f.key, "model.", 6)) accepted += resume_with(base, &f);
  }
  choir_config_free(base);
  assert_in_range(accepted, 20, 100);
}

TEST_MAIN(program_setup, program_directory_remove, make_base, every_field_may_change_once)
