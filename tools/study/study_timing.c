/* Step times in the summary: of arms beside their reference, and losses at equal seconds. */
#include <math.h>

#include "file/json.h"
#include "study/study_loaded.h"
#include "study/study_values.h"

static ch_estimate log_ratios(const double *a, const double *b, int count) {
  double logs[CH_STUDY_ROUNDS];
  for (int i = 0; i < count; i++) logs[i] = log(a[i] / b[i]);
  return ch_estimate_of(logs, count);
}

/* Losses of two arms at the same time, seed by seed: the later arm is read off its curve. */
static ch_estimate difference_at_seconds(const ch_loaded *l, int arm, int other, double at, double a_step,
                                         double b_step) {
  double values[CH_STUDY_SEEDS];
  int count = 0;
  for (int seed = 1; seed <= l->study->seeds; seed++) {
    const ch_study_curve *a = ch_loaded_curve(l, arm, seed), *b = ch_loaded_curve(l, other, seed);
    double value =
        ch_value_at(a->step, a->causal, a->count, at / a_step) - ch_value_at(b->step, b->causal, b->count, at / b_step);
    if (isfinite(value)) values[count++] = value;
  }
  return ch_estimate_of(values, count);
}

static json_t *at_seconds_json(const ch_loaded *l, int arm, int other) {
  enum { POINTS = 40 };
  double a = ch_loaded_step_seconds(l, arm), b = ch_loaded_step_seconds(l, other), steps = (double)l->study->steps;
  double end = steps * fmin(a, b);
  json_t *seconds = json_array(), *mean = json_array(), *low = json_array(), *high = json_array();
  ch_estimate e = {0};
  if (!isfinite(end)) end = 0;
  for (int i = 1; i <= POINTS && end > 0; i++) {
    double at = end * i / POINTS;
    e = difference_at_seconds(l, arm, other, at, a, b);
    if (!e.count) continue;
    ch_json_add(seconds, ch_json_number(at));
    ch_json_add(mean, ch_json_number(e.mean));
    ch_json_add(low, ch_json_number(e.low));
    ch_json_add(high, ch_json_number(e.high));
  }
  return json_pack("{s:o, s:o, s:o, s:o, s:o}", "seconds", seconds, "mean", mean, "low", low, "high", high, "end",
                   ch_estimate_json(&e, 0));
}

static double median_of(const ch_loaded *l, int arm, const char *what) {
  double values[CH_STUDY_ROUNDS];
  int count = ch_loaded_times(l, arm, what, values, CH_STUDY_ROUNDS);
  ch_estimate e = ch_estimate_of(values, count);
  return e.mean;
}

static json_t *arm_timing(const ch_loaded *l, int arm) {
  int other = ch_study_reference(l->study, arm);
  double step[CH_STUDY_ROUNDS], reference[CH_STUDY_ROUNDS], device[CH_STUDY_ROUNDS], reference_device[CH_STUDY_ROUNDS],
      held[CH_STUDY_ROUNDS], reference_held[CH_STUDY_ROUNDS];
  int count = ch_loaded_times(l, arm, "step", step, CH_STUDY_ROUNDS);
  if (ch_loaded_times(l, other, "step", reference, CH_STUDY_ROUNDS) < count) count = 0;
  int devices = ch_loaded_device_times(l, arm, "demand", device, CH_STUDY_ROUNDS);
  if (ch_loaded_device_times(l, other, "demand", reference_device, CH_STUDY_ROUNDS) < devices) devices = 0;
  int holds = ch_loaded_device_times(l, arm, "load", held, CH_STUDY_ROUNDS);
  if (ch_loaded_device_times(l, other, "load", reference_held, CH_STUDY_ROUNDS) < holds) holds = 0;
  ch_estimate to_first = log_ratios(step, reference, count), to_device = log_ratios(device, reference_device, devices),
              to_held = log_ratios(held, reference_held, holds);
  return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "step_seconds",
                   ch_json_number(ch_loaded_step_seconds(l, arm)), "expert_seconds",
                   ch_json_number(median_of(l, arm, "expert")), "fullest_holds",
                   ch_json_number(median_of(l, arm, "load")), "fullest_asked",
                   ch_json_number(median_of(l, arm, "demand")), "step_to_reference", ch_estimate_json(&to_first, 1),
                   "device_to_reference", ch_estimate_json(&to_device, 1), "device_held_to_reference",
                   ch_estimate_json(&to_held, 1), "difference_at_seconds", at_seconds_json(l, arm, other));
}

json_t *ch_study_timing(const ch_loaded *l) {
  if (!l->time) return json_null();
  json_t *timing = json_object();
  ch_json_share(timing, "threads", json_object_get(l->time, "threads"));
  ch_json_share(timing, "rounds", json_object_get(l->time, "rounds"));
  json_t *arms = json_array();
  for (int i = 0; i < l->study->arms; i++) ch_json_add(arms, arm_timing(l, i));
  ch_json_put(timing, "arms", arms);
  return timing;
}
