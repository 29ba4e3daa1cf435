/* The leak probe: changes tokens and compares logits that should not depend on them. */
#include "probe/probe.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "data/encoder.h"
#include "handle/model.h"
#include "model/config.h"

/* Changes up to this fraction of the logits' standard deviation count as rounding: products may sum in another
 * order. */
static const double rounding_bf16 = 0.05, rounding_fp32 = 1e-4;

typedef struct {
  choir_model *model;
  const ch_probe_options *o;
  ch_probe_result *result;
  int B, T, V, positions;
  int32_t *given, *token; /* [B,T] */
  float *before, *after;  /* [B,T,V] logits of the given tokens and of changed ones */
  ch_rng rng;
  uint64_t drawn;
} probe;

/* Running sums of one effect. */
typedef struct {
  ch_probe_effect *effect;
  double loss;
  int64_t targets;
} tally;

static int below(probe *p, int n) { return (int)ch_rng_below(p->rng, p->drawn++, (uint64_t)n); }

/* Returns another token than the present one. */
static int32_t other_token(probe *p, int32_t token) { return (token + 1 + below(p, p->V - 1)) % p->V; }

/* Samples position number `index` from the index-th of `positions` equal ranges of 0 .. T-2. */
static int draw_position(probe *p, int index) {
  int64_t last = p->T - 1, begin = last * index / p->positions, end = last * (index + 1) / p->positions;
  int t = (int)begin + (end > begin ? below(p, (int)(end - begin)) : 0);
  return t < p->T - 1 ? t : p->T - 2;
}

static double cross_entropy(const float *logit, int V, int32_t target) {
  double max = (double)logit[0], sum = 0;
  for (int v = 1; v < V; v++) max = fmax(max, (double)logit[v]);
  for (int v = 0; v < V; v++) sum += exp((double)logit[v] - max);
  return max + log(sum) - (double)logit[target];
}

/* Compares one position of sequence `row` with its logits before; its target's loss counts if it is among the first
 * `known` tokens. */
static void compare_position(const probe *p, int row, int t, int known, const float *logit, tally *sum) {
  const float *was = p->before + ((int64_t)row * p->T + t) * p->V;
  ch_probe_effect *e = sum->effect;
  e->compared++;
  sum->targets += t + 1 < known;
  if (!memcmp(was, logit, (size_t)p->V * sizeof *was)) return;
  e->changed++;
  if (e->first < 0 || t < e->first) e->first = t;
  for (int v = 0; v < p->V; v++) {
    double change = fabs((double)logit[v] - (double)was[v]);
    e->largest = isnan(change) ? (double)INFINITY : fmax(e->largest, change);
  }
  if (t + 1 < known) {
    int32_t target = p->given[(int64_t)row * p->T + t + 1];
    sum->loss += cross_entropy(logit, p->V, target) - cross_entropy(was, p->V, target);
  }
}

static void compare_logits(const probe *p, int row, int positions, const float *logits, tally *sum) {
  for (int t = 0; t < positions; t++) compare_position(p, row, t, positions, logits + (int64_t)t * p->V, sum);
}

static int forward_logits(probe *p, int B, int T, const int32_t *token) {
  choir_forward_result ignored;
  return choir_model_forward(p->model, B, T, token, p->after, 0, &ignored);
}

/* Changes tokens after position t of one sequence. */
static int probe_later(probe *p, tally *sum) {
  for (int i = 0; i < p->positions * p->o->draws; i++) {
    int row = below(p, p->B), t = draw_position(p, i / p->o->draws);
    memcpy(p->token, p->given, sizeof *p->token * (size_t)p->B * (size_t)p->T);
    int32_t *sequence = p->token + (int64_t)row * p->T;
    for (int j = t + 1; j < p->T; j++) sequence[j] = other_token(p, sequence[j]);
    CH_TRY(forward_logits(p, p->B, p->T, p->token));
    compare_logits(p, row, t + 1, p->after + (int64_t)row * p->T * p->V, sum);
  }
  return CHOIR_OK;
}

/* Changes tokens in every sequence except one. */
static int probe_others(probe *p, tally *sum) {
  for (int i = 0; i < p->o->draws && p->B > 1; i++) {
    int row = below(p, p->B);
    for (int b = 0; b < p->B; b++)
      for (int t = 0; t < p->T; t++) {
        int64_t at = (int64_t)b * p->T + t;
        p->token[at] = b == row ? p->given[at] : other_token(p, p->given[at]);
      }
    CH_TRY(forward_logits(p, p->B, p->T, p->token));
    compare_logits(p, row, p->T, p->after + (int64_t)row * p->T * p->V, sum);
  }
  return CHOIR_OK;
}

/* Runs one sequence by itself, up to position t. Routers may refuse such a small batch: untried then. */
static int probe_alone(probe *p, tally *sum) {
  for (int i = 0; i < p->positions; i++) {
    int row = below(p, p->B), t = draw_position(p, i);
    int code = forward_logits(p, 1, t + 1, p->given + (int64_t)row * p->T);
    if (code == CHOIR_ERROR_ARGUMENT) continue;
    CH_TRY(code);
    compare_logits(p, row, t + 1, p->after, sum);
  }
  return CHOIR_OK;
}

static int measure_effect(probe *p, int (*change)(probe *, tally *), ch_probe_effect *effect) {
  tally sum = {.effect = effect};
  *effect = (ch_probe_effect){.first = -1};
  CH_TRY(change(p, &sum));
  double rounding = p->model->x.compute == CH_COMPUTE_BF16 ? rounding_bf16 : rounding_fp32;
  effect->loss = sum.targets ? sum.loss / (double)sum.targets : 0;
  effect->verdict = !effect->compared                                 ? CH_PROBE_UNTRIED
                    : !effect->changed                                ? CH_PROBE_EQUAL
                    : effect->largest <= rounding * p->result->spread ? CH_PROBE_ROUNDED
                                                                      : CH_PROBE_CHANGED;
  return CHOIR_OK;
}

static double spread(const float *x, int64_t count) {
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < count; i++) sum += (double)x[i];
  for (int64_t i = 0; i < count; i++)
    squares += ((double)x[i] - sum / (double)count) * ((double)x[i] - sum / (double)count);
  return sqrt(squares / (double)count);
}

static int measure_all(probe *p) {
  ch_probe_result *r = p->result;
  choir_forward_result given;
  CH_TRY(choir_model_forward(p->model, p->B, p->T, p->given, p->before, 0, &given));
  r->loss = given.loss;
  r->spread = spread(p->before, (int64_t)p->B * p->T * p->V);
  CH_TRY(measure_effect(p, probe_later, &r->later));
  CH_TRY(measure_effect(p, probe_others, &r->others));
  CH_TRY(measure_effect(p, probe_alone, &r->alone));
  r->leaks = (!r->declared.looks_ahead && r->later.verdict == CH_PROBE_CHANGED) ||
             (!r->declared.depends_on_batch && r->others.verdict == CH_PROBE_CHANGED) ||
             (!r->declared.looks_ahead && !r->declared.depends_on_batch && r->alone.verdict == CH_PROBE_CHANGED);
  return CHOIR_OK;
}

/* Cuts windows from the beginning of the text into p->given; fewer or shorter ones if the text is short. */
static int cut_text(probe *p, const int32_t *ids, size_t count) {
  if (count < 2) return ch_error(CHOIR_ERROR_FORMAT, "%s: %zu tokens; the probe needs two at least", p->o->text, count);
  if (count < (size_t)p->T) p->T = (int)count;
  if (count / (size_t)p->T < (size_t)p->B) p->B = (int)(count / (size_t)p->T);
  memcpy(p->given, ids, sizeof *ids * (size_t)p->B * (size_t)p->T);
  return CHOIR_OK;
}

static int read_text(probe *p, const choir_tokenizer *tokenizer) {
  ch_text_tokens text;
  CH_TRY(ch_text_tokens_read(tokenizer, p->o->text, (size_t)p->B * (size_t)p->T, NULL, NULL, &text));
  int code = cut_text(p, text.ids, text.count);
  free(text.ids);
  return code;
}

static int fill_tokens(probe *p, const choir_tokenizer *tokenizer) {
  int64_t n = (int64_t)p->B * p->T;
  if (p->o->text) return read_text(p, tokenizer);
  if (p->o->tokens)
    memcpy(p->given, p->o->tokens, sizeof *p->given * (size_t)n);
  else
    for (int64_t i = 0; i < n; i++) p->given[i] = below(p, p->V);
  return CHOIR_OK;
}

static int run_probe(probe *p, const choir_tokenizer *tokenizer) {
  size_t n = (size_t)p->B * (size_t)p->T;
  CH_TRY(CH_ALLOC(&p->given, n, "tokens"));
  CH_TRY(CH_ALLOC(&p->token, n, "tokens"));
  CH_TRY(CH_ALLOC(&p->before, n * (size_t)p->V, "logits (take fewer sequences)"));
  CH_TRY(CH_ALLOC(&p->after, n * (size_t)p->V, "logits (take fewer sequences)"));
  CH_TRY(fill_tokens(p, tokenizer));
  p->result->sequences = p->B;
  p->result->length = p->T;
  return measure_all(p);
}

static int check_probe(const probe *p) {
  CH_TRY(ch_config_check_next_token(choir_model_config(p->model), "the probe for leaks from later tokens"));
  if (p->o->text && p->o->tokens) return ch_error(CHOIR_ERROR_ARGUMENT, "the probe takes either tokens or a text");
  if (p->B < 1 || p->T < 2)
    return ch_error(CHOIR_ERROR_ARGUMENT, "%d sequences of %d tokens: the probe needs one at least, of two tokens",
                    p->B, p->T);
  if (p->o->positions < 1 || p->o->draws < 1)
    return ch_error(CHOIR_ERROR_ARGUMENT, "%d positions and %d draws: the probe needs one of each at least",
                    p->o->positions, p->o->draws);
  if (p->V < 2) return ch_error(CHOIR_ERROR_ARGUMENT, "a vocabulary of %d has no other token to change to", p->V);
  return CHOIR_OK;
}

int ch_probe(choir_model *model, const choir_tokenizer *tokenizer, const ch_probe_options *options,
             ch_probe_result *result) {
  const choir_config *config = choir_model_config(model);
  char routing_before[CHOIR_NAME_BYTES];
  probe p = {.model = model,
             .o = options,
             .result = result,
             .B = options->sequences ? options->sequences : config->train.batch_sequences,
             .T = options->length ? options->length : config->train.sequence_length,
             .V = config->model.vocab_size,
             .rng = ch_rng_make(options->seed, CH_STREAM_PROBE, 0)};
  CH_TRY(ch_model_alone(model, "ch_probe"));
  CH_TRY(check_probe(&p));
  p.positions = options->positions < p.T - 1 ? options->positions : p.T - 1; /* there are no more positions */
  *result = (ch_probe_result){0};
  snprintf(routing_before, sizeof routing_before, "%s", choir_model_routing(model));
  if (options->routing) CH_TRY(choir_model_set_routing(model, options->routing));
  snprintf(result->routing, sizeof result->routing, "%s", choir_model_routing(model));
  result->declared = ch_model_properties(model);
  int code = run_probe(&p, tokenizer);
  free(p.given);
  free(p.token);
  free(p.before);
  free(p.after);
  int restored = choir_model_set_routing(model, routing_before); /* does not change the message of an earlier error */
  return code ? code : restored;
}
