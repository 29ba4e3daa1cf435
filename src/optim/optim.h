/* An optimizer: how much state a tensor needs, and one update of it. A new one is one file and one row in optim.c. */
#ifndef CH_OPTIM_OPTIM_H
#define CH_OPTIM_OPTIM_H

#include "choir/config.h"
#include "op/op.h"

/* The options that not every optimizer takes: fields of choir_train_config. */
#define CH_OPTIM_OPTIONS(row) row(beta1) row(beta2) row(weight_decay)
#define CH_OPTIM_NUMBER(name) CH_OPTIM_NUMBER_##name,
enum { CH_OPTIM_OPTIONS(CH_OPTIM_NUMBER) };
#undef CH_OPTIM_NUMBER
#define CH_OPTIM_TAKES(name) (1u << CH_OPTIM_NUMBER_##name)
extern const char *const ch_optim_option_names[]; /* by number, NULL-terminated */

enum { CH_OPTIM_STATES = 2 };

/* A parameter as `batch` matrices, which are treated one by one; rows 1: vectors. */
typedef struct ch_optim_tensor {
  int64_t batch, rows, cols;
  int64_t all_cols; /* cols, unless the matrices are cut: then of the whole ones, on the ranks of x->grid.hidden */
  real CH_DEV *w;
  const real CH_DEV *g;
  ch_bf16 CH_DEV *w16;                  /* or NULL: gets the new w rounded */
  int frozen;                           /* has no state and is never updated */
  real CH_DEV *state[CH_OPTIM_STATES];  /* NULL where the tensor has none */
  int64_t state_count[CH_OPTIM_STATES]; /* elements */
} ch_optim_tensor;

typedef struct ch_optim_args {
  const choir_train_config *config;
  const ch_optim_tensor *tensor;
  int64_t step;                /* from 1 */
  double rate;                 /* of this step */
  double grad_scale;           /* multiplies g first */
  const double CH_DEV *finite; /* or NULL; where this number is not finite, nothing is updated */
} ch_optim_args;

typedef struct ch_optim {
  const char *name;
  unsigned options;                  /* CH_OPTIM_TAKES(...) */
  void (*shape)(ch_optim_tensor *t); /* sets state_count from the tensor's sizes; a fresh state is zero */
  void (*step)(ch_exec *x, const ch_optim_args *a);
} ch_optim;

extern const ch_optim *const ch_optims[];  /* NULL-terminated registration list */
extern const char *const ch_optim_names[]; /* the names in it, NULL-terminated */

/* By name, or NULL with a message that names the known ones. */
const ch_optim *ch_optim_find(const char *name);

#endif
