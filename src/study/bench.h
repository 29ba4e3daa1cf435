/* What the cases of choir_bench share: parsed values, arrays, timing, comparison with the reference. A new case is one
 * row in bench.c's table. */
#ifndef CH_STUDY_BENCH_H
#define CH_STUDY_BENCH_H

#include "choir/bench.h"
#include "op/op.h"

enum { CH_BENCH_KEYS = 6, CH_BENCH_ARRAYS = 40, CH_BENCH_OUTPUTS = 6 };

typedef struct ch_bench {
  const struct ch_bench_case *which;
  const choir_bench_options *options;
  choir_bench_result *result;
  double value[CH_BENCH_KEYS]; /* in the order of the case's keys */
  ch_compute compute;
  char word[CHOIR_BENCH_TEXT]; /* of the case's word key */
  ch_arena array[CH_BENCH_ARRAYS];
  int arrays; /* how many */
  int first;  /* where the running `make` began: the n-th array of a case always holds the same numbers */
} ch_bench;

/* One op made ready: how to run it, what it writes, what it costs. */
typedef struct ch_bench_work {
  void (*run)(ch_exec *x, const void *args);
  void *args;
  real *out[CH_BENCH_OUTPUTS];
  int64_t out_count[CH_BENCH_OUTPUTS];
  double flops, bytes;
  const int *selection; /* or NULL: integers that must be equal */
  int64_t selection_count;
} ch_bench_work;

typedef struct ch_bench_case {
  const char *name;
  struct {
    const char *name;
    double value; /* default; negative: must be given */
  } key[CH_BENCH_KEYS];
  const char *word, *word_value; /* a key whose value is a word, and its default; or NULL */
  /* Prepares the case; `small` asks for one that the reference gets through soon, and writes to result->note what that
   * is. */
  int (*make)(ch_bench *b, int small, ch_bench_work *work);
  int (*run)(ch_bench *b); /* instead of make: measures by itself */
} ch_bench_case;

/* Tables that end with a row without name: bench_products.c, bench_pointwise.c. */
extern const ch_bench_case ch_bench_product_cases[], ch_bench_pointwise_cases[];
int ch_bench_moe(ch_bench *b);    /* bench_moe.c */
int ch_bench_assign(ch_bench *b); /* bench_assign.c */
int ch_bench_step(ch_bench *b);   /* bench_step.c */

/* The first `count` values as sizes, each at least 1. */
int ch_bench_sizes(const ch_bench *b, int count, int64_t *size);

static inline int64_t ch_bench_least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Arrays that live until the case ends; CHOIR_ERROR_MEMORY with the size. `scale` 0: zeros, else random numbers of that
 * deviation. */
int ch_bench_array(ch_bench *b, int64_t count, double scale, real **array);
int ch_bench_bytes(ch_bench *b, size_t bytes, void **array);

/* Runs once untimed, then repeats as the options ask; fills the result's times. */
void ch_bench_time(ch_bench *b, void (*body)(void *context), void *context);

/* Rates and shares from flops, bytes and the times. */
void ch_bench_rates(ch_bench *b, double flops, double bytes);

/* Largest difference over largest magnitude; NaN when either is not finite. */
double ch_bench_error(const real *got, const real *want, int64_t count);

/* The larger of two errors; NaN when one is. */
double ch_bench_worse(double a, double b);

#endif
