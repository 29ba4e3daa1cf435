#include "moe/routers/token_choice.h"

#include "base/error.h"

ch_choices ch_choices_alloc(ch_exec *x, const ch_route_args *a, int per_token) {
  int64_t count = (int64_t)a->n * per_token;
  return (ch_choices){
      .per_token = per_token, .choice = CH_NEW(&x->scratch, int, count), .value = CH_NEW(&x->scratch, real, count)};
}

void ch_choices_best(ch_exec *x, const ch_route_args *a, const real CH_DEV *scores, const real CH_DEV *shift,
                     const ch_choices *c) {
  CH_OP(x, best, .n = a->n, .e = a->e, .count = c->per_token, .nulls = a->options->null_experts,
        .valid = a->tokens.valid, .score = scores, .shift = shift, .choice = c->choice, .value = c->value);
}

static int by_score(const ch_route_args *a) { return a->options->priority == CH_BY_SCORE; }

void ch_choices_place(ch_exec *x, const ch_route_args *a, const ch_choices *c, double factor) {
  int valid = ch_valid_count(a->tokens.mask, a->n), bounded = factor > 0;
  int capacity = bounded ? ch_router_capacity(factor, c->per_token, valid, a->e + a->options->null_experts) : valid;
  a->routing->counts.capacity = capacity;
  a->routing->record.max = bounded ? capacity : 0;
  CH_OP(x, place, .count = c->per_token, .capacity = capacity, .choice = c->choice,
        .value = bounded && by_score(a) ? c->value : NULL, .record = &a->routing->record,
        .demand = a->routing->counts.demand, .dropped = a->routing->counts.dropped);
}

/* Number of groups of `span` tokens with at least one valid token. */
static int groups_of(const ch_route_args *a, int span) {
  int groups = 0;
  for (int begin = 0; begin < a->n; begin += span) {
    int tokens = span < a->n - begin ? span : a->n - begin;
    groups += ch_valid_count(a->tokens.mask ? a->tokens.mask + begin : NULL, tokens) > 0;
  }
  return groups;
}

/* GShard's loss counts first choices, that of other routers all choices. */
static ch_balance_args balance_of(const ch_route_args *a, const ch_choices *c) {
  int by_sequence = a->options->aux_scope == CH_SCOPE_SEQUENCE && a->sequence_length > 0;
  int span = by_sequence ? a->sequence_length : a->n;
  return (ch_balance_args){.n = a->n,
                           .e = a->e,
                           .count = c->per_token,
                           .nulls = a->options->null_experts,
                           .counted = a->router->reads == CHOIR_READS_SHARES ? 1 : c->per_token,
                           .shares = a->options->score == CH_SIGMOID,
                           .span = span,
                           .groups = groups_of(a, span),
                           .valid = a->tokens.valid,
                           .choice = c->choice,
                           .score = a->routing->scores,
                           .loss = a->routing->counts.aux_loss,
                           .scale = a->scale.aux,
                           .dscore_acc = a->routing->dscores};
}

void ch_choices_balance(ch_exec *x, const ch_route_args *a, const ch_choices *c) {
  ch_balance_args balance = balance_of(a, c);
  x->ops->balance(x, &balance);
}

void ch_choices_balance_backward(ch_exec *x, const ch_route_args *a, const ch_choices *c) {
  ch_balance_args balance = balance_of(a, c);
  x->ops->balance_backward(x, &balance);
}

static ch_gate_args gate_of(const ch_route_args *a, const ch_choices *c) {
  return (ch_gate_args){.rule = a->router->reads == CHOIR_READS_SHARES ? CH_GATE_SHARE : CH_GATE_SCORE,
                        .record = &a->routing->record,
                        .score = a->routing->scores,
                        .choice = c->choice,
                        .value = c->value,
                        .dgate = a->routing->dgate,
                        .dscore = a->routing->dscores};
}

/* Capacity is `factor` times the even load; 0: unlimited. Second choices that sampling removed do not count. */
static void place_tokens(ch_exec *x, const ch_route_args *a, double factor) {
  CH_SCRATCH(x);
  int K = ch_router_choices(a->options);
  ch_choices c = ch_choices_alloc(x, a, K);
  ch_choices_best(x, a, a->routing->scores, NULL, &c);
  ch_choices_balance(x, a, &c);
  if (a->training && a->options->random_second && ch_router_takes(a->router, CH_OPTION_random_second))
    CH_OP(x, sample_second, .n = a->n, .rng = ch_rng_make(a->draws.rng.seed, CH_STREAM_SECOND_EXPERT, a->draws.rng.sub),
          .rng_base = a->draws.base, .value = c.value, .choice = c.choice);
  ch_choices_place(x, a, &c, factor);
  ch_gate_args gate = gate_of(a, &c);
  x->ops->gate(x, &gate);
}

void ch_token_choice_route(ch_exec *x, const ch_route_args *a) { place_tokens(x, a, ch_router_factor_planned(x, a)); }

void ch_token_choice_causal(ch_exec *x, const ch_route_args *a) { place_tokens(x, a, 0); }

void ch_token_choice_backward(ch_exec *x, const ch_route_args *a) {
  CH_SCRATCH(x);
  ch_choices c = ch_choices_alloc(x, a, ch_router_choices(a->options));
  ch_choices_best(x, a, a->routing->scores, NULL, &c);
  ch_gate_args gate = gate_of(a, &c);
  x->ops->gate_backward(x, &gate);
  ch_choices_balance_backward(x, a, &c);
}

void ch_fixed_route(ch_exec *x, const ch_route_args *a) {
  CH_SCRATCH(x);
  ch_choices c = ch_choices_alloc(x, a, 1);
  CH_OP(x, modulo, .n = a->n, .e = a->e, .valid = a->tokens.valid, .id = a->tokens.id, .choice = c.choice);
  ch_choices_place(x, a, &c, 0);
  CH_OP(x, gate, .rule = CH_GATE_EVEN, .count = 1, .record = &a->routing->record);
}

choir_depends_on ch_token_choice_depends_on(const ch_router_spec *o, int training) {
  if (ch_router_factor(o, training) == 0) return CHOIR_DEPENDS_ON_NONE;
  return o->priority == CH_BY_ORDER ? o->kind->depends_on : CHOIR_DEPENDS_ON_ALL;
}

int ch_token_choice_slots(const ch_router_spec *o, int n, int e, int sequence_length) {
  (void)e, (void)sequence_length;
  return n * ch_router_choices(o);
}

int ch_token_choice_max_slots(const ch_router_spec *o, int n, int e, int sequence_length) {
  double factor = ch_router_factor_max(o); /* 0: unlimited */
  int64_t max_slots = (int64_t)ch_router_capacity(factor, ch_router_choices(o), n, e + o->null_experts) * e,
          asked = ch_token_choice_slots(o, n, e, sequence_length);
  return (int)(factor > 0 && max_slots < asked ? max_slots : asked);
}

/* Null experts have logit 0, so scores must be a softmax. The z-loss is refused, because it also pulls logits toward 0
 * and would determine how many tokens choose null experts. */
static int check_nulls(const ch_router_spec *o) {
  if (o->null_experts > 0 && o->score != CH_SOFTMAX)
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "router '%s': null_experts is %d with score %s: null experts take their share of a softmax; set "
                    "score to softmax or null_experts to 0",
                    o->kind->name, o->null_experts, ch_router_scores[o->score]);
  if (o->null_experts > 0 && o->z_loss_weight > 0)
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "router '%s': null_experts is %d with z_loss_weight %g, which draws logits to 0, where null "
                    "experts are: set one of them to 0",
                    o->kind->name, o->null_experts, o->z_loss_weight);
  return CHOIR_OK;
}

int ch_token_choice_check(const ch_router_spec *o, int n, int e, int sequence_length) {
  int per_token = ch_router_choices(o);
  (void)sequence_length;
  CH_TRY(ch_router_check_sizes(o, n, e));
  if (e < per_token)
    return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': every token takes %d experts but there %s only %d",
                    o->kind->name, per_token, e == 1 ? "is" : "are", e);
  if (n > INT32_MAX / per_token)
    return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': %d tokens are too many for one call", o->kind->name, n);
  return check_nulls(o);
}
