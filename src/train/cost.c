/* What a config costs: read off the parameter table, which knows every weight and its shape. */
#include "base/error.h"
#include "train/step.h"

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

static void count_parameters(const ch_transformer *net, double share, choir_config_costs *costs) {
  const ch_params *params = &net->params;
  for (int i = 0; i < params->count; i++)
    if (params->p[i].expert) costs->expert_parameters += params->p[i].count;
  costs->parameters = ch_params_total(params);
  costs->embedding_parameters = net->embed->count;
  costs->active_parameters =
      costs->parameters - costs->expert_parameters + (int64_t)((double)costs->expert_parameters * share + 0.5);
}

static void count_all(const ch_trainer *t, choir_config_costs *costs) {
  const choir_config *config = &t->model->config;
  const ch_transformer *net = &t->model->net;
  double share = config->model.moe_every ? experts_per_token(&config->model) / config->model.experts : 0;
  count_parameters(net, share, costs);
  costs->forward_flops_per_token = product_flops(&net->params, share) + attention_flops(config);
  costs->train_flops_per_token =
      3.0 * ch_pass_sequences(config) / config->train.batch_sequences * costs->forward_flops_per_token;
  ch_trainer_memory(t, &costs->train_memory);
  costs->train_bytes = costs->train_memory.total;
  int64_t cache = 2 * (int64_t)net->config.layers * net->width * config->train.sequence_length;
  costs->serve_bytes = (costs->parameters + cache) * (int64_t)sizeof(float);
}

int choir_config_cost(const choir_config *config, choir_config_costs *costs) {
  choir_run_options options = CHOIR_RUN_OPTIONS_INIT;
  choir_model *model;
  ch_trainer trainer;
  *costs = (choir_config_costs){0};
  options.emulate_bf16 = 1; /* a config costs the same where it could not run */
  CH_TRY(ch_model_prepare(config, &options, &model));
  int code = ch_trainer_plan(model, &trainer);
  if (!code) count_all(&trainer, costs);
  ch_trainer_free(&trainer);
  return code;
}
