/* Which routing a handle's passes use. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/model.h"
#include "base/error.h"
#include "base/given.h"
#include "moe/routers/threshold.h"

static const char threshold[] = "threshold", adaptive[] = "adaptive";

/* Thresholds start at 0 and no observed cut-off leaves them all there. Where tokens choose, thresholds are prices, and
 * prices of 0 are as good as others. values: [e] */
static int check_layers(const choir_model *model, real *values) {
  for (int l = 0; l < model->config.model.layers; l++) {
    const ch_param *p = model->net.block[l].thresholds;
    if (!p) continue;
    model->x.memory->get(values, p->w, (size_t)p->count * sizeof *values);
    if (!ch_thresholds_set(values, (int)p->count))
      return ch_error(CHOIR_ERROR_UNSUPPORTED,
                      "%s: all 0, so routings 'threshold' and 'adaptive' know nothing yet: train the model first, if "
                      "only for a few "
                      "steps",
                      p->name);
  }
  return CHOIR_OK;
}

static int check_thresholds(const choir_model *model) {
  if (ch_router_choices(&model->config.model.router)) return CHOIR_OK;
  real *values = reallocarray(NULL, (size_t)model->config.model.experts, sizeof *values);
  if (!values) return ch_error(CHOIR_ERROR_MEMORY, "no memory for %d thresholds", model->config.model.experts);
  int code = check_layers(model, values);
  free(values);
  return code;
}

int choir_model_set_routing(choir_model *model, const char *routing) {
  CH_TRY(CH_GIVEN(model));
  const ch_router *router = model->net.router;
  choir_router_options *options = &model->net.config.router;
  CH_TRY(ch_model_check_idle(model));
  if (!routing) routing = ch_router_takes(router, CH_ROUTER_TAKES(pool)) ? model->config.model.router.pool : "batch";
  CH_TRY(ch_router_check_routing(router, routing));
  int adapts = !strcmp(routing, adaptive);
  if (adapts || !strcmp(routing, threshold)) {
    CH_TRY(check_thresholds(model));
    model->causal = adapts ? CH_ADAPTIVE : CH_BY_THRESHOLDS;
  } else {
    model->causal = CH_NOT_CAUSAL;
    snprintf(options->pool, sizeof options->pool, "%s", routing);
  }
  model->planned_B = model->planned_T = 0;
  return CHOIR_OK;
}

const char *choir_model_routing(const choir_model *model) {
  if (!model) return NULL;
  if (model->causal) return model->causal == CH_ADAPTIVE ? adaptive : threshold;
  return ch_router_takes(model->net.router, CH_ROUTER_TAKES(pool)) ? model->net.config.router.pool : "batch";
}

choir_routing_properties choir_model_routing_properties(const choir_model *model) {
  if (!model) return (choir_routing_properties){0};
  if (!model->net.moe_layers) return (choir_routing_properties){0};
  return ch_router_properties(model->net.router, choir_model_routing(model));
}

int choir_model_looks_across_tokens(const choir_model *model) {
  if (!model) return -1;
  choir_routing_properties p = choir_model_routing_properties(model);
  return p.looks_ahead || p.depends_on_batch;
}

int choir_model_check_causal(const choir_model *model) {
  CH_TRY(CH_GIVEN(model));
  const ch_router *router = model->net.router;
  choir_routing_properties p = choir_model_routing_properties(model);
  if (!p.looks_ahead && !p.depends_on_batch) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_UNSUPPORTED,
                  "routing '%s' of router '%s' %s: text cannot be written with it one token after the other%s",
                  choir_model_routing(model), router->name,
                  p.looks_ahead ? "looks at later tokens" : "makes a text depend on the other texts of its batch",
                  ch_router_can_be_causal(router) ? "; take routing 'threshold'" : "");
}
