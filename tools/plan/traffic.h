/* Counts from the config what ranks send each other in a training step, by the formulas of docs/planning.md. One
 * process sends nothing. tests/test_ranks.c compares with bytes that the engine has counted. */
#ifndef CH_PLAN_TRAFFIC_H
#define CH_PLAN_TRAFFIC_H

#include "model/param.h"
#include "plan/dense.h"
#include "train/layout.h"

typedef enum {
  CH_FLOW_SCORES,    /* S or logits of all tokens, to all ranks: every one selects; or to the experts' owners */
  CH_FLOW_CHOSEN,    /* what experts took at their owners, to all */
  CH_FLOW_ROWS,      /* rows of tokens to their experts and back */
  CH_FLOW_HIDDEN,    /* what the optimizer measures of experts, between their hidden shards */
  CH_FLOW_GATES,     /* gradients of gates, to all, where they are more than scores */
  CH_FLOW_CENTROIDS, /* rows of all tokens, to all, for a router that keeps their means */
  CH_FLOW_DENSE,     /* gradients of what every rank has */
  CH_FLOW_MATRICES,  /* dense matrices that live on one rank each, to the others */
  CH_FLOW_EXPERTS,   /* gradients of experts, between the ranks that hold them */
  CH_FLOW_NUMBERS,   /* losses of shards, squares of experts' gradients */
  CH_FLOWS
} ch_flow_kind;

/* A config whose train.shards is a multiple of layout->ranks, with the parameter table of its model. */
ch_flow ch_flow_of(const choir_config *config, const ch_params *params, const ch_layout *layout, ch_flow_kind kind);

/* Bytes of an element of a row that travels: 4, or 2 (parallel.wire). */
int ch_flow_element_bytes(const choir_config *config);

/* Bytes that a slot costs in a step whose token is of another rank than its expert. */
int64_t ch_flow_slot_bytes(const choir_config *config);

/* Slots of a micro-batch, of all ranks and experts: n c where experts choose. */
int64_t ch_flow_slots(const choir_config *config);

/* Groups of experts whose rows travel one after the other (moe/dispatch.h). */
int ch_flow_groups(const choir_config *config, const ch_layout *layout);

/* Scores that one rank selects from in a micro-batch and MoE layer. */
int64_t ch_flow_selected(const choir_config *config, const ch_layout *layout);

/* Layers that are MoE. */
int ch_flow_moe_layers(const choir_config *config);

#endif
