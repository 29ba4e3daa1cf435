/* Memory of a rank by purpose, derived from the memory plan of training. */
#include "base/error.h"
#include "handle/ranks.h"
#include "plan/plan.h"
#include "plan/traffic.h"
#include "train/step.h"

/* ---- the memory plan of training ---- */

/* The memory plan of a config on several ranks, from the same dry run as that of choir train. */
typedef struct {
  choir_memory memory;
  int64_t expert_weights, expert_gradients, expert_state; /* of these, bytes of experts */
  int64_t local,
      owned; /* slots of an MoE layer in the buffers: of the rank's tokens, of its experts; 0 in one process */
} engine_plan;

/* Elements of experts, or of all other parameters, in a layer. */
static int64_t in_layer(const ch_params *params, int layer, int expert) {
  int64_t count = 0;
  for (int i = 0; i < params->count; i++)
    if (params->p[i].layer == layer && params->p[i].expert == expert) count += params->p[i].count;
  return count;
}

/* Gradients of experts: with `share_gradients` there is memory for the largest layer only. */
static int64_t gradients_of_experts(const choir_model *model) {
  int64_t largest = 0, all = 0, of_largest = 0;
  for (int l = 0; l < model->config.model.layers; l++) {
    int64_t experts = in_layer(&model->net.params, l, 1), layer = experts + in_layer(&model->net.params, l, 0);
    all += experts;
    if (layer > largest) largest = layer, of_largest = experts;
  }
  return (model->share_gradients ? of_largest : all) * (int64_t)sizeof(real);
}

static void read_off(const ch_trainer *t, engine_plan *p) {
  const choir_model *model = t->model;
  const ch_params *params = &model->net.params;
  ch_trainer_memory(t, &p->memory);
  for (int i = 0; i < params->count; i++) {
    const ch_param *q = &params->p[i];
    if (!q->expert) continue;
    p->expert_weights += q->count * (int64_t)(sizeof(real) + (q->w16 ? sizeof(ch_bf16) : 0));
    for (int s = 0; s < CH_OPTIM_STATES; s++)
      p->expert_state += t->optimizer.tensor[i].state_count[s] * (int64_t)sizeof(real);
  }
  p->expert_gradients = gradients_of_experts(model);
  for (int l = 0; l < model->config.model.layers; l++) {
    const ch_layer *b = &model->net.block[l];
    if (b->moe < 0 || model->x.comm->size == 1) continue;
    p->local = b->saved.dispatch.max_rows;
    p->owned = b->saved.dispatch.owned;
  }
}

/* There are no other ranks: a dry run sends nothing. */
static void begin_nothing(const ch_comm *comm, ch_transfer *t) { (void)comm, (void)t; }
static int test_nothing(const ch_comm *comm, ch_transfer *t) { return (void)comm, (void)t, 1; }
static void wait_for_nothing(const ch_comm *comm, ch_transfer *t, ch_transfer_state until) {
  (void)comm, (void)t, (void)until;
}

/* The plan of one rank of a layout: the last rank has the most experts, the first the fewest. */
static int plan_of(const choir_config *config, int rank, const ch_layout *layout, engine_plan *plan) {
  int ranks = layout->ranks;
  choir_model_options options = CHOIR_MODEL_OPTIONS_INIT;
  choir_model *model;
  ch_trainer trainer;
  ch_traffic traffic = {0};
  const ch_comm others = {.name = "planned",
                          .rank = rank,
                          .size = ranks,
                          .stride = 1,
                          .piece = INT64_C(1) << 28,
                          .worth = CH_COMM_WORTH,
                          .means = CH_COMM_MEANS,
                          .traffic = &traffic,
                          .begin = begin_nothing,
                          .test = test_nothing,
                          .wait = wait_for_nothing};
  const choir_ranks shared = {
      .comm = &others, .replicas = layout->replicas, .hidden = layout->hidden, .dense_sharded = layout->dense_sharded};
  *plan = (engine_plan){.local = 0};
  options.emulate_bf16 = 1; /* the cluster's ranks are other machines */
  if (ranks > 1) options.ranks = &shared;
  CH_TRY(ch_model_prepare(config, &options, &model));
  int code = ch_trainer_plan(model, &trainer);
  if (!code) read_off(&trainer, plan);
  ch_trainer_free(&trainer);
  return code;
}

/* ---- by purpose ---- */

/* Staging for rows in flight: all rows of the rank's experts, and the rows that each hidden shard returns for the
 * rank's tokens. Unrounded rows of the first shard need none, because they land in the activations. */
static int64_t staging(const choir_config *config, const ch_layout *l, const engine_plan *p) {
  int64_t bytes = ch_flow_element_bytes(config), places = l->hidden - (bytes == (int64_t)sizeof(real));
  return (p->owned + places * p->local) * bytes * config->model.d_model;
}

/* The rank with the largest memory: the last has the most experts, the first the most sharded dense matrices. */
static int fullest(const choir_config *config, const ch_layout *layout, engine_plan *plan) {
  engine_plan first;
  CH_TRY(plan_of(config, layout->ranks - 1, layout, plan));
  if (!layout->dense_sharded) return CHOIR_OK;
  CH_TRY(plan_of(config, 0, layout, &first));
  if (first.memory.total > plan->memory.total) *plan = first;
  return CHOIR_OK;
}

int ch_plan_memory(const choir_config *config, const ch_layout *layout, ch_plan_layout *out) {
  engine_plan p;
  CH_TRY(fullest(config, layout, &p));
  const choir_memory *m = &p.memory;
  int64_t staged = staging(config, layout, &p);
  if (staged > m->scratch) staged = m->scratch;
  const ch_plan_purpose purposes[] = {{"dense weights", m->weights - p.expert_weights},
                                      {"expert weights", p.expert_weights},
                                      {"dense gradients", m->gradients - p.expert_gradients},
                                      {"expert gradients", p.expert_gradients},
                                      {"dense state", m->optimizer - p.expert_state},
                                      {"expert state", p.expert_state},
                                      {"activations", m->activations},
                                      {"exchange buffers", staged},
                                      {"scratch", m->scratch - staged},
                                      {"process", m->process}};
  out->purposes = sizeof purposes / sizeof *purposes;
  out->bytes = 0;
  for (int i = 0; i < out->purposes; i++) {
    out->memory[i] = purposes[i];
    out->bytes += purposes[i].bytes;
  }
  return CHOIR_OK;
}
