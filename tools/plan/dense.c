#include <math.h>
#include <string.h>

#include "comm/collective.h"
#include "model/prefetch.h"
#include "plan/traffic.h"

enum { WORD = sizeof(real) };

/* The sizes of matrices exchanged together, as owned by the ranks of a replica. */
static ch_owned owned(const double *of, int ranks, int matrices) {
  ch_owned o = {.max = of[0], .min = of[0], .matrices = matrices};
  for (int r = 0; r < ranks; r++) {
    o.all += of[r];
    o.max = fmax(o.max, of[r]);
    o.min = fmin(o.min, of[r]);
  }
  return o;
}

/* ---- gradients: ch_comm_sum ---- */

typedef struct {
  const ch_layout *layout;
  int pieces[CH_RANKS], max; /* blocks of the summation tree on each rank, and their maximum */
  int64_t has[CH_RANKS];     /* elements of sharded matrices assigned to each rank so far */
} sums;

/* Whether two gradients are summed together, in one call of ch_sum_grad_chunks: those of attention, and those of a
 * dense layer. */
static int at_once(const ch_param *a, const ch_param *b) {
  int attention = strstr(a->name, ".attn") != NULL;
  if (a->layer < 0 || a->layer != b->layer || a->expert || b->expert) return 0;
  return attention == (strstr(b->name, ".attn") != NULL) && (attention || a->product == b->product);
}

/* Elements that ranks send to sum one tensor: in the reduce-scatter every block except the sender's own share, in
 * the all-gather each rank's share of the sum to all receivers. */
static void count_sum(const sums *s, int64_t count, const ch_receivers *to, double *sent, double *given) {
  int ranks = s->layout->ranks;
  for (int r = 0; r < ranks; r++) {
    int64_t others = count - (ch_share(count, r + 1, ranks) - ch_share(count, r, ranks));
    *sent += (double)(s->pieces[r] * others);
    *given += (double)(ch_receives(to, r) * others);
  }
}

/* Counts tensors that are summed together, `times` per step. All ranks send and receive the same amount, except that
 * owners of matrices receive more: the rank that receives most determines the time. */
static void count_sums(sums *s, const ch_param *p, const ch_param *end, int64_t times, ch_flow *f) {
  const ch_layout *l = s->layout;
  const int64_t slice = (int64_t)CH_SUM_SLICE * l->ranks;
  int replica = l->experts * l->hidden;
  double of[CH_RANKS] = {0}, sent = 0, to_all = 0, to_owners = 0;
  int64_t collected = 0, tensors = end - p;
  for (; p < end; p++) {
    int sharded = l->dense_sharded && ch_param_is_shardable(p);
    ch_receivers to = {sharded ? ch_next_owner(s->has, replica, p->whole) : 0, sharded ? replica : 1};
    if (sharded) of[to.first] += (double)p->whole;
    count_sum(s, p->whole, &to, &sent, sharded ? &to_owners : &to_all);
    collected += s->max * ((p->whole + slice - 1) / slice);
  }
  f->bytes += (double)(times * WORD) * (sent + to_all + to_owners);
  f->busiest += (double)(times * WORD) * (sent + to_all + owned(of, replica, 0).max * (l->ranks - 1));
  f->exchanges += times * (collected + 1);
  f->messages += times * (collected + tensors);
}

void ch_flow_sums(const choir_config *config, const ch_params *params, const ch_layout *layout, ch_flow *f) {
  sums s = {.layout = layout};
  ch_piece unused[CH_SUM_PIECES];
  for (int r = 0; r < layout->ranks; r++) {
    s.pieces[r] = ch_comm_pieces(config->train.grad_chunks, r, layout->ranks, unused);
    if (s.pieces[r] > s.max) s.max = s.pieces[r];
  }
  const ch_param *end = params->p + params->count;
  for (const ch_param *p = params->p, *next; p < end; p = next) {
    for (next = p + 1; next < end && at_once(p, next);) next++;
    int uses = p->layer < 0 && p->matrix && config->model.tied
                   ? 2
                   : 1; /* a tied embedding is used twice: by the head and by the lookup */
    if (!p->expert) count_sums(&s, p, next, config->train.accumulate * uses, f);
  }
}

/* ---- matrices of a layer, at most CH_AT_ONCE: ch_comm_broadcast_next ---- */

ch_owned ch_owned_of_layer(ch_dense_owners *d, int layer) {
  double of[CH_RANKS] = {0};
  int ranks = d->layout->experts * d->layout->hidden, matrices = 0;
  int sharded = d->layout->dense_sharded && layer >= 0 && layer < d->config->model.layers;
  for (int i = ch_params_first(d->params, layer); sharded && i < d->params->count && d->params->p[i].layer == layer;
       i++) {
    const ch_param *p = &d->params->p[i];
    if (!ch_param_is_shardable(p)) continue;
    of[ch_next_owner(d->has, ranks, p->whole)] += (double)p->whole;
    matrices++;
  }
  return owned(of, ranks, matrices);
}

/* Bytes per element: bf16 products read rounded weights. */
static int element_bytes(const choir_config *config) {
  return config->train.compute != CH_COMPUTE_BF16 ? WORD : sizeof(ch_bf16);
}

/* A broadcast has two steps: owners scatter their matrices, then every other rank forwards its share. The first step
 * waits for the rank that owns most, the second for the rank that owns least. */
void ch_flow_prefetch(const ch_dense_owners *d, const ch_owned *layer, ch_flow steps[CH_PREFETCH_STEPS]) {
  const ch_layout *l = d->layout;
  const double others = l->experts * l->hidden - 1, all = element_bytes(d->config) * d->config->train.accumulate;
  ch_flow f = {.size = l->experts * l->hidden,
               .stride = 1,
               .exchanges = d->config->train.accumulate,
               .messages = (int64_t)d->config->train.accumulate * layer->matrices};
  steps[0] = steps[1] = (ch_flow){.size = f.size};
  if (!others || !layer->matrices) return;
  f.bytes = l->replicas * all * layer->all;
  f.busiest = l->ranks * all * layer->max;
  steps[0] = f;
  f.bytes *= others - 1;
  f.busiest = l->ranks * all * (layer->all - layer->min) * (others - 1) / others;
  steps[1] = f;
}

void ch_flow_prefetches(const choir_config *config, const ch_params *params, const ch_layout *l, ch_flow *f) {
  ch_dense_owners d = {.config = config, .params = params, .layout = l};
  ch_flow steps[CH_PREFETCH_STEPS];
  f->size = l->experts * l->hidden;
  for (int layer = 0; layer < config->model.layers; layer++) {
    const ch_owned o = ch_owned_of_layer(&d, layer);
    int times =
        layer + 2 < config->model.layers ? 2 : 1; /* before backward the last two layers' matrices are still resident */
    ch_flow_prefetch(&d, &o, steps);
    for (int s = 0; s < CH_PREFETCH_STEPS; s++) {
      f->bytes += times * steps[s].bytes;
      f->busiest += times * steps[s].busiest;
      f->exchanges += times * steps[s].exchanges;
      f->messages += times * steps[s].messages;
    }
  }
}
