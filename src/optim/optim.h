/* The optimizer interface: a tensor's state, and one update of the tensor. A new optimizer needs one file and one row
 * in optim.c. */
#ifndef CH_OPTIM_OPTIM_H
#define CH_OPTIM_OPTIM_H

#include "config/config.h"
#include "op/op.h"

/* Numbers of the fields of "train" (config/train.def). An optimizer refuses other optimizers' options that it does not
 * accept itself. */
enum {
#define FIELD(kind, name, ...) CH_TRAIN_NUMBER_##name,
#include "config/train.def"
#undef FIELD
};
#define CH_OPTIM_TAKES(name) (1ull << CH_TRAIN_NUMBER_##name)
extern const char *const ch_train_field_names[]; /* by number, NULL-terminated */

enum { CH_OPTIM_STATES = 2 };

/* A parameter as `batch` independent matrices; rows 1: vectors. */
typedef struct ch_optim_tensor {
  int64_t batch, rows, cols;
  int64_t all_cols; /* columns of the whole matrix, > cols if it is sharded over the ranks of x->grid.tp_group */
  real CH_DEV *w;
  const real CH_DEV *g;
  ch_bf16 CH_DEV *w16;                  /* out: the new w rounded to bf16; NULL: no bf16 copy */
  int frozen;                           /* has no state and is never updated */
  real CH_DEV *state[CH_OPTIM_STATES];  /* NULL beyond state_count */
  int64_t state_count[CH_OPTIM_STATES]; /* elements */
} ch_optim_tensor;

typedef struct ch_optim_args {
  const ch_train_config *config;
  const ch_optim_tensor *tensor;
  int64_t step;                /* counted from 1 */
  double learning_rate;        /* learning rate of the step */
  double grad_scale;           /* factor applied to g first */
  const double CH_DEV *finite; /* the update is skipped if this number is NaN or infinite; NULL: always update */
} ch_optim_args;

typedef struct ch_optim {
  const char *name;
  uint64_t options;                  /* CH_OPTIM_TAKES(...) */
  void (*shape)(ch_optim_tensor *t); /* sets state_count from the tensor's sizes; a fresh state is zero */
  void (*step)(ch_exec *x, const ch_optim_args *a);
} ch_optim;

extern const ch_optim *const ch_optims[];  /* NULL-terminated registration list */
extern const char *const ch_optim_names[]; /* the names in it, NULL-terminated */

/* The optimizer of that name; NULL: unknown, and the error message lists the known names. */
const ch_optim *ch_optim_find(const char *name);

#endif
