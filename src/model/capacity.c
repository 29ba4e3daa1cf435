#include "model/capacity.h"

#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/format.h"
#include "model/param.h"
#include "moe/router.h"

/* Parses the weights of layer_capacity: returns their number, sets their sum and the weight of MoE layer `moe`. -1: an
 * item is no positive decimal number, or the sum overflows. */
static int read_weights(const char *text, int moe, double *weight, double *sum) {
  int count = 0;
  *sum = 0;
  for (char *end; *text; text = *end ? end + 1 : end) {
    double value = ch_number(text, &end);
    int decimal = strspn(text, "0123456789.eE+-") == (size_t)(end - text);
    if (end == text || !decimal || (*end && *end != ',') || (*end && !end[1]) || value <= 0) return -1;
    if (count++ == moe) *weight = value;
    *sum += value;
  }
  return isfinite(*sum * count) ? count : -1;
}

ch_router_spec ch_router_scaled(const ch_router_spec *o, double scale) {
  ch_router_spec scaled = *o;
  scaled.capacity_factor *= scale;
  return scaled;
}

ch_router_spec ch_config_layer_router(const ch_model_config *c, int moe) {
  ch_router_spec o = c->router;
  double weight = 1, sum = 0;
  int count = read_weights(c->layer_capacity, moe, &weight, &sum);
  double share = count > 0 ? weight * count / sum : 1;
  o.capacity_factor *= share;
  o.eval_capacity_factor *= share;
  return o;
}

double ch_config_capacity_at(const choir_config *c, int64_t step) {
  const ch_router_spec *o = &c->model.router;
  if (o->capacity_start == 0) return 1;
  double last = (double)c->train.steps - 1, done = last > 0 ? fmin(1, (double)step / last) : 1,
         first = o->capacity_start / ch_router_factor(o, 1);
  return first + (1 - first) * done;
}

double ch_config_capacity_max(const choir_config *c) {
  return c->model.router.capacity_start > 0 ? fmax(1, ch_config_capacity_at(c, 0)) : 1;
}

static int check_weights(const ch_model_config *m) {
  double weight, sum;
  int layers = ch_config_moe_layers(m), count = read_weights(m->layer_capacity, 0, &weight, &sum);
  if (!*m->layer_capacity) return CHOIR_OK;
  if (count != layers)
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "model.layer_capacity is \"%s\": must be numbers above 0 with commas between them, one for each of "
                    "the %d MoE layers",
                    m->layer_capacity, layers);
  if (ch_router_factor(&m->router, 1) > 0 && ch_router_takes(m->router.kind, CH_OPTION_capacity_factor))
    return CHOIR_OK;
  return ch_error(
      CHOIR_ERROR_ARGUMENT,
      "model.layer_capacity is \"%s\", but router '%s' has no capacity here: leave it out, or take a router "
      "with router.capacity_factor above 0",
      m->layer_capacity, m->router.kind->name);
}

int ch_config_check_capacity(const choir_config *c, int n) {
  const ch_model_config *m = &c->model;
  const double scales[] = {1, ch_config_capacity_at(c, 0)};
  CH_TRY(check_weights(m));
  int layers = *m->layer_capacity ? ch_config_moe_layers(m) : 1;
  for (int moe = 0; moe < layers; moe++)
    for (int i = 0; i < (m->router.capacity_start > 0 ? 2 : 1); i++) {
      ch_router_spec layer = ch_config_layer_router(m, moe), o = ch_router_scaled(&layer, scales[i]);
      int code = o.kind->check(&o, n, m->experts, c->train.sequence_length);
      if (code && layers > 1) return ch_error_in(code, "model.layer_capacity, weight %d", moe + 1);
      if (code && i) return ch_error_in(code, "model.router.capacity_start");
      CH_TRY(code);
    }
  return CHOIR_OK;
}
