/* BASE layers (Lewis et al. 2021): training assigns one expert to every token so that loads are equal (or differ by one
 * if e does not divide n) and the sum of the assigned logits is maximal; evaluation gives each token its expert of
 * highest logit. The gate is sigmoid(x . w_i). */
#include "moe/assign/assign.h"
#include "moe/routers/token_choice.h"

static ch_gate_args gates(const ch_route_args *a) {
  return (ch_gate_args){.rule = CH_GATE_SIGMOID,
                        .record = &a->routing->record,
                        .score = a->routing->logits,
                        .dgate = a->routing->dgate,
                        .dscore = a->routing->dscores};
}

/* Assigns every token to its best expert, without a capacity. */
static void greedy(ch_exec *x, const ch_route_args *a) {
  CH_SCRATCH(x);
  ch_choices c = ch_choices_alloc(x, a, 1);
  ch_gate_args gate = gates(a);
  ch_choices_best(x, a, a->routing->logits, NULL, &c);
  ch_choices_place(x, a, &c, 0);
  x->ops->gate(x, &gate);
}

static void balanced(ch_exec *x, const ch_route_args *a) {
  CH_SCRATCH(x);
  ch_gate_args gate = gates(a);
  ch_arena *host = &ch_host(x)->scratch;
  size_t cells = (size_t)a->n * (size_t)a->e;
  uint8_t *assigned = CH_NEW_HOST(host, uint8_t, cells);
  ch_assign(ch_host(x), &(ch_assign_args){.n = a->n,
                                          .e = a->e,
                                          .pools = 1,
                                          .largest = a->n,
                                          .pool_begin = (int[]){0, a->n},
                                          .cap = 1,
                                          .balanced = 1,
                                          .valid = a->tokens.mask,
                                          .score = ch_download(x, a->routing->logits, cells * sizeof(real)),
                                          .assigned = assigned,
                                          .beta = CH_NEW_HOST(host, real, a->e),
                                          .certificate = &a->routing->counts.certificate});
  CH_OP(x, collect, .keep = ch_upload(&x->scratch, assigned, cells), .record = &a->routing->record);
  ch_router_demand_is_load(x, a);
  x->ops->gate(x, &gate);
  a->routing->counts.capacity = a->routing->record.max = (ch_valid_count(a->tokens.mask, a->n) + a->e - 1) / a->e;
}

/* One plan serves training and evaluation. */
static void route_base(ch_exec *x, const ch_route_args *a) {
  if (!a->training || ch_counting(x)) greedy(x, a);
  if (a->training || ch_counting(x)) balanced(x, a); /* second: its bound counts */
}

/* Gradient with respect to the logits. */
static void backward_base(ch_exec *x, const ch_route_args *a) {
  ch_gate_args gate = gates(a);
  x->ops->gate_backward(x, &gate);
}

const ch_router ch_router_base = {
    .name = "base",
    .summary =
        "in training, one expert per token with equal loads; otherwise each token's best expert (Lewis et al. 2021)",
    .reads = CHOIR_READS_LOGITS,
    .depends_on = CHOIR_DEPENDS_ON_ALL_IN_TRAINING,
    .gates = CHOIR_GATES_SIGMOID,
    .choices = 1,
    .defaults = {.capacity_factor = 1},
    .check = ch_token_choice_check,
    .max_slots = ch_token_choice_slots,
    .route = route_base,
    .causal = greedy,
    .backward = backward_base,
};
