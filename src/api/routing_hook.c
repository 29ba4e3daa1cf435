/* Shows routings to whoever asked to see them, as the public view. */
#include "api/model.h"

void choir_model_on_routing(choir_model *model, choir_routing_callback callback, void *context) {
  model->callback = callback;
  model->callback_context = context;
}

/* Tokens that an expert should hold: what the router's own rule gives it, or an even share of what tokens choose. */
static double target(const ch_moe_args *a, const ch_moe_saved *s) {
  int choices = ch_router_choices(a->options), n = ch_valid_count(a->valid, a->n);
  if (choices) return (double)n * choices / a->e;
  return a->causal ? ch_router_k(ch_router_factor(a->options, a->training), n, a->e) : s->counts.capacity;
}

static void show(void *context, const ch_moe_args *a, const ch_moe_saved *s) {
  const choir_model *model = context;
  const real *kept = a->weights.thresholds;
  int ranked = ch_router_has_thresholds(a->router) && !a->causal && !a->by_threshold;
  choir_routing view = {.layer = a->layer,
                        .moe = model->net.block[a->layer].moe,
                        .tokens = a->n,
                        .experts = a->e,
                        .token = a->token,
                        .valid = a->valid,
                        .expert_begin = s->record.expert_begin,
                        .slot_token = s->record.slot_token,
                        .slot_gate = s->record.slot_gate,
                        .token_begin = s->record.token_begin,
                        .token_slot = s->record.token_slot,
                        .scores = s->scores,
                        .thresholds = kept && ch_thresholds_set(kept, a->e) ? kept : NULL,
                        .cutoffs = ranked ? s->counts.cutoff : NULL,
                        .demand = s->counts.demand,
                        .capacity = s->counts.capacity,
                        .dropped = s->counts.dropped,
                        .target = target(a, s)};
  model->callback(model->callback_context, &view);
}

const ch_routing_hook *ch_model_routing_hook(choir_model *model) {
  model->hook = (ch_routing_hook){show, model};
  return model->callback ? &model->hook : NULL;
}
