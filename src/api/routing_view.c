#include "api/routing_view.h"

#include "api/model.h"
#include "base/error.h"
#include "moe/routers/threshold.h"

void choir_model_on_routing(choir_model *model, choir_routing_callback callback, void *context) {
  if (!model) return;
  model->callback = callback;
  model->callback_context = context;
}

/* Tokens that an expert should hold: what the router's own rule gives it, or an even share of what tokens choose. */
static double target(const ch_route_args *a, const ch_routing *r) {
  int choices = ch_router_choices(a->options), n = ch_valid_count(a->mask, a->n);
  if (choices) return (double)n * choices / a->e;
  return a->causal ? ch_router_k(ch_router_factor(a->options, a->training), n, a->e) : r->counts.capacity;
}

choir_routing ch_routing_view(ch_exec *x, const ch_route_args *a, const ch_routing *r) {
  const ch_record *record = &r->record;
  int ranked = ch_router_has_thresholds(a->router) && !a->causal && !a->by_threshold;
  size_t n = (size_t)a->n, e = (size_t)a->e, slots = (size_t)record->max_slots;
  const real *kept = a->thresholds ? ch_get(x, a->thresholds, e * sizeof(real)) : NULL;
  const int64_t *dropped = ch_get(x, r->counts.dropped, sizeof *dropped);
  const double *aux_loss = ch_get(x, r->counts.aux_loss, sizeof *aux_loss);
  choir_routing view = {.tokens = a->n,
                        .experts = a->e,
                        .token = a->token ? ch_get(x, a->token, n * sizeof(int32_t)) : NULL,
                        .valid = a->mask,
                        .expert_begin = ch_get(x, record->expert_begin, (e + 1) * sizeof(int)),
                        .slot_token = ch_get(x, record->slot_token, slots * sizeof(int)),
                        .slot_gate = ch_get(x, record->slot_gate, slots * sizeof(real)),
                        .token_begin = ch_get(x, record->token_begin, (n + 1) * sizeof(int)),
                        .token_slot = ch_get(x, record->token_slot, slots * sizeof(int)),
                        .scores = r->scores ? ch_get(x, r->scores, n * e * sizeof(real)) : NULL,
                        .cutoffs = ranked ? ch_get(x, r->counts.cutoff, e * sizeof(real)) : NULL,
                        .demand = ch_get(x, r->counts.demand, e * sizeof(int)),
                        .capacity = r->counts.capacity,
                        .certificate = r->counts.certificate,
                        .target = target(a, r)};
  if (ch_counting(x)) return view;
  view.thresholds = kept && ch_thresholds_set(kept, a->e) ? kept : NULL;
  view.dropped = *dropped;
  view.aux_loss = *aux_loss;
  return view;
}

static void show(void *context, ch_exec *x, int layer, const ch_route_args *a, const ch_routing *r) {
  choir_model *model = context;
  ch_marks mark = ch_scratch_mark(x);
  choir_routing view = ch_routing_view(x, a, r);
  view.layer = layer;
  view.moe = model->net.block[layer].moe;
  if (!ch_counting(x)) {
    model->in_callback = 1;
    model->callback(model->callback_context, &view);
    model->in_callback = 0;
  }
  ch_scratch_release(x, mark);
}

int ch_model_check_idle(const choir_model *model) {
  if (!model->in_callback) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_BUSY, "the model is in use by the call that this callback belongs to: use it after that");
}

int ch_model_stopped(choir_model *model, int (*progress)(void *, int64_t, int64_t), void *context, int64_t done,
                     int64_t total) {
  int outer = model->in_callback;
  model->in_callback = 1;
  int stopped = progress(context, done, total);
  model->in_callback = outer;
  return stopped;
}

const ch_routing_hook *ch_model_any_hook(choir_model *model) {
  model->hook = (ch_routing_hook){show, model};
  return &model->hook;
}

const ch_routing_hook *ch_model_routing_hook(choir_model *model) {
  return model->callback ? ch_model_any_hook(model) : NULL;
}
