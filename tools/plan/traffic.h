/* What ranks send each other in a training step, counted from the config by the formulas of docs/planning.md, and how
 * long links take for it. One process sends nothing. tests/train/test_ranks.c compares with bytes that the engine has
 * counted.
 */
#ifndef CH_PLAN_TRAFFIC_H
#define CH_PLAN_TRAFFIC_H

#include "comm/comm.h"
#include "model/param.h"
#include "plan/cluster.h"
#include "train/layout.h"

/* The size and timing of one kind of traffic in a step. */
typedef struct ch_flow {
  const char *name;  /* for people */
  double bytes;      /* that all ranks together send in a step; of rows in the mean over the tokens that may be taken */
  double busiest;    /* the same if all sent, or got, as much as the rank that does most in each exchange: time goes by
                        it; 0: they do */
  int64_t exchanges; /* successive exchanges of one rank in a step; simultaneous transfers count as one */
  int64_t messages;  /* that one rank sends to each other rank in a step */
  int size, stride;  /* ranks that exchange with each other: every `stride`-th, `size` of them */
} ch_flow;

typedef enum {
  CH_FLOW_SCORES,    /* S or logits of all tokens, to all ranks: every one selects; or to the experts' owners */
  CH_FLOW_CHOSEN,    /* what experts took at their owners, to all */
  CH_FLOW_ROWS,      /* rows of tokens to their experts and back */
  CH_FLOW_HIDDEN,    /* what the optimizer measures of experts, between their hidden shards */
  CH_FLOW_GATES,     /* gradients of gates, to every rank, for routers whose gates are more than scores */
  CH_FLOW_CENTROIDS, /* rows of all tokens, to all, for a router that keeps their means */
  CH_FLOW_DENSE,     /* gradients of what every rank has */
  CH_FLOW_MATRICES,  /* dense matrices that live on one rank each, to the others */
  CH_FLOW_EXPERTS,   /* gradients of experts, between the ranks that hold them */
  CH_FLOW_NUMBERS,   /* losses of shards, squares of experts' gradients */
  CH_FLOWS
} ch_flow_kind;

/* A config whose train.grad_chunks is a multiple of layout->ranks, with the parameter table of its model. */
ch_flow ch_flow_of(const choir_config *config, const ch_params *params, const ch_layout *layout, ch_flow_kind kind);

/* Bytes of an element of a row that travels: 4, or 2 (parallel.dispatch_dtype). */
int ch_flow_element_bytes(const choir_config *config);

/* Bytes that a slot costs in a step whose token is of another rank than its expert. */
int64_t ch_flow_slot_bytes(const choir_config *config);

/* Groups of experts whose rows travel one after the other (dispatch/dispatch.h). */
int ch_flow_groups(const choir_config *config, const ch_layout *layout);

/* Scores that one rank selects from in a micro-batch and MoE layer. */
int64_t ch_flow_selected(const choir_config *config, const ch_layout *layout);

/* ---- dense.c: gradients of dense weights, and matrices that live on one rank each ---- */

/* Gradients of dense parameters, summed to every rank; gradients of sharded matrices, to their owners only. */
void ch_flow_sums(const choir_config *config, const ch_params *params, const ch_layout *layout, ch_flow *f);

/* Sharded matrices, sent to the other ranks of the replica. */
void ch_flow_prefetches(const choir_config *config, const ch_params *params, const ch_layout *layout, ch_flow *f);

/* Who has them. Layer after layer, from the first on. */
typedef struct ch_dense_owners {
  const choir_config *config;
  const ch_params *params;
  const ch_layout *layout;
  int64_t has[CH_RANKS]; /* elements so far, of each rank of a replica */
} ch_dense_owners;

typedef struct ch_owned {
  double all, max, min; /* elements of the layer on all ranks together, and on the ranks with most and with least */
  int matrices;         /* 0 past the last layer; then every field is 0 */
} ch_owned;
ch_owned ch_owned_of_layer(ch_dense_owners *d, int layer);

/* The two steps of a layer's prefetch, for all micro-batches of a training step: owners scatter, then all ranks
 * exchange their shares. */
enum { CH_PREFETCH_STEPS = 2 };
void ch_flow_prefetch(const ch_dense_owners *d, const ch_owned *layer, ch_flow steps[CH_PREFETCH_STEPS]);

/* ---- network.c: time on the links of a cluster ---- */

typedef struct ch_passage {
  double seconds;          /* of a step, for the rank that waits longest */
  double bytes[CH_LEVELS]; /* of a step and all ranks, that turn round at each level: together those of the flow */
  int level;               /* whose links take longest */
} ch_passage;

/* A flow among the first `ranks` ranks of a cluster, every exchange spread evenly over the others of its group, each
 * with a link's bandwidth to itself except for the flow's own bytes. */
ch_passage ch_passage_of(const ch_cluster *cluster, int ranks, const ch_flow *flow);

#endif
