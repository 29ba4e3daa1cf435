/* Chooses the stock architecture that computes the same function as a model, or reports why none does. */
#include <string.h>

#include "base/error.h"
#include "export/plan.h"
#include "model/param.h"
#include "moe/gates.h"

const char *const ch_export_formats[] = {"hf", "gguf", NULL}, *const ch_export_dtypes[] = {"f32", "bf16", "q8_0", NULL};
const choir_dtype ch_export_stored[] = {CHOIR_F32, CHOIR_BF16, CHOIR_U8};

const char *ch_export_architecture(const ch_export_plan *plan) {
  if (ch_config_bidirectional(&plan->config.model))
    return plan->kind == CH_KIND_LLAMA ? "llada" : plan->normalize ? "rnd1" : "llada-moe";
  return ch_kind_names[plan->kind].architecture[plan->format];
}

int ch_export_hidden(const ch_export_plan *plan) {
  const ch_model_config *c = &plan->config.model;
  return plan->kind == CH_KIND_MIXTRAL || plan->kind == CH_KIND_OLMOE ? ch_config_d_expert(c) : c->d_hidden;
}

#define HAVE_ALL "; train with that (configs modern-nano and modern-small have all that an export needs)"

static int refuse_field(const char *field, const char *value, const char *why) {
  return ch_error(CHOIR_ERROR_UNSUPPORTED, "%s is \"%s\": %s", field, value, why);
}

int ch_export_by_thresholds(const ch_export_plan *plan) {
  const ch_router *router = plan->config.model.router.kind;
  return ch_router_has_thresholds(router) && !ch_router_choices(&plan->config.model.router);
}

static int check_router(const ch_export_plan *plan) {
  const ch_router_spec *o = &plan->config.model.router;
  const ch_router *router = o->kind;
  if (!ch_router_scored(router))
    return refuse_field(
        "model.router.name", router->name,
        "no stock architecture routes so; a router that goes by scores does (expert_choice, quantile_balanced, "
        "switch_top1, ...)");
  if (router->plugin && !ch_export_by_thresholds(plan))
    return refuse_field("model.router.name", router->name,
                        "tokens choose by a plug-in's own function, which no stock architecture has");
  if (router->ranking)
    return refuse_field("model.router.name", router->name,
                        "its thresholds are compared with a plug-in's own ranking, which no stock architecture can "
                        "compute; a router that ranks tokens by their scores can be exported");
  if (o->null_experts)
    return ch_error(CHOIR_ERROR_UNSUPPORTED,
                    "model.router.null_experts is %d: the architectures that fit give every token all of its experts; "
                    "train with 0",
                    o->null_experts);
  if (ch_router_gates_input(o))
    return refuse_field("model.router.gate_on", ch_router_gate_places[o->gate_on],
                        "stock architectures that fit scale what an expert writes; train with \"output\"");
  if (o->score != CH_SIGMOID && ch_export_by_thresholds(plan))
    return refuse_field(
        "model.router.score", ch_router_scores[o->score],
        "null experts, which stand for the experts that a token lacks, would take a share of a softmax; "
        "train with \"sigmoid\"");
  if (ch_export_by_thresholds(plan) && o->normalize_gates)
    return refuse_field("model.router.normalize_gates", "true",
                        "null experts would count in the sum of a token's gates; train without");
  return CHOIR_OK;
}

static int check_layers(const ch_export_plan *plan) {
  const ch_model_config *c = &plan->config.model;
  if (ch_config_bidirectional(c) && plan->format == CH_EXPORT_HF)
    return refuse_field("model.attention", ch_attentions[c->attention],
                        "transformers has no architecture that looks both ways and predicts masked tokens so; export "
                        "to --format gguf");
  if (!ch_config_has_rope(c))
    return refuse_field("model.position", ch_positions[c->position],
                        "the architectures that fit have \"rope\"" HAVE_ALL);
  if (plan->moe_layers < c->layers && c->activation != CH_SWIGLU)
    return refuse_field("model.activation", ch_activation_names[c->activation],
                        "the architectures that fit have \"swiglu\"" HAVE_ALL);
  if (plan->moe_layers && c->expert_activation != CH_SWIGLU)
    return refuse_field("model.expert_activation", ch_activation_names[c->expert_activation],
                        "the architectures that fit have \"swiglu\"" HAVE_ALL);
  return plan->moe_layers ? check_router(plan) : CHOIR_OK;
}

/* With softmax scores, tokens choose the top-K without a bias. */
static int check_softmax(const ch_export_plan *plan) {
  const ch_model_config *c = &plan->config.model;
  const char *there = ch_export_architecture(plan);
  int hf = plan->format == CH_EXPORT_HF, divides = plan->kind != CH_KIND_OLMOE;
  if (c->shared_experts)
    return ch_error(CHOIR_ERROR_UNSUPPORTED,
                    "model.shared_experts is %d: %s has none; train with 0, or with model.router.score \"sigmoid\"",
                    c->shared_experts, there);
  if (plan->moe_layers < c->layers && !(hf && plan->kind == CH_KIND_QWEN3_MOE))
    return ch_error(CHOIR_ERROR_UNSUPPORTED,
                    "model.dense_layers is %d and model.moe_every %d: %s has experts in every layer; train with 0 and "
                    "1, or with model.router.score \"sigmoid\"",
                    c->dense_layers, c->moe_every, there);
  if ((!hf || plan->kind == CH_KIND_MIXTRAL) && plan->normalize != divides && !ch_config_bidirectional(c))
    return ch_error(CHOIR_ERROR_UNSUPPORTED,
                    "model.router.normalize_gates is %s with router '%s': %s %s a token's gates by their sum; train "
                    "so, or export a model with model.qk_norm to --format hf, which has both",
                    c->router.normalize_gates ? "true" : "false", c->router.kind->name, there,
                    divides ? "divides" : "does not divide");
  return CHOIR_OK;
}

static int refuse_head(const ch_export_plan *plan) {
  const ch_model_config *c = &plan->config.model;
  return ch_error(CHOIR_ERROR_UNSUPPORTED, "model.d_head is %d: %d heads of %s are %d wide together", c->d_head,
                  c->heads, ch_export_architecture(plan), c->d_model);
}

/* Queries and keys are normalized over all heads, which together have the model's width. */
static int check_olmoe(const ch_export_plan *plan) {
  const ch_model_config *c = &plan->config.model;
  if (plan->kind != CH_KIND_OLMOE)
    return refuse_field("model.qk_norm_whole", "true",
                        "of the architectures Olmoe alone has it, in which tokens choose by softmax; train without");
  if (ch_config_d_head(c) * c->heads != c->d_model) return refuse_head(plan);
  if (plan->format == CH_EXPORT_GGUF && ch_config_kv_heads(c) != c->heads)
    return ch_error(
        CHOIR_ERROR_UNSUPPORTED,
        "model.kv_heads is %d: olmoe of llama.cpp has as many heads of keys as of queries; train with 0, or "
        "export to --format hf",
        c->kv_heads);
  return CHOIR_OK;
}

/* llama.cpp has three architectures with bidirectional attention: llada corresponds to llama, llada-moe and rnd1 to
 * qwen3moe. */
static int check_bidirectional(const ch_export_plan *plan) {
  const ch_model_config *c = &plan->config.model;
  if (plan->kind != CH_KIND_LLAMA && plan->kind != CH_KIND_QWEN3_MOE)
    return refuse_field("model.attention", ch_attentions[c->attention],
                        "of llama.cpp's architectures that look both ways llada takes dense models without "
                        "model.qk_norm, llada-moe and rnd1 those with it in which tokens choose by softmax (router "
                        "\"topk\"); none has thresholds of experts");
  if (plan->kind == CH_KIND_QWEN3_MOE && !plan->normalize && ch_config_d_head(c) * c->heads != c->d_model)
    return refuse_head(plan);
  return CHOIR_OK;
}

static ch_kind kind_of(const ch_export_plan *plan) {
  const ch_model_config *c = &plan->config.model;
  int dense_first = plan->first_moe + plan->moe_layers == c->layers;
  if (!plan->moe_layers) return c->qk_norm ? CH_KIND_QWEN3 : CH_KIND_LLAMA;
  if (c->router.score == CH_SIGMOID) return dense_first ? CH_KIND_GLM4_MOE : CH_KIND_EXAONE_MOE;
  return c->qk_norm_whole ? CH_KIND_OLMOE : c->qk_norm ? CH_KIND_QWEN3_MOE : CH_KIND_MIXTRAL;
}

static int choose(ch_export_plan *plan) {
  const ch_model_config *c = &plan->config.model;
  plan->moe_layers = ch_config_moe_layers(c);
  while (plan->moe_layers && !ch_config_is_moe(c, plan->first_moe)) plan->first_moe++;
  plan->normalize = c->router.normalize_gates || c->router.kind == ch_router_find("gshard_top2");
  CH_TRY(check_layers(plan));
  plan->kind = kind_of(plan);
  /* vLLM does not tie the heads of Glm4Moe and Olmoe, whatever config.json says; llama.cpp does not tie those of
   * olmoe and llada-moe. */
  int own_head = plan->kind == CH_KIND_OLMOE || (plan->kind == CH_KIND_GLM4_MOE && plan->format == CH_EXPORT_HF) ||
                 (plan->kind == CH_KIND_QWEN3_MOE && ch_config_bidirectional(c));
  plan->tied = c->tied && !own_head;
  if (c->qk_norm_whole) CH_TRY(check_olmoe(plan));
  if (ch_config_bidirectional(c)) CH_TRY(check_bidirectional(plan));
  if (plan->kind == CH_KIND_GLM4_MOE) return CHOIR_OK;
  if (plan->moe_layers && !ch_export_has_bias(plan->kind)) CH_TRY(check_softmax(plan));
  if (c->rope_fraction != 1)
    return ch_error(CHOIR_ERROR_UNSUPPORTED,
                    "model.rope_fraction is %g: %s rotates whole heads; train with 1, or with MoE in all layers behind "
                    "the dense ones (model.dense_layers, model.moe_every 1) and model.router.score \"sigmoid\"",
                    c->rope_fraction, ch_export_architecture(plan));
  if (plan->kind == CH_KIND_EXAONE_MOE && !c->qk_norm)
    return ch_error(
        CHOIR_ERROR_UNSUPPORTED,
        "model.qk_norm is false: %s, which may have dense layers between MoE layers, normalizes queries and "
        "keys; train with it, or with MoE in all layers behind the dense ones (model.dense_layers, "
        "model.moe_every 1)",
        ch_export_architecture(plan));
  return CHOIR_OK;
}

int ch_export_choose(ch_export_plan *plan) {
  CH_TRY(choose(plan));
  return ch_export_check_fields(plan, ch_export_architecture(plan));
}
