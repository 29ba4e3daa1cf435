#include "train/optimizer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "model/weights.h"

static ch_opt_slot make_slot(const ch_param *p, int adamw) {
  ch_opt_slot s = {.batch = p->expert ? p->shape[0] : 1, .rows = 1, .cols = p->shape[p->dims - 1]};
  if (p->dims - p->expert >= 2) s.rows = p->shape[p->dims - 2];
  int factored = s.rows > 1;
  s.first_count = adamw ? p->count : factored ? s.batch * s.rows : 0;
  s.second_count = adamw ? p->count : s.batch * s.cols;
  return s;
}

int ch_optimizer_create(const choir_train_config *config, ch_params *params, ch_optimizer *o) {
  *o = (ch_optimizer){.config = config, .params = params, .adamw = !strcmp(config->optimizer, "adamw")};
  o->slot = calloc((size_t)params->count, sizeof *o->slot);
  o->squares = calloc((size_t)params->count, sizeof *o->squares);
  if (!o->slot || !o->squares) {
    ch_optimizer_free(o);
    return ch_error(CHOIR_ERROR_MEMORY, "no memory for the optimizer's list of %d tensors", params->count);
  }
  for (int i = 0; i < params->count; i++) o->slot[i] = make_slot(&params->p[i], o->adamw);
  return CHOIR_OK;
}

void ch_optimizer_free(ch_optimizer *o) {
  free(o->slot);
  free(o->squares);
  *o = (ch_optimizer){0};
}

void ch_optimizer_alloc(ch_optimizer *o, ch_arena *arena) {
  for (int i = 0; i < o->params->count; i++) {
    ch_opt_slot *s = &o->slot[i];
    s->first = s->first_count ? CH_NEW(arena, real, s->first_count) : NULL;
    s->second = CH_NEW(arena, real, s->second_count);
  }
}

double ch_schedule_rate(const choir_train_config *c, int64_t step) {
  double rate = c->rate;
  if (c->warmup_steps > 0 && step < c->warmup_steps) rate *= (double)step / (double)c->warmup_steps;
  if (c->constant_steps > 0 && step > c->constant_steps) rate *= sqrt((double)c->constant_steps / (double)step);
  return rate;
}

static int belongs(const ch_param *p, int layer) { return layer == CH_EVERY_PARAM || p->layer == layer; }

double ch_optimizer_squares(ch_exec *x, ch_optimizer *o, int layer) {
  double sum = 0;
  for (int i = 0; i < o->params->count; i++) {
    const ch_param *p = &o->params->p[i];
    if (!belongs(p, layer)) continue;
    x->ops->sumsq(x, &(ch_sumsq_args){.count = p->count, .x = p->g, .sum = &o->squares[i]});
    sum += o->squares[i];
  }
  return sum;
}

double ch_optimizer_norm(const ch_optimizer *o) {
  double sum = 0;
  for (int i = 0; i < o->params->count; i++) sum += o->squares[i];
  return sqrt(sum);
}

/* beta2 with its bias correction folded in, so that the state itself is the corrected mean. */
static double corrected_beta(double beta, int64_t step) {
  return beta * (1 - pow(beta, (double)(step - 1))) / (1 - pow(beta, (double)step));
}

void ch_optimizer_step(ch_exec *x, ch_optimizer *o, int layer, int64_t step, double norm) {
  const choir_train_config *c = o->config;
  double rate = ch_schedule_rate(c, step);
  double scale = c->clip_norm > 0 && norm > c->clip_norm ? c->clip_norm / norm : 1;
  for (int i = 0; i < o->params->count; i++) {
    const ch_param *p = &o->params->p[i];
    const ch_opt_slot *s = &o->slot[i];
    if (!belongs(p, layer)) continue;
    if (o->adamw)
      x->ops->adamw(x, &(ch_adamw_args){.count = p->count,
                                        .w = p->w,
                                        .g = p->g,
                                        .m = s->first,
                                        .v = s->second,
                                        .step = step,
                                        .rate = rate,
                                        .beta1 = c->beta1,
                                        .beta2 = c->beta2,
                                        .eps = 1e-8,
                                        .weight_decay = s->rows > 1 ? c->weight_decay : 0,
                                        .grad_scale = scale,
                                        .w16 = p->w16});
    else
      x->ops->adafactor(x, &(ch_adafactor_args){.batch = s->batch,
                                                .rows = s->rows,
                                                .cols = s->cols,
                                                .w = p->w,
                                                .g = p->g,
                                                .row = s->first,
                                                .col = s->second,
                                                .rate = rate,
                                                .beta2 = corrected_beta(c->beta2, step),
                                                .eps1 = 1e-30,
                                                .eps2 = 1e-3,
                                                .clip = 1,
                                                .grad_scale = scale,
                                                .w16 = p->w16});
  }
}

static choir_tensor state_tensor(const char *kind, const char *name, real *data, int64_t count) {
  choir_tensor t = {
      .dtype = CH_REAL_DTYPE, .dims = 1, .shape = {count}, .data = data, .bytes = (size_t)count * sizeof(real)};
  snprintf(t.name, sizeof t.name, "optimizer.%s.%s", kind, name);
  return t;
}

int ch_optimizer_tensors(const ch_optimizer *o, choir_tensor *tensors) {
  int count = 0;
  for (int i = 0; i < o->params->count; i++) {
    const ch_opt_slot *s = &o->slot[i];
    if (s->first) tensors[count++] = state_tensor("first", o->params->p[i].name, s->first, s->first_count);
    tensors[count++] = state_tensor("second", o->params->p[i].name, s->second, s->second_count);
  }
  return count;
}
