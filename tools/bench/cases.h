/* The cases of ch_bench_run share these: parsed values, arrays, timing, comparison with the reference. A new case is
 * one row in cases.c's table. */
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
  int threads;               /* of options; they may be used */
  const ch_backend *backend; /* the backend under test */
  const ch_memory *memory;   /* memory of the arrays: the backend's or the reference's */
  ch_bench_result *result;
  double value[CH_BENCH_KEYS]; /* in the order of the case's keys */
  int64_t size[CH_BENCH_KEYS]; /* the same as sizes, as many as the case has; smaller ones for the reference */
  ch_compute compute;
  char word[CH_BENCH_WORDS][CH_BENCH_TEXT]; /* in the order of the case's words */
  ch_arena array[CH_BENCH_ARRAYS];
  int arrays; /* how many */
  int drawn;  /* arrays filled with random numbers in this `make`; the n-th of a case always gets the same numbers */
  int code;   /* error of the first failed allocation; all later arrays are then NULL */
} ch_bench;

/* One op made ready: how to run it, what it writes, what it costs. `make` writes it where it stays. */
typedef struct ch_bench_work {
  void (*begin)(ch_exec *x, struct ch_bench_work *w); /* once, before what is timed; or NULL */
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
  /* To which they point: */
  ch_record record;
  ch_routing routing;
  ch_router_spec router;
  int pool_begin[2], k;

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
    double value;  /* default; negative: must be given */
    int64_t small; /* the largest size that the reference gets through soon; 0: any */
  } key[CH_BENCH_KEYS];
  int sizes; /* so many of the first keys are sizes, 1 at least */
  struct {
    const char *name, *value; /* a key whose value is a word, and its default, perhaps "" */
  } word[CH_BENCH_WORDS];
  const char *note; /* what one repetition is */
  /* Prepares the op for b->size; b->code says whether its arrays could be made. */
  int (*make)(ch_bench *b, ch_bench_work *work);
  int (*run)(ch_bench *b); /* instead of ch_bench_against_reference: measures by itself */
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

/* A work with the executor that runs it. */
typedef struct ch_bench_ready {
  ch_exec x;
  ch_bench_work work;
} ch_bench_ready;

/* Makes the case's work on the measured backend and times it; x stays open, and ch_exec_free frees it in any case. */
int ch_bench_time_work(ch_bench *b, ch_bench_ready *ready);

/* The same, and the result beside the reference's, at sizes that are small. */
int ch_bench_against_reference(ch_bench *b);

/* Arrays that live until the case ends; where one cannot be made NULL, and b->code says why. In b->memory: zeros,
 * random numbers of a deviation, integers, a copy of an array of the host (itself where that is the memory). On the
 * host: bytes, and an array of the measured backend (itself or a copy). */
real CH_DEV *ch_bench_zeros(ch_bench *b, int64_t count);
real CH_DEV *ch_bench_drawn(ch_bench *b, int64_t count, double deviation);
int CH_DEV *ch_bench_ints(ch_bench *b, int64_t count);
const void CH_DEV *ch_bench_put(ch_bench *b, const void *from, size_t bytes);
void *ch_bench_host(ch_bench *b, size_t bytes);
const void *ch_bench_read(ch_bench *b, const void CH_DEV *from, size_t bytes);

/* Arrays of a record in b->memory, of which gates are random or zeros. */
void ch_bench_record(ch_bench *b, int64_t tokens, int64_t experts, int64_t slots, double gates, ch_record *record);

/* Runs once untimed, then repeats as the options ask, each time until the device is done; fills the result's times. */
void ch_bench_time(ch_bench *b, void (*body)(void *context), void *context);

/* Rates and shares from flops, bytes and the times. */
void ch_bench_rates(ch_bench *b, double flops, double bytes);

/* One more figure of the result. */
void ch_bench_figure(ch_bench *b, const char *name, double value);

/* Largest difference over largest magnitude; NaN when either is not finite. */
double ch_bench_error(const real *got, const real *want, int64_t count);

/* The larger of *error and that of an array of the measured backend, `got`, and one of the reference, to *error. */
void ch_bench_compare(ch_bench *b, const real CH_DEV *got, const real CH_DEV *want, int64_t count, double *error);

/* The larger of two errors; NaN when one is. */
double ch_bench_worse(double a, double b);

/* The config that the case's first word names, with the run's compute type and, where it has none, a vocabulary; and
 * `count` tokens of it, or NULL. */
int ch_bench_config(const ch_bench *b, choir_config *config);
int32_t *ch_bench_tokens(ch_bench *b, int64_t count, int vocab);

/* The capacity factor that is under a key, into options; a router that takes none has the key's default or refuses
 * it. */
int ch_bench_capacity(const ch_bench *b, int key, ch_router_spec *options);

/* Figures of what token choice leaves undone and how unevenly it fills experts, from the statistics of some layers;
 * none where experts choose. */
void ch_bench_loads(ch_bench *b, const ch_router_spec *options, const choir_route_stats *stats, int layers);

#endif
