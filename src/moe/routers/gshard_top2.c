/* GShard top-2 (Lepikhin et al. 2020): each token asks its two best experts; all first choices are placed before the
 * second ones, in token order, up to capacity. Gates are g1/(g1+g2) and g2/(g1+g2), whether or not both find room. */
#include "moe/routers/token_choice.h"

static int check(const choir_router_options *o, int n, int e, int sequence_length) {
  (void)sequence_length;
  return ch_token_choice_check(o, 2, n, e);
}

static int max_slots(const choir_router_options *o, int n, int e, int sequence_length) {
  (void)sequence_length;
  return ch_token_choice_max_slots(o, 2, n, e);
}

static ch_gate_args gates(const ch_route_args *a, const ch_choices *c) {
  return (ch_gate_args){.rule = CH_GATE_SHARE,
                        .record = a->record,
                        .score = a->scores,
                        .choice = c->choice,
                        .value = c->value,
                        .dgate = a->dgate,
                        .dscore = a->dscores};
}

/* With room for `factor` times an even share in every expert; 0: for all. In training with random_second, the second
 * choice stays with probability 2 g2 (at most 1: g2 is the smaller share); one that does not asks for no room. */
static void place(ch_exec *x, const ch_route_args *a, double factor) {
  size_t mark = ch_arena_mark(&x->scratch);
  ch_choices c = ch_choices_alloc(x, a, 2);
  ch_choices_best(x, a, a->scores, NULL, &c);
  ch_balance_args balance = ch_balance_of(a, &c);
  x->ops->balance(x, &balance);
  if (a->training && a->options->random_second)
    x->ops->sample_second(x,
                          &(ch_sample_second_args){
                              .n = a->n, .rng = a->rng, .rng_base = a->rng_base, .value = c.value, .choice = c.choice});
  ch_choices_place(x, a, &c, factor);
  ch_gate_args gate = gates(a, &c);
  x->ops->gate(x, &gate);
  ch_arena_release(&x->scratch, mark);
}

static void route(ch_exec *x, const ch_route_args *a) { place(x, a, ch_router_factor_planned(x, a)); }

static void causal(ch_exec *x, const ch_route_args *a) { place(x, a, 0); }

static void backward(ch_exec *x, const ch_route_args *a) {
  size_t mark = ch_arena_mark(&x->scratch);
  ch_choices c = ch_choices_alloc(x, a, 2);
  ch_choices_best(x, a, a->scores, NULL, &c);
  ch_gate_args gate = gates(a, &c);
  ch_balance_args balance = ch_balance_of(a, &c);
  x->ops->gate_backward(x, &gate);
  x->ops->balance_backward(x, &balance);
  ch_arena_release(&x->scratch, mark);
}

const ch_router ch_router_gshard_top2 = {
    .name = "gshard_top2",
    .summary = "each token asks its two best experts, first choices go first (Lepikhin et al. 2020)",
    .reads = CH_READS_SHARES,
    .looks = CH_LOOKS_AROUND,
    .options = CH_ROUTER_TAKES(normalize_gates) | CH_ROUTER_TAKES(score) | CH_ROUTER_TAKES_CAPACITY |
               CH_ROUTER_TAKES(aux_loss_weight) | CH_ROUTER_TAKES(random_second),
    .choices = 2,
    .defaults = {CH_ROUTER_DEFAULTS("gshard_top2"), .capacity_factor = 1, .aux_loss_weight = 0.01},
    .check = check,
    .max_slots = max_slots,
    .route = route,
    .causal = causal,
    .backward = backward,
};
