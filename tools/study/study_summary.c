/* summary.json: everything that the report draws, and nothing that depends on when or how often a study was stopped,
 * but for "timing" and claims that say "timed". */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "choir/version.h"
#include "file/json.h"
#include "study/study_loaded.h"
#include "study/study_values.h"

/* ---- one arm ---- */

static double final_loss(const ch_study_curve *c, int causal) {
  return c->complete ? (causal ? c->causal : c->own)[c->count - 1] : (double)NAN;
}

static ch_estimate over_seeds(const ch_loaded *l, int arm, int causal) {
  double values[CH_STUDY_SEEDS];
  int count = 0;
  for (int seed = 1; seed <= l->study->seeds; seed++) {
    double value = final_loss(ch_loaded_curve(l, arm, seed), causal);
    if (isfinite(value)) values[count++] = value;
  }
  return ch_estimate_of(values, count);
}

/* The loss of all seeds at point `i`, those that have it. */
static int losses_at(const ch_loaded *l, int arm, int i, int causal, double *values) {
  int count = 0;
  for (int seed = 1; seed <= l->study->seeds; seed++) {
    const ch_study_curve *c = ch_loaded_curve(l, arm, seed);
    if (i < c->count) values[count++] = (causal ? c->causal : c->own)[i];
  }
  return count;
}

static int longest(const ch_loaded *l, int arm) {
  int most = 0;
  for (int seed = 1; seed <= l->study->seeds; seed++)
    if (ch_loaded_curve(l, arm, seed)->count > most) most = ch_loaded_curve(l, arm, seed)->count;
  return most;
}

/* Mean and standard deviation over seeds at every evaluation. */
static json_t *curve_json(const ch_loaded *l, int arm) {
  json_t *curve = json_object(), *step = json_array();
  const char *const names[2][2] = {{"own", "own_deviation"}, {"causal", "causal_deviation"}};
  int most = longest(l, arm);
  for (int i = 0; i < most; i++) ch_json_add(step, json_integer((i + 1) * l->study->eval_every));
  ch_json_put(curve, "step", step);
  for (int causal = 0; causal < 2; causal++) {
    json_t *mean = json_array(), *deviation = json_array();
    for (int i = 0; i < most; i++) {
      double values[CH_STUDY_SEEDS];
      ch_estimate e = ch_estimate_of(values, losses_at(l, arm, i, causal, values));
      ch_json_add(mean, ch_json_number(e.mean));
      ch_json_add(deviation, ch_json_number(e.deviation));
    }
    ch_json_put(curve, names[causal][0], mean);
    ch_json_put(curve, names[causal][1], deviation);
  }
  return curve;
}

static json_t *runs_json(const ch_loaded *l, int arm) {
  const ch_study *s = l->study;
  json_t *runs = json_array();
  for (int seed = 1; seed <= s->seeds; seed++) {
    const ch_study_curve *c = ch_loaded_curve(l, arm, seed);
    json_t *run =
        json_pack("{s:i, s:s, s:b, s:I, s:o, s:o, s:o, s:o}", "seed", seed, "name", l->name[arm * s->seeds + seed - 1],
                  "complete", c->complete, "step", (json_int_t)(c->count ? c->step[c->count - 1] : 0), "causal",
                  ch_json_number(final_loss(c, 1)), "own", ch_json_number(final_loss(c, 0)), "dropped",
                  ch_json_number(c->dropped), "imbalance", ch_json_number(c->imbalance));
    ch_json_add(runs, run);
  }
  return runs;
}

static json_t *rates_json(const ch_study *s, int arm) {
  double losses[CH_STUDY_RATES], best;
  json_t *rates = json_array();
  if (s->rates < 2 || ch_study_best_rate(s, s->arm[arm].rate_of, losses, &best)) return rates;
  for (int r = 0; r < s->rates; r++)
    ch_json_add(rates, json_pack("{s:f, s:o}", "rate", s->rate[r], "causal", ch_json_number(losses[r])));
  return rates;
}

/* Sums of one evaluation over its layers. */
typedef struct routed {
  double tokens, assignments, dropped, over, asked, fullest, layers, histogram[CH_STUDY_NAME];
} routed;

static void add_layer(routed *r, const json_t *layer) {
  const json_t *demand = json_object_get(layer, "demand"), *histogram = json_object_get(layer, "histogram"), *value;
  double most = 0, sum = 0, capacity = ch_number_at(layer, "capacity");
  size_t i;
  json_array_foreach(demand, i, value) {
    double d = json_number_value(value);
    sum += d;
    if (d > most) most = d;
    if (d > capacity) r->over += d - capacity;
  }
  json_array_foreach(histogram, i, value) r->histogram[i < CH_STUDY_NAME ? i : CH_STUDY_NAME - 1] +=
      json_number_value(value);
  r->tokens += ch_number_at(layer, "tokens");
  r->assignments += ch_number_at(layer, "assignments");
  r->dropped += ch_number_at(layer, "dropped");
  r->asked += sum;
  if (sum > 0) r->fullest += most * (double)json_array_size(demand) / sum;
  r->layers++;
}

/* Shares of tokens and choices, means over layers and seeds. NULL: no layer routes. */
static json_t *routing_json(const ch_loaded *l, int arm, int causal) {
  routed r = {0};
  json_t *histogram = json_array();
  const char *name = NULL;
  for (int seed = 1; seed <= l->study->seeds; seed++) {
    const ch_study_curve *c = ch_loaded_curve(l, arm, seed);
    const json_t *from = causal ? c->last_causal : c->last, *layer;
    size_t i;
    if (!c->complete) continue;
    name = json_string_value(json_object_get(from, "routing"));
    json_array_foreach(json_object_get(from, "layers"), i, layer) add_layer(&r, layer);
  }
  int last = CH_STUDY_NAME;
  while (last > 0 && r.histogram[last - 1] == 0) last--;
  for (int i = 0; i < last; i++) ch_json_add(histogram, json_real(r.histogram[i] / r.tokens));
  if (r.layers > 0)
    return json_pack("{s:s, s:f, s:f, s:f, s:f, s:f, s:o}", "routing", name ? name : "", "dropped",
                     r.dropped + r.assignments > 0 ? r.dropped / (r.dropped + r.assignments) : 0.0, "fullest",
                     r.fullest / r.layers, "over_capacity", r.asked > 0 ? r.over / r.asked : 0.0, "experts_per_token",
                     r.assignments / r.tokens, "none", r.histogram[0] / r.tokens, "histogram", histogram);
  json_decref(histogram);
  return json_null();
}

static ch_estimate difference_at(const ch_loaded *l, int arm, int other, int i, int causal) {
  double values[CH_STUDY_SEEDS];
  int count = 0;
  for (int seed = 1; seed <= l->study->seeds; seed++) {
    const ch_study_curve *a = ch_loaded_curve(l, arm, seed), *b = ch_loaded_curve(l, other, seed);
    if (i >= a->count || i >= b->count) continue;
    double value = causal ? a->causal[i] - b->causal[i] : a->own[i] - b->own[i];
    if (isfinite(value)) values[count++] = value;
  }
  return ch_estimate_of(values, count);
}

/* Arm less reference at equal steps, seed by seed, with its interval. */
static json_t *difference_json(const ch_loaded *l, int arm, int other) {
  json_t *json = json_object(), *step = json_array(), *mean = json_array(), *low = json_array(), *high = json_array();
  int most = longest(l, arm) < longest(l, other) ? longest(l, arm) : longest(l, other);
  for (int i = 0; i < most; i++) {
    ch_estimate e = difference_at(l, arm, other, i, 1);
    ch_json_add(step, json_integer((i + 1) * l->study->eval_every));
    ch_json_add(mean, ch_json_number(e.mean));
    ch_json_add(low, ch_json_number(e.low));
    ch_json_add(high, ch_json_number(e.high));
  }
  int last = (int)(l->study->steps / l->study->eval_every) - 1;
  ch_estimate causal = difference_at(l, arm, other, last, 1), own = difference_at(l, arm, other, last, 0);
  ch_json_put(json, "from", json_string(l->study->arm[other].name));
  ch_json_put(json, "causal", ch_estimate_json(&causal, 0));
  ch_json_put(json, "own", ch_estimate_json(&own, 0));
  ch_json_put(json, "curve", json_pack("{s:o, s:o, s:o, s:o}", "step", step, "mean", mean, "low", low, "high", high));
  return json;
}

/* What the measurements of pools say, means over seeds: rows {routing, pool, scattered, loss, less_causal}. */
static json_t *pools_json(const ch_loaded *l, int arm) {
  const ch_study *s = l->study;
  json_t *rows = json_array();
  const json_t *first = NULL;
  for (int seed = 1; seed <= s->seeds && !first; seed++) first = l->measures[arm * s->seeds + seed - 1];
  for (size_t i = 0; i < json_array_size(json_object_get(first, "pools")); i++) {
    double loss[CH_STUDY_SEEDS], less[CH_STUDY_SEEDS];
    const json_t *row = json_array_get(json_object_get(first, "pools"), i);
    int count = 0;
    for (int seed = 1; seed <= s->seeds; seed++) {
      const json_t *m = l->measures[arm * s->seeds + seed - 1], *of = json_array_get(json_object_get(m, "pools"), i);
      if (!of) continue;
      loss[count] = ch_number_at(of, "loss");
      less[count++] = ch_number_at(of, "loss") - ch_number_at(of, "causal");
    }
    ch_estimate e = ch_estimate_of(loss, count), d = ch_estimate_of(less, count);
    ch_json_add(rows, json_pack("{s:O, s:O, s:O, s:o, s:o}", "routing", json_object_get(row, "routing"), "pool",
                                json_object_get(row, "pool"), "scattered", json_object_get(row, "scattered"), "loss",
                                ch_estimate_json(&e, 0), "less_causal", ch_estimate_json(&d, 0)));
  }
  return rows;
}

static json_t *counted_json(const ch_loaded *l, int arm) {
  const json_t *m = l->measures[arm * l->study->seeds];
  json_t *own = json_object_get(json_object_get(m, "own"), "counted"),
         *causal = json_object_get(json_object_get(m, "causal"), "counted");
  if (!ch_study_measures(l->study, "tokens") || !own) return json_null();
  return json_pack("{s:O, s:O}", "own", own, "causal", causal ? causal : own);
}

static json_t *arm_json(const ch_loaded *l, int arm) {
  const ch_study *s = l->study;
  const ch_study_arm *a = &s->arm[arm];
  ch_estimate causal = over_seeds(l, arm, 1), own = over_seeds(l, arm, 0);
  double first = s->arm[0].costs.train_flops_per_token;
  json_t *json = json_object();
  ch_json_put(json, "name", json_string(a->name));
  ch_json_put(json, "router", json_string(a->config.model.router.name));
  ch_json_put(json, "row", json_integer(a->row));
  ch_json_put(json, "swept", ch_json_number(a->swept));
  ch_json_put(json, "experts", json_integer(a->config.model.experts));
  ch_json_put(json, "parameters", json_integer(a->costs.parameters));
  ch_json_put(json, "active_parameters", json_integer(a->costs.active_parameters));
  ch_json_put(json, "train_flops_per_token", json_real(a->costs.train_flops_per_token));
  ch_json_put(json, "flops_to_first", json_real(a->costs.train_flops_per_token / first));
  ch_json_put(json, "rate", ch_json_number(a->rate > 0 ? a->rate : (double)NAN));
  ch_json_put(json, "rate_of", json_string(s->arm[a->rate_of].name));
  ch_json_put(json, "rates", rates_json(s, arm));
  ch_json_put(json, "causal", ch_estimate_json(&causal, 0));
  ch_json_put(json, "own", ch_estimate_json(&own, 0));
  ch_json_put(json, "runs", runs_json(l, arm));
  ch_json_put(json, "routing", routing_json(l, arm, 0));
  ch_json_put(json, "routing_causal", routing_json(l, arm, 1));
  ch_json_put(json, "curve", curve_json(l, arm));
  ch_json_put(json, "difference", difference_json(l, arm, ch_study_reference(s, arm)));
  ch_json_put(json, "pools", pools_json(l, arm));
  ch_json_put(json, "tokens", counted_json(l, arm));
  return json;
}

/* ---- all of it ---- */

static json_t *head_json(const ch_study *s) {
  char hash[24];
  snprintf(hash, sizeof hash, "%016" PRIx64, s->data_hash);
  json_t *json = json_object();
  static const char *const keys[] = {"name", "title", "figure", "question", "sweep", NULL};
  ch_json_put(json, "version", json_string(choir_version()));
  for (int i = 0; keys[i]; i++) ch_json_share(json, keys[i], json_object_get(s->recipe, keys[i]));
  ch_json_put(json, "scale", json_string(s->scale_name));
  ch_json_put(json, "seeds", json_integer(s->seeds));
  ch_json_put(json, "steps", json_integer(s->steps));
  ch_json_put(json, "step_tokens", json_integer(s->step_tokens));
  ch_json_put(json, "tokens", json_integer(s->steps * s->step_tokens));
  ch_json_put(json, "rate_tokens", json_integer(s->rate_steps * s->step_tokens));
  ch_json_put(json, "data_tokens", json_integer(s->data_tokens));
  ch_json_put(json, "data_hash", json_string(hash));
  ch_json_put(json, "vocab_size", json_integer(s->vocab_size));
  ch_json_put(json, "eval_sequences", json_integer(s->arm[0].config.train.eval_sequences));
  ch_json_put(json, "sequence_length", json_integer(s->arm[0].config.train.sequence_length));
  return json;
}

/* Tokens of an evaluation: fewer than the config asks for where less was held out. 0: nothing has been evaluated. */
static json_int_t evaluated(const ch_loaded *l) {
  json_int_t tokens = 0;
  for (int i = 0; i < l->study->arms * l->study->seeds && !tokens; i++)
    tokens = json_integer_value(json_object_get(l->curve[i].last, "tokens"));
  return tokens;
}

json_t *ch_study_summary(ch_study *s) {
  ch_loaded l;
  json_t *json = NULL;
  int code = ch_loaded_read(s, &l);
  if (!code) {
    json = head_json(s);
    ch_json_put(json, "eval_tokens", json_integer(evaluated(&l)));
    json_t *arms = json_array();
    for (int i = 0; i < s->arms; i++) ch_json_add(arms, arm_json(&l, i));
    ch_json_put(json, "claims", ch_study_claims(&l));
    ch_json_put(json, "arms", arms);
    ch_json_put(json, "timing", ch_study_timing(&l));
    if (l.tuned) ch_json_put(json, "tuned", ch_tuned_json(l.tuned));
  }
  ch_loaded_free(&l);
  return json;
}
