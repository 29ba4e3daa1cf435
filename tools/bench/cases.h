/* The cases of ch_bench_run share these: parsed values, arrays, timing, comparison with the reference. A new case is
 * one row in cases.c's table. */
#ifndef CH_BENCH_CASES_H
#define CH_BENCH_CASES_H

#include "bench/bench.h"
#include "choir/router.h"
#include "op/backend.h"

enum { CH_BENCH_KEYS = 6, CH_BENCH_ARRAYS = 1024, CH_BENCH_OUTPUTS = 6, CH_BENCH_WORDS = 2 };

typedef struct ch_bench {
  const struct ch_bench_case *which;
  const ch_bench_options *options;
  int threads;               /* of options; they may be used */
  const ch_backend *backend; /* that is measured */
  const ch_memory *memory;   /* where arrays are made: of that backend, or of the reference */
  ch_bench_result *result;
  double value[CH_BENCH_KEYS]; /* in the order of the case's keys */
  ch_compute compute;
  char word[CH_BENCH_WORDS][CH_BENCH_TEXT]; /* in the order of the case's words */
  ch_arena array[CH_BENCH_ARRAYS];
  int arrays; /* how many */
  int drawn;  /* of them with random numbers, in the running `make`: the n-th of a case always holds the same ones */
} ch_bench;

/* One op made ready: how to run it, what it writes, what it costs. `args` is the host's. */
typedef struct ch_bench_work {
  void (*run)(ch_exec *x, const void *args);
  void *args;
  real CH_DEV *out[CH_BENCH_OUTPUTS];
  int64_t out_count[CH_BENCH_OUTPUTS];
  double flops, bytes;
  const int CH_DEV *selection; /* or NULL: integers that must be equal */
  int64_t selection_count;
} ch_bench_work;

typedef struct ch_bench_case {
  const char *name;
  struct {
    const char *name;
    double value; /* default; negative: must be given */
  } key[CH_BENCH_KEYS];
  struct {
    const char *name, *value; /* a key whose value is a word, and its default, perhaps "" */
  } word[CH_BENCH_WORDS];
  /* Prepares the case; `small` asks for one that the reference gets through soon, and writes to result->note what that
   * is. */
  int (*make)(ch_bench *b, int small, ch_bench_work *work);
  int (*run)(ch_bench *b); /* instead of ch_bench_against_reference: measures by itself */
} ch_bench_case;

/* Tables that end with a row without name: products.c, pointwise.c. */
extern const ch_bench_case ch_bench_product_cases[], ch_bench_pointwise_cases[];
int ch_bench_moe(ch_bench *b);      /* moe.c */
int ch_bench_assign(ch_bench *b);   /* assign.c */
int ch_bench_route(ch_bench *b);    /* route.c: `make` and what comes after it */
int ch_bench_step(ch_bench *b);     /* step.c */
int ch_bench_decode(ch_bench *b);   /* session.c */
int ch_bench_prompt(ch_bench *b);   /* session.c */
int ch_bench_tokenize(ch_bench *b); /* tokenize.c */
int ch_bench_make_route(ch_bench *b, int small, ch_bench_work *work);

/* Times what the case's `make` prepares, and compares it with the reference. */
int ch_bench_against_reference(ch_bench *b);

/* The first `count` values as sizes, each at least 1. */
int ch_bench_sizes(const ch_bench *b, int count, int64_t *size);

static inline int64_t ch_bench_least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Arrays that live until the case ends; CHOIR_ERROR_MEMORY with the size. `scale` 0: zeros, else random numbers of that
 * deviation. In b->memory, but for the host's own, whose pointer goes to *array. */
int ch_bench_array(ch_bench *b, int64_t count, double scale, real CH_DEV **array);
int ch_bench_ints(ch_bench *b, int64_t count, int CH_DEV **array);
int ch_bench_host(ch_bench *b, size_t bytes, void *array);

/* An array of the measured backend on the host: itself where that is possible, else a copy; and the other way, of an
 * array of the host for what runs in b->memory. CHOIR_ERROR_MEMORY. */
int ch_bench_read(ch_bench *b, const void CH_DEV *from, size_t bytes, const void **array);
int ch_bench_put(ch_bench *b, const void *from, size_t bytes, const void CH_DEV **array);

/* Runs once untimed, then repeats as the options ask, each time until the device is done; fills the result's times. */
void ch_bench_time(ch_bench *b, void (*body)(void *context), void *context);

/* Rates and shares from flops, bytes and the times. */
void ch_bench_rates(ch_bench *b, double flops, double bytes);

/* One more figure of the result. */
void ch_bench_figure(ch_bench *b, const char *name, double value);

/* Largest difference over largest magnitude; NaN when either is not finite. ch_bench_compare: of an array of the
 * measured backend, `got`, and one of the reference; the larger of that and *error goes to *error. CHOIR_ERROR_MEMORY.
 */
double ch_bench_error(const real *got, const real *want, int64_t count);
int ch_bench_compare(ch_bench *b, const real CH_DEV *got, const real CH_DEV *want, int64_t count, double *error);

/* The larger of two errors; NaN when one is. */
double ch_bench_worse(double a, double b);

/* Least seconds of a layer, forward and backward, by expert choice: what a router's time is a share of. */
typedef struct ch_bench_layer {
  double n, d, h, e, c;
} ch_bench_layer;
int ch_bench_layer_seconds(const ch_bench *b, const ch_bench_layer *layer, double *seconds);

/* The config that the case's first word names, with the run's compute type and, where it has none, a vocabulary; and
 * `count` tokens of it (config.c). */
int ch_bench_config(const ch_bench *b, choir_config *config);
int ch_bench_tokens(ch_bench *b, int64_t count, int vocab, int32_t **tokens);

/* The capacity factor that stands under a key, into options; a router that takes none has the key's default or refuses
 * it. */
int ch_bench_capacity(const ch_bench *b, int key, choir_router_options *options);

/* Figures of what token choice leaves undone and how unevenly it fills experts, from the statistics of some layers;
 * none where experts choose. */
void ch_bench_loads(ch_bench *b, const choir_router_options *options, const choir_route_stats *stats, int layers);

#endif
