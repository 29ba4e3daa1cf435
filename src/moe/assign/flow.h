/* The exact solver's network: experts are nodes, rows (tokens) are what flows between them. A row that gives up expert
 * u for expert v moves one unit from u to v and loses S[row,u] - S[row,v]; the slack that a row keeps is a node too, of
 * score 0, where rows may hold less than their cap. */
#ifndef CH_MOE_ASSIGN_FLOW_H
#define CH_MOE_ASSIGN_FLOW_H

#include "moe/assign/assign.h"

enum { CH_CHEAPEST_FAN = 8, CH_CHEAPEST_LEVELS = 12 };

/* The rows that a node holds, and the cheapest moves out of the node. A tree over blocks of consecutive rows stores the
 * cheapest move of each block, of each group of CH_CHEAPEST_FAN blocks, and so on up to a root for all rows. */
typedef struct ch_cheapest {
  int block;                     /* rows, a multiple of 64 */
  int levels;                    /* level 0 has the blocks, the last level the root */
  int parts[CH_CHEAPEST_LEVELS]; /* tree nodes of a level */
  int first[CH_CHEAPEST_LEVELS]; /* a level's first tree node among all */
  uint64_t *holds;               /* a bit for every row */
  double *cost;                  /* [parts of all, ld] */
  int *carrier;                  /* [parts of all, ld] the row, or -1 */
  uint8_t *stale;                /* [parts of all] 1: must be recomputed, with all ancestors */
} ch_cheapest;

typedef struct ch_mincost_flow {
  ch_exec *x;
  int rows, e;
  int nodes;        /* e, and one for slack where rows may keep some */
  int64_t ld;       /* nodes, rounded up: columns of the matrices */
  real *score;      /* [rows,ld] the node `slack` scores 0 */
  real *open;       /* [rows,ld] score where the row may take the node, -infinity where it cannot */
  int *slack;       /* [rows] experts that the row may take beside those it has */
  int *excess;      /* [nodes] rows that the node holds beyond its share */
  int *held;        /* [e] rows of an expert */
  double *beta;     /* [ld] prices: no move gains, cost[u,v] - beta[u] + beta[v] >= 0 */
  ch_cheapest *out; /* [nodes] */
  int *some_rows;   /* [rows] scratch */
  /* shortest paths */
  double *distance; /* [nodes] */
  int *previous;
  uint8_t *settled;
  double *step_cost; /* [nodes] of the path's last move into the node, and a row that makes it */
  int *step_row;
  int moves; /* so far */
} ch_mincost_flow;

/* Memory from scratch, which is the host's. */
void ch_flow_alloc(ch_exec *x, ch_mincost_flow *f, int rows, int e, int keeps_slack);

/* No row holds anything. */
void ch_flow_clear(ch_mincost_flow *f);

/* A row takes an expert while the network is set up, before anything moves. */
void ch_flow_take(ch_mincost_flow *f, int row, int expert);

/* Moves rows until no node holds more than its share; total score falls as little as possible. */
void ch_flow_balance(ch_mincost_flow *f);

/* --- what nodes hold and remember (cheapest.c) --- */

void ch_cheapest_alloc(ch_mincost_flow *f, ch_cheapest *c, int block);
void ch_cheapest_clear(ch_cheapest *c);

static inline int ch_cheapest_holds(const ch_cheapest *c, int row) { return (int)(c->holds[row / 64] >> row % 64 & 1); }

/* A row comes or goes, or what it may take has changed. */
void ch_cheapest_put(ch_cheapest *c, int row, int holds);

/* A row of the node may no longer go to node `to`, or may now, at that loss. */
void ch_cheapest_withdraw(const ch_mincost_flow *f, ch_cheapest *c, int row, int to);
void ch_cheapest_offer(const ch_mincost_flow *f, ch_cheapest *c, int row, int to, double loss);

/* The part that means all rows of the node: where its costs and carriers are. */
static inline int64_t ch_cheapest_all(const ch_mincost_flow *f, const ch_cheapest *c) {
  return c->first[c->levels - 1] * f->ld;
}

/* Finds again what is stale. */
void ch_cheapest_refresh(ch_mincost_flow *f, int node);

/* Up to `most` rows that can go from node to `to` at that cost, which is the least, ascending; returns how many. */
int ch_cheapest_carriers(const ch_mincost_flow *f, int node, int to, double cost, int max, int *row);

#endif
