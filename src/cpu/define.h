/* Macros that define ops on host memory, and element counts that are stored in that memory. */
#ifndef CH_CPU_DEFINE_H
#define CH_CPU_DEFINE_H

#include "op/op.h"

/* The head of an op's function with parameters x and a. CH_SCRATCH_OP: the op allocates scratch. CH_PLAIN_OP: the op
 * needs no scratch and returns at once in the counting run. */
#define CH_SCRATCH_OP(function, op) void function(ch_exec *x, const ch_args_of_##op *a)
#define CH_PLAIN_OP(function, op)                             \
  static void run_##op(ch_exec *x, const ch_args_of_##op *a); \
  CH_SCRATCH_OP(function, op) {                               \
    if (!ch_counting(x)) run_##op(x, a);                      \
  }                                                           \
  static void run_##op(__attribute__((unused)) ch_exec *x, const ch_args_of_##op *a)

/* Filled slots. */
static inline int ch_slots(const ch_record *r) { return r->expert_begin[r->experts]; }

/* Number of elements of arguments with `count` and optional `rows`. */
static inline int64_t ch_elements(int64_t count, const int *rows) { return rows ? *rows * count : count; }

#endif
