/* choir calibrate on a small model that has seen a few batches. */
#include <math.h>

#include "base/text.h"
#include "choir/choir.h"
#include "program.h"

static double batch_loss(const char *checkpoint) {
  program_must("choir eval %s --text foreign --routing batch --json 2>/dev/null", checkpoint);
  json_t *root = program_json();
  double loss = json_at(root, "loss");
  json_decref(root);
  return loss;
}

/* How far thresholds are from the text's mean cut-offs at most, as a share of these. */
static double drift(const char *checkpoint) {
  program_must("choir stats %s --text foreign --json 2>/dev/null >stats.json; cat stats.json", checkpoint);
  json_t *root = json_load_file("stats.json", 0, NULL), *layers = json_object_get(root, "layers");
  double max = 0;
  assert_true(json_array_size(layers) > 0);
  for (size_t l = 0; l < json_array_size(layers); l++) {
    const json_t *layer = json_array_get(layers, l), *threshold = json_object_get(layer, "threshold");
    assert_true(json_array_size(threshold) > 1);
    for (size_t i = 0; i < json_array_size(threshold); i++) {
      double cutoff = json_number_value(json_array_get(json_object_get(layer, "cutoff"), i));
      max = fmax(max, fabs(json_number_value(json_array_get(threshold, i)) / cutoff - 1));
    }
  }
  json_decref(root);
  return max;
}

/* Thresholds become the mean cut-offs of the text's batches; nothing else changes. */
static void thresholds_for_a_text(void **state) {
  program_must("for i in $(seq 1500); do echo \"$i: 0x$i;\"; done >foreign");
  program_must("choir calibrate run --text foreign --out calibrated 2>/dev/null");
  double before = drift("run"), after = drift("calibrated");
  if (!(after < 0.4 && before > 2 * after)) /* statistics count the last, smaller batch, too */
    fail_msg("drift %g before, %g after", before, after);
  assert_true(batch_loss("run") == batch_loss("calibrated"));
  program_must(
      "for n in 8 9; do choir calibrate run --text foreign --sequences $n --out of-$n 2>/dev/null || exit 1; done;"
      "cmp of-8/model.safetensors of-9/model.safetensors"); /* a batch of one sequence has cut-offs of few */
  program_refuses(1, "calibrated: exists already", "choir calibrate run --text nowhere --out calibrated"); /* first */
  program_refuses(2, "one of", "choir calibrate run --out no");
  program_must("choir train --config config.json --data data --out hash --set train.steps=2 --set router.name=hash");
  program_refuses(1, "'hash' finds no cut-offs", "choir calibrate hash --text foreign --out no");
}

/* Load of the fullest expert over the mean, in the worst layer. */
static double fullest(const char *checkpoint) {
  program_must("choir eval %s --text foreign --json 2>/dev/null", checkpoint);
  json_t *root = program_json(), *layer, *load;
  double max = 0;
  size_t l, i;
  json_array_foreach(json_object_get(root, "layers"), l, layer) {
    double fullest = 0, sum = 0;
    json_array_foreach(json_object_get(layer, "load"), i, load) {
      fullest = fmax(fullest, json_number_value(load));
      sum += json_number_value(load);
    }
    max = fmax(max, fullest * (double)i / sum);
  }
  json_decref(root);
  return max;
}

/* Where tokens choose by prices, these become the text's: its loads are even. */
static void prices_for_a_text(void **state) {
  program_must(
      "choir train --config config.json --data data --out balanced --set train.steps=30"
      " --set router.name=quantile_balanced --set router.experts_per_token=1 &&"
      " choir calibrate balanced --text foreign --out priced 2>/dev/null");
  double before = fullest("balanced"), after = fullest("priced");
  if (!(after < 1.3 && before > after + 0.2))
    fail_msg("the fullest has %g of the mean before, %g after", before, after);
  program_refuses(1, "eval_capacity_factor is 1",
                  "choir calibrate balanced --text foreign --capacity-factor 1 --out no");
}

/* Experts that a token has on average by thresholds, in all layers. */
static double experts_of(const char *checkpoint) {
  program_must("choir eval %s --text foreign --routing threshold --json 2>/dev/null", checkpoint);
  json_t *root = program_json(), *layers = json_object_get(root, "layers"), *layer;
  double assignments = 0;
  size_t l;
  json_array_foreach(layers, l, layer) assignments += json_at(layer, "assignments") / json_at(layer, "tokens");
  json_decref(root);
  return assignments / (double)l;
}

/* Thresholds for another number of experts a token; the config says for which. */
static void thresholds_for_a_capacity(void **state) {
  program_must("choir calibrate run --text foreign --capacity-factor 0.5 --out half 2>/dev/null");
  assert_non_null(strstr(program_output, " 0.50\nloss in nats"));
  double all = experts_of("calibrated"), half = experts_of("half");
  if (!(fabs(all - 2) < 0.3 && fabs(half - 0.5) < 0.1)) fail_msg("%g and %g experts a token", all, half);
  program_must(
      "grep -q '\"eval_capacity_factor\": 0.5' half/config.json && grep -q '\"capacity_factor\": 2' half/config.json");
  assert_true(batch_loss("half") != batch_loss("run"));
  program_refuses(1, "can be 4 at most", "choir calibrate run --text foreign --capacity-factor 5 --out no");
  program_refuses(1, "eval_capacity_factor is -1", "choir calibrate run --text foreign --capacity-factor -1 --out no");
  assert_int_equal(access("no", F_OK), -1);
}

TEST_MAIN(program_setup_run, program_directory_remove, thresholds_for_a_text, prices_for_a_text,
          thresholds_for_a_capacity)
