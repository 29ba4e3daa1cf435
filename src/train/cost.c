/* What a config costs: read off the parameter table, which knows every weight and its shape. */
#include "base/error.h"
#include "choir/config.h"
#include "model/param.h"
#include "moe/router.h"
#include "train/plan.h"

/* Experts that a token goes through on average when nothing is dropped: c of expert_choice, else what the router
 * chooses per token. */
static double experts_per_token(const choir_model_config *m) {
  int choices = ch_router_choices(&m->router);
  return choices ? choices : m->router.capacity_factor;
}

/* Every weight of a product costs a token a multiplication and an addition; the embedding is a product once, of the
 * logits. */
static double product_flops(const ch_params *params, double share) {
  double flops = 0;
  for (int i = 0; i < params->count; i++) {
    const ch_param *p = &params->p[i];
    if (p->product) flops += 2 * (double)p->count * (p->expert ? share : 1);
  }
  return flops;
}

/* Scores and their weighted sum, over the (T+1)/2 positions that a token sees on average. */
static double attention_flops(const choir_config *config) {
  const choir_model_config *m = &config->model;
  double seen = (config->train.sequence_length + 1) / 2.0;
  return m->layers * 2 * (2.0 * seen * m->heads * ch_config_d_head(m));
}

int choir_config_cost(const choir_config *config, choir_config_costs *costs) {
  ch_params params;
  *costs = (choir_config_costs){0};
  CH_TRY(choir_config_check(config));
  CH_TRY(ch_params_build(&config->model, &params));
  double share = config->model.moe_every ? experts_per_token(&config->model) / config->model.experts : 0;
  for (int i = 0; i < params.count; i++)
    if (params.p[i].expert) costs->expert_parameters += params.p[i].count;
  costs->parameters = ch_params_total(&params);
  costs->embedding_parameters = params.p[0].count;
  costs->active_parameters =
      costs->parameters - costs->expert_parameters + (int64_t)((double)costs->expert_parameters * share + 0.5);
  costs->forward_flops_per_token = product_flops(&params, share) + attention_flops(config);
  costs->train_flops_per_token =
      3.0 * ch_run_sequences(config) / config->train.batch_sequences * costs->forward_flops_per_token;
  ch_params_free(&params);
  ch_plan plan;
  CH_TRY(ch_plan_make(config, &plan));
  costs->train_memory = plan.train;
  costs->train_bytes = plan.train.total;
  costs->serve_bytes = plan.serve;
  return CHOIR_OK;
}
