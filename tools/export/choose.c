/* Which stock architecture computes what a model of choir does, or why none does. */
#include <string.h>

#include "base/error.h"
#include "export/plan.h"
#include "model/param.h"
#include "moe/router.h"

const char *const ch_export_formats[] = {"hf", "gguf", NULL}, *const ch_export_dtypes[] = {"f32", "bf16", "q8_0", NULL};

const char *ch_export_architecture(const ch_export_plan *plan) {
  return ch_kind_names[plan->kind].architecture[plan->format];
}

static int refuse(const char *field, const char *value, const char *why) {
  return ch_error(CHOIR_ERROR_UNSUPPORTED, "%s is \"%s\": %s", field, value, why);
}

int ch_export_by_thresholds(const ch_export_plan *plan) {
  const ch_router *router = ch_router_find(plan->config.model.router.name);
  return router && ch_router_has_thresholds(router) && !ch_router_choices(&plan->config.model.router);
}

static int check_router(const ch_export_plan *plan) {
  const choir_router_options *o = &plan->config.model.router;
  const ch_router *router = ch_router_find(o->name);
  if (!router) return CHOIR_ERROR_ARGUMENT;
  if (!ch_router_scored(router))
    return refuse(
        "model.router.name", o->name,
        "no stock architecture routes so; a router that goes by scores does (expert_choice, quantile_balanced, "
        "switch_top1, ...)");
  if (strcmp(o->score, "sigmoid"))
    return refuse(
        "model.router.score", o->score,
        ch_export_by_thresholds(plan)
            ? "null experts, which stand for the experts that a token lacks, would take a share of a softmax; "
              "train with \"sigmoid\""
            : "the architectures that fit take the sigmoid of each; train with \"sigmoid\"");
  if (ch_export_by_thresholds(plan) && o->normalize_gates)
    return refuse("model.router.normalize_gates", "true",
                  "null experts would count in the sum of a token's gates; train without");
  return CHOIR_OK;
}

static int check_layers(const ch_export_plan *plan) {
  const choir_model_config *c = &plan->config.model;
  if (!ch_config_has_rope(c))
    return refuse("model.position", c->position,
                  "a learned bias by distance is T5's alone; train with model.position \"rope\"");
  if (plan->moe_layers < c->layers && strcmp(c->activation, "swiglu"))
    return refuse("model.activation", c->activation, "the architectures that fit have \"swiglu\"; train with that");
  if (plan->moe_layers && strcmp(c->expert_activation, "swiglu"))
    return refuse("model.expert_activation", c->expert_activation,
                  "experts of this kind stand behind softmax routers only; train with \"swiglu\"");
  return plan->moe_layers ? check_router(plan) : CHOIR_OK;
}

/* Nonzero: dense layers, if any, come first. */
static int dense_first(const choir_model_config *c) {
  int moe = 0;
  for (int layer = 0; layer < c->layers; layer++) {
    if (moe && !ch_config_is_moe(c, layer)) return 0;
    moe |= ch_config_is_moe(c, layer);
  }
  return 1;
}

int ch_export_choose(ch_export_plan *plan) {
  const choir_model_config *c = &plan->config.model;
  plan->moe_layers = ch_config_moe_layers(c);
  CH_TRY(check_layers(plan));
  if (plan->moe_layers && dense_first(c)) {
    plan->kind = CH_KIND_GLM4_MOE;
    return CHOIR_OK;
  }
  plan->kind = plan->moe_layers ? CH_KIND_EXAONE_MOE : c->qk_norm ? CH_KIND_QWEN3 : CH_KIND_LLAMA;
  if (c->rope_fraction != 1)
    return ch_error(CHOIR_ERROR_UNSUPPORTED,
                    "model.rope_fraction is %g: %s rotates whole heads; train with 1, or with MoE in all layers behind "
                    "the dense ones (model.dense_layers, model.moe_every 1)",
                    c->rope_fraction, ch_export_architecture(plan));
  if (plan->moe_layers && !c->qk_norm)
    return ch_error(
        CHOIR_ERROR_UNSUPPORTED,
        "model.qk_norm is false: %s, which may have dense layers between MoE layers, normalizes queries and "
        "keys; train with it, or with MoE in all layers behind the dense ones (model.dense_layers, "
        "model.moe_every 1)",
        ch_export_architecture(plan));
  return CHOIR_OK;
}
