/* Planning of a handle's executor, and the public forward pass. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/enter.h"
#include "base/hash.h"
#include "base/threads.h"
#include "comm/collective.h"
#include "handle/model.h"
#include "model/capacity.h"
#include "model/config.h"

int ch_model_grad_chunks(const choir_model *model, int B) {
  int grad_chunks = model->grad_chunks;
  return grad_chunks > 1 && B % grad_chunks == 0 ? grad_chunks : 1;
}

int ch_model_picks_rows(const choir_model *model, int B) {
  return ch_config_masked(&model->config) && ch_model_grad_chunks(model, B) == 1;
}

/* Rehearses every kind of pass: callers may request loss, logits or both. */
static void count_passes(choir_model *model, int B, int T, int gradients, int causal) {
  static const int32_t some_tokens = 0;
  real some_logits;
  int paired = gradients && ch_router_draws_per_sequence(&model->config.model.router) > 1;
  int picked = gradients && ch_model_picks_rows(model, B);
  enum { LOSS, LOGITS, PAIRED, PAIRED_LOGITS, PICKED, WAYS };
  for (int way = LOSS; way < WAYS; way++) {
    if (way == PICKED ? !picked : way >= PAIRED && !paired) continue;
    ch_pass pass = {.B = B,
                    .T = T,
                    .grad_chunks = ch_model_grad_chunks(model, B),
                    .token = &some_tokens,
                    .row = way == PICKED ? &some_tokens : NULL,
                    .rows = way == PICKED ? B * T : 0,
                    .target = &some_tokens,
                    .route = {.training = !causal, .causal = causal},
                    .gradients = gradients,
                    .capacity = gradients ? ch_config_capacity_max(&model->config) : 1,
                    .dropout = gradients ? model->config.train.dropout : 0,
                    .observe = !causal,
                    .paired = way == PAIRED || way == PAIRED_LOGITS,
                    .logits = way == LOGITS || way == PAIRED_LOGITS ? &some_logits : NULL};
    ch_model_measure(model, &model->x, &pass);
  }
}

static int check_sizes(const choir_model *model, int B, int T, int forced) {
  const ch_model_config *c = &model->config.model;
  if (B < 1 || T < 1) return ch_error(CHOIR_ERROR_ARGUMENT, "a batch of %d sequences of %d tokens is empty", B, T);
  if ((int64_t)B * T > INT32_MAX / (c->experts > 0 ? c->experts : 1))
    return ch_error(CHOIR_ERROR_ARGUMENT, "a batch of %d x %d tokens and %d experts is too large for one pass", B, T,
                    c->experts);
  CH_TRY(ch_model_check_ranks(model, B));
  for (int i = 0; i < model->net.moe_layers && !model->causal && !forced; i++) {
    ch_router_spec o = ch_config_layer_router(&model->net.config, i);
    CH_TRY(model->net.router->check(&o, B * T, c->experts, T));
  }
  return CHOIR_OK;
}

/* Rehearses the work between passes that uses the same scratch. */
static void count_between(choir_model *model) {
  ch_model_bad_weight(model);
  if (model->x.scratch.peak < model->reserved_scratch) model->x.scratch.peak = model->reserved_scratch;
}

int ch_model_size(choir_model *model, int B, int T, int gradients) {
  CH_TRY(check_sizes(model, B, T, 0));
  ch_model_drop_plan(model);
  if (!model->causal) count_passes(model, B, T, 0, 0);
  if (ch_router_can_be_causal(model->net.router)) count_passes(model, B, T, 0, CH_BY_THRESHOLDS);
  if (gradients) count_passes(model, B, T, 1, 0);
  count_between(model);
  model->planned_B = B;
  model->planned_T = T;
  model->planned_gradients = gradients;
  return CHOIR_OK;
}

int ch_model_size_passes(choir_model *model, const ch_pass *passes, int count) {
  for (int i = 0; i < count; i++)
    CH_TRY(check_sizes(model, passes[i].B, passes[i].T, passes[i].forced_assignment != NULL));
  ch_model_drop_plan(model);
  for (int i = 0; i < count; i++) {
    ch_pass pass = passes[i];
    ch_model_measure(model, &model->x, &pass);
  }
  count_between(model);
  return CHOIR_OK;
}

int ch_model_commit(choir_model *model) {
  CH_TRY(ch_exec_commit(&model->x));
  if (model->stale) ch_model_weights_changed(model);
  return CHOIR_OK;
}

int ch_model_separate_exec(const choir_model *model, ch_exec *x) {
  CH_TRY(ch_exec_init(x, model->x.ops->name, model->x.compute, 1, model->x.threads));
  x->dispatch_dtype = model->x.dispatch_dtype;
  x->batch_invariant = 1;
  return CHOIR_OK;
}

int ch_model_commit_exec(choir_model *model, ch_exec *x) {
  const ch_params *params = &model->net.params;
  for (int i = 0; i < params->count; i++) /* weights may still have to be rounded */
    x->ops->round_bf16(x, &(ch_round_args){.count = params->p[i].count});
  CH_TRY(ch_exec_commit(x));
  if (model->stale) ch_model_round_weights(model, x);
  return CHOIR_OK;
}

int ch_model_plan(choir_model *model, int B, int T, int gradients) {
  CH_TRY(ch_model_check_idle(model));
  CH_TRY(ch_threads_check(model->x.threads)); /* the process may have forked after planning */
  CH_TRY(check_sizes(model, B, T, 0));
  if (!ch_counting(&model->x) && B == model->planned_B && T == model->planned_T &&
      gradients <= model->planned_gradients)
    return CHOIR_OK;
  CH_TRY(ch_model_size(model, B, T, gradients));
  return ch_model_commit(model);
}

int ch_model_plan_passes(choir_model *model, const ch_pass *passes, int count) {
  CH_TRY(ch_model_check_idle(model));
  CH_TRY(ch_model_size_passes(model, passes, count));
  return ch_model_commit(model);
}

int ch_model_check_loss(choir_model *model, double loss) {
  if (isfinite(loss)) return CHOIR_OK;
  const char *name = ch_model_bad_weight(model);
  CH_TRY(ch_comm_agree(model->x.comm, ch_exec_check(&model->x)));
  const char *what = isnan(loss) ? "not a number" : "infinite";
  if (!name)
    return ch_error(CHOIR_ERROR_NUMERIC,
                    "the loss is %s, and all weights are finite: they are so large that sums of products overflow",
                    what);
  return ch_error(CHOIR_ERROR_NUMERIC, "the loss is %s; first weight that is not finite: %s", what, name);
}

static int check_tokens(const choir_model *model, int B, int T, const int32_t *tokens) {
  int V = model->config.model.vocab_size;
  for (int64_t i = 0; i < (int64_t)B * T; i++)
    if (tokens[i] < 0 || tokens[i] >= V)
      return ch_error(CHOIR_ERROR_ARGUMENT, "token %d at sequence %lld, position %lld is outside the vocabulary of %d",
                      tokens[i], (long long)(i / T), (long long)(i % T), V);
  return CHOIR_OK;
}

/* Hash of the inputs that determine the memory of a forced pass: sizes, and the number of assigned slots per layer. */
static uint64_t forced_memory(const choir_model *model, int B, int T, int gradients) {
  int cells = B * T * model->config.model.experts;
  uint64_t hash = XXH64((const int[]){B, T, gradients != 0}, 3 * sizeof(int), 1);
  for (int64_t i = 0; i < model->net.moe_layers; i++) {
    int slots = ch_valid_count(model->forced + i * cells, cells);
    hash = XXH64(&slots, sizeof slots, hash);
  }
  return hash;
}

/* Plans again only if the slot counts of the forced assignment differ from those of the existing plan. */
static int plan_forced(choir_model *model, int B, int T, int gradients) {
  static const int32_t some_tokens = 0;
  real some_logits;
  if (B != model->forced_B || T != model->forced_T)
    return ch_error(
        CHOIR_ERROR_ARGUMENT,
        "forced routing is for %d sequences of %d tokens, and %d of %d are given: give routes of that size, "
        "or NULL",
        model->forced_B, model->forced_T, B, T);
  CH_TRY(ch_model_check_idle(model));
  CH_TRY(ch_threads_check(model->x.threads));
  uint64_t memory = forced_memory(model, B, T, gradients);
  if (!ch_counting(&model->x) && memory == model->forced_plan) return CHOIR_OK;
  ch_pass pass = {.B = B,
                  .T = T,
                  .forced_assignment = model->forced,
                  .grad_chunks = ch_model_grad_chunks(model, B),
                  .token = &some_tokens,
                  .target = &some_tokens,
                  .gradients = gradients,
                  .logits = &some_logits};
  CH_TRY(ch_model_plan_passes(model, &pass, 1));
  model->forced_plan = memory;
  return CHOIR_OK;
}

/* Checks, plans and allocates: all steps that may fail on a single rank, before ranks synchronize. */
static int prepare_pass(choir_model *model, int B, int T, const int32_t *tokens, int gradients, int32_t **target) {
  if (gradients) CH_TRY(ch_model_check_unrounded(model, "gradients"));
  if (gradients) CH_TRY(ch_config_check_next_token(&model->config, "a gradient of tokens alone"));
  if (gradients && model->causal && !model->forced)
    return ch_error(CHOIR_ERROR_UNSUPPORTED, "gradients go with the router's own routing, not with \"threshold\"");
  if (gradients && model->share_gradients)
    return ch_error(CHOIR_ERROR_UNSUPPORTED,
                    "a trainer updates this model within its backward pass, and keeps no gradients: free it first");
  CH_TRY(model->forced ? plan_forced(model, B, T, gradients) : ch_model_plan(model, B, T, gradients));
  CH_TRY(check_tokens(model, B, T, tokens));
  if (gradients) CH_TRY(ch_model_make_gradients(model));
  return CH_ALLOC(target, (size_t)B * (size_t)T, "targets");
}

static int same_batch(const choir_model *model, int B, int T, const int32_t *tokens, int wanted) {
  const char *routing = choir_model_routing(model);
  const ch_fact facts[] = {{"shape of tokens", (uint64_t)B << 32 | (uint64_t)T},
                           {"batch of tokens", XXH64(tokens, (size_t)B * (size_t)T * sizeof *tokens, 0)},
                           {"routing", XXH64(routing, strlen(routing), 0)},
                           {"request for logits or gradients", (uint64_t)wanted},
                           {"request for routings", model->callback != NULL}};
  return CH_SAME(model->x.comm, facts);
}

int choir_model_forward(choir_model *model, int B, int T, const int32_t *tokens, float *logits, int gradients,
                        choir_forward_result *result) {
  CH_ENTER(model, tokens, result);
  int32_t *target = NULL;
  int code = ch_comm_agree(model->x.comm, prepare_pass(model, B, T, tokens, gradients, &target));
  if (!code) code = same_batch(model, B, T, tokens, (gradients != 0) + 2 * (logits != NULL));
  if (code) free(target);
  CH_TRY(code);
  int64_t n = (int64_t)B * T, targets = (int64_t)B * (T - 1);
  int masked = ch_config_masked(&model->config); /* masked models have no default targets */
  for (int64_t t = 0; t < n; t++) target[t] = masked || t % T == T - 1 ? -1 : tokens[t + 1];
  ch_pass pass = {.B = B,
                  .T = T,
                  .grad_chunks = ch_model_grad_chunks(model, B),
                  .token = tokens,
                  .target = target,
                  .gradients = gradients,
                  .forced_assignment = model->forced,
                  .route = {.causal = model->forced ? CH_NOT_CAUSAL : model->causal},
                  .logits = logits,
                  .weight = targets ? (real)(1.0 / (double)targets) : 0,
                  .aux_scale = 1};
  ch_transformer_clear_stats(&model->net);
  ch_model_measure(model, &model->x, &pass);
  free(target);
  if (logits)
    ch_comm_gather_shares(model->x.comm, "logits", logits, B,
                          (int64_t)T * model->config.model.vocab_size * (int64_t)sizeof *logits);
  *result = (choir_forward_result){
      .loss = targets ? pass.loss_sum / (double)targets : 0, .aux_loss = pass.aux_loss, .z_loss = pass.z_loss};
  if (masked) result->loss = (double)NAN;
  return masked ? CHOIR_OK : ch_model_check_loss(model, result->loss);
}
