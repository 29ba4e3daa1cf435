/* Scores with models that are trained by masking. Some of a continuation's tokens are masked; its context and the
 * other tokens are visible. With masked_diffusion several sets of masks, stratified over the mask ratio, give the bound
 * of docs/diffusion.md; with masked_lm each token is masked by itself, and the sum is a pseudo-log-likelihood (Salazar
 * et al. 2020, 1910.14659). The passes run on a separate executor, so that a trainer's plan is kept. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/machine.h"
#include "base/threads.h"
#include "handle/model.h"
#include "infer/score.h"
#include "model/capacity.h"
#include "model/config.h"
#include "model/mask.h"

enum { SAMPLES = 32, SEQUENCES = 16, LENGTH_STEP = 16, MAX_LOGITS = 1 << 24 };

/* The passes of an item: `samples` texts in batches of B, each of T tokens with padding, of which n belong to the
 * continuation. */
typedef struct {
  int samples, B, T, n;
} score_shape;

typedef struct {
  choir_model *model;
  ch_exec x;
  int diffusion, samples, V;
  int together;                 /* whether the texts of a pass are routed together */
  int32_t *token, *row, *place; /* [B,T]; [B n] rows of masked tokens; [B n] their positions in the continuation */
  int32_t *shown, *hidden;      /* [n] the continuation with masks; [n] the masked tokens, -1 elsewhere */
  double *share, *estimate,
      *factor;   /* [n] score of each token; [samples] score by each sample; [samples] weight of its losses */
  float *logits; /* [B n,V] */
  const ch_score_item *held; /* the one-token item whose logits w->logits holds; or NULL */
} masking;

static score_shape shape_of(const masking *w, const ch_score_item *i) {
  int n = i->continuations, length = i->contexts + n, experts = w->model->config.model.experts;
  int64_t fit = MAX_LOGITS / ((int64_t)n * w->V);
  score_shape s = {.n = n, .samples = !w->diffusion ? n : n > 1 ? w->samples : 1};
  if (length < experts)
    length = experts; /* a pool needs at least as many positions, including padding, as there are experts */
  s.T = (length + LENGTH_STEP - 1) / LENGTH_STEP * LENGTH_STEP;
  s.B = !w->together || fit < 1 ? 1 : fit < SEQUENCES ? (int)fit : SEQUENCES;
  if (s.B > s.samples) s.B = s.samples;
  return s;
}

static ch_pass pass_of(const masking *w, const score_shape *s, int rows) {
  return (ch_pass){.B = s->B,
                   .T = s->T,
                   .token = w->token,
                   .row = w->row,
                   .rows = rows,
                   .route = {.causal = w->model->causal},
                   .logits = w->logits};
}

static int check_shape(const masking *w, const score_shape *s) {
  const choir_model *model = w->model;
  int e = model->config.model.experts;
  if ((int64_t)s->B * s->T > INT32_MAX / (e > 0 ? e : 1))
    return ch_error(CHOIR_ERROR_ARGUMENT, "a request of %d tokens is too long for %d experts", s->T, e);
  for (int i = 0; i < model->net.moe_layers && !model->causal; i++) {
    ch_router_spec o = ch_config_layer_router(&model->net.config, i);
    CH_TRY(model->net.router->check(&o, s->B * s->T, e, s->T));
  }
  return CHOIR_OK;
}

static int make_arrays(masking *w, const ch_score_item *items, int64_t count) {
  size_t tokens = 0, rows = 0, samples = 0, n = 0;
  for (int64_t i = 0; i < count; i++) {
    score_shape s = shape_of(w, &items[i]);
    size_t t = (size_t)s.B * (size_t)s.T, r = (size_t)s.B * (size_t)s.n;
    tokens = t > tokens ? t : tokens;
    rows = r > rows ? r : rows;
    samples = (size_t)s.samples > samples ? (size_t)s.samples : samples;
    n = (size_t)s.n > n ? (size_t)s.n : n;
  }
  CH_TRY(CH_ALLOC(&w->token, tokens + 2 * rows + 2 * n, "masked tokens"));
  CH_TRY(CH_ALLOC(&w->share, n + 2 * samples, "estimates of log-likelihoods"));
  CH_TRY(CH_ALLOC(&w->logits, rows * (size_t)w->V, "logits of masked tokens"));
  w->row = w->token + tokens;
  w->place = w->row + rows;
  w->shown = w->place + rows;
  w->hidden = w->shown + n;
  w->estimate = w->share + n;
  w->factor = w->estimate + samples;
  return CHOIR_OK;
}

/* Counts the passes of all items, and allocates their memory. */
static int plan(masking *w, const ch_score_item *items, int64_t count) {
  score_shape last = {0};
  CH_TRY(ch_model_separate_exec(w->model, &w->x));
  for (int64_t i = 0; i < count; i++) {
    score_shape s = shape_of(w, &items[i]);
    if (!memcmp(&s, &last, sizeof s)) continue;
    CH_TRY(check_shape(w, &s));
    ch_pass pass = pass_of(w, &s, s.B * s.n);
    ch_model_measure(w->model, &w->x, &pass);
    last = s;
  }
  return ch_model_commit_exec(w->model, &w->x);
}

/* Masks the tokens of a sample; returns the number of masks. */
static int mask(masking *w, const ch_score_item *i, int sample, int samples) {
  int n = i->continuations;
  const choir_config *config = &w->model->config;
  double ratio = 0;
  if (w->diffusion)
    return ch_mask_evaluation(config, sample, samples, 0, sample, i->continuation, n, w->shown, w->hidden, &ratio);
  for (int t = 0; t < n; t++) w->shown[t] = i->continuation[t], w->hidden[t] = -1;
  w->hidden[sample] = i->continuation[sample];
  w->shown[sample] = choir_config_mask_token(config);
  return 1;
}

/* Lays out samples first .. first + B - 1 as texts; returns the number of masked tokens. */
static int lay_out_samples(masking *w, const ch_score_item *i, const score_shape *s, int first) {
  int rows = 0;
  for (int64_t t = 0; t < (int64_t)s->B * s->T; t++) w->token[t] = -1;
  for (int b = 0; b < s->B && first + b < s->samples; b++) {
    int32_t *text = w->token + (int64_t)b * s->T;
    int k = mask(w, i, first + b, s->samples);
    w->factor[first + b] = w->diffusion ? (double)s->n / k / s->samples : 1;
    w->estimate[first + b] = 0;
    memcpy(text, i->context, (size_t)i->contexts * sizeof *text);
    memcpy(text + i->contexts, w->shown, (size_t)s->n * sizeof *text);
    for (int t = 0; t < s->n; t++) {
      if (w->hidden[t] < 0) continue;
      w->row[rows] = b * s->T + i->contexts + t;
      w->place[rows++] = t;
    }
  }
  return rows;
}

static int read_rows(masking *w, const ch_score_item *i, const score_shape *s, int first, int rows) {
  for (int r = 0; r < rows; r++) {
    const float *logits = w->logits + (int64_t)r * w->V;
    int t = w->place[r], sample = first + w->row[r] / s->T;
    double log_p = (double)logits[i->continuation[t]] - ch_summarize(logits, w->V).log_sum;
    if (!isfinite(log_p))
      return ch_error(CHOIR_ERROR_NUMERIC, "the logits of token %d of a continuation are not finite", t);
    w->share[t] += w->factor[sample] * log_p;
    w->estimate[sample] += w->factor[sample] * log_p;
  }
  return CHOIR_OK;
}

/* The standard error of the sum of estimates, from the differences of neighboring strata, as in evaluate.c. It is 0 if
 * no masks are sampled: for a continuation of one token, and with masked_lm. */
static double standard_error(const masking *w, const score_shape *s) {
  double squares = 0;
  if (!w->diffusion || s->n == 1) return 0;
  if (s->samples < 2) return (double)NAN;
  for (int i = 0; i + 1 < s->samples; i += 2) {
    double d = w->estimate[i] - w->estimate[i + 1];
    squares += d * d;
  }
  return sqrt(squares);
}

/* Whether the cached logits of the previous item are also this item's: both are one-token continuations of the same
 * context. */
static int is_held(const masking *w, const ch_score_item *i) {
  return w->held && i->continuations == 1 && w->held->contexts == i->contexts &&
         !memcmp(w->held->context, i->context, (size_t)i->contexts * sizeof *i->context);
}

static int score_item(masking *w, const ch_score_item *i, choir_score_result *result) {
  score_shape s = shape_of(w, i);
  choir_scored *score = i->score;
  for (int t = 0; t < s.n; t++) w->share[t] = 0;
  for (int first = 0; first < s.samples; first += s.B) {
    int held = is_held(w, i), rows = lay_out_samples(w, i, &s, first);
    ch_pass pass = pass_of(w, &s, rows);
    if (!held) ch_model_measure(w->model, &w->x, &pass);
    if (!held) result->tokens += (s.samples - first < s.B ? s.samples - first : s.B) * (int64_t)(i->contexts + s.n);
    CH_TRY(read_rows(w, i, &s, first, rows));
  }
  w->held = s.n == 1 ? i : NULL;
  score->greedy = -1;
  score->log_likelihood = 0;
  for (int t = 0; t < s.n; t++) {
    score->log_likelihood += w->share[t];
    if (score->log_probability) score->log_probability[t] = (float)w->share[t];
  }
  score->standard_error = standard_error(w, &s);
  return CHOIR_OK;
}

static int score_items(masking *w, const ch_score_item *items, int64_t count, const choir_score_options *o,
                       choir_score_result *result) {
  CH_TRY(make_arrays(w, items, count));
  CH_TRY(plan(w, items, count));
  for (int64_t i = 0; i < count; i++) {
    int code = score_item(w, &items[i], result);
    if (code) return ch_error_in(code, "request %lld of %lld", (long long)i + 1, (long long)count);
    CH_TRY(ch_model_check_cancelled(w->model, o->progress, o->context, i + 1, count, "requests"));
  }
  return ch_exec_check(&w->x);
}

const char *ch_masked_routing(const choir_model *model) {
  return ch_model_properties(model).depends_on_batch ? "sequence" : choir_model_routing(model);
}

int ch_score_masked(choir_model *model, const ch_score_item *items, int64_t count, const choir_score_options *o,
                    choir_score_result *result) {
  masking w = {.model = model,
               .diffusion = ch_config_diffusion(&model->config),
               .samples = o->mask_samples ? o->mask_samples : SAMPLES,
               .V = model->config.model.vocab_size,
               .together = !ch_model_properties(model).depends_on_batch};
  double begin = ch_machine_seconds();
  CH_TRY(ch_model_alone(model, "scoring"));
  CH_TRY(ch_model_check_idle(model));
  CH_TRY(ch_threads_check(model->x.threads));
  result->routing = ch_masked_routing(model);
  result->measure = w.diffusion ? CHOIR_SCORE_LOWER_BOUND : CHOIR_SCORE_PSEUDO;
  result->mask_samples = w.diffusion ? w.samples : 0;
  int code = score_items(&w, items, count, o, result);
  ch_exec_free(&w.x);
  free(w.token), free(w.share), free(w.logits);
  result->seconds = ch_machine_seconds() - begin;
  return code;
}
