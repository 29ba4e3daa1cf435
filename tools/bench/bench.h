/* Measures choir's speed on this machine, and the error of its results. One problem string identifies a case
 * everywhere. */
#ifndef CH_BENCH_BENCH_H
#define CH_BENCH_BENCH_H

#include <stdint.h>

#include "op/backend.h"

enum { CH_BENCH_PARTS = 8, CH_BENCH_FIGURES = 8, CH_BENCH_TEXT = 256 };

typedef struct ch_bench_options {
  int threads;         /* 0: all CPUs of the process */
  int repetitions;     /* minimum; 0: 7 */
  double seconds;      /* repeats for at least this long; 0: 0.2 */
  const ch_peak *peak; /* peak rates from ch_bench_peak in the same run; NULL: shares of peak are not computed */
  const char *backend; /* the measured backend; NULL: "cpu" */
} ch_bench_options;

typedef struct ch_bench_part {
  const char *name;
  double seconds; /* mean of one repetition */
} ch_bench_part;

typedef struct ch_bench_number {
  const char *name; /* with its unit: "experts a token" */
  double value;
} ch_bench_number;

typedef struct ch_bench_result {
  char problem[CH_BENCH_TEXT]; /* with every key, including defaults */
  int repetitions;             /* timed repetitions; one untimed repetition precedes them */
  double seconds, min_seconds; /* median and minimum time of one repetition */
  double flops, bytes;         /* of one repetition; bytes only where memory is the limit, else 0 */
  double gflops, gbs;          /* rates by the median time, in 10^9 per second */
  double rate;                 /* the case's main rate */
  const char *unit;            /* its unit: "GFLOP/s", "GB/s", "tokens/s", "MB/s" */
  int64_t tokens;              /* tokens of one repetition, for comparisons within a group; 0: the case has no tokens */
  double share; /* share of the peak: of fp32 or bf16 products, or of main memory's bandwidth if `bytes` is set (triad;
                   read bandwidth for decode); 0: unknown */
  double error; /* largest difference from the reference over its largest magnitude; NaN counts as wrong */
  double during_products; /* moe: share of the time that is not in matrix products, or in GELU after them */
  double layer_share;     /* assign, route: minimum time relative to that of a whole layer, forward and backward */
  int parts;              /* moe: time of each part */
  ch_bench_part part[CH_BENCH_PARTS];
  int figures; /* further measurements */
  ch_bench_number figure[CH_BENCH_FIGURES];
  char note[CH_BENCH_TEXT]; /* sizes at which the error was measured; work that is not timed */
} ch_bench_result;

/* Measures one case, "NAME key=value ...": for example
 *   moe n=4096 d=768 h=3072 e=64 c=2 router=expert_choice compute=bf16
 *   decode config=configs/0.1b-16e.json prompt=64 tokens=32
 * The tables of cases.c and ops.c list cases, their keys and defaults; docs/performance.md describes what each
 * measures. CHOIR_ERROR_ARGUMENT names an unknown case, key or value; CHOIR_ERROR_UNSUPPORTED: bf16 on a CPU without
 * it, or a backend that is not available; CHOIR_ERROR_MEMORY: sizes that do not fit. options and result are required.
 */
int ch_bench_run(const char *problem, const ch_bench_options *options, ch_bench_result *result);

/* CHOIR_ERROR_ARGUMENT: the case of a problem is unknown. */
int ch_bench_known(const char *problem);

/* Measures the peak rates that cases are compared with: those of the options' backend and threads. */
int ch_bench_peak(const ch_bench_options *options, ch_peak *peak);

/* The problems that `choir bench` runs by default, NULL-terminated. */
const char *const *ch_bench_defaults(void);

/* A group of problems: each is compared with the first by the time per token; or each is run with 1, 2, 4, ...
 * threads and compared with itself on one thread. */
typedef struct ch_bench_group {
  const char *name, *what;
  const char *const *problems; /* NULL-terminated */
  int by_threads;
} ch_bench_group;

/* The groups, ended by one without a name. */
const ch_bench_group *ch_bench_groups(void);

#endif
