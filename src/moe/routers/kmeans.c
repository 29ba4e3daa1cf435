/* Hard routing by clusters: a token goes to the expert whose centroid is nearest to its hidden state, gate 1. Centroids
 * are the columns of the router's weight [d,e]; no gradient trains them: `observe` moves each toward the mean of the
 * tokens that it got. |x - mu|^2 / 2 = |x|^2 / 2 - (x.mu - |mu|^2 / 2), and x.mu are the logits. */
#include "moe/routers/threshold.h"
#include "moe/routers/token_choice.h"

/* |mu|^2 / 2 of every expert; NULL outside a layer, where there are no centroids and the best score is the nearest. */
static const real CH_DEV *half_squares(ch_exec *x, const ch_route_args *a) {
  if (!a->weight) return NULL;
  real CH_DEV *half = CH_NEW(&x->scratch, real, a->e);
  CH_OP(x, half_squares, .d = a->d, .e = a->e, .w = a->weight, .half = half);
  return half;
}

static void route_kmeans(ch_exec *x, const ch_route_args *a) {
  CH_SCRATCH(x);
  ch_choices c = ch_choices_alloc(x, a, 1);
  ch_choices_best(x, a, a->routing->logits, half_squares(x, a), &c);
  ch_choices_place(x, a, &c, 0);
  CH_OP(x, gate, .rule = CH_GATE_EVEN, .count = 1, .record = &a->routing->record);
}

/* state is the weight itself: what is asked of the old centroids is asked before they move. */
static void observe(ch_exec *x, const ch_route_args *a) {
  CH_SCRATCH(x);
  CH_OP(x, kmeans, .record = &a->routing->record, .d = a->d,
        .weight = ch_router_mean_weight(a->options->decay, a->kept.observed), .valid = a->tokens.valid, .x = a->x,
        .logits = a->routing->logits, .half = half_squares(x, a), .centroid = a->kept.state);
}

const ch_router ch_router_kmeans = {
    .name = "kmeans",
    .summary = "the expert whose centroid is nearest; centroids follow the tokens, not gradients",
    .reads = CH_READS_LOGITS,
    .options = CH_ROUTER_TAKES(decay),
    .choices = 1,
    .defaults = {.capacity_factor = 1},
    .check = ch_token_choice_check,
    .max_slots = ch_token_choice_slots,
    .route = route_kmeans,
    .observe = observe,
};
