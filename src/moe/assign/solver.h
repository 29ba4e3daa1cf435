/* Shared by the solvers of a pool; its rows are its valid tokens. */
#ifndef CH_MOE_ASSIGN_SOLVER_H
#define CH_MOE_ASSIGN_SOLVER_H

#include "moe/router.h"

typedef struct ch_pool {
  int rows, e;
  int k, cap, balanced;
  const real *score; /* [rows,e] finite */
  uint8_t *taken;    /* [e,rows] out: 1 where the expert takes the row; comes in 0 */
  double *beta;      /* [e] out */
  double *alpha;     /* [rows] out of ch_assign_prove */
  /* what the solver itself found, before TopK; exact: the result */
  double expert_before, token_before;
  int iterations;
} ch_pool;

void ch_assign_exact(ch_exec *x, ch_pool *p);
void ch_assign_dykstra(ch_exec *x, ch_pool *p, double lambda, int iterations, int stages);

/* Every expert takes the k rows of largest value[rows,e], whatever the cap. cutoff [e] or NULL: the k-th best. */
void ch_assign_top(ch_exec *x, ch_pool *p, const real *value, real *cutoff);

/* Tokens that an expert of a balanced pool takes at most; all take as many or one less. */
static inline int ch_pool_most(const ch_pool *p) { return p->balanced ? (p->rows + p->e - 1) / p->e : p->k; }

/* The solver where nobody has a cap: the prices are the cut-off scores. */
void ch_assign_uncapped(ch_exec *x, ch_pool *p);

/* Adds the proof by a pool's result and prices to the certificate; fills alpha. */
void ch_assign_prove(ch_exec *x, const ch_pool *p, choir_certificate *c);

#endif
