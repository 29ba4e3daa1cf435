/* Shows routings to whoever asked to see them, as the public view. */
#include "api/model.h"
#include "base/error.h"

void choir_model_on_routing(choir_model *model, choir_routing_callback callback, void *context) {
  model->callback = callback;
  model->callback_context = context;
}

/* Tokens that an expert should hold: what the router's own rule gives it, or an even share of what tokens choose. */
static double target(const ch_moe_args *a, const ch_moe_saved *s) {
  int choices = ch_router_choices(a->options), n = ch_valid_count(a->mask, a->n);
  if (choices) return (double)n * choices / a->e;
  return a->causal ? ch_router_k(ch_router_factor(a->options, a->training), n, a->e) : s->counts.capacity;
}

/* One copy of everything to the host; where the memory is its own, these are the arrays themselves. */
static void show(void *context, ch_exec *x, const ch_moe_args *a, const ch_moe_saved *s) {
  choir_model *model = context;
  const ch_record *r = &s->record;
  int ranked = ch_router_has_thresholds(a->router) && !a->causal && !a->by_threshold;
  size_t n = (size_t)a->n, e = (size_t)a->e, slots = (size_t)r->max_slots;
  ch_marks mark = ch_scratch_mark(x);
  const real *kept = a->weights.thresholds ? ch_get(x, a->weights.thresholds, e * sizeof(real)) : NULL;
  const int64_t *dropped = ch_get(x, s->counts.dropped, sizeof *dropped);
  const double *aux_loss = ch_get(x, s->counts.aux_loss, sizeof *aux_loss);
  choir_routing view = {.layer = a->layer,
                        .moe = model->net.block[a->layer].moe,
                        .tokens = a->n,
                        .experts = a->e,
                        .token = a->token ? ch_get(x, a->token, n * sizeof(int32_t)) : NULL,
                        .valid = a->mask,
                        .expert_begin = ch_get(x, r->expert_begin, (e + 1) * sizeof(int)),
                        .slot_token = ch_get(x, r->slot_token, slots * sizeof(int)),
                        .slot_gate = ch_get(x, r->slot_gate, slots * sizeof(real)),
                        .token_begin = ch_get(x, r->token_begin, (n + 1) * sizeof(int)),
                        .token_slot = ch_get(x, r->token_slot, slots * sizeof(int)),
                        .scores = s->scores ? ch_get(x, s->scores, n * e * sizeof(real)) : NULL,
                        .cutoffs = ranked ? ch_get(x, s->counts.cutoff, e * sizeof(real)) : NULL,
                        .demand = ch_get(x, s->counts.demand, e * sizeof(int)),
                        .capacity = s->counts.capacity,
                        .certificate = s->counts.certificate,
                        .target = target(a, s)};
  if (!ch_counting(x)) {
    view.thresholds = kept && ch_thresholds_set(kept, a->e) ? kept : NULL;
    view.dropped = *dropped;
    view.aux_loss = *aux_loss;
    model->in_callback = 1;
    model->callback(model->callback_context, &view);
    model->in_callback = 0;
  }
  ch_scratch_release(x, mark);
}

int ch_model_check_idle(const choir_model *model) {
  if (!model->in_callback) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_BUSY,
                  "the model is in use: within the callback of choir_model_on_routing its own pass is under way");
}

const ch_routing_hook *ch_model_any_hook(choir_model *model) {
  model->hook = (ch_routing_hook){show, model};
  return &model->hook;
}

const ch_routing_hook *ch_model_routing_hook(choir_model *model) {
  return model->callback ? ch_model_any_hook(model) : NULL;
}
