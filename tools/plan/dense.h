/* Traffic of dense weights between ranks: their gradients, and matrices that live on one rank each. */
#ifndef CH_PLAN_DENSE_H
#define CH_PLAN_DENSE_H

#include <stdint.h>

#include "comm/comm.h"
#include "model/param.h"
#include "train/layout.h"

/* One kind of traffic of a step, as it is counted and as it is timed. */
typedef struct ch_flow {
  const char *name;  /* for people */
  double bytes;      /* that all ranks together send in a step; of rows in the mean over the tokens that may be taken */
  double busiest;    /* the same if all sent, or got, as much as the rank that does most in each exchange: time goes by
                        it; 0: they do */
  int64_t exchanges; /* of one rank in a step, one after the other; what goes at once is one */
  int64_t messages;  /* of one rank in a step, to each other one */
  int size, stride;  /* ranks that exchange with each other: every `stride`-th, `size` of them */
} ch_flow;

/* Gradients of what every rank has; of matrices that are dealt out to their owners alone. */
void ch_flow_sums(const choir_config *config, const ch_params *params, const ch_layout *layout, ch_flow *f);

/* Matrices that are dealt out, to the other ranks of the replica. */
void ch_flow_visits(const choir_config *config, const ch_params *params, const ch_layout *layout, ch_flow *f);

/* Who has them. Layer after layer, from the first on. */
typedef struct ch_dealing {
  const choir_config *config;
  const ch_params *params;
  const ch_layout *layout;
  int64_t has[CH_RANKS]; /* elements so far, of each rank of a replica */
} ch_dealing;

typedef struct ch_owned {
  double all, most, least; /* elements: of all ranks, and of those that have most and least of the layer */
  int matrices;            /* 0: all of it is 0, as it is where layers end */
} ch_owned;
ch_owned ch_deal_layer(ch_dealing *d, int layer);

/* The two steps of the visit of such a layer, in a step of training once for each micro-batch: from their owners, and
 * from all. */
enum { CH_VISIT_STEPS = 2 };
void ch_flow_visit(const ch_dealing *d, const ch_owned *layer, ch_flow steps[CH_VISIT_STEPS]);

#endif
