/* Shared by the cases of ch_bench_run: parsed values, arrays, timing, comparison with the reference. A new case is
 * one row in the table of cases.c. */
#ifndef CH_BENCH_CASES_H
#define CH_BENCH_CASES_H

#include "bench/bench.h"
#include "choir/router.h"
#include "moe/router.h"
#include "op/backend.h"

enum { CH_BENCH_KEYS = 6, CH_BENCH_ARRAYS = 1024, CH_BENCH_OUTPUTS = 6, CH_BENCH_WORDS = 2, CH_BENCH_CASES = 16 };

typedef struct ch_bench {
  const struct ch_bench_case *which;
  const ch_bench_options *options;
  int threads;               /* threads from the options */
  const ch_backend *backend; /* the backend under test */
  const ch_memory *memory;   /* memory of the arrays: the measured backend's or the reference's */
  ch_bench_result *result;
  double value[CH_BENCH_KEYS]; /* in the order of the case's keys */
  int64_t size[CH_BENCH_KEYS]; /* the first values as sizes; smaller ones for the reference */
  ch_compute compute;
  char word[CH_BENCH_WORDS][CH_BENCH_TEXT]; /* in the order of the case's words */
  ch_arena array[CH_BENCH_ARRAYS];
  int arrays; /* number of arrays */
  int drawn;  /* arrays filled with random numbers in this `make`; the n-th of a case always gets the same numbers */
  int code;   /* error of the first failed allocation; all later arrays are then NULL */
} ch_bench;

/* One prepared op: how to run it, its outputs, its cost. `make` fills this struct in place, and it does not move. */
typedef struct ch_bench_work {
  void (*begin)(ch_exec *x, struct ch_bench_work *w); /* called once before timing; or NULL */
  void (*run)(ch_exec *x, struct ch_bench_work *w);
  union {
    ch_gemm_args gemm;
    ch_attention_args attention;
    ch_head_args head;
    ch_activate_args activate;
    ch_rmsnorm_args rmsnorm;
    ch_adafactor_args adafactor;
    ch_select_args select;
    ch_route_args route;
    struct {
      ch_gather_args gather;
      ch_combine_args combine;
    };
  };
  /* Pointed to by the arguments above: */
  ch_record record;
  ch_routing routing;
  ch_router_spec router;
  int pool_begin[2], k;

  real CH_DEV *out[CH_BENCH_OUTPUTS];
  int64_t out_count[CH_BENCH_OUTPUTS];
  double flops, bytes;
  const int CH_DEV *selection; /* or NULL: integers that must be equal on both backends */
  int64_t selection_count;
} ch_bench_work;

typedef struct ch_bench_case {
  const char *name;
  struct {
    const char *name;
    double value;  /* default; negative: required */
    int64_t small; /* maximum size for the reference backend; 0: no limit */
  } key[CH_BENCH_KEYS];
  int sizes; /* number of leading keys that are sizes, at least 1 */
  struct {
    const char *name, *value; /* a key whose value is a word, and its default, possibly "" */
  } word[CH_BENCH_WORDS];
  const char *note; /* description of one repetition */
  /* Prepares the op for b->size; b->code reports a failed allocation. */
  int (*make)(ch_bench *b, ch_bench_work *work);
  int (*run)(ch_bench *b); /* replaces ch_bench_against_reference: the case measures itself */
} ch_bench_case;

extern const ch_bench_case ch_bench_op_cases[];            /* ops.c; ends with a row without name */
int ch_bench_moe(ch_bench *b);                             /* moe.c */
int ch_bench_make_route(ch_bench *b, ch_bench_work *work); /* route.c */
int ch_bench_route(ch_bench *b);
int ch_bench_make_assign(ch_bench *b, ch_bench_work *work);
int ch_bench_assign(ch_bench *b);
int ch_bench_step(ch_bench *b);   /* step.c */
int ch_bench_decode(ch_bench *b); /* session.c */
int ch_bench_prompt(ch_bench *b);
int ch_bench_tokenize(ch_bench *b); /* tokenize.c */

/* A work together with its executor. */
typedef struct ch_bench_ready {
  ch_exec x;
  ch_bench_work work;
} ch_bench_ready;

/* Prepares the case's work on the measured backend and times it; x stays open, and ch_exec_free frees it in any
 * case. */
int ch_bench_time_work(ch_bench *b, ch_bench_ready *ready);

/* Does the same, and compares results with the reference backend's at small sizes. */
int ch_bench_against_reference(ch_bench *b);

/* Arrays that live until the case ends; NULL after a failed allocation, which b->code reports. In b->memory: zeros,
 * random numbers with a given standard deviation, integers, a copy of a host array (the array itself if b->memory is
 * the host's). On the host: bytes, and a copy of an array of the measured backend (or the array itself). */
real CH_DEV *ch_bench_zeros(ch_bench *b, int64_t count);
real CH_DEV *ch_bench_drawn(ch_bench *b, int64_t count, double deviation);
int CH_DEV *ch_bench_ints(ch_bench *b, int64_t count);
const void CH_DEV *ch_bench_put(ch_bench *b, const void *from, size_t bytes);
void *ch_bench_host(ch_bench *b, size_t bytes);
const void *ch_bench_read(ch_bench *b, const void CH_DEV *from, size_t bytes);

/* Allocates the arrays of a record in b->memory; its gates are random or zeros. */
void ch_bench_record(ch_bench *b, int64_t tokens, int64_t experts, int64_t slots, double gates, ch_record *record);

/* Runs `body` once untimed, then repeatedly as the options request, each time until the device is done; sets the
 * result's times. */
void ch_bench_time(ch_bench *b, void (*body)(void *context), void *context);

/* Computes rates and shares of peak from flops, bytes and the times. */
void ch_bench_rates(ch_bench *b, double flops, double bytes);

/* Adds a figure to the result. */
void ch_bench_figure(ch_bench *b, const char *name, double value);

/* Largest difference over largest magnitude; NaN when either is not finite. */
double ch_bench_error(const real *got, const real *want, int64_t count);

/* Raises *error to the error of an array of the measured backend, `got`, against the reference's, if that is larger. */
void ch_bench_compare(ch_bench *b, const real CH_DEV *got, const real CH_DEV *want, int64_t count, double *error);

/* The larger of two errors; NaN if one of them is. */
double ch_bench_worse(double a, double b);

/* Loads the config named by the case's first word, with the run's compute type and, if the config has none, a
 * vocabulary size; and makes `count` tokens for it, or NULL. */
int ch_bench_config(const ch_bench *b, choir_config *config);
int32_t *ch_bench_tokens(ch_bench *b, int64_t count, int vocab);

/* Sets options from the capacity factor at a key; a router without that option accepts only the key's default. */
int ch_bench_capacity(const ch_bench *b, int key, ch_router_spec *options);

/* Adds figures of token choice: dropped tokens and load imbalance, from the statistics of several layers; none if
 * experts choose. */
void ch_bench_loads(ch_bench *b, const ch_router_spec *options, const choir_route_stats *stats, int layers);

#endif
