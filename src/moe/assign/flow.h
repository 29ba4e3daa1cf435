/* The exact solver's network: experts are nodes, rows (tokens) are what flows between them. A row that gives up expert
 * u for expert v moves one unit from u to v and loses S[row,u] - S[row,v]; the slack that a row keeps is a node too, of
 * score 0, where rows may hold less than their cap. */
#ifndef CH_MOE_ASSIGN_FLOW_H
#define CH_MOE_ASSIGN_FLOW_H

#include "moe/assign/solver.h"

typedef struct ch_flow {
  ch_exec *x;
  int rows, e;
  int nodes;    /* e, and one for slack where rows may keep some */
  int64_t ld;   /* nodes, rounded up: columns of the matrices */
  real *score;  /* [rows,ld] the node `slack` scores 0 */
  real *open;   /* [rows,ld] score where the row may take the node, -infinity where it cannot */
  int *slack;   /* [rows] experts that the row may take beside those it has */
  int *excess;  /* [nodes] rows that the node holds beyond its share */
  int *list;    /* [e,rows] rows of an expert */
  int *held;    /* [e] how many */
  double *beta; /* [ld] prices: no move gains, cost[u,v] - beta[u] + beta[v] >= 0 */
  /* cheapest moves out of every node; those of a stale one are to be found again */
  double *cost; /* [nodes,ld] */
  int *carrier; /* [nodes,ld] the row, or -1 */
  uint8_t *stale;
  /* the same for the rows with slack, in blocks: they are many */
  int blocks;
  double *block_cost;
  int *block_carrier;
  uint8_t *block_stale;
  int *some_rows; /* [rows] scratch */
  /* shortest paths */
  double *distance; /* [nodes] */
  int *previous;
  uint8_t *settled;
  double *step_cost; /* [nodes] of the path's last move into the node, and a row that makes it */
  int *step_row;
  int moves; /* so far */
} ch_flow;

/* Memory from scratch, which is the host's. */
void ch_flow_alloc(ch_exec *x, ch_flow *f, int rows, int e, int keeps_slack);

/* A row takes an expert while the network is set up, before anything moves. */
void ch_flow_take(ch_flow *f, int row, int expert);

/* Moves rows until no node holds more than its share; total score falls as little as possible. */
void ch_flow_balance(ch_flow *f);

#endif
