/* Shared by the routers where each token chooses its experts: best experts, capacity, load-balancing loss. */
#ifndef CH_MOE_ROUTERS_TOKEN_CHOICE_H
#define CH_MOE_ROUTERS_TOKEN_CHOICE_H

#include "moe/router.h"

/* The experts that every token asks for, best first. */
typedef struct ch_choices {
  int per_token;      /* K */
  int CH_DEV *choice; /* [n,K] or -1: none (padding, sampled away) */
  real CH_DEV *value; /* [n,K] by what they were chosen */
} ch_choices;

/* Allocates scratch for K choices of n tokens. */
ch_choices ch_choices_alloc(ch_exec *x, const ch_route_args *a, int per_token);

/* Each valid token's K best by score [n,e] less shift [e] (or NULL), ties to the lower expert index. */
void ch_choices_best(ch_exec *x, const ch_route_args *a, const real CH_DEV *scores, const real CH_DEV *shift,
                     const ch_choices *c);

/* Fills record (but for its gates) and counts: all first choices before all second ones, each in token order or, by
 * options->priority, that of their best values, until an expert holds `factor` times an even share; 0: there is room
 * for all. What finds its expert full is dropped and
 * counted. */
void ch_choices_place(ch_exec *x, const ch_route_args *a, const ch_choices *c, double factor);

/* The load-balancing loss of GShard and Switch into the counts, and its gradient added to dscores. */
void ch_choices_balance(ch_exec *x, const ch_route_args *a, const ch_choices *c);
void ch_choices_balance_backward(ch_exec *x, const ch_route_args *a, const ch_choices *c);

/* Routing without scores: each valid token to expert id mod e, with gate 1, and room for all. */
void ch_fixed_route(ch_exec *x, const ch_route_args *a);

/* Every token asks the best K experts, which hold what finds room: route, causal, where there is room for all, and
 * backward, with the load-balancing loss of GShard and Switch. No capacity factor is room for all. Gates are scores, or
 * shares of the K scores where the router reads these (CHOIR_READS_SHARES). */
void ch_token_choice_route(ch_exec *x, const ch_route_args *a);
void ch_token_choice_causal(ch_exec *x, const ch_route_args *a);
void ch_token_choice_backward(ch_exec *x, const ch_route_args *a);

/* Where there is room for all, nobody looks at who came first; where the best come first, everybody looks at all. */
choir_depends_on ch_token_choice_depends_on(const ch_router_spec *o, int training);

/* check of K experts a token (ch_router_choices), and max_slots where there is room for all, and under capacity. */
int ch_token_choice_check(const ch_router_spec *o, int n, int e, int sequence_length);
int ch_token_choice_slots(const ch_router_spec *o, int n, int e, int sequence_length);
int ch_token_choice_max_slots(const ch_router_spec *o, int n, int e, int sequence_length);

#endif
