#include "moe/routers/token_choice.h"

#include <math.h>

#include "base/error.h"

ch_choices ch_choices_alloc(ch_exec *x, const ch_route_args *a, int per_token) {
  int64_t count = (int64_t)a->n * per_token;
  return (ch_choices){
      .per_token = per_token, .choice = CH_NEW(&x->scratch, int, count), .value = CH_NEW(&x->scratch, real, count)};
}

void ch_choices_best(ch_exec *x, const ch_route_args *a, const real CH_DEV *scores, const real CH_DEV *shift,
                     const ch_choices *c) {
  x->ops->best(x, &(ch_best_args){.n = a->n,
                                  .e = a->e,
                                  .count = c->per_token,
                                  .valid = a->valid,
                                  .score = scores,
                                  .shift = shift,
                                  .choice = c->choice,
                                  .value = c->value});
}

void ch_choices_place(ch_exec *x, const ch_route_args *a, const ch_choices *c, double factor) {
  int valid = ch_valid_count(a->mask, a->n), bounded = factor > 0;
  int capacity = bounded ? ch_router_capacity(factor, c->per_token, valid, a->e) : valid;
  a->counts->capacity = capacity;
  a->record->most = bounded ? capacity : 0;
  x->ops->place(x, &(ch_place_args){.count = c->per_token,
                                    .capacity = capacity,
                                    .choice = c->choice,
                                    .record = a->record,
                                    .demand = a->counts->demand,
                                    .dropped = a->counts->dropped});
}

ch_balance_args ch_balance_of(const ch_route_args *a, const ch_choices *c) {
  return (ch_balance_args){.n = a->n,
                           .e = a->e,
                           .count = c->per_token,
                           .valid = a->valid,
                           .choice = c->choice,
                           .score = a->scores,
                           .loss = a->counts->aux_loss,
                           .scale = a->aux_scale,
                           .dscore_acc = a->dscores};
}

void ch_drawn_route(ch_exec *x, const ch_route_args *a, ch_draw_rule rule, int per_token, ch_rng rng) {
  size_t mark = ch_arena_mark(&x->scratch);
  ch_choices c = ch_choices_alloc(x, a, per_token);
  x->ops->draw(x, &(ch_draw_args){.rule = rule,
                                  .n = a->n,
                                  .e = a->e,
                                  .count = per_token,
                                  .valid = a->valid,
                                  .id = a->token,
                                  .rng = rng,
                                  .rng_base = a->rng_base,
                                  .choice = c.choice});
  ch_choices_place(x, a, &c, 0);
  x->ops->gate(x, &(ch_gate_args){.rule = CH_GATE_EVEN, .count = per_token, .record = a->record});
  ch_arena_release(&x->scratch, mark);
}

void ch_fixed_route(ch_exec *x, const ch_route_args *a) { ch_drawn_route(x, a, CH_DRAW_MODULO, 1, (ch_rng){0}); }

int ch_fixed_check(const choir_router_options *o, int n, int e, int sequence_length) {
  (void)sequence_length;
  return ch_router_check_sizes(o, n, e);
}

int ch_fixed_max_slots(const choir_router_options *o, int n, int e, int sequence_length) {
  (void)o, (void)e, (void)sequence_length;
  return n;
}

int ch_per_token_check(const choir_router_options *o, int n, int e, int sequence_length) {
  (void)sequence_length;
  return ch_token_choice_check(o, o->experts_per_token, n, e);
}

int ch_per_token_max_slots(const choir_router_options *o, int n, int e, int sequence_length) {
  (void)e, (void)sequence_length;
  return n * o->experts_per_token;
}

int ch_token_choice_max_slots(const choir_router_options *o, int per_token, int n, int e) {
  double factor = fmax(o->capacity_factor, o->eval_capacity_factor);
  int64_t room = (int64_t)ch_router_capacity(factor, per_token, n, e) * e, asked = (int64_t)per_token * n;
  return (int)(room < asked ? room : asked);
}

int ch_token_choice_check(const choir_router_options *o, int per_token, int n, int e) {
  CH_TRY(ch_router_check_sizes(o, n, e));
  if (e < per_token)
    return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': every token takes %d experts but there is only %d", o->name,
                    per_token, e);
  if (n > INT32_MAX / per_token)
    return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': %d tokens are too many for one call", o->name, n);
  return CHOIR_OK;
}
