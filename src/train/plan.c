#include "train/plan.h"

#include "api/model.h"
#include "base/error.h"
#include "train/update.h"

int ch_run_sequences(const choir_config *config) {
  int draws_per_sequence = config->model.moe_every ? ch_router_draws_per_sequence(&config->model.router) : 1;
  return config->train.batch_sequences * draws_per_sequence;
}

/* What a process has beside arenas. Measured, not counted: the program, its libraries and what these allocate, 13 MiB
 * of which are pages of files; in bf16 code that oneDNN generates for every shape of product, and what it keeps with
 * it. */
static int64_t process_bytes(const choir_config *config, ch_compute compute) {
  enum { PROGRAM = 22 << 20, PRIMITIVES = 26 << 20 };
  int64_t n = (int64_t)ch_run_sequences(config) * config->train.sequence_length;
  return PROGRAM + (compute == CH_COMPUTE_BF16 ? PRIMITIVES : 0) + 5 * n * (int64_t)sizeof(int32_t) +
         config->model.vocab_size * (int64_t)sizeof(double);
}

static int count_model(const choir_config *config, ch_exec *x, ch_transformer *net, ch_plan *plan) {
  ch_arena weights, gradients, state;
  ch_optimizer optimizer;
  ch_arena_init(&weights, "weights");
  ch_arena_init(&gradients, "gradients");
  ch_arena_init(&state, "optimizer state");
  ch_params_alloc_weights(&net->params, &weights, x->compute == CH_COMPUTE_BF16);
  ch_params_alloc_gradients(&net->params, &gradients, ch_update_in_backward(&config->train, 1));
  CH_TRY(ch_optimizer_create(&config->train, &net->params, &optimizer));
  ch_optimizer_alloc(&optimizer, &state);
  ch_update_count(x, &optimizer);
  ch_optimizer_free(&optimizer);
  int B = ch_run_sequences(config), T = config->train.sequence_length;
  ch_model_count(x, net, B, T, 1, 0);
  if (ch_router_can_be_causal(net->router)) ch_model_count(x, net, B, T, 0, 1);
  choir_memory *t = &plan->train;
  *t = (choir_memory){.weights = (int64_t)ch_arena_room(weights.peak),
                      .gradients = (int64_t)ch_arena_room(gradients.peak),
                      .optimizer = (int64_t)ch_arena_room(state.peak),
                      .activations = (int64_t)ch_arena_room(x->tape.peak),
                      .scratch = (int64_t)ch_arena_room(x->scratch.peak),
                      .process = process_bytes(config, x->compute)};
  t->total = t->weights + t->gradients + t->optimizer + t->activations + t->scratch + t->process;
  int64_t cache = 2 * (int64_t)net->config.layers * net->width * config->train.sequence_length;
  plan->serve = (ch_params_total(&net->params) + cache) * (int64_t)sizeof(float);
  return CHOIR_OK;
}

int ch_plan_make(const choir_config *config, ch_plan *plan) {
  ch_exec x;
  ch_transformer net;
  ch_compute compute;
  CH_TRY(ch_compute_find(config->train.compute, &compute));
  CH_TRY(ch_exec_init(&x, "cpu", compute, 1, 0));
  int code = ch_transformer_create(&config->model, &net);
  if (!code) {
    code = count_model(config, &x, &net, plan);
    ch_transformer_free(&net);
  }
  ch_exec_free(&x);
  return code;
}
