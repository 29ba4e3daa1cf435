/* How fast choir is on this machine, and how right: one problem string names a case wherever it is spoken of. */
#ifndef CH_BENCH_BENCH_H
#define CH_BENCH_BENCH_H

#include <stdint.h>

#include "op/backend.h"

enum { CH_BENCH_PARTS = 8, CH_BENCH_FIGURES = 8, CH_BENCH_TEXT = 256 };

typedef struct ch_bench_options {
  int threads;         /* 0: all CPUs of the process */
  int repetitions;     /* at least; 0: 7 */
  double seconds;      /* repeats for at least this long, too; 0: 0.2 */
  const ch_peak *peak; /* from ch_bench_peak in the same run; NULL: no shares of peak */
  const char *backend; /* that is measured; NULL: "cpu" */
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
  char problem[CH_BENCH_TEXT]; /* with every key, defaults too */
  int repetitions;             /* timed repetitions; one untimed repetition precedes them */
  double seconds, min_seconds; /* median and least time of one repetition */
  double flops, bytes;         /* of one repetition; bytes only where memory is the limit, else 0 */
  double gflops, gbs;          /* flops and bytes by the median time, in 10^9 */
  double rate;                 /* what people ask for ... */
  const char *unit;            /* ... in "GFLOP/s", "GB/s", "tokens/s", "MB/s" */
  int64_t tokens;              /* tokens of one repetition, by which groups compare; 0: the case has no tokens */
  double share; /* of the peak: fp32 or bf16 products, or main memory where bytes is set: triad, reading for decode; 0:
                   unknown */
  double error; /* largest difference from the reference over its largest magnitude; NaN counts as wrong */
  double during_products; /* moe: share of the time that is not in matrix products, or in GELU after them */
  double layer_share;     /* assign, route: least time over that of the layer around it, forward and backward */
  int parts;              /* moe: where the time goes */
  ch_bench_part part[CH_BENCH_PARTS];
  int figures; /* whatever else was measured */
  ch_bench_number figure[CH_BENCH_FIGURES];
  char note[CH_BENCH_TEXT]; /* what the error was measured on, what is not timed */
} ch_bench_result;

/* Measures one case, "NAME key=value ...": for example
 *   moe n=4096 d=768 h=3072 e=64 c=2 router=expert_choice compute=bf16
 *   decode config=configs/0.1b-16e.json prompt=64 tokens=32
 * Cases, their keys and defaults are in the tables of cases.c and ops.c.
 * docs/performance.md says what each measures. CHOIR_ERROR_ARGUMENT names an unknown case, key or value;
 * CHOIR_ERROR_UNSUPPORTED bf16 where the CPU lacks it, or a backend that is not here; CHOIR_ERROR_MEMORY sizes that do
 * not fit. options and result are required. */
int ch_bench_run(const char *problem, const ch_bench_options *options, ch_bench_result *result);

/* CHOIR_ERROR_ARGUMENT: the case of a problem is unknown. */
int ch_bench_known(const char *problem);

/* The rates that cases are held against: those of the options' backend on their threads. */
int ch_bench_peak(const ch_bench_options *options, ch_peak *peak);

/* The problems that `choir bench` runs by default, NULL-terminated. */
const char *const *ch_bench_defaults(void);

/* Problems that belong together: each is compared with the first, by the time of a token; or each by 1, 2, 4, ...
 * threads with itself by one. */
typedef struct ch_bench_group {
  const char *name, *what;
  const char *const *problems; /* NULL-terminated */
  int by_threads;
} ch_bench_group;

/* The groups; after the last, one without name. */
const ch_bench_group *ch_bench_groups(void);

#endif
