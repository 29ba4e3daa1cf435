/* Counts the costs of a config by the parameter table, which knows every weight and its shape. */
#include "train/cost.h"

#include <string.h>

#include "base/error.h"
#include "train/step.h"

/* Experts that a token goes through on average when nothing is dropped: c of expert_choice, else what the router
 * chooses for it. */
static double experts_per_token(const choir_model_config *m) {
  int choices = ch_router_choices(&m->router);
  return choices ? choices : m->router.capacity_factor;
}

ch_flops_part ch_flops_part_of(const ch_param *p) {
  if (p->expert) return CH_FLOPS_EXPERTS;
  if (p->layer < 0) return CH_FLOPS_HEAD;
  if (strstr(p->name, ".attn.")) return CH_FLOPS_ATTENTION;
  return strstr(p->name, ".moe.router.") ? CH_FLOPS_ROUTER : CH_FLOPS_DENSE;
}

/* Every weight of a product costs a token a multiplication and an addition; the embedding is a product once, of the
 * logits. Attention sees (T+1)/2 positions of a token on average. */
void ch_count_flops(const choir_config *config, const ch_params *params, double flops[CH_FLOPS_PARTS]) {
  const choir_model_config *m = &config->model;
  double seen = (config->train.sequence_length + 1) / 2.0;
  for (int i = 0; i < CH_FLOPS_PARTS; i++) flops[i] = 0;
  for (int i = 0; i < params->count; i++) {
    const ch_param *p = &params->p[i];
    double share = p->expert ? experts_per_token(m) / m->experts : 1;
    if (p->product) flops[ch_flops_part_of(p)] += 2 * (double)p->whole * share;
  }
  flops[CH_FLOPS_ATTENTION] += m->layers * 2 * (2.0 * seen * m->heads * ch_config_d_head(m));
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
  double flops[CH_FLOPS_PARTS];
  count_parameters(net, share, costs);
  ch_count_flops(config, &net->params, flops);
  for (int i = 0; i < CH_FLOPS_PARTS; i++) costs->forward_flops_per_token += flops[i];
  costs->train_flops_per_token =
      3.0 * ch_pass_sequences(config) / config->train.batch_sequences * costs->forward_flops_per_token;
  ch_trainer_memory(t, &costs->train_memory);
  costs->train_bytes = costs->train_memory.total;
  int64_t cache = 2 * (int64_t)net->config.layers * net->kv_width * config->train.sequence_length;
  costs->serve_bytes = (costs->parameters + cache) * (int64_t)sizeof(float);
}

int choir_config_cost(const choir_config *config, choir_config_costs *costs) {
  CH_TRY(CH_GIVEN(config, costs));
  choir_run_options options = CHOIR_RUN_OPTIONS_INIT;
  choir_model *model;
  ch_trainer trainer;
  *costs = (choir_config_costs){0};
  if (config->model.vocab_size <= 0)
    return ch_error(CHOIR_ERROR_ARGUMENT, "model.vocab_size is 0, the data's: set it to count what a model costs");
  options.emulate_bf16 = 1; /* a config costs the same where it could not run */
  CH_TRY(ch_model_prepare(config, &options, &model));
  int code = ch_trainer_plan(model, &trainer);
  if (!code) count_all(&trainer, costs);
  ch_trainer_free(&trainer);
  return code;
}
