/* Assignments with constraints on both sides: every expert has k tokens of a pool, and a token has at most b experts
 * (capped expert choice), or exactly one (BASE layers). See docs/assignment.md. The solvers run on the host: all
 * arrays, and the memory of the executors, are host memory. */
#ifndef CH_MOE_ASSIGN_ASSIGN_H
#define CH_MOE_ASSIGN_ASSIGN_H

#include "moe/router.h"

typedef struct ch_assign_args {
  int n, e, pools;
  int largest;           /* tokens of the largest pool, for the counting run, which reads no array */
  const int *pool_begin; /* [pools+1] */
  const int *order;      /* [n] tokens of pool p are order[pool_begin[p]] ..., ascending; NULL: order[i] = i */
  const int *k;          /* [pools] results of ch_assign_k; not read if balanced */
  int cap;               /* b; if b >= e there is no cap, and the result is that of op `select` */
  int balanced;          /* every token has exactly one expert, and loads differ by at most one */
  int solver;            /* always exact if balanced */
  double lambda;         /* dykstra only */
  int iterations, stages;
  const uint8_t *valid; /* [n] or NULL */
  const real *score;    /* [n,e] -infinity: avoid this pair unless there is no other assignment */
  uint8_t *assigned;    /* [n,e] out: 1 if the token is assigned to the expert, else 0 */
  real *beta;           /* [pools,e] out: dual prices of the experts, +infinity for a pool without valid tokens */
  real *alpha;          /* [n] out or NULL: dual prices of the tokens, 0 for padding */
  choir_certificate *certificate; /* out: accumulated over all pools */
} ch_assign_args;

/* The largest feasible k' <= k for `valid` tokens and e experts: k' <= valid and e k' <= cap valid. */
int ch_assign_k(int k, int valid, int e, int cap);

/* Solves all pools. In the counting run only allocates scratch. */
void ch_assign(ch_exec *x, const ch_assign_args *a);

/* ---- the solvers of a pool, whose rows are its valid tokens ---- */

typedef struct ch_pool {
  int rows, e;
  int k, cap, balanced;
  const real *score; /* [rows,e] finite */
  uint8_t *assigned; /* [e,rows] out: 1 if the row is assigned to the expert; initially 0 */
  double *beta;      /* [e] out */
  double *alpha;     /* [rows] set by ch_assign_prove */
  /* violations (choir_certificate) by dykstra's result before its top-k, or by the result of exact */
  double expert_before, token_before;
  int iterations;
} ch_pool;

void ch_assign_exact(ch_exec *x, ch_pool *p);
void ch_assign_dykstra(ch_exec *x, ch_pool *p, double lambda, int iterations, int stages);

/* Assigns to every expert the k rows of largest value [rows,e], without a cap. cutoff [e] or NULL: the k-th largest
 * value. */
void ch_assign_top(ch_exec *x, ch_pool *p, const real *value, real *cutoff);

/* Max load of an expert; in a balanced pool all loads are this or one less. */
static inline int ch_pool_max(const ch_pool *p) { return p->balanced ? (p->rows + p->e - 1) / p->e : p->k; }

/* The solver for pools without a cap: the prices are the cut-off scores. */
void ch_assign_uncapped(ch_exec *x, ch_pool *p);

/* Computes the certificate of a pool's assignment from its prices, adds it to c, and sets alpha. */
void ch_assign_prove(ch_exec *x, const ch_pool *p, choir_certificate *c);

#endif
