/* Assignments with a rule on both sides: every expert takes k tokens of a pool, and a token is taken by at most b
 * experts (capped expert choice), or by exactly one (BASE layers). See docs/assignment.md. All of it works on the host:
 * arrays are the host's, and so is the memory of the executors that are passed in. */
#ifndef CH_MOE_ASSIGN_ASSIGN_H
#define CH_MOE_ASSIGN_ASSIGN_H

#include "moe/router.h"

typedef struct ch_assign_args {
  int n, e, pools;
  int largest;           /* tokens of the largest pool: known in the counting run, which reads no array */
  const int *pool_begin; /* [pools+1] */
  const int *order;      /* [n] tokens of pool p are order[pool_begin[p]] ..., ascending; NULL: their own numbers */
  const int *k;          /* [pools] as ch_assign_k leaves it; not read when balanced */
  int cap;               /* b; from e on it binds nobody, and the result is op `select`'s */
  int balanced;          /* every token gets exactly one expert, and experts' loads differ by one at most */
  int solver;            /* balanced: exact always */
  double lambda;         /* of dykstra */
  int iterations, stages;
  const uint8_t *valid;           /* [n] or NULL */
  const real *score;              /* [n,e] -infinity: never, if it can be helped */
  uint8_t *assigned;              /* [n,e] out: 1 where the expert takes the token, else 0 */
  real *beta;                     /* [pools,e] out: the experts' prices, +infinity for a pool without valid tokens */
  real *alpha;                    /* [n] out or NULL: the tokens' prices, 0 where not valid */
  choir_certificate *certificate; /* out: of all pools together */
} ch_assign_args;

/* The largest k' <= k that `valid` tokens and e experts allow: k' <= valid, e k' <= cap valid. */
int ch_assign_k(int k, int valid, int e, int cap);

/* Assigns. Scratch first; returns at once in the counting run. */
void ch_assign(ch_exec *x, const ch_assign_args *a);

/* ---- the solvers of a pool, whose rows are its valid tokens ---- */

typedef struct ch_pool {
  int rows, e;
  int k, cap, balanced;
  const real *score; /* [rows,e] finite */
  uint8_t *assigned; /* [e,rows] out: 1 where the expert takes the row; comes in 0 */
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
static inline int ch_pool_max(const ch_pool *p) { return p->balanced ? (p->rows + p->e - 1) / p->e : p->k; }

/* The solver where nobody has a cap: the prices are the cut-off scores. */
void ch_assign_uncapped(ch_exec *x, ch_pool *p);

/* Adds the proof by a pool's result and prices to the certificate; fills alpha. */
void ch_assign_prove(ch_exec *x, const ch_pool *p, choir_certificate *c);

#endif
