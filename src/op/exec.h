/* What every forward and backward call is given: the backend's table and the memory it may use. */
#ifndef CH_OP_EXEC_H
#define CH_OP_EXEC_H

#include "base/arena.h"
#include "base/real.h"

struct ch_ops;

typedef struct ch_exec {
  const struct ch_ops *ops; /* one backend's table, complete */
  ch_arena tape;            /* what forward saves for backward: a stack over the whole step */
  ch_arena scratch;         /* what one call needs while it runs: empty again when it returns */
  int threads;              /* of every parallel region; results do not depend on it */
  ch_compute compute;       /* what inputs of matrix products are rounded to */
  int batch_invariant;      /* a row of a product A B does not depend on A's other rows, bit for bit: inference */
} ch_exec;

/* "fp32", "bf16", NULL: by number of ch_compute. */
extern const char *const ch_compute_names[];

/* The compute type of that name; CHOIR_ERROR_ARGUMENT names the known ones. */
int ch_compute_find(const char *name, ch_compute *compute);

/* In the counting run every op allocates its scratch and returns before touching data. */
static inline int ch_counting(const ch_exec *x) { return ch_arena_counting(&x->scratch); }

#endif
