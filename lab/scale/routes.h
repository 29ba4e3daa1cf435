/* Made-up routings, the same on all ranks: which expert takes how many tokens of which rank. */
#ifndef SCALE_ROUTES_H
#define SCALE_ROUTES_H

#include "op/op.h"

/* How the tokens of all ranks would choose. */
typedef struct {
  int tokens;     /* of all ranks together; the record is made up for this number */
  double spread;  /* of expert i's tokens over ranks: weights exp(spread N(0,1)), by rank and expert */
  double popular; /* where tokens choose: how many ask for expert i goes by exp(popular N(0,1)) */
  uint64_t seed;
} scale_routes;
void scale_routes_set(const scale_routes *routes);

/* Tokens of the fullest expert, over the mean. */
double scale_routes_fullest(void);

/* The ops of routing: those that experts choose by, and tokens. Everything that the ranks' own code reads is there:
 * expert_begin, and slot_token of the record of all tokens. Arrays that only ops read are not written. */
void scale_fill_routes(ch_ops *ops);

#endif
