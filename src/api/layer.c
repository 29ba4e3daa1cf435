/* choir_layer_*: one MoE layer on the caller's arrays. */
#include "choir/layer.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/threads.h"
#include "moe/layer.h"

#ifndef CHOIR_DOUBLE /* the public interface is in float */

struct choir_layer {
  choir_layer_options options;
  ch_exec x;
  ch_moe_args args;   /* of the last forward */
  ch_moe_saved saved; /* what it left */
  int planned;        /* n that the arenas were last planned for */
  int forward_done, backward_possible;
  int32_t *token; /* [tokens] and [tokens]: copies of what the last forward was given */
  uint8_t *valid;
};

/* Everything that a call may do, without doing it: sizes the arenas of `x`, which count. */
static void rehearse(ch_exec *x, const ch_moe_args *forward, int causal) {
  ch_moe_saved saved;
  ch_moe_args args = *forward;
  size_t mark = ch_arena_mark(&x->tape);
  for (args.training = args.keep = 0; args.training < 2; args.keep = ++args.training) {
    args.causal = causal && !args.training;
    ch_moe_forward(x, &args, &saved);
    if (args.training) ch_moe_backward(x, &args, &saved);
    ch_arena_release(&x->tape, mark);
  }
}

/* Scratch of products need not shrink with n, so every new n is rehearsed; memory grows only where that says so. */
static int plan(choir_layer *layer, int n) {
  if (n == layer->planned) return CHOIR_OK;
  ch_exec trial = layer->x;
  ch_arena_init(&trial.tape, layer->x.tape.name);
  ch_arena_init(&trial.scratch, layer->x.scratch.name);
  ch_moe_args args = layer->args;
  args.n = n;
  rehearse(&trial, &args, layer->options.causal);
  if (trial.tape.peak > layer->x.tape.size || trial.scratch.peak > layer->x.scratch.size) {
    layer->planned = layer->forward_done = layer->backward_possible = 0;
    ch_arena_free(&layer->x.tape);
    ch_arena_free(&layer->x.scratch);
    layer->x.tape.peak = trial.tape.peak;
    layer->x.scratch.peak = trial.scratch.peak;
    CH_TRY(ch_exec_commit(&layer->x));
  }
  layer->planned = n;
  return CHOIR_OK;
}

static int check_options(const choir_layer_options *o) {
  const struct {
    const char *name;
    int value;
  } sizes[] = {{"tokens", o->tokens}, {"d_model", o->d_model}, {"d_hidden", o->d_hidden}, {"experts", o->experts}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    if (sizes[i].value < 1)
      return ch_error(CHOIR_ERROR_ARGUMENT, "layer: %s is %d; it must be at least 1", sizes[i].name, sizes[i].value);
  if (o->sequence_length < 0)
    return ch_error(CHOIR_ERROR_ARGUMENT, "layer: sequence_length %d must not be negative", o->sequence_length);
  const ch_router *router = ch_router_find(o->router.name);
  if (!router) return CHOIR_ERROR_ARGUMENT;
  if (o->causal) CH_TRY(ch_router_check_routing(router, "threshold"));
  return router->check(&o->router, o->tokens, o->experts, o->sequence_length);
}

static int set_up(choir_layer *layer, ch_compute compute) {
  const choir_layer_options *o = &layer->options;
  CH_TRY(ch_exec_init(&layer->x, o->backend ? o->backend : "cpu", compute, 0, o->threads));
  layer->token = malloc((size_t)o->tokens * sizeof *layer->token);
  layer->valid = malloc((size_t)o->tokens);
  if (!layer->token || !layer->valid) return ch_error(CHOIR_ERROR_MEMORY, "layer: no memory for %d tokens", o->tokens);
  layer->args = (ch_moe_args){.options = &layer->options.router,
                              .router = ch_router_find(o->router.name),
                              .d = o->d_model,
                              .h = o->d_hidden,
                              .e = o->experts,
                              .sequence_length = o->sequence_length,
                              .rng = {.seed = o->seed}};
  return plan(layer, o->tokens);
}

int choir_layer_create(const choir_layer_options *options, choir_layer **layer) {
  *layer = NULL;
  ch_compute compute;
  CH_TRY(check_options(options));
  CH_TRY(ch_compute_find(options->compute ? options->compute : "fp32", &compute));
  choir_layer *made = calloc(1, sizeof *made);
  if (!made) return ch_error(CHOIR_ERROR_MEMORY, "layer: no memory");
  made->options = *options;
  int code = set_up(made, compute);
  if (code) {
    choir_layer_destroy(made);
    return code;
  }
  *layer = made;
  return CHOIR_OK;
}

void choir_layer_destroy(choir_layer *layer) {
  if (!layer) return;
  ch_exec_free(&layer->x);
  free(layer->token);
  free(layer->valid);
  free(layer);
}

static ch_moe_weights weights_of(const choir_layer_weights *w) {
  return (ch_moe_weights){.router = w->router, .w1 = w->w1, .w2 = w->w2, .thresholds = w->thresholds};
}

static int check_weights(const choir_layer *layer, const choir_layer_weights *w, const char *what) {
  int learned = (layer->args.router->caps & CH_ROUTER_LEARNED) != 0;
  if (w && w->w1 && w->w2 && (w->router || !learned)) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_ARGUMENT, "layer: %s is NULL in the %s",
                  !w       ? "the struct"
                  : !w->w1 ? "w1"
                  : !w->w2 ? "w2"
                           : "router",
                  what);
}

int choir_layer_forward(choir_layer *layer, const choir_layer_weights *weights, int n, const float *x,
                        const int32_t *tokens, const uint8_t *valid, int training, float *out) {
  ch_moe_args *a = &layer->args;
  int causal = layer->options.causal && !training;
  if (n < 1 || n > layer->options.tokens)
    return ch_error(CHOIR_ERROR_ARGUMENT, "layer: %d tokens in a call; the layer was made for 1 to %d", n,
                    layer->options.tokens);
  if (!x || !out) return ch_error(CHOIR_ERROR_ARGUMENT, "layer: %s is NULL", x ? "out" : "x");
  CH_TRY(ch_threads_check(layer->x.threads));
  CH_TRY(check_weights(layer, weights, "weights"));
  if (causal && (a->router->caps & CH_ROUTER_THRESHOLDS) && !weights->thresholds)
    return ch_error(CHOIR_ERROR_ARGUMENT, "layer: thresholds is NULL in the weights, and the layer was made causal");
  CH_TRY(ch_router_check_ids(a->router, n, tokens));
  CH_TRY(plan(layer, n));

  if (tokens) memcpy(layer->token, tokens, (size_t)n * sizeof *tokens);
  if (valid) memcpy(layer->valid, valid, (size_t)n);
  a->n = n;
  a->token = tokens ? layer->token : NULL;
  a->valid = valid ? layer->valid : NULL;
  a->training = a->keep = training != 0;
  a->causal = causal;
  a->weights = weights_of(weights);
  a->x = x;
  a->out = out;
  ch_arena_release(&layer->x.tape, 0);
  ch_moe_forward(&layer->x, a, &layer->saved);
  if (training) a->rng_base += (uint64_t)n;
  layer->forward_done = 1;
  layer->backward_possible = a->training;
  return CHOIR_OK;
}

int choir_layer_backward(choir_layer *layer, const choir_layer_weights *weights, const float *x, const float *dout,
                         float *dx, const choir_layer_weights *gradients) {
  ch_moe_args a = layer->args;
  if (!layer->backward_possible)
    return ch_error(CHOIR_ERROR_ARGUMENT, "layer: backward goes once with a forward that had `training` set");
  CH_TRY(ch_threads_check(layer->x.threads));
  if (!x || !dout || !dx) return ch_error(CHOIR_ERROR_ARGUMENT, "layer: %s is NULL", !x ? "x" : !dout ? "dout" : "dx");
  CH_TRY(check_weights(layer, weights, "weights"));
  CH_TRY(check_weights(layer, gradients, "gradients"));
  a.weights = weights_of(weights);
  a.x = x;
  a.dout = dout;
  a.dx = dx;
  a.aux_scale = a.router->caps & CH_ROUTER_AUX_LOSS ? (float)a.options->aux_loss_weight : 0;
  a.gradients = (ch_moe_gradients){.router = gradients->router, .w1 = gradients->w1, .w2 = gradients->w2};
  a.accumulate = 1;
  ch_moe_backward(&layer->x, &a, &layer->saved);
  layer->backward_possible = 0;
  return CHOIR_OK;
}

int choir_layer_observe(choir_layer *layer, uint64_t calls, float *thresholds) {
  const ch_moe_args *a = &layer->args;
  if (!(a->router->caps & CH_ROUTER_THRESHOLDS))
    return ch_error(CHOIR_ERROR_ARGUMENT, "layer: router '%s' keeps no cut-off scores", a->router->name);
  if (!thresholds) return ch_error(CHOIR_ERROR_ARGUMENT, "layer: thresholds is NULL");
  if (!layer->forward_done || a->causal)
    return ch_error(CHOIR_ERROR_ARGUMENT, "layer: cut-off scores are those of a forward that is not causal");
  a->router->observe(&layer->x, &(ch_route_args){.options = a->options,
                                                 .n = a->n,
                                                 .e = a->e,
                                                 .counts = &layer->saved.counts,
                                                 .state = thresholds,
                                                 .observed = calls});
  return CHOIR_OK;
}

int choir_layer_stats(const choir_layer *layer, choir_route_stats *stats) {
  if (!layer->forward_done) return ch_error(CHOIR_ERROR_ARGUMENT, "layer: statistics need a forward first");
  return ch_route_stats_make(&layer->saved.record, &layer->saved.counts, layer->args.valid, stats);
}

size_t choir_layer_bytes(const choir_layer *layer) {
  size_t copies = (size_t)layer->options.tokens * (sizeof *layer->token + sizeof *layer->valid);
  return sizeof *layer + copies + layer->x.tape.size + layer->x.scratch.size;
}

#endif
