/* BASE layers (Lewis et al. 2021): in training every token has exactly one expert and experts' loads are equal (where n
 * does not divide by e, within one of each other), such that the total of the logits is largest; in evaluation each
 * token takes the expert it likes best. The gate is sigmoid(x . w_i). */
#include <math.h>
#include <string.h>

#include "moe/assign/assign.h"
#include "moe/routers/token_choice.h"

static int check(const choir_router_options *o, int n, int e, int sequence_length) {
  (void)sequence_length;
  return ch_router_check_sizes(o, n, e);
}

/* Outside a layer any affinities stand for the logits. */
static const real *logits_of(const ch_route_args *a) { return a->logits ? a->logits : a->scores; }

static real sigmoid(real x) { return (real)(1 / (1 + exp(-(double)x))); }

/* Every token to its best expert, which has room for all. */
static void greedy(ch_exec *x, const ch_route_args *a) {
  size_t mark = ch_arena_mark(&x->scratch);
  ch_choices c = ch_choices_alloc(x, a, 1);
  ch_route_args by_logits = *a;
  by_logits.scores = logits_of(a);
  if (!ch_counting(x)) {
    ch_choices_best(x, &by_logits, &c);
    for (int64_t t = 0; t < a->n; t++)
      if (c.expert[t] >= 0) c.gate[t] = sigmoid(by_logits.scores[t * a->e + c.expert[t]]);
    ch_choices_place(a, &c, ch_valid_count(a->valid, a->n));
    a->counts->aux_loss = 0;
  }
  ch_arena_release(&x->scratch, mark);
}

static void balanced(ch_exec *x, const ch_route_args *a) {
  size_t mark = ch_arena_mark(&x->scratch);
  const ch_record *r = a->record;
  const real *logits = logits_of(a);
  real *beta = CH_NEW(&x->scratch, real, a->e);
  ch_assign(x, &(ch_assign_args){.n = a->n,
                                 .e = a->e,
                                 .pools = 1,
                                 .largest = a->n,
                                 .pool_begin = (int[]){0, a->n},
                                 .cap = 1,
                                 .balanced = 1,
                                 .valid = a->valid,
                                 .score = logits,
                                 .record = a->record,
                                 .beta = beta,
                                 .certificate = &a->counts->certificate});
  if (!ch_counting(x)) {
    a->counts->capacity = (ch_valid_count(a->valid, a->n) + a->e - 1) / a->e;
    a->counts->dropped = 0;
    a->counts->aux_loss = 0;
    for (int i = 0; i < a->e; i++) {
      a->counts->demand[i] = r->expert_begin[i + 1] - r->expert_begin[i];
      for (int s = r->expert_begin[i]; s < r->expert_begin[i + 1]; s++)
        r->slot_gate[s] = sigmoid(logits[(int64_t)r->slot_token[s] * a->e + i]);
    }
  }
  ch_arena_release(&x->scratch, mark);
}

/* One plan serves training and evaluation. */
static void route(ch_exec *x, const ch_route_args *a) {
  if (a->training || ch_counting(x)) balanced(x, a);
  if (!a->training || ch_counting(x)) greedy(x, a);
}

/* Straight to the logits: sigmoid' = g (1 - g). */
static void backward(ch_exec *x, const ch_route_args *a) {
  if (ch_counting(x)) return;
  const ch_record *r = a->record;
  memset(a->dscores, 0, (size_t)a->n * (size_t)a->e * sizeof *a->dscores);
  for (int i = 0; i < a->e; i++)
    for (int s = r->expert_begin[i]; s < r->expert_begin[i + 1]; s++)
      a->dscores[(int64_t)r->slot_token[s] * a->e + i] = a->dgate[s] * r->slot_gate[s] * (1 - r->slot_gate[s]);
}

const ch_router ch_router_base = {
    .name = "base",
    .summary = "in training every token has one expert and loads are equal, else its best expert (Lewis et al. 2021)",
    .reads = CH_READS_LOGITS,
    .looks = CH_LOOKS_IN_TRAINING,
    .choices = 1,
    .defaults = {CH_ROUTER_DEFAULTS("base"), .capacity_factor = 1},
    .check = check,
    .max_slots = ch_fixed_max_slots,
    .route = route,
    .causal = greedy,
    .backward = backward,
};
