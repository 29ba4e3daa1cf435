/* Claims: one number for every seed, its interval, and a verdict that a rule gives. */
#include <math.h>
#include <string.h>

#include "file/json.h"
#include "study/study_loaded.h"
#include "study/study_values.h"

/* ---- one number of one seed ---- */

typedef struct claim {
  const ch_loaded *l;
  const json_t *json;
  const char *kind;
  int arm, rival, than_arm, than_rival; /* -1: none */
  int causal;                           /* else by the router's own routing */
  int reached, unreached;               /* seeds in which the arm gets to where the rival ends */
} claim;

static double final_loss(const claim *c, int arm, int seed) {
  const ch_study_curve *curve = ch_loaded_curve(c->l, arm, seed);
  if (!curve->complete) return (double)NAN;
  return (c->causal ? curve->causal : curve->own)[curve->count - 1];
}

/* Advantage of the arm over its rival: positive where the arm is better. */
static double loss_advantage(const claim *c, int seed) {
  double value = final_loss(c, c->rival, seed) - final_loss(c, c->arm, seed);
  if (c->than_arm >= 0 && c->than_rival >= 0)
    value -= final_loss(c, c->than_rival, seed) - final_loss(c, c->than_arm, seed);
  return value;
}

/* Smoothed losses over steps times `seconds`; gives their number. */
static int smoothed(const claim *c, int arm, int seed, double seconds, double *x, double *y, int most) {
  const ch_study_curve *curve = ch_loaded_curve(c->l, arm, seed);
  ch_curve points = {.x = curve->step, .y = c->causal ? curve->causal : curve->own, .count = curve->count};
  if (!curve->complete || curve->count > most) return 0;
  ch_smooth(&points, CH_STUDY_REACH, y);
  for (int i = 0; i < curve->count; i++) x[i] = curve->step[i] * seconds;
  return curve->count;
}

static double log_speedup(claim *c, int seed, int by_seconds) {
  enum { MOST = 4096 };
  double ax[MOST], ay[MOST], bx[MOST], by[MOST];
  double a_step = by_seconds ? ch_loaded_step_seconds(c->l, c->arm) : 1,
         b_step = by_seconds ? ch_loaded_step_seconds(c->l, c->rival) : 1;
  int reached, a = smoothed(c, c->arm, seed, a_step, ax, ay, MOST),
               b = smoothed(c, c->rival, seed, b_step, bx, by, MOST);
  double value = ch_log_speedup(ax, ay, a, bx, by, b, &reached);
  if (isfinite(value)) *(reached ? &c->reached : &c->unreached) += 1;
  return value;
}

/* Share of tokens, over layers, with `from` to `to` experts. */
static double share(const claim *c, int seed) {
  const ch_study_curve *curve = ch_loaded_curve(c->l, c->arm, seed);
  const json_t *layers = json_object_get(c->causal ? curve->last_causal : curve->last, "layers"), *layer, *value;
  double in = 0, all = 0, from = ch_number_at(c->json, "from"), to = ch_number_at(c->json, "to");
  size_t l, i;
  if (!curve->complete) return (double)NAN;
  json_array_foreach(layers, l, layer) json_array_foreach(json_object_get(layer, "histogram"), i, value) {
    all += json_number_value(value);
    if ((double)i >= from && (double)i <= to) in += json_number_value(value);
  }
  return all > 0 ? in / all : (double)NAN;
}

/* What looking at other tokens gives: causal loss less that by the router's own routing. growth: since the first
 * quarter. */
static double gap(const claim *c, int seed, int growth) {
  const ch_study_curve *curve = ch_loaded_curve(c->l, c->arm, seed);
  if (!curve->complete) return (double)NAN;
  int last = curve->count - 1, early = 0;
  while (early < last && curve->step[early] < 0.25 * curve->step[last]) early++;
  double value = curve->causal[last] - curve->own[last];
  return growth ? value - (curve->causal[early] - curve->own[early]) : value;
}

static double seed_value(claim *c, int seed) {
  if (!strcmp(c->kind, "loss")) return c->rival < 0 ? (double)NAN : loss_advantage(c, seed);
  if (!strcmp(c->kind, "steps")) return c->rival < 0 ? (double)NAN : log_speedup(c, seed, 0);
  if (!strcmp(c->kind, "seconds")) return c->rival < 0 ? (double)NAN : log_speedup(c, seed, 1);
  if (!strcmp(c->kind, "share")) return share(c, seed);
  if (!strcmp(c->kind, "accuracy")) return ch_tuned_advantage(c->l->tuned, c->arm, c->rival, seed, c->causal);
  if (!strcmp(c->kind, "gap")) return gap(c, seed, 0);
  if (!strcmp(c->kind, "gap_growth")) return gap(c, seed, 1);
  return (double)NAN;
}

/* Logs of how many times longer the rival's step is, round by round. */
static int time_values(const claim *c, double *values) {
  double a[CH_STUDY_ROUNDS], b[CH_STUDY_ROUNDS];
  int device = !strcmp(c->kind, "device_time"), count, other;
  if (c->rival < 0) return 0;
  count = device ? ch_loaded_device_times(c->l, c->arm, "demand", a, CH_STUDY_ROUNDS)
                 : ch_loaded_times(c->l, c->arm, "step", a, CH_STUDY_ROUNDS);
  other = device ? ch_loaded_device_times(c->l, c->rival, "demand", b, CH_STUDY_ROUNDS)
                 : ch_loaded_times(c->l, c->rival, "step", b, CH_STUDY_ROUNDS);
  if (other < count) count = other;
  for (int i = 0; i < count; i++) values[i] = log(b[i] / a[i]);
  return count;
}

/* ---- verdicts ---- */

static int is_times(const char *kind) {
  return !strcmp(kind, "steps") || !strcmp(kind, "seconds") || !strcmp(kind, "step_time") ||
         !strcmp(kind, "device_time");
}

static int is_timed(const char *kind) {
  return !strcmp(kind, "seconds") || !strcmp(kind, "step_time") || !strcmp(kind, "device_time");
}

static const char *const contradicted = "contradicted", *const unseen = "does not show at this scale",
                         *const weakly = "holds weakly", *const holds = "holds";

/* "As good as": within a margin on either side. */
static const char *verdict_same(const ch_estimate *e, double margin) {
  if (e->low > margin || e->high < -margin) return contradicted;
  if (e->low >= -margin && e->high <= margin) return holds;
  return e->low80 >= -margin && e->high80 <= margin ? weakly : unseen;
}

/* "About so much". */
static const char *verdict_about(const ch_estimate *e, double figure) {
  double times = e->mean / figure;
  if (times >= 0.75 && times <= 1.25) return holds;
  if (times >= 0.5 && times <= 2) return weakly;
  return (e->low <= figure && figure <= e->high) ? unseen : contradicted;
}

/* "More than nothing", and no less than the paper's figure where there is one: an interval that ends short of it does
 * not show it, though there may be some effect. */
static const char *verdict_more(const ch_estimate *e, double nothing, double figure) {
  if (e->high < nothing) return contradicted;
  if (e->low > nothing && (!isfinite(figure) || e->mean >= figure)) return holds;
  return e->low80 > nothing && (!isfinite(figure) || e->high >= figure) ? weakly : unseen;
}

static const char *verdict(const claim *c, const ch_estimate *e) {
  double figure = ch_number_at(c->json, "figure"), nothing = ch_number_at(c->json, "null"),
         margin = ch_number_at(c->json, "margin"), about = ch_number_at(c->json, "about");
  if (e->count < 1) return "not measured";
  if (e->count < 2) return "one seed: no verdict";
  if (!strcmp(c->kind, "accuracy") && !ch_tuned_learned(c->l->tuned, c->arm) &&
      !ch_tuned_learned(c->l->tuned, c->rival))
    return "nothing learned: no verdict";
  if (isfinite(margin)) return verdict_same(e, margin);
  if (isfinite(about)) return verdict_about(e, about);
  if (is_times(c->kind)) figure = log(figure);
  return verdict_more(e, isfinite(nothing) ? nothing : 0, figure);
}

/* ---- JSON ---- */

static void widen_both(double mean, double *low, double *high, double half) {
  *low = mean - hypot(mean - *low, half);
  *high = mean + hypot(*high - mean, half);
}

/* Step times are uncertain too: what their ratio's interval, over rounds, adds to that over seeds. */
static void widen(const claim *c, ch_estimate *e) {
  double values[CH_STUDY_ROUNDS];
  ch_estimate t = ch_estimate_of(values, time_values(c, values));
  if (e->count < 2 || t.count < 2) return;
  widen_both(e->mean, &e->low, &e->high, t.high - t.mean);
  widen_both(e->mean, &e->low80, &e->high80, t.high80 - t.mean);
}

/* The claim under one routing: values, interval, verdict. */
static json_t *result(claim *c) {
  double values[CH_STUDY_SEEDS + CH_STUDY_ROUNDS];
  int count = 0, exponential = is_times(c->kind);
  json_t *list = json_array();
  c->reached = c->unreached = 0;
  if (!strcmp(c->kind, "step_time") || !strcmp(c->kind, "device_time")) {
    count = time_values(c, values);
  } else {
    for (int seed = 1; seed <= c->l->study->seeds; seed++) {
      double value = seed_value(c, seed);
      if (isfinite(value)) values[count++] = value;
    }
  }
  ch_estimate e = ch_estimate_of(values, count);
  if (!strcmp(c->kind, "seconds")) widen(c, &e);
  for (int i = 0; i < count; i++) ch_json_add(list, ch_json_number(exponential ? exp(values[i]) : values[i]));
  json_t *json = ch_estimate_json(&e, exponential);
  ch_json_put(json, "values", list);
  ch_json_put(json, "verdict", json_string(verdict(c, &e)));
  if (!strcmp(c->kind, "steps") || !strcmp(c->kind, "seconds"))
    ch_json_put(json, "not_reached", json_integer(c->unreached));
  return json;
}

static const char *unit_of(const char *kind) {
  if (is_times(kind)) return "times";
  if (!strcmp(kind, "accuracy")) return "points";
  return !strcmp(kind, "share") ? "share" : "nats";
}

static json_t *claim_json(const ch_loaded *l, const json_t *from) {
  const ch_study *s = l->study;
  claim c = {.l = l, .json = from, .kind = json_string_value(json_object_get(from, "kind")), .causal = 1};
  if (!c.kind) c.kind = "";
  c.arm = ch_study_arm_find(s, json_string_value(json_object_get(from, "arm")));
  c.rival = ch_study_arm_find(s, json_string_value(json_object_get(from, "rival")));
  c.than_arm = ch_study_arm_find(s, json_string_value(json_object_get(from, "than_arm")));
  c.than_rival = ch_study_arm_find(s, json_string_value(json_object_get(from, "than_rival")));
  json_t *json = json_deep_copy(from), *causal = result(&c);
  ch_json_put(json, "unit", json_string(unit_of(c.kind)));
  ch_json_put(json, "over",
              json_string(!strcmp(c.kind, "step_time") || !strcmp(c.kind, "device_time") ? "rounds" : "seeds"));
  ch_json_put(json, "timed", json_boolean(is_timed(c.kind)));
  ch_json_share(json, "verdict", json_object_get(causal, "verdict"));
  ch_json_put(json, "causal", causal);
  int both = !strcmp(c.kind, "loss") || !strcmp(c.kind, "steps") || !strcmp(c.kind, "seconds") ||
             !strcmp(c.kind, "share") || !strcmp(c.kind, "accuracy");
  c.causal = 0;
  if (both) ch_json_put(json, "own", result(&c));
  return json;
}

json_t *ch_study_claims(const ch_loaded *l) {
  json_t *claims = json_array();
  const json_t *claim;
  size_t i;
  json_array_foreach(json_object_get(l->study->recipe, "claims"), i, claim) ch_json_add(claims, claim_json(l, claim));
  return claims;
}
