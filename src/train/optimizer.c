#include "train/optimizer.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "model/weights.h"

/* Whether a name fits one of the patterns "a,b": `only` the one of that number, or -1 any. */
static int fits(const char *patterns, int only, const char *name) {
  char pattern[CHOIR_NAME_BYTES];
  for (int i = 0; *patterns; i++) {
    size_t size = strcspn(patterns, ",");
    snprintf(pattern, sizeof pattern, "%.*s", (int)size, patterns);
    if ((only < 0 || only == i) && !fnmatch(pattern, name, 0)) return 1;
    patterns += size + (patterns[size] == ',');
  }
  return 0;
}

/* Every pattern of train.freeze must name something, and something must be left. */
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
  ch_optim_tensor t = {.batch = p->expert ? p->shape[0] : 1, .rows = 1, .cols = p->shape[p->dims - 1]};
  if (p->dims - p->expert >= 2) t.rows = p->shape[p->dims - 2];
  t.frozen = fits(freeze, -1, p->name);
  if (!t.frozen) kind->shape(&t);
  return t;
}

int ch_optimizer_create(const choir_train_config *config, ch_params *params, ch_optimizer *o) {
  *o = (ch_optimizer){.config = config, .params = params, .kind = ch_optim_find(config->optimizer)};
  if (!o->kind) return CHOIR_ERROR_ARGUMENT;
  CH_TRY(check_frozen(config->freeze, params));
  o->tensor = calloc((size_t)params->count, sizeof *o->tensor);
  if (!o->tensor) {
    ch_optimizer_free(o);
    return ch_error(CHOIR_ERROR_MEMORY, "no memory for the optimizer's list of %d tensors", params->count);
  }
  for (int i = 0; i < params->count; i++) o->tensor[i] = make_tensor(&params->p[i], o->kind, config->freeze);
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
  step += c->schedule_start;
  if (c->warmup_steps > 0 && step < c->warmup_steps) rate *= (double)step / (double)c->warmup_steps;
  if (c->constant_steps > 0 && step > c->constant_steps) rate *= sqrt((double)c->constant_steps / (double)step);
  return rate;
}

static int belongs(const ch_optimizer *o, int i, int layer) {
  return !o->tensor[i].frozen && (layer == CH_EVERY_PARAM || o->params->p[i].layer == layer);
}

void ch_optimizer_squares(ch_exec *x, ch_optimizer *o, int layer, double CH_DEV *total) {
  for (int i = 0; i < o->params->count; i++) {
    const ch_param *p = &o->params->p[i];
    if (!belongs(o, i, layer)) continue;
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
    if (!belongs(o, i, layer)) continue;
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
