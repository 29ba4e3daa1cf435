/* The traffic between ranks in a training step, counted from the config by the formulas of docs/planning.md, and its
 * time on the links. One process sends nothing. tests/train/test_ranks.c compares with the bytes counted in real runs.
 * */
#ifndef CH_PLAN_TRAFFIC_H
#define CH_PLAN_TRAFFIC_H

#include "comm/comm.h"
#include "model/param.h"
#include "plan/cluster.h"
#include "train/layout.h"

/* The size and timing of one kind of traffic in a step. */
typedef struct ch_flow {
  const char *name; /* displayed name */
  double bytes;     /* sent by all ranks together in a step; for rows, the mean over the tokens that may be assigned */
  double busiest; /* if ranks differ: the bytes if all of them sent or received as much as the busiest in each exchange,
                     which determines the time; 0: all are equal */
  int64_t exchanges; /* successive exchanges of one rank in a step; simultaneous transfers count as one */
  int64_t messages;  /* sent by one rank to each other rank in a step */
  int size, stride;  /* the group of ranks that exchange with each other: `size` ranks, every `stride`-th */
} ch_flow;

typedef enum {
  CH_FLOW_SCORES,    /* S or logits of all tokens: to all ranks, which all select; or to the experts' owners */
  CH_FLOW_CHOSEN,    /* assignments made at the experts' owners, to all ranks */
  CH_FLOW_ROWS,      /* rows of tokens to their experts and back */
  CH_FLOW_HIDDEN,    /* optimizer statistics of experts, between their hidden shards */
  CH_FLOW_GATES,     /* gradients of gates, to every rank, for routers whose gates are not just scores */
  CH_FLOW_CENTROIDS, /* rows of all tokens, to all ranks, for a router that keeps their means */
  CH_FLOW_DENSE,     /* gradients of parameters that every rank has */
  CH_FLOW_MATRICES,  /* sharded dense matrices, from their owner to the others */
  CH_FLOW_EXPERTS,   /* gradients of experts, between the replicas' ranks that hold them */
  CH_FLOW_NUMBERS,   /* losses of gradient chunks, squares of experts' gradients */
  CH_FLOWS
} ch_flow_kind;

/* A config whose train.grad_chunks is a multiple of layout->ranks, with the parameter table of its model. */
ch_flow ch_flow_of(const choir_config *config, const ch_params *params, const ch_layout *layout, ch_flow_kind kind);

/* Bytes per element of a dispatched row: 4, or 2 (parallel.dispatch_dtype). */
int ch_flow_element_bytes(const choir_config *config);

/* Bytes per slot in a step, if the token and the expert are on different ranks. */
int64_t ch_flow_slot_bytes(const choir_config *config);

/* Groups of experts whose rows are sent one after the other (dispatch/dispatch.h). */
int ch_flow_groups(const choir_config *config, const ch_layout *layout);

/* Scores that one rank selects from in a micro-batch and MoE layer. */
int64_t ch_flow_selected(const choir_config *config, const ch_layout *layout);

/* ---- dense.c: gradients of dense weights, and sharded dense matrices ---- */

/* Gradients of dense parameters, summed to every rank; gradients of sharded matrices, to their owners only. */
void ch_flow_sums(const choir_config *config, const ch_params *params, const ch_layout *layout, ch_flow *f);

/* Sharded matrices, sent to the other ranks of the replica. */
void ch_flow_prefetches(const choir_config *config, const ch_params *params, const ch_layout *layout, ch_flow *f);

/* Owners of the sharded matrices, computed layer by layer from the first on. */
typedef struct ch_dense_owners {
  const choir_config *config;
  const ch_params *params;
  const ch_layout *layout;
  int64_t has[CH_RANKS]; /* elements so far on each rank of a replica */
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
  double seconds; /* per step, for the rank that waits longest */
  double
      bytes[CH_LEVELS]; /* per step over all ranks, by the highest level that they cross: together those of the flow */
  int level;            /* the level whose links take longest */
} ch_passage;

/* Computes the time of a flow among the first `ranks` ranks of a cluster, if every exchange is spread evenly over
 * the group and no other traffic uses the links. */
ch_passage ch_passage_of(const ch_cluster *cluster, int ranks, const ch_flow *flow);

#endif
