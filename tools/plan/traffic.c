#include "plan/traffic.h"

#include <string.h>

#include "comm/collective.h"
#include "dispatch/exchange.h"
#include "moe/gates.h"
#include "moe/plugin.h"
#include "moe/route.h"

static const char *const names[] = {
    "scores",    "assignments",     "expert rows",    "hidden shards",    "gradients of gates",
    "centroids", "dense gradients", "dense matrices", "expert gradients", "numbers"};

enum { TRIPS = 4 }; /* transfers of a row: to its expert and back; in backward, its gradient there and one back */

/* The inputs of all traffic counts. */
typedef struct {
  const choir_config *config;
  const ch_params *params;
  const ch_layout *layout;
  const ch_router *router;
  int64_t n, e, d;
  int64_t passes;  /* micro-batches per step */
  int64_t layers;  /* passes x MoE layers */
  int64_t to_rest; /* ranks - 1: receivers of a message to all ranks */
} traffic_job;

static int64_t tokens(const choir_config *config) {
  return (int64_t)config->train.batch_sequences * config->train.sequence_length;
}

/* Slots of a micro-batch over all ranks and experts: n c with expert choice. */
static int64_t slots_of(const choir_config *config) {
  const ch_router_spec *o = &config->model.router;
  int64_t n = tokens(config);
  if (ch_router_choices(o)) return (int64_t)(ch_router_even_choices(o, config->model.experts) * (double)n);
  return o->kind->max_slots(o, (int)n, config->model.experts, config->train.sequence_length);
}

int ch_flow_element_bytes(const choir_config *config) {
  return config->parallel.dispatch_dtype != CH_COMPUTE_BF16 ? sizeof(real) : sizeof(ch_bf16);
}

int64_t ch_flow_slot_bytes(const choir_config *config) {
  return (int64_t)TRIPS * config->model.d_model * ch_flow_element_bytes(config) * ch_config_moe_layers(&config->model) *
         config->train.accumulate;
}

int ch_flow_groups(const choir_config *config, const ch_layout *layout) {
  const ch_router_spec *o = &config->model.router;
  int e = config->model.experts, n = (int)tokens(config);
  int64_t slots = o->kind->max_slots(o, n, e, config->train.sequence_length);
  return ch_dispatch_groups((int64_t)layout->experts * layout->hidden, layout->experts, e, slots / layout->replicas,
                            (int64_t)config->model.d_model * ch_flow_element_bytes(config), CH_COMM_WORTH);
}

int64_t ch_flow_selected(const choir_config *config, const ch_layout *layout) {
  int64_t all = tokens(config) * config->model.experts;
  return config->model.router.kind->per_expert ? all / layout->ranks : all;
}

static int expert_tensors(const traffic_job *j) {
  int tensors = 0;
  for (int i = 0; i < j->params->count; i++) tensors += j->params->p[i].expert;
  return tensors;
}

/* Sum of experts' gradients over replicas (ch_comm_sum), once per step: a replica has one block of the summation
 * tree. The rank with most experts sends most. */
static void replicas_sum(const traffic_job *j, ch_flow *f) {
  const ch_layout *l = j->layout;
  f->size = l->replicas;
  f->stride = l->experts * l->hidden;
  if (l->replicas == 1) return;
  int64_t slice = (int64_t)CH_SUM_SLICE * l->replicas, layers = ch_config_moe_layers(&j->config->model);
  for (int i = 0; i < j->params->count; i++) {
    const ch_param *p = &j->params->p[i];
    if (!p->expert) continue;
    int64_t max = (j->e + l->experts - 1) / l->experts * (p->whole / j->e) / l->hidden;
    f->bytes += 2.0 * sizeof(real) * (double)(p->whole * (l->replicas - 1));
    f->messages += (max + slice - 1) / slice + 1;
  }
  f->exchanges = f->messages - (expert_tensors(j) - layers); /* a layer's tensors are sent together */
}

/* Nonzero: each dense matrix of a layer is owned by one rank of a replica. */
static int has_sharded(const traffic_job *j) {
  int matrices = 0;
  for (int i = 0; i < j->params->count && j->layout->dense_sharded; i++)
    matrices += ch_param_is_shardable(&j->params->p[i]);
  return matrices;
}

/* Losses of gradient chunks, to all ranks; squares of experts' gradients, to the ranks of a replica with the same
 * hidden shard, and those of all experts between the shards; squares of sharded matrices, to the ranks of a replica. */
static void numbers(const traffic_job *j, ch_flow *f) {
  const ch_layout *l = j->layout;
  int64_t word = sizeof(double), losses = j->passes * j->config->train.grad_chunks, squares = expert_tensors(j) * j->e;
  int64_t sent = l->replicas * l->hidden * (l->experts - 1) + (int64_t)l->ranks * (l->hidden - 1);
  int64_t of_replica = l->experts * l->hidden, matrices = l->replicas * (of_replica - 1) * has_sharded(j);
  f->bytes = (double)(word * (j->to_rest * losses + sent * squares + matrices));
  f->exchanges = j->passes + (l->experts > 1) + (l->hidden > 1) + (matrices > 0);
  if (!ch_plugin_of(j->router)) return;
  f->bytes += (double)(2 * word * j->to_rest * l->ranks *
                       j->layers); /* agreement on an error code, and a sum over the assignments */
  f->exchanges += 2 * j->layers;
}

/* Adafactor's row statistics (op/op.h), summed over hidden shards. */
static void measures(const traffic_job *j, ch_flow *f) {
  const ch_layout *l = j->layout;
  f->size = l->hidden;
  if (l->hidden == 1 || j->config->train.optimizer != CH_ADAFACTOR) return;
  int64_t numbers = expert_tensors(j) * j->e * j->d * CH_MEASURES, trips = 2 * (l->hidden - 1);
  int64_t slice = (int64_t)CH_SUM_SLICE * l->hidden;
  f->bytes = (double)(trips * l->replicas * numbers * (int64_t)sizeof(real));
  f->exchanges = expert_tensors(j) * ((j->e / l->experts * j->d * CH_MEASURES + slice - 1) / slice + 1);
}

/* Every rank sends to all others: `bytes` over all ranks together. */
static void to_all(const traffic_job *j, int64_t bytes, int64_t exchanges, ch_flow *f) {
  f->bytes = (double)(j->to_rest * bytes);
  f->exchanges = exchanges;
}

/* Slots of ranks whose experts got more than an equal share; these slots are sent to other ranks first:
 * moe/route_sharded.c. */
static int64_t shared_out(const traffic_job *j, int64_t slots) {
  int64_t ranks = j->layout->ranks, moved = slots;
  for (int r = 0; r < ranks; r++) {
    int64_t first = slots / j->e * ch_share(j->e, r, ranks), last = slots / j->e * ch_share(j->e, r + 1, ranks);
    int64_t from = ch_share(slots, r, ranks), to = ch_share(slots, r + 1, ranks);
    int64_t overlap = (last < to ? last : to) - (first > from ? first : from);
    moved -= overlap > 0 ? overlap : 0;
  }
  return moved;
}

/* Scores or logits, and, for the z-loss, one number per token. */
static void scores(const traffic_job *j, ch_flow *f) {
  const int64_t numbers = j->n * j->e / (j->router->per_expert ? j->layout->ranks : 1);
  int z = j->config->model.router.z_loss_weight > 0;
  if (ch_router_learned(j->router))
    to_all(j, j->layers * (int64_t)sizeof(real) * (numbers + (z ? j->n : 0)), j->layers * (1 + z), f);
}

/* The tokens assigned to experts. */
static void chosen(const traffic_job *j, int64_t slots, ch_flow *f) {
  int64_t moved = shared_out(j, slots);
  to_all(j, j->layers * (CH_CHOSEN_EXPERT_BYTES * j->e + CH_CHOSEN_SLOT_BYTES * slots), (moved ? 5 : 3) * j->layers, f);
  f->bytes += (double)(j->layers * CH_CHOSEN_SLOT_BYTES * moved);
}

static void count(const traffic_job *j, ch_flow_kind kind, ch_flow *f) {
  const ch_layout *l = j->layout;
  const int64_t word = sizeof(real);
  int64_t slots = j->layers ? slots_of(j->config) : 0;
  switch (kind) {
    case CH_FLOW_SCORES:
      scores(j, f);
      break;
    case CH_FLOW_CHOSEN:
      if (j->router->per_expert) chosen(j, slots, f);
      break;
    case CH_FLOW_ROWS: /* a row goes to every hidden shard of its expert; one rank of the replica is the sender */
      f->size = l->experts * l->hidden;
      f->bytes = (double)(ch_flow_slot_bytes(j->config) * slots) * l->hidden * (1 - 1.0 / f->size);
      f->exchanges = TRIPS * j->layers;
      f->messages = f->exchanges * ch_flow_groups(j->config, l);
      break;
    case CH_FLOW_HIDDEN:
      measures(j, f);
      break;
    case CH_FLOW_GATES:
      if (j->router->backward && !ch_router_gates_are_scores(j->router))
        to_all(j, j->layers * word * slots, j->layers, f);
      break;
    case CH_FLOW_CENTROIDS:
      if (ch_router_has_centroids(j->router)) to_all(j, j->layers * word * j->n * j->d, j->layers, f);
      break;
    case CH_FLOW_DENSE:
      ch_flow_sums(j->config, j->params, l, f);
      break;
    case CH_FLOW_MATRICES:
      if (l->dense_sharded) ch_flow_prefetches(j->config, j->params, l, f);
      break;
    case CH_FLOW_EXPERTS:
      replicas_sum(j, f);
      break;
    case CH_FLOW_NUMBERS:
      numbers(j, f);
      break;
    case CH_FLOWS:
      break;
  }
}

ch_flow ch_flow_of(const choir_config *config, const ch_params *params, const ch_layout *layout, ch_flow_kind kind) {
  const ch_model_config *m = &config->model;
  traffic_job j = {.config = config, .params = params, .layout = layout, .router = m->router.kind};
  ch_flow f = {.name = names[kind], .size = layout->ranks, .stride = 1};
  j.n = tokens(config);
  j.e = m->experts;
  j.d = m->d_model;
  j.passes = config->train.accumulate;
  j.layers = j.passes * ch_config_moe_layers(&config->model);
  j.to_rest = layout->ranks - 1;
  if (layout->ranks > 1) count(&j, kind, &f);
  if (f.size == 1 || f.bytes == 0) f.bytes = 0, f.exchanges = f.messages = 0;
  if (!f.messages) f.messages = f.exchanges;
  return f;
}
