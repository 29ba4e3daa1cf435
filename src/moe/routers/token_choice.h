/* What routers share where each token chooses its experts: best experts, capacity, load-balancing loss. */
#ifndef CH_MOE_ROUTERS_TOKEN_CHOICE_H
#define CH_MOE_ROUTERS_TOKEN_CHOICE_H

#include "moe/router.h"

/* What every token asks for, best first. */
typedef struct ch_choices {
  int per_token; /* K */
  int *expert;   /* [n,K] or -1: no choice (padding, sampled away) */
  real *gate;    /* [n,K] */
  int *held;     /* [e] tokens that the expert holds, while they are placed */
  double *share; /* [e] share of the valid tokens whose first choice is the expert */
} ch_choices;

/* Allocates scratch for K choices of n tokens. */
ch_choices ch_choices_alloc(ch_exec *x, const ch_route_args *a, int per_token);

/* expert: each valid token's K (1 or 2) best by score, ties to the lower expert index; share: of the first choices. The
 * gates are left to the router. */
void ch_choices_best(ch_exec *x, const ch_route_args *a, ch_choices *c);

/* Fills record and counts, but for the auxiliary loss: all first choices before all second ones, each in token order,
 * until an expert holds `capacity`. What then finds its expert full is dropped and counted. */
void ch_choices_place(const ch_route_args *a, ch_choices *c, int capacity);

/* Load-balancing loss of GShard and Switch, e * sum_i f_i P_i: f_i is share[i], a constant, P_i the mean score of
 * expert i over valid tokens. Backward adds a->aux_scale times its gradient to a->dscores. */
double ch_balance_loss(const ch_route_args *a, const ch_choices *c);
void ch_balance_loss_backward(ch_exec *x, const ch_route_args *a, const ch_choices *c);

/* Routing without scores: each valid token to expert id mod e with gate 1, and room for all. Of one expert no id is
 * asked. */
void ch_fixed_route(ch_exec *x, const ch_route_args *a);
int ch_fixed_max_slots(const choir_router_options *o, int n, int e, int sequence_length);

/* max_slots of K choices a token. */
int ch_token_choice_max_slots(const choir_router_options *o, int per_token, int n, int e);

/* What every token-choice router with a capacity checks: sizes, and e of at least K. */
int ch_token_choice_check(const choir_router_options *o, int per_token, int n, int e);

#endif
