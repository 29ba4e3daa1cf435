/* One kind of traffic of a step, as it is counted and as it is timed. */
#ifndef CH_PLAN_FLOW_H
#define CH_PLAN_FLOW_H

#include <stdint.h>

typedef struct ch_flow {
  const char *name;  /* for people */
  double bytes;      /* that all ranks together send in a step; of rows in the mean over the tokens that may be taken */
  double busiest;    /* the same if all sent, or got, as much as the rank that does most in each exchange: time goes by
                        it; 0: they do */
  int64_t exchanges; /* of one rank in a step, one after the other; what goes at once is one */
  int64_t messages;  /* of one rank in a step, to each other one */
  int size, stride;  /* ranks that exchange with each other: every `stride`-th, `size` of them */
} ch_flow;

#endif
