/* Which routing a handle's passes use. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/suggest.h"
#include "model/model.h"

static const char threshold[] = "threshold";

/* Thresholds start at 0 and no observed cut-off leaves them all there. */
static int check_thresholds(const choir_model *model) {
  for (int l = 0; l < model->config.model.layers; l++) {
    const ch_param *p = model->net.block[l].thresholds;
    int64_t set = 0;
    if (!p) continue;
    for (int64_t i = 0; i < p->count; i++) set += p->w[i] != 0;
    if (!set)
      return ch_error(CHOIR_ERROR_UNSUPPORTED,
                      "%s: all 0, so routing 'threshold' knows nothing yet: train the model first, if only for a few "
                      "steps",
                      p->name);
  }
  return CHOIR_OK;
}

static int use_thresholds(choir_model *model) {
  const ch_router *router = model->net.router;
  if (!ch_router_can_be_causal(router))
    return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s' has no routing 'threshold'", router->name);
  CH_TRY(check_thresholds(model));
  model->causal = 1;
  return CHOIR_OK;
}

/* "threshold" and the pools. */
static int check_name(const char *routing) {
  const char *known[16] = {threshold};
  char nearest[128], list[128];
  int count = 1;
  for (int i = 0; ch_router_pools[i]; i++) known[count++] = ch_router_pools[i];
  for (int i = 0; i < count; i++)
    if (!strcmp(routing, known[i])) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_ARGUMENT, "there is no routing '%.40s'%s (routings: %s)", routing,
                  ch_did_you_mean(nearest, sizeof nearest, routing, known), ch_word_list(list, sizeof list, known));
}

int choir_model_set_routing(choir_model *model, const char *routing) {
  const ch_router *router = model->net.router;
  choir_router_options *options = &model->net.config.router;
  if (!routing) routing = model->config.model.router.pool;
  CH_TRY(check_name(routing));
  if (!strcmp(routing, threshold)) {
    CH_TRY(use_thresholds(model));
  } else {
    if (!(router->caps & CH_ROUTER_POOLS) && strcmp(routing, "batch"))
      return ch_error(CHOIR_ERROR_ARGUMENT,
                      "router '%s' has no pools: routing '%s' means nothing to it; it has batch and threshold",
                      router->name, routing);
    model->causal = 0;
    snprintf(options->pool, sizeof options->pool, "%s", routing);
  }
  model->planned_B = model->planned_T = 0;
  return CHOIR_OK;
}

const char *ch_model_routing_name(const choir_model *model, int causal) {
  if (causal) return threshold;
  return model->net.router->caps & CH_ROUTER_POOLS ? model->net.config.router.pool : "batch";
}

const char *choir_model_routing(const choir_model *model) { return ch_model_routing_name(model, model->causal); }

int choir_model_looks_across_tokens(const choir_model *model) {
  return !model->causal && model->net.moe_layers &&
         (model->net.router->caps & (CH_ROUTER_ACROSS_TOKENS | CH_ROUTER_BATCH_ORDER)) != 0;
}
