#include "train/optimizer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "model/weights.h"

static ch_optim_tensor make_tensor(const ch_param *p, const ch_optim *kind) {
  ch_optim_tensor t = {.batch = p->expert ? p->shape[0] : 1, .rows = 1, .cols = p->shape[p->dims - 1]};
  if (p->dims - p->expert >= 2) t.rows = p->shape[p->dims - 2];
  kind->shape(&t);
  return t;
}

int ch_optimizer_create(const choir_train_config *config, ch_params *params, ch_optimizer *o) {
  *o = (ch_optimizer){.config = config, .params = params, .kind = ch_optim_find(config->optimizer)};
  if (!o->kind) return CHOIR_ERROR_ARGUMENT;
  o->tensor = calloc((size_t)params->count, sizeof *o->tensor);
  if (!o->tensor) {
    ch_optimizer_free(o);
    return ch_error(CHOIR_ERROR_MEMORY, "no memory for the optimizer's list of %d tensors", params->count);
  }
  for (int i = 0; i < params->count; i++) o->tensor[i] = make_tensor(&params->p[i], o->kind);
  return CHOIR_OK;
}

void ch_optimizer_free(ch_optimizer *o) {
  free(o->tensor);
  *o = (ch_optimizer){0};
}

void ch_optimizer_alloc(ch_optimizer *o, ch_arena *arena) {
  for (int i = 0; i < o->params->count; i++) {
    ch_optim_tensor *t = &o->tensor[i];
    for (int j = 0; j < CH_OPTIM_STATES; j++)
      t->state[j] = t->state_count[j] ? CH_NEW(arena, real, t->state_count[j]) : NULL;
  }
  o->squares = CH_NEW(arena, double, o->params->count);
}

double ch_schedule_rate(const choir_train_config *c, int64_t step) {
  double rate = c->rate;
  if (c->warmup_steps > 0 && step < c->warmup_steps) rate *= (double)step / (double)c->warmup_steps;
  if (c->constant_steps > 0 && step > c->constant_steps) rate *= sqrt((double)c->constant_steps / (double)step);
  return rate;
}

static int belongs(const ch_param *p, int layer) { return layer == CH_EVERY_PARAM || p->layer == layer; }

void ch_optimizer_squares(ch_exec *x, ch_optimizer *o, int layer, double CH_DEV *total) {
  for (int i = 0; i < o->params->count; i++) {
    const ch_param *p = &o->params->p[i];
    if (!belongs(p, layer)) continue;
    x->ops->sumsq(x, &(ch_sumsq_args){.count = p->count, .x = p->g, .sum = o->squares + i, .total = total});
  }
}

const double *ch_optimizer_read_squares(ch_exec *x, const ch_optimizer *o) {
  return ch_get(x, o->squares, (size_t)o->params->count * sizeof(double));
}

void ch_optimizer_step(ch_exec *x, ch_optimizer *o, int layer, int64_t step, double norm, const double CH_DEV *finite) {
  const choir_train_config *c = o->config;
  ch_optim_args args = {.config = c,
                        .step = step,
                        .rate = ch_schedule_rate(c, step),
                        .finite = finite,
                        .grad_scale = c->clip_norm > 0 && norm > c->clip_norm ? c->clip_norm / norm : 1};
  for (int i = 0; i < o->params->count; i++) {
    const ch_param *p = &o->params->p[i];
    ch_optim_tensor *t = &o->tensor[i];
    if (!belongs(p, layer)) continue;
    t->w = p->w;
    t->g = p->g;
    t->w16 = p->w16;
    args.tensor = t;
    o->kind->step(x, &args);
  }
}

static choir_tensor state_tensor(const char *kind, const char *name, const real CH_DEV *data, int64_t count) {
  choir_tensor t = {.dtype = CH_REAL_DTYPE,
                    .dims = 1,
                    .shape = {count},
                    .data = CH_AS_HOST(const void, data),
                    .bytes = (size_t)count * sizeof(real)};
  snprintf(t.name, sizeof t.name, "optimizer.%s.%s", kind, name);
  return t;
}

int ch_optimizer_tensors(const ch_optimizer *o, choir_tensor *tensors) {
  static const char *const kinds[CH_OPTIM_STATES] = {"first", "second"};
  int count = 0;
  for (int i = 0; i < o->params->count; i++)
    for (int j = 0; j < CH_OPTIM_STATES; j++) {
      const ch_optim_tensor *t = &o->tensor[i];
      if (t->state[j]) tensors[count++] = state_tensor(kinds[j], o->params->p[i].name, t->state[j], t->state_count[j]);
    }
  return count;
}
