#include "train/optimizer.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "comm/collective.h"
#include "model/config.h"
#include "model/prefetch.h"

/* Whether `name` matches one of the comma-separated patterns: pattern number `only`, or any pattern if `only` is -1. */
static int fits(const char *patterns, int only, const char *name) {
  char pattern[sizeof((ch_train_config *)0)->freeze];
  for (int i = 0; *patterns; i++) {
    size_t size = strcspn(patterns, ",");
    snprintf(pattern, sizeof pattern, "%.*s", (int)size, patterns);
    if ((only < 0 || only == i) && !fnmatch(pattern, name, 0)) return 1;
    patterns += size + (patterns[size] == ',');
  }
  return 0;
}

/* Every pattern of train.freeze must match a parameter, and at least one parameter must remain trainable. */
static int check_frozen(const char *patterns, const ch_params *params) {
  int count = *patterns != 0, left = 0;
  for (const char *c = patterns; *c; c++) count += *c == ',';
  for (int k = 0; k < count; k++) {
    int found = 0;
    for (int i = 0; i < params->count; i++) found += fits(patterns, k, params->p[i].name);
    if (!found)
      return ch_error(CHOIR_ERROR_ARGUMENT,
                      "train.freeze is \"%s\": pattern number %d fits no weight; weights are called as %s and %s",
                      patterns, k + 1, params->p[0].name, params->p[params->count > 2 ? 2 : 0].name);
  }
  for (int i = 0; i < params->count; i++) left += !fits(patterns, -1, params->p[i].name);
  if (left) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_ARGUMENT, "train.freeze is \"%s\", which leaves nothing to train", patterns);
}

static ch_optim_tensor make_tensor(const ch_param *p, const ch_optim *kind, const char *freeze) {
  ch_optim_tensor t = {.batch = 1, .rows = 1, .cols = p->part.columns, .all_cols = p->part.width};
  if (p->dims - p->expert >= 2) t.rows = p->shape[p->dims - 2];
  if (p->expert) t.batch = p->count / (t.rows * t.cols);
  t.frozen = fits(freeze, -1, p->name);
  if (!t.frozen) kind->shape(&t);
  return t;
}

int ch_optimizer_create(const ch_train_config *config, ch_params *params, ch_optimizer *o) {
  *o = (ch_optimizer){.config = config, .params = params, .kind = ch_optims[config->optimizer]};
  if (!o->kind) return CHOIR_ERROR_ARGUMENT;
  CH_TRY(check_frozen(config->freeze, params));
  int code = CH_ALLOC(&o->tensor, params->count, "the optimizer's tensors");
  if (code) return ch_optimizer_free(o), code;
  for (int i = 0; i < params->count; i++) {
    o->tensor[i] = make_tensor(&params->p[i], o->kind, config->freeze);
    if (!params->p[i].expert) continue;
    o->experts = (int)params->p[i].shape[0];
    o->tensors++;
  }
  return CHOIR_OK;
}

void ch_optimizer_free(ch_optimizer *o) {
  free(o->tensor);
  *o = (ch_optimizer){0};
}

/* Elements of optimizer state `state` of one matrix with `columns` columns; 0: the tensor has no such state. */
static int64_t state_of_one(const ch_optimizer *o, int tensor, int state, int64_t cols) {
  ch_optim_tensor one = o->tensor[tensor];
  one.batch = 1;
  one.cols = cols;
  if (!one.frozen) o->kind->shape(&one);
  return one.frozen ? 0 : one.state_count[state];
}

/* Nonzero: this rank has the state. Weights that another rank owns are updated there. */
static int has_state(const ch_optimizer *o, int i, int j) {
  return !o->params->p[i].remote && state_of_one(o, i, j, o->tensor[i].cols);
}

static int64_t cells(const ch_optimizer *o) { return o->params->count + (int64_t)o->experts * o->tensors; }

void ch_optimizer_alloc(ch_optimizer *o, ch_arena *arena) {
  for (int i = 0; i < o->params->count; i++) {
    ch_optim_tensor *t = &o->tensor[i];
    for (int j = 0; j < CH_OPTIM_STATES; j++)
      t->state[j] = has_state(o, i, j) ? CH_NEW(arena, real, t->state_count[j]) : NULL;
  }
  o->squares = CH_NEW(arena, double, cells(o));
}

#define PI 3.14159265358979323846

/* The position of `step` between two steps, from 0 to 1. */
static double share_of_way(int64_t step, int64_t from, int64_t to) {
  return step <= from ? 0 : step >= to ? 1 : (double)(step - from) / (double)(to - from);
}

double ch_schedule_learning_rate(const ch_train_config *c, int64_t step) {
  double learning_rate = c->learning_rate, fall = 1 - c->cooldown_to;
  int64_t at = step + c->schedule_start, warmup = ch_config_steps(c->warmup_steps, c->steps),
          cooldown = ch_config_steps(c->cooldown_steps, c->steps);
  if (at < warmup) learning_rate *= (double)at / (double)warmup;
  if (c->schedule == CH_COSINE)
    learning_rate *= 1 - fall * (1 - cos(PI * share_of_way(at, warmup, c->steps + c->schedule_start))) / 2;
  else if (c->constant_steps > 0 && at > c->constant_steps)
    learning_rate *= sqrt((double)c->constant_steps / (double)at);
  if (cooldown > 0) learning_rate *= 1 - fall * share_of_way(step, c->steps - cooldown, c->steps);
  return learning_rate;
}

static int belongs(const ch_optimizer *o, int i, int layer) {
  return !o->tensor[i].frozen && (layer == CH_EVERY_PARAM || o->params->p[i].layer == layer);
}

/* Index of an expert tensor's squared norm. The squares of one expert are adjacent, so that those of a rank's
 * experts are contiguous. */
static int64_t cell(const ch_optimizer *o, int64_t expert, int tensor) {
  return o->params->count + expert * o->tensors + tensor;
}

/* Sums the squared gradients of each expert separately, so that the order of the total does not depend on which rank
 * owns an expert. */
static void expert_squares(ch_exec *x, const ch_optimizer *o, const ch_param *p, int tensor, double CH_DEV *total) {
  int64_t size = p->shape[1] * p->part.columns, first = p->part.row / p->shape[1];
  x->ops->sumsq(x, &(ch_sumsq_args){.arrays = size ? p->count / size : 0,
                                    .count = size,
                                    .x = p->g,
                                    .sum = o->squares + cell(o, first, tensor),
                                    .step = o->tensors,
                                    .total = total});
}

void ch_optimizer_squares(ch_exec *x, ch_optimizer *o, int layer, double CH_DEV *total) {
  for (int i = 0, tensor = 0; i < o->params->count; i++) {
    const ch_param *p = &o->params->p[i];
    tensor += p->expert;
    if (!belongs(o, i, layer) || p->remote) continue;
    if (p->expert)
      expert_squares(x, o, p, tensor - 1, total);
    else
      x->ops->sumsq(x,
                    &(ch_sumsq_args){.arrays = 1, .count = p->count, .x = p->g, .sum = o->squares + i, .total = total});
  }
}

/* Gathers the squared gradient norms of all experts, [experts,tensors], and adds up the hidden shards. */
static void gather_squares(ch_exec *x, const ch_optimizer *o, double *square) {
  const ch_comm *hidden = &x->grid.tp_group;
  int64_t count = (int64_t)o->experts * o->tensors, bytes = count * (int64_t)sizeof *square;
  ch_gather_shares(x, &x->grid.ep_group, "squares of gradients", CH_AS_DEV(void, square), o->experts,
                   o->tensors * (int64_t)sizeof *square);
  const double *of_shard =
      CH_AS_HOST(const double, ch_comm_gather_in(&ch_host(x)->scratch, hidden, "squares of gradients of hidden shards",
                                                 CH_AS_DEV(const double, square), bytes));
  for (int64_t i = 0; i < count && !ch_counting(x); i++) {
    double sum = of_shard[i];
    for (int s = 1; s < hidden->size; s++) sum += of_shard[s * count + i];
    square[i] = sum;
  }
}

const double *ch_optimizer_read_squares(ch_exec *x, const ch_optimizer *o) {
  int count = o->params->count;
  double *sums = CH_NEW_HOST(&ch_host(x)->scratch, double, count);
  double *all = (double *)(uintptr_t)ch_download(x, o->squares, (size_t)cells(o) * sizeof *all);
  if (o->experts) gather_squares(x, o, all + count);
  ch_params_share_numbers(x, o->params, all);
  if (ch_counting(x)) return sums;
  for (int i = 0, tensor = 0; i < count; i++) {
    sums[i] = all[i];
    if (!o->params->p[i].expert) continue;
    sums[i] = 0;
    for (int64_t e = 0; e < o->experts; e++) sums[i] += all[cell(o, e, tensor)];
    tensor++;
  }
  return sums;
}

void ch_optimizer_step(ch_exec *x, ch_optimizer *o, int layer, int64_t step, double norm, const double CH_DEV *finite) {
  const ch_train_config *c = o->config;
  ch_optim_args args = {.config = c,
                        .step = step,
                        .learning_rate = ch_schedule_learning_rate(c, step),
                        .finite = finite,
                        .grad_scale = c->clip_norm > 0 && norm > c->clip_norm ? c->clip_norm / norm : 1};
  for (int i = 0; i < o->params->count; i++) {
    const ch_param *p = &o->params->p[i];
    ch_optim_tensor *t = &o->tensor[i];
    if (!belongs(o, i, layer) || p->remote) continue;
    t->w = p->w;
    t->g = p->g;
    t->w16 = p->w16;
    args.tensor = t;
    o->kind->step(x, &args);
  }
}

int ch_optimizer_tensors(const ch_optimizer *o, ch_stored *tensors) {
  static const char *const kinds[CH_OPTIM_STATES] = {"first", "second"};
  int count = 0;
  for (int i = 0; i < o->params->count; i++)
    for (int j = 0; j < CH_OPTIM_STATES; j++) {
      const ch_optim_tensor *t = &o->tensor[i];
      const ch_param *p = &o->params->p[i];
      int64_t own = state_of_one(o, i, j, t->cols), size = state_of_one(o, i, j, t->all_cols);
      int cut = own != size;
      if (!size) continue;
      if (p->expert) size *= p->shape[0];
      char name[128];
      snprintf(name, sizeof name, "optimizer.%s.%s", kinds[j], p->name);
      ch_stored *s = &tensors[count++];
      *s = ch_stored_real(name, 1, &size, t->state[j]);
      if (p->expert) s->experts = (int)p->shape[0], s->hidden = cut ? t->all_cols : 0;
      s->owner = p->owner;
    }
  return count;
}
