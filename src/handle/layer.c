/* choir_layer_*: one MoE layer on the caller's arrays. */
#include "choir/layer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/enter.h"
#include "base/options.h"
#include "base/threads.h"
#include "model/config.h"
#include "moe/layer.h"
#include "moe/route_stats.h"

#ifndef CHOIR_DOUBLE /* the public interface uses float */

struct choir_layer {
  choir_layer_options options;
  ch_router_spec router; /* of its config */
  ch_exec x;
  ch_moe_args args;   /* of the last forward */
  ch_moe_saved saved; /* what it left */
  int planned;        /* n of the last plan */
  int forward_done, backward_possible;
  int bad_row;    /* first unmasked row of the last forward's x that is not finite; -1: none */
  int32_t *token; /* [tokens] and [tokens]: copies of the last forward's arguments */
  uint8_t *valid;
};

/* ---- the caller's arrays as arguments of ops: in place, or copies on the tape ---- */

static const void CH_DEV *put(ch_exec *x, const void *from, size_t bytes) {
  return from ? ch_upload(&x->tape, from, bytes) : NULL;
}

static size_t bytes_of(int64_t a, int64_t b, int64_t c) { return (size_t)a * (size_t)b * (size_t)c * sizeof(real); }

/* Sizes of the router's weight, and of w1 or w2. */
static size_t router_bytes(const ch_moe_args *a) { return bytes_of(a->route.d, a->route.e, 1); }
static size_t expert_bytes(const ch_moe_args *a) { return bytes_of(a->route.e, a->route.d, a->h); }

static void put_weights(ch_exec *x, ch_moe_args *a, const choir_layer_weights *w) {
  a->route.weight = put(x, w->router, router_bytes(a));
  a->route.router_state.thresholds = put(x, w->thresholds, bytes_of(a->route.e, 1, 1));
  a->weights = (ch_moe_weights){.w1 = put(x, w->w1, expert_bytes(a)), .w2 = put(x, w->w2, expert_bytes(a))};
}

/* Copies the caller's gradients to the device, because backward adds to them. */
static ch_moe_gradients put_gradients(ch_exec *x, const ch_moe_args *a, const choir_layer_weights *w) {
  return (ch_moe_gradients){.router = (real CH_DEV *)put(x, w->router, router_bytes(a)),
                            .w1 = (real CH_DEV *)put(x, w->w1, expert_bytes(a)),
                            .w2 = (real CH_DEV *)put(x, w->w2, expert_bytes(a))};
}

/* Arguments of a forward and a backward call. */
typedef struct {
  const choir_layer_weights *weights, *gradients;
  const float *x, *dout; /* [n,d] */
  const int32_t *tokens; /* [n] or NULL */
  const uint8_t *valid;  /* [n] or NULL */
  float *out, *dx;       /* [n,d] */
} call;

static void forward_layer(ch_exec *x, ch_moe_args *a, ch_moe_saved *saved, const call *c) {
  size_t n = (size_t)a->route.n, bytes = bytes_of(a->route.n, a->route.d, 1);
  put_weights(x, a, c->weights);
  a->route.tokens.id = put(x, c->tokens, n * sizeof *c->tokens);
  a->route.tokens.mask = ch_counting(x) ? NULL : c->valid;
  a->route.tokens.valid = put(x, c->valid, n);
  a->route.x = put(x, c->x, bytes);
  a->out = ch_staging(&x->tape, c->out, bytes);
  ch_moe_forward(x, a, saved);
  ch_download_into(&x->tape, c->out, a->out, bytes);
}

static void backward_layer(ch_exec *x, const ch_moe_args *forward, ch_moe_saved *saved, const call *c) {
  ch_moe_args a = *forward;
  size_t bytes = bytes_of(a.route.n, a.route.d, 1);
  a.gradients = put_gradients(x, &a, c->gradients);
  put_weights(x, &a, c->weights);
  a.route.x = put(x, c->x, bytes);
  a.dout = put(x, c->dout, bytes);
  a.dx = ch_staging(&x->tape, c->dx, bytes);
  a.accumulate = 1;
  ch_moe_backward(x, &a, saved);
  ch_download_into(&x->tape, c->dx, a.dx, bytes);
  if (a.gradients.router) ch_download_into(&x->tape, c->gradients->router, a.gradients.router, router_bytes(&a));
  ch_download_into(&x->tape, c->gradients->w1, a.gradients.w1, expert_bytes(&a));
  ch_download_into(&x->tape, c->gradients->w2, a.gradients.w2, expert_bytes(&a));
}

/* The first unmasked row of rows [n,width] that is not finite, or -1. */
static int find_bad_row(const real *rows, int n, int width, const uint8_t *valid) {
  for (int t = 0; t < n; t++)
    for (int j = 0; j < width && (!valid || valid[t]); j++)
      if (!isfinite(rows[(int64_t)t * width + j])) return t;
  return -1;
}

/* As find_bad_row, for the saved scores [n,e]: scores of finite rows of x may overflow. */
static int find_bad_score(ch_exec *x, const ch_route_args *a, const ch_moe_saved *saved) {
  CH_SCRATCH(x);
  if (!ch_router_has_thresholds(a->router)) return -1;
  const real *scores = ch_download(x, saved->routing.scores, bytes_of(a->n, a->e, 1));
  return ch_counting(x) ? -1 : find_bad_row(scores, a->n, a->e, a->tokens.mask);
}

/* Rehearses every kind of call on the counting executor `x`, which sizes its arenas. */
static void rehearse(ch_exec *x, const ch_moe_args *args, int causal) {
  static float some;
  static const int32_t token;
  static const uint8_t valid;
  const choir_layer_weights all = {.router = &some, .w1 = &some, .w2 = &some, .thresholds = &some};
  const call c = {&all, &all, &some, &some, &token, &valid, &some, &some};
  ch_moe_saved saved;
  ch_moe_args a = *args;
  for (a.route.training = a.keep = 0; a.keep < 2; a.route.training = ++a.keep) {
    a.route.causal = causal && !a.keep;
    forward_layer(x, &a, &saved, &c);
    find_bad_score(x, &a.route, &saved);
    if (a.keep) backward_layer(x, &a, &saved, &c);
    ch_arena_release(&x->tape, 0);
  }
}

/* Whether the memory that `trial` counted fits into the arenas of `x`. */
static int fits(const ch_exec *trial, const ch_exec *x) {
  return trial->tape.peak <= x->tape.size && trial->scratch.peak <= x->scratch.size &&
         (!x->host || fits(trial->host, x->host));
}

/* A counting executor with the settings of `x`. */
static ch_exec trial_of(const ch_exec *x, ch_exec *host) {
  ch_exec trial = *x;
  ch_arena_init(&trial.tape, x->tape.name, x->memory);
  ch_arena_init(&trial.scratch, x->scratch.name, x->memory);
  if (x->host) *host = trial_of(x->host, NULL), trial.host = host;
  return trial;
}

static void take_peaks(ch_exec *x, const ch_exec *trial) {
  x->tape.peak = trial->tape.peak;
  x->scratch.peak = trial->scratch.peak;
  if (x->host) take_peaks(x->host, trial->host);
}

/* Scratch of products is not monotonic in n, so every new n is rehearsed; arenas grow only if they are too small. */
static int plan_layer(choir_layer *layer, int n) {
  if (n == layer->planned) return CHOIR_OK;
  ch_exec host, trial = trial_of(&layer->x, &host);
  ch_moe_args args = layer->args;
  args.route.n = n;
  rehearse(&trial, &args, layer->options.causal);
  if (!fits(&trial, &layer->x)) {
    layer->planned = layer->forward_done = layer->backward_possible = 0;
    ch_exec_clear(&layer->x);
    take_peaks(&layer->x, &trial);
    CH_TRY(ch_exec_commit(&layer->x));
  }
  layer->planned = n;
  return CHOIR_OK;
}

static int check_layer_options(const choir_layer_options *o) {
  const struct {
    const char *name;
    int value;
  } sizes[] = {{"tokens", o->tokens}, {"d_model", o->d_model}, {"d_hidden", o->d_hidden}, {"experts", o->experts}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    if (sizes[i].value < 1)
      return ch_error(CHOIR_ERROR_ARGUMENT, "layer: %s is %d; it must be at least 1", sizes[i].name, sizes[i].value);
  if (o->sequence_length < 0)
    return ch_error(CHOIR_ERROR_ARGUMENT, "layer: sequence_length %d must not be negative", o->sequence_length);
  if (!o->config) return ch_error(CHOIR_ERROR_ARGUMENT, "layer: config is NULL, which says the router");
  const ch_router_spec *spec = &o->config->model.router;
  const ch_router *router = spec->kind;
  CH_TRY(ch_options_check_router(spec));
  if (o->causal) CH_TRY(ch_router_check_routing(router, "threshold"));
  if (o->causal && (int64_t)o->tokens * ch_router_max_experts(spec, o->experts) > INT32_MAX / 2)
    return ch_error(CHOIR_ERROR_ARGUMENT, "layer: %d tokens and %d experts are too many for one causal call", o->tokens,
                    o->experts);
  return router->check(spec, o->tokens, o->experts, o->sequence_length);
}

static int set_up_layer(choir_layer *layer, ch_compute compute) {
  const choir_layer_options *o = &layer->options;
  CH_TRY(ch_exec_init(&layer->x, o->backend ? o->backend : "cpu", compute, 0, o->threads));
  CH_TRY(CH_ALLOC(&layer->token, o->tokens, "the layer's tokens"));
  CH_TRY(CH_ALLOC(&layer->valid, o->tokens, "the layer's mask"));
  layer->args =
      (ch_moe_args){.route = {.d = o->d_model, .draws.rng.seed = o->seed}, .h = o->d_hidden, .grad_chunks = 1};
  ch_route_args_set(&layer->args.route, layer->router.kind, &layer->router, 0, o->experts, o->sequence_length);
  return plan_layer(layer, o->tokens);
}

int choir_layer_create(const choir_layer_options *options, choir_layer **layer) {
  CH_ENTER(options, layer);
  *layer = NULL;
  ch_compute compute;
  CH_OPTIONS(choir_layer_options, o, options, CHOIR_LAYER_OPTIONS_INIT);
  CH_TRY(check_layer_options(&o));
  CH_TRY(ch_compute_find(o.compute ? o.compute : "fp32", &compute));
  if (compute == CH_COMPUTE_Q8_0)
    return ch_error(CHOIR_ERROR_UNSUPPORTED, "layer: compute 'q8_0' is for whole models; take fp32 or bf16");
  choir_layer *made;
  CH_TRY(CH_ALLOC(&made, 1, "a layer"));
  made->options = o;
  made->options.config = NULL; /* the caller owns it and may free it */
  made->router = o.config->model.router;
  int code = set_up_layer(made, compute);
  if (code) {
    choir_layer_free(made);
    return code;
  }
  *layer = made;
  return CHOIR_OK;
}

void choir_layer_free(choir_layer *layer) {
  if (!layer) return;
  ch_exec_free(&layer->x);
  free(layer->token);
  free(layer->valid);
  free(layer);
}

static int check_weights(const choir_layer *layer, const choir_layer_weights *w, const char *what) {
  int learned = ch_router_learned(layer->args.route.router);
  if (w->w1 && w->w2 && (w->router || !learned)) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_ARGUMENT, "layer: %s is NULL in the %s", !w->w1 ? "w1" : !w->w2 ? "w2" : "router", what);
}

/* Refuses options that a single layer cannot support: those that depend on the training step or run each sequence
 * twice. */
static int check_training(const ch_router_spec *o) {
  if (!o->threshold_after && !(o->consistency_weight > 0)) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_ARGUMENT, "layer: %s is for training a whole model; set it to 0",
                  o->threshold_after ? "threshold_after" : "consistency_weight");
}

int choir_layer_forward(choir_layer *layer, const choir_layer_weights *weights, int n, const float *x,
                        const int32_t *tokens, const uint8_t *valid, int training, float *out) {
  CH_ENTER(layer, weights, x, out);
  ch_route_args *a = &layer->args.route;
  int causal = layer->options.causal && !training;
  if (n < 1 || n > layer->options.tokens)
    return ch_error(CHOIR_ERROR_ARGUMENT, "layer: %d tokens in a call; the layer was made for 1 to %d", n,
                    layer->options.tokens);
  CH_TRY(ch_threads_check(layer->x.threads));
  CH_TRY(check_weights(layer, weights, "weights"));
  if (training) CH_TRY(check_training(a->options));
  if (causal && ch_router_has_thresholds(a->router) && !weights->thresholds)
    return ch_error(CHOIR_ERROR_ARGUMENT, "layer: thresholds is NULL in the weights, and the layer was made causal");
  CH_TRY(ch_router_check_ids(a->router, n, tokens));
  CH_TRY(plan_layer(layer, n));

  if (tokens) memcpy(layer->token, tokens, (size_t)n * sizeof *tokens);
  if (valid) memcpy(layer->valid, valid, (size_t)n);
  a->n = n;
  a->training = layer->args.keep = training != 0;
  a->causal = causal;
  ch_arena_release(&layer->x.tape, 0);
  forward_layer(&layer->x, &layer->args, &layer->saved,
                &(call){.weights = weights,
                        .x = x,
                        .tokens = tokens ? layer->token : NULL,
                        .valid = valid ? layer->valid : NULL,
                        .out = out});
  if (training) a->draws.base += (uint64_t)n;
  layer->forward_done = 1;
  layer->backward_possible = a->training;
  layer->bad_row = ch_router_has_thresholds(a->router) ? find_bad_row(x, n, a->d, valid) : -1;
  return ch_exec_check(&layer->x);
}

int choir_layer_backward(choir_layer *layer, const choir_layer_weights *weights, const float *x, const float *dout,
                         float *dx, const choir_layer_weights *gradients) {
  CH_ENTER(layer, weights, x, dout, dx, gradients);
  if (!layer->backward_possible)
    return ch_error(CHOIR_ERROR_ARGUMENT, "layer: backward goes once with a forward that had `training` set");
  CH_TRY(ch_threads_check(layer->x.threads));
  CH_TRY(check_weights(layer, weights, "weights"));
  CH_TRY(check_weights(layer, gradients, "gradients"));
  backward_layer(&layer->x, &layer->args, &layer->saved,
                 &(call){.weights = weights, .gradients = gradients, .x = x, .dout = dout, .dx = dx});
  layer->backward_possible = 0;
  return ch_exec_check(&layer->x);
}

int choir_layer_observe(choir_layer *layer, uint64_t calls, float *thresholds) {
  CH_ENTER(layer, thresholds);
  const ch_route_args *a = &layer->args.route;
  if (!ch_router_has_thresholds(a->router))
    return ch_error(CHOIR_ERROR_ARGUMENT, "layer: router '%s' keeps no cut-off scores", a->router->name);
  if (!layer->forward_done || a->causal)
    return ch_error(CHOIR_ERROR_ARGUMENT, "layer: cut-off scores are those of a forward that is not causal");
  ch_exec *x = &layer->x;
  int bad = layer->bad_row >= 0 ? layer->bad_row : find_bad_score(x, a, &layer->saved);
  if (bad >= 0)
    return ch_error(CHOIR_ERROR_NUMERIC,
                    "layer: token %d of the last forward has a number in x or a score that is not finite; thresholds "
                    "stay as they were; do not count this call",
                    bad);
  size_t mark = ch_arena_mark(&x->tape), bytes = bytes_of(a->e, 1, 1);
  const real CH_DEV *state = put(x, thresholds, bytes);
  ch_router_observe(x, a->router, a->options, a->e, &layer->saved.routing,
                    (ch_router_state){.updated = (real CH_DEV *)state, .observed = calls});
  ch_download_into(&x->tape, thresholds, state, bytes);
  ch_arena_release(&x->tape, mark);
  return ch_exec_check(x);
}

int choir_layer_get_route_stats(const choir_layer *layer, choir_route_stats *stats) {
  CH_ENTER(layer, stats);
  const ch_route_args *a = &layer->args.route;
  if (!layer->forward_done) return ch_error(CHOIR_ERROR_ARGUMENT, "layer: statistics need a forward first");
  return ch_route_stats_make(layer->x.memory, ch_valid_count(a->tokens.mask, a->n), &layer->saved.routing, stats);
}

size_t choir_layer_bytes(const choir_layer *layer) {
  if (!layer) return 0;
  size_t copies = (size_t)layer->options.tokens * (sizeof *layer->token + sizeof *layer->valid);
  const ch_exec *x = &layer->x;
  return sizeof *layer + copies + x->tape.size + x->scratch.size + (x->host ? x->host->scratch.size : 0);
}

#endif
