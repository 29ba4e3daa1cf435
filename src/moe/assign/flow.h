/* The exact solver's network: experts are nodes, and rows (tokens) flow between them. Reassigning a row from expert u
 * to expert v moves one unit from u to v and costs S[row,u] - S[row,v]. If rows may have fewer experts than their cap,
 * unused capacity is one more node, `slack`, with score 0. */
#ifndef CH_MOE_ASSIGN_FLOW_H
#define CH_MOE_ASSIGN_FLOW_H

#include "moe/assign/assign.h"

enum { CH_CHEAPEST_FAN = 8, CH_CHEAPEST_LEVELS = 12 };

/* The rows that a node holds, and the cheapest moves out of the node. A tree over blocks of consecutive rows stores the
 * cheapest move of each block, of each group of CH_CHEAPEST_FAN blocks, and so on up to a root for all rows. */
typedef struct ch_cheapest {
  int block;                     /* rows per block, a multiple of 64 */
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
  int nodes;        /* e, plus one for slack if rows may have fewer experts than their cap */
  int64_t ld;       /* nodes, rounded up: columns of the matrices */
  real *score;      /* [rows,ld] the node `slack` scores 0 */
  real *open;       /* [rows,ld] score if the row can be assigned to the node, else -infinity */
  int *slack;       /* [rows] unused capacity of the row: its cap minus its experts */
  int *excess;      /* [nodes] rows of the node minus its target load */
  int *held;        /* [e] load of an expert */
  double *beta;     /* [ld] dual prices: all reduced costs cost[u,v] - beta[u] + beta[v] are >= 0 */
  ch_cheapest *out; /* [nodes] */
  int *some_rows;   /* [rows] scratch */
  /* shortest paths */
  double *distance; /* [nodes] */
  int *previous;
  uint8_t *settled;
  double *step_cost; /* [nodes] cost of the path's last move into the node, and the row that makes it */
  int *step_row;
  int moves; /* number of moves so far */
} ch_mincost_flow;

/* Allocates the network from the host's scratch. */
void ch_flow_alloc(ch_exec *x, ch_mincost_flow *f, int rows, int e, int keeps_slack);

/* Removes all assignments. */
void ch_flow_clear(ch_mincost_flow *f);

/* Assigns a row to an expert while the network is set up, before any move. */
void ch_flow_take(ch_mincost_flow *f, int row, int expert);

/* Moves rows until no node exceeds its target load, with the least possible decrease of the total score. */
void ch_flow_balance(ch_mincost_flow *f);

/* --- rows of nodes and their cheapest moves (cheapest.c) --- */

void ch_cheapest_alloc(ch_mincost_flow *f, ch_cheapest *c, int block);
void ch_cheapest_clear(ch_cheapest *c);

static inline int ch_cheapest_holds(const ch_cheapest *c, int row) { return (int)(c->holds[row / 64] >> row % 64 & 1); }

/* Adds or removes a row of the node, or marks it stale because its possible moves have changed. */
void ch_cheapest_put(ch_cheapest *c, int row, int holds);

/* Updates the node after its row can no longer move to node `to`, or can move there now at a given cost. */
void ch_cheapest_withdraw(const ch_mincost_flow *f, ch_cheapest *c, int row, int to);
void ch_cheapest_offer(const ch_mincost_flow *f, ch_cheapest *c, int row, int to, double loss);

/* Index of the tree's root, which covers all rows of the node, in cost and carrier. */
static inline int64_t ch_cheapest_all(const ch_mincost_flow *f, const ch_cheapest *c) {
  return c->first[c->levels - 1] * f->ld;
}

/* Recomputes stale tree nodes. */
void ch_cheapest_refresh(ch_mincost_flow *f, int node);

/* Finds up to `max` rows, ascending, that can move from `node` to `to` at `cost`, the minimum; returns their number. */
int ch_cheapest_carriers(const ch_mincost_flow *f, int node, int to, double cost, int max, int *row);

#endif
