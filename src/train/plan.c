/* The memory of training, counted by the code that later allocates it, and the cost of a config. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/enter.h"
#include "base/format.h"
#include "model/capacity.h"
#include "model/config.h"
#include "train/step.h"

int64_t ch_step_tokens(const ch_train_config *c) {
  return (int64_t)c->accumulate * c->batch_sequences * c->sequence_length;
}

int ch_pass_sequences(const choir_config *config) {
  int draws_per_sequence = config->model.moe_every ? ch_router_draws_per_sequence(&config->model.router) : 1;
  return config->train.batch_sequences * draws_per_sequence;
}

int ch_update_in_backward(const ch_train_config *config) { return config->clip_norm == 0 && config->accumulate == 1; }

/* Counts the scratch of an update. */
static void count_update(ch_exec *x, ch_optimizer *optimizer) {
  ch_optimizer_step(x, optimizer, CH_EVERY_PARAM, 1, 0, NULL);
  CH_SCRATCH(x);
  ch_optimizer_squares(x, optimizer, CH_EVERY_PARAM, NULL);
  ch_optimizer_read_squares(x, optimizer);
}

static int64_t pass_tokens(const choir_config *config) {
  return (int64_t)ch_pass_sequences(config) * config->train.sequence_length;
}

int ch_trainer_plan(choir_model *model, ch_trainer *t) {
  const ch_train_config *c = &model->config.train;
  *t = (ch_trainer){.model = model};
  ch_arena_init(&t->state, "optimizer state", model->x.memory);
  CH_TRY(ch_model_check_ranks(model, c->batch_sequences));
  model->share_gradients = ch_update_in_backward(c);
  ch_model_count_gradients(model);
  ch_model_drop_plan(model);
  CH_TRY(ch_optimizer_create(c, &model->net.params, &t->optimizer));
  ch_optimizer_alloc(&t->optimizer, &t->state);
  count_update(&model->x, &t->optimizer);
  model->reserved_scratch = model->x.scratch.peak;
  t->max_tokens = pass_tokens(&model->config);
  return ch_model_size(model, ch_pass_sequences(&model->config), c->sequence_length, 1);
}

int ch_trainer_plan_batches(ch_trainer *t, int step, int longest, int rows, const ch_pass *more, int count) {
  static const int32_t some = 0;
  const choir_config *config = &t->model->config;
  int lengths = (longest + step - 1) / step, twice = ch_pass_sequences(config) / config->train.batch_sequences;
  ch_pass *passes;
  CH_TRY(CH_ALLOC(&passes, lengths + count, "a plan of passes"));
  for (int i = 0; i < lengths; i++)
    passes[i] = (ch_pass){.B = ch_pass_sequences(config),
                          .T = (i + 1) * step,
                          .token = &some,
                          .row = &some,
                          .rows = twice * rows,
                          .target = &some,
                          .route = {.training = 1},
                          .gradients = 1,
                          .paired = twice > 1,
                          .observe = 1,
                          .capacity = ch_config_capacity_max(config),
                          .dropout = config->train.dropout};
  for (int i = 0; i < count; i++) passes[lengths + i] = more[i];
  t->max_tokens = (int64_t)ch_pass_sequences(config) * lengths * step;
  int code = ch_model_size_passes(t->model, passes, lengths + count);
  free(passes);
  return code;
}

void ch_trainer_free(ch_trainer *t) {
  ch_optimizer_free(&t->optimizer);
  ch_arena_free(&t->state);
  choir_model_free(t->model);
  free(t->batch);
  free(t->paired);
  free(t->picked);
  *t = (ch_trainer){0};
}

/* Memory of a process outside of arenas. Measured: the program, its libraries and their allocations, 13 MiB of which
 * are pages of files. Counted: the batch of a step and the windows it is cut from, the batch of an evaluation, unigram
 * probabilities. */
static int64_t process_bytes(const choir_config *config) {
  enum { PROGRAM = 20 << 20 };
  int64_t arrays = ch_config_masked(config) ? 3 : 2,
          tokens = arrays * ch_step_tokens(&config->train) + 3 * pass_tokens(config);
  return PROGRAM + tokens * (int64_t)sizeof(int32_t) + config->model.vocab_size * (int64_t)sizeof(double);
}

void ch_trainer_memory(const ch_trainer *t, choir_memory *m) {
  const choir_model *model = t->model;
  *m = (choir_memory){.weights = (int64_t)ch_arena_size(model->weights.peak),
                      .gradients = (int64_t)ch_arena_size(model->gradients.peak),
                      .optimizer = (int64_t)ch_arena_size(t->state.peak),
                      .activations = (int64_t)ch_arena_size(model->x.tape.peak),
                      .scratch = (int64_t)ch_arena_size(model->x.scratch.peak),
                      .process = process_bytes(&model->config)};
  m->total = m->weights + m->gradients + m->optimizer + m->activations + m->scratch + m->process;
}

/* A batch size that would fit, assuming that memory grows in proportion to the batch; 0: none. Some memory grows
 * more slowly, none faster. */
static int64_t fitting_batch(const choir_config *c, const choir_memory *m, int64_t available) {
  int64_t rest = available - m->weights - m->gradients - m->optimizer - m->process;
  double grows = (double)(m->activations + m->scratch) / c->train.batch_sequences;
  return rest > 0 ? (int64_t)((double)rest / grows) : 0;
}

static int check_memory(const ch_trainer *t) {
  choir_memory memory;
  const choir_memory *m = &memory;
  ch_trainer_memory(t, &memory);
  int64_t there = ch_arena_counting(&t->model->weights) ? 0 : m->weights;
  size_t available = t->model->x.memory->available(), needed = (size_t)(m->total - there);
  if (!available || needed <= available) return CHOIR_OK;
  const double gib = 0x1p30;
  int64_t fits = fitting_batch(&t->model->config, m, (int64_t)available + there);
  char batch[80] = "a smaller model or sequence_length";
  if (fits) ch_format(batch, sizeof batch, "train.batch_sequences=%" PRId64 ", or a smaller model", fits);
  const char *less =
      t->model->copies == CH_COPIES_ALL && t->model->net.moe_layers && t->model->config.train.expert_copies
          ? ", or set train.expert_copies to false"
          : "";
  return ch_error(
      CHOIR_ERROR_MEMORY,
      "training needs %.2f GiB (weights %.2f, gradients %.2f, optimizer %.2f, activations %.2f, scratch %.2f) but "
      "%.2f GiB is available; use %s%s",
      (double)needed / gib, (double)m->weights / gib, (double)m->gradients / gib, (double)m->optimizer / gib,
      (double)m->activations / gib, (double)m->scratch / gib, (double)available / gib, batch, less);
}

/* Warns of a plug-in loss with weight 0, which looks like a router that learns nothing from its loss. */
static void say_unweighed(const ch_router_spec *o) {
  if (o->kind->loss == CHOIR_LOSS_OWN && o->aux_loss_weight == 0)
    ch_notice("router '%s' adds a loss, and model.router.aux_loss_weight is 0: it does not count", o->kind->name);
}

int ch_trainer_commit(ch_trainer *t) {
  choir_model *model = t->model;
  say_unweighed(&model->config.model.router);
  CH_TRY(check_memory(t));
  CH_TRY(ch_model_commit_weights(model));
  CH_TRY(ch_model_make_gradients(model));
  CH_TRY(ch_arena_commit(&t->state));
  ch_optimizer_alloc(&t->optimizer, &t->state);
  CH_TRY(CH_ALLOC(&t->batch, model->config.train.accumulate, "micro-batches"));
  if (ch_pass_sequences(&model->config) > model->config.train.batch_sequences)
    CH_TRY(CH_ALLOC(&t->paired, 3 * t->max_tokens, "a batch of paired sequences"));
  if (ch_model_picks_rows(model, model->config.train.batch_sequences))
    CH_TRY(CH_ALLOC(&t->picked, 3 * t->max_tokens, "the masked tokens of a batch"));
  return ch_model_commit(model);
}

/* ---- costs, from the parameter table, which has every weight and its shape ---- */

/* Mean number of experts per token when no token is dropped: c of expert_choice, otherwise the router's top-K. */
static double experts_per_token(const ch_model_config *m) {
  return ch_router_choices(&m->router) ? ch_router_even_choices(&m->router, m->experts)
                                       : ch_router_factor(&m->router, 1);
}

ch_flops_part ch_flops_part_of(const ch_param *p) {
  if (p->expert) return CH_FLOPS_EXPERTS;
  if (p->layer < 0) return CH_FLOPS_HEAD;
  if (strstr(p->name, ".attn.")) return CH_FLOPS_ATTENTION;
  return strstr(p->name, ".moe.router.") ? CH_FLOPS_ROUTER : CH_FLOPS_DENSE;
}

/* Every weight of a product costs one multiplication and one addition per token; a tied embedding counts once, as
 * the head. A token attends to (T+1)/2 positions on average, or to all T. */
void ch_count_flops(const choir_config *config, const ch_params *params, double flops[CH_FLOPS_PARTS]) {
  const ch_model_config *m = &config->model;
  double T = config->train.sequence_length, seen = ch_config_bidirectional(m) ? T : (T + 1) / 2;
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

/* Bytes of all weights in 8 bits. */
static int64_t bytes_of_8_bits(ch_params *params) {
  ch_arena weights;
  ch_arena_init(&weights, "weights of 8 bits", &ch_memory_host);
  ch_params_alloc_weights(params, &weights, CH_COPIES_Q8_0);
  return (int64_t)ch_arena_mark(&weights);
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
  int cached = !ch_config_bidirectional(&net->config);
  int64_t cache = cached * 2 * (int64_t)net->config.layers * net->kv_width * config->train.sequence_length;
  costs->serve_bytes = (costs->parameters + cache) * (int64_t)sizeof(float);
  costs->serve_q8_0_bytes = bytes_of_8_bits(&t->model->net.params) + cache * (int64_t)sizeof(float);
}

int choir_config_get_costs(const choir_config *config, choir_config_costs *costs) {
  CH_ENTER(config, costs);
  choir_model_options options = CHOIR_MODEL_OPTIONS_INIT;
  choir_model *model;
  ch_trainer trainer;
  *costs = (choir_config_costs){0};
  if (config->model.vocab_size <= 0)
    return ch_error(CHOIR_ERROR_ARGUMENT, "model.vocab_size is 0, the data's: set it to count what a model costs");
  options.emulate_bf16 = 1; /* the cost of a config does not depend on the machine's support for bf16 */
  CH_TRY(ch_model_prepare(config, &options, &model));
  int code = ch_trainer_plan(model, &trainer);
  if (!code) count_all(&trainer, costs);
  ch_trainer_free(&trainer);
  return code;
}
