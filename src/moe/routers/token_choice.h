/* Functions for routers where tokens choose: top-K experts, capacity, load-balancing loss. */
#ifndef CH_MOE_ROUTERS_TOKEN_CHOICE_H
#define CH_MOE_ROUTERS_TOKEN_CHOICE_H

#include "moe/router.h"

/* The chosen experts of every token, best first. */
typedef struct ch_choices {
  int per_token;      /* K */
  int CH_DEV *choice; /* [n,K] or -1: none (padding, or removed by sampling) */
  real CH_DEV *value; /* [n,K] the values that they were chosen by */
} ch_choices;

/* Allocates scratch for K choices of n tokens. */
ch_choices ch_choices_alloc(ch_exec *x, const ch_route_args *a, int per_token);

/* Chooses each valid token's K experts of largest score [n,e] - shift [e] (NULL: 0); ties: the lower expert index
 * first. */
void ch_choices_best(ch_exec *x, const ch_route_args *a, const real CH_DEV *scores, const real CH_DEV *shift,
                     const ch_choices *c);

/* Fills record (without gates) and counts. All first choices are placed before all second ones, in token order or in
 * the order of best values (options->priority), until an expert reaches its capacity, `factor` times the even load (0:
 * unlimited). Choices of full experts are dropped and counted. */
void ch_choices_place(ch_exec *x, const ch_route_args *a, const ch_choices *c, double factor);

/* Writes the load-balancing loss of GShard and Switch to the counts; backward adds its gradient to dscores. */
void ch_choices_balance(ch_exec *x, const ch_route_args *a, const ch_choices *c);
void ch_choices_balance_backward(ch_exec *x, const ch_route_args *a, const ch_choices *c);

/* Routing without scores: assigns each valid token to expert id mod e, with gate 1 and unlimited capacity. */
void ch_fixed_route(ch_exec *x, const ch_route_args *a);

/* Top-K routing with the load-balancing loss of GShard and Switch: `route` with the capacity of the options (factor 0:
 * unlimited), `causal` with unlimited capacity, and `backward`. Gates are scores, or scores divided by the sum of the
 * token's K scores for CHOIR_READS_SHARES. */
void ch_token_choice_route(ch_exec *x, const ch_route_args *a);
void ch_token_choice_causal(ch_exec *x, const ch_route_args *a);
void ch_token_choice_backward(ch_exec *x, const ch_route_args *a);

/* With unlimited capacity a token depends on no other token, else on earlier tokens, or on all tokens if the best
 * scores have priority. */
choir_depends_on ch_token_choice_depends_on(const ch_router_spec *o, int training);

/* `check` for K experts per token (ch_router_choices), and `max_slots` with unlimited and with limited capacity. */
int ch_token_choice_check(const ch_router_spec *o, int n, int e, int sequence_length);
int ch_token_choice_slots(const ch_router_spec *o, int n, int e, int sequence_length);
int ch_token_choice_max_slots(const ch_router_spec *o, int n, int e, int sequence_length);

#endif
