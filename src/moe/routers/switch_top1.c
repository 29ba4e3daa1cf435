/* Switch top-1 (Fedus et al. 2021): each token asks its best expert, in token order, up to capacity. The gate is the
 * score. The layer multiplies the router's input by U[1-jitter, 1+jitter] in training. */
#include "base/error.h"
#include "moe/routers/token_choice.h"

static int check(const choir_router_options *o, int n, int e, int sequence_length) {
  (void)sequence_length;
  if (!(o->jitter >= 0 && o->jitter < 1))
    return ch_error(CHOIR_ERROR_ARGUMENT, "router 'switch_top1': jitter %g must be at least 0 and below 1", o->jitter);
  return ch_token_choice_check(o, 1, n, e);
}

static int max_slots(const choir_router_options *o, int n, int e, int sequence_length) {
  (void)sequence_length;
  return ch_token_choice_max_slots(o, 1, n, e);
}

/* With room for `factor` times an even share in every expert; 0: for all. */
static void place(ch_exec *x, const ch_route_args *a, double factor) {
  size_t mark = ch_arena_mark(&x->scratch);
  ch_choices c = ch_choices_alloc(x, a, 1);
  ch_choices_best(x, a, a->scores, NULL, &c);
  ch_balance_args balance = ch_balance_of(a, &c);
  x->ops->balance(x, &balance);
  ch_choices_place(x, a, &c, factor);
  ch_router_gates_from_scores(x, a);
  ch_arena_release(&x->scratch, mark);
}

static void route(ch_exec *x, const ch_route_args *a) { place(x, a, ch_router_factor_planned(x, a)); }

static void causal(ch_exec *x, const ch_route_args *a) { place(x, a, 0); }

static void backward(ch_exec *x, const ch_route_args *a) {
  size_t mark = ch_arena_mark(&x->scratch);
  ch_choices c = ch_choices_alloc(x, a, 1);
  ch_choices_best(x, a, a->scores, NULL, &c);
  ch_balance_args balance = ch_balance_of(a, &c);
  ch_router_gates_backward(x, a);
  x->ops->balance_backward(x, &balance);
  ch_arena_release(&x->scratch, mark);
}

const ch_router ch_router_switch_top1 = {
    .name = "switch_top1",
    .summary = "each token asks its best expert, in token order, up to capacity (Fedus et al. 2021)",
    .reads = CH_READS_SCORES,
    .looks = CH_LOOKS_BACK,
    .options = CH_ROUTER_TAKES(normalize_gates) | CH_ROUTER_TAKES(score) | CH_ROUTER_TAKES_CAPACITY |
               CH_ROUTER_TAKES(aux_loss_weight) | CH_ROUTER_TAKES(jitter),
    .choices = 1,
    .defaults = {CH_ROUTER_DEFAULTS("switch_top1"), .capacity_factor = 1.25, .aux_loss_weight = 0.01, .jitter = 0.01},
    .check = check,
    .max_slots = max_slots,
    .route = route,
    .causal = causal,
    .backward = backward,
};
