/* Which routing a handle's passes use. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/enter.h"
#include "base/text.h"
#include "handle/model.h"
#include "model/config.h"
#include "moe/routers/threshold.h"

void choir_model_on_routing(choir_model *model, choir_routing_callback callback, void *context) {
  if (!model) return;
  model->callback = callback;
  model->callback_context = context;
}

/* Target load of an expert in tokens: its capacity (expert choice), or an even share of n * K (token choice). */
static double target(const ch_route_args *a, const ch_routing *r) {
  int choices = ch_router_choices(a->options), n = ch_valid_count(a->tokens.mask, a->n);
  if (choices) return (double)n * choices / (a->e + a->options->null_experts);
  return a->causal ? ch_router_k(ch_router_factor(a->options, a->training), n, a->e) : r->counts.capacity;
}

choir_routing ch_routing_view(ch_exec *x, const ch_route_args *a, const ch_routing *r) {
  const ch_record *record = &r->record;
  int ranked = ch_router_has_thresholds(a->router) && !a->causal && !a->by_threshold && !a->tokens.assignment;
  size_t n = (size_t)a->n, e = (size_t)a->e, slots = (size_t)record->max_slots;
  const real *kept = a->router_state.thresholds ? ch_download(x, a->router_state.thresholds, e * sizeof(real)) : NULL;
  const int64_t *dropped = ch_download(x, r->counts.dropped, sizeof *dropped);
  const double *aux_loss = ch_download(x, r->counts.aux_loss, sizeof *aux_loss);
  const double *sums = ch_download(x, r->tally.sums, CH_TALLY_SUMS * sizeof *sums);
  choir_routing view = {.tokens = a->n,
                        .experts = a->e,
                        .token = a->tokens.id ? ch_download(x, a->tokens.id, n * sizeof(int32_t)) : NULL,
                        .valid = a->tokens.mask,
                        .expert_begin = ch_download(x, record->expert_begin, (e + 1) * sizeof(int)),
                        .slot_token = ch_download(x, record->slot_token, slots * sizeof(int)),
                        .slot_gate = ch_download(x, record->slot_gate, slots * sizeof(real)),
                        .token_begin = ch_download(x, record->token_begin, (n + 1) * sizeof(int)),
                        .token_slot = ch_download(x, record->token_slot, slots * sizeof(int)),
                        .scores = r->scores ? ch_download(x, r->scores, n * e * sizeof(real)) : NULL,
                        .cutoffs = ranked ? ch_download(x, r->counts.cutoff, e * sizeof(real)) : NULL,
                        .demand = ch_download(x, r->counts.demand, e * sizeof(int)),
                        .capacity = r->counts.capacity,
                        .certificate = r->counts.certificate,
                        .target = target(a, r)};
  if (ch_counting(x)) return view;
  view.thresholds = kept && ch_thresholds_set(kept, a->e) ? kept : NULL;
  view.dropped = *dropped;
  view.aux_loss = *aux_loss;
  view.z_loss = sums[2];
  return view;
}

static void show_routing(void *context, ch_exec *x, int layer, const ch_route_args *a, const ch_routing *r) {
  choir_model *model = context;
  CH_SCRATCH(x);
  choir_routing view = ch_routing_view(x, a, r);
  view.layer = layer;
  view.moe = model->net.block[layer].moe;
  if (!ch_counting(x) && model->callback) { /* the callback may have removed itself in an earlier layer */
    model->in_callback = 1;
    model->callback(model->callback_context, &view);
    model->in_callback = 0;
  }
}

int ch_model_check_idle(const choir_model *model) {
  if (!model->in_callback) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_BUSY, "the model is in use by the call that this callback belongs to: use it after that");
}

int ch_model_check_cancelled(choir_model *model, choir_progress_callback progress, void *context, int64_t done,
                             int64_t total, const char *unit) {
  int outer = model->in_callback;
  model->in_callback = 1;
  int stopped = ch_progress(progress, context, (choir_progress){.done = done, .total = total, .unit = unit});
  model->in_callback = outer;
  if (!stopped) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_INTERRUPTED, "stopped after %lld of %lld %s", (long long)done, (long long)total, unit);
}

void ch_model_measure(choir_model *model, ch_exec *x, ch_pass *pass) {
  model->hook = (ch_routing_hook){show_routing, model};
  pass->hook = model->callback || ch_counting(x) ? &model->hook : NULL;
  ch_transformer_run(x, &model->net, pass);
}

static const char threshold[] = "threshold";

/* Refuses a layer whose thresholds are all 0, their initial value: observing any batch would have changed them. For
 * token-choice routers thresholds are prices, and a price of 0 is valid. values: [e] */
static int check_layers(const choir_model *model, real *values) {
  for (int l = 0; l < model->config.model.layers; l++) {
    const ch_param *p = model->net.block[l].thresholds;
    if (!p) continue;
    model->x.memory->download(values, p->w, (size_t)p->count * sizeof *values);
    if (!ch_thresholds_set(values, (int)p->count))
      return ch_error(CHOIR_ERROR_UNSUPPORTED,
                      "%s: no thresholds yet (all 0), which routing 'threshold' needs: train the model first, if only "
                      "for a few steps",
                      p->name);
  }
  return CHOIR_OK;
}

int ch_model_check_thresholds(const choir_model *model) {
  if (ch_router_choices(&model->config.model.router)) return CHOIR_OK;
  real *values;
  CH_TRY(CH_ALLOC(&values, model->config.model.experts, "thresholds"));
  int code = check_layers(model, values);
  free(values);
  return code;
}

int choir_model_set_routing(choir_model *model, const char *routing) {
  CH_ENTER(model);
  const ch_router *router = model->net.router;
  CH_TRY(ch_model_check_idle(model));
  if (!routing)
    routing = ch_router_takes(router, CH_OPTION_pool) ? ch_router_pools[model->config.model.router.pool] : "batch";
  CH_TRY(ch_router_check_routing(router, routing));
  if (!strcmp(routing, threshold)) {
    CH_TRY(ch_model_check_thresholds(model));
    model->causal = CH_BY_THRESHOLDS;
  } else {
    model->causal = CH_NOT_CAUSAL;
    ch_transformer_set_pool(&model->net, (ch_pool_kind)ch_word_number(ch_router_pools, routing));
  }
  model->planned_B = model->planned_T = 0;
  return CHOIR_OK;
}

int choir_model_force_routing(choir_model *model, int B, int T, const uint8_t *assignment) {
  CH_ENTER(model);
  CH_TRY(ch_model_check_idle(model));
  int layers = model->net.moe_layers, e = model->config.model.experts;
  if (assignment) {
    CH_TRY(ch_model_alone(model, "choir_model_force_routing"));
    if (!layers) return ch_error(CHOIR_ERROR_UNSUPPORTED, "forced routing: the model has no MoE layer");
    if (model->net.router->reads != CHOIR_READS_SCORES)
      return ch_error(
          CHOIR_ERROR_UNSUPPORTED,
          "forced routing: the gates of router '%s' are not scores of a token and an expert, so they do not "
          "fit other choices; use a router whose gates are scores, such as expert_choice or topk",
          model->net.router->name);
    if (B < 1 || T < 1 || (int64_t)B * T > INT32_MAX / e)
      return ch_error(CHOIR_ERROR_ARGUMENT, "forced routing: %d sequences of %d tokens cannot be routed at once", B, T);
    int64_t n = (int64_t)B * T, per_layer = n * e;
    for (int64_t i = 0; i < layers * per_layer; i++)
      if (assignment[i] > 1)
        return ch_error(CHOIR_ERROR_ARGUMENT,
                        "assignment[%lld,%lld,%lld] (MoE layer, token, expert) is %d: must be 0 or 1",
                        (long long)(i / per_layer), (long long)(i % per_layer / e), (long long)(i % e), assignment[i]);
  }
  model->forced = assignment;
  model->forced_B = B;
  model->forced_T = T;
  return CHOIR_OK;
}

const char *choir_model_routing(const choir_model *model) {
  if (!model) return NULL;
  if (model->causal) return threshold;
  return ch_router_takes(model->net.router, CH_OPTION_pool) ? ch_router_pools[model->net.config.router.pool] : "batch";
}

choir_routing_properties ch_model_properties(const choir_model *model) {
  if (!model->net.moe_layers) return (choir_routing_properties){0};
  return ch_router_properties(&model->net.config.router, choir_model_routing(model));
}

int choir_model_get_routing_properties(const choir_model *model, choir_routing_properties *properties) {
  CH_ENTER(model, properties);
  *properties = ch_model_properties(model);
  return CHOIR_OK;
}

int choir_model_looks_across_tokens(const choir_model *model) {
  if (!model) return -1;
  choir_routing_properties p = ch_model_properties(model);
  return p.looks_ahead || p.depends_on_batch;
}

int choir_model_check_causal(const choir_model *model) {
  CH_ENTER(model);
  const ch_router *router = model->net.router;
  choir_routing_properties p = ch_model_properties(model);
  if (ch_config_bidirectional(&model->config.model))
    return ch_error(
        CHOIR_ERROR_UNSUPPORTED,
        "model.attention is bidirectional: every token sees later ones, so there is no cache of earlier ones, "
        "and text cannot be written one token after the other");
  if (!p.looks_ahead && !p.depends_on_batch) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_UNSUPPORTED,
                  "routing '%s' of router '%s' %s: text cannot be written with it one token after the other%s",
                  choir_model_routing(model), router->name,
                  p.looks_ahead ? "looks at later tokens" : "makes a text depend on the other texts of its batch",
                  ch_router_can_be_causal(router) ? "; take routing 'threshold'" : "");
}
