/* Every test program shares random arrays, comparisons that fail on NaN, gradient checks, and planned execution. */
#ifndef CH_TESTS_TESTING_H
#define CH_TESTS_TESTING_H

#include <errno.h>
#include <locale.h>
#include <malloc.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* clang-format off: it wants the others first */
#include <cmocka.h>
/* clang-format on */

#include "base/error.h"
#include "base/format.h"
#include "base/rng.h"
#include "base/text.h"
#include "config/config.h"
#include "device/device.h"
#include "moe/router.h"
#include "op/op.h"

/* CHOIR_TEST_LOCALE: the whole test in a program that speaks another language: decimal commas, other capitals. The
 * texts of errno stay as tests expect them. */
__attribute__((constructor)) static void test_set_locale(void) {
  const char *name = getenv("CHOIR_TEST_LOCALE");
  if (name && !setlocale(LC_ALL, name)) printf("NOT TESTED: locale %s, which is not there\n", name);
  setlocale(LC_MESSAGES, "C");
}

/* Tests of single ops on a GPU hand it their own memory, which must not grow or move after the device is opened: a heap
 * of 1 GiB in one piece, for all threads, and a stack of 1 MiB. */
__attribute__((constructor)) static void test_fix_memory(void) {
  enum { HEAP = 1 << 30, STACK = 1 << 20 };
  const char *backend = getenv("CHOIR_TEST_BACKEND");
  if (!backend || strncmp(backend, "cuda", 4)) return;
  mallopt(M_MMAP_MAX, 0), mallopt(M_ARENA_MAX, 1), mallopt(M_TRIM_THRESHOLD, -1), mallopt(M_TOP_PAD, HEAP);
  free(malloc(1 << 16));
  volatile char touched[STACK];
  for (size_t i = 0; i < STACK; i += 4096) touched[i] = 0;
  (void)touched[0];
}

static inline int test_all(const char *names, const CMUnitTestFunction *tests, size_t count, CMFixtureFunction before,
                           CMFixtureFunction after) {
  struct CMUnitTest row[64] = {{0}};
  char *text = strdup(names), *rest = NULL;
  if (!text || count > sizeof row / sizeof *row) abort();
  for (size_t i = 0; i < count; i++)
    row[i] = (struct CMUnitTest){.name = strtok_r(i ? NULL : text, ", ", &rest), .test_func = tests[i]};
  int failed = _cmocka_run_group_tests("tests", row, count, before, after);
  free(text);
  return failed;
}

/* main of a test program; before and after: set-up and tear-down of the group, or NULL. */
#define TEST_MAIN(before, after, ...)                                                  \
  int main(void) {                                                                     \
    const CMUnitTestFunction tests[] = {__VA_ARGS__};                                  \
    return test_all(#__VA_ARGS__, tests, sizeof tests / sizeof *tests, before, after); \
  }

/* N(0,1) numbers; the same for the same (sub, index) on every machine. */
static inline void test_normal(real *x, int64_t count, uint32_t sub) {
  enum { MANY = 256 };
  ch_rng r = ch_rng_make(20220218, CH_STREAM_TEST, sub);
  double some[MANY];
  for (int64_t i = 0; i < count; i += MANY) {
    int64_t now = count - i < MANY ? count - i : MANY;
    ch_rng_normals(r, (uint64_t)i, (size_t)now, some);
    for (int64_t j = 0; j < now; j++) x[i + j] = (real)some[j];
  }
}

static inline real *test_new(int64_t count) {
  real *x = calloc((size_t)(count > 0 ? count : 1), sizeof *x);
  if (!x) abort();
  return x;
}

static inline real *test_new_normal(int64_t count, uint32_t sub) {
  real *x = test_new(count);
  test_normal(x, count, sub);
  return x;
}

/* Poison: an op that leaves an output untouched, or reads it, is found out. */
static inline void test_poison(real *x, int64_t count) {
  for (int64_t i = 0; i < count; i++) x[i] = (real)NAN;
}

/* Rows of a case that is much work: sanitizers, some ten times slower, get half of them. */
#ifdef CHOIR_SANITIZED
#define TEST_ROWS(rows) ((rows) / 2)
#else
#define TEST_ROWS(rows) (rows)
#endif

/* The call fails with `code`, and its message has `part` in it. */
#define test_fails(call, code, part)                                                                       \
  do {                                                                                                     \
    int got_ = (call);                                                                                     \
    if (got_ != (code) || !strstr(choir_error_message(), (part))) {                                        \
      fprintf(stderr, "%s:%d: %s: got %d (%s)\n", __FILE__, __LINE__, #call, got_, choir_error_message()); \
      _fail(__FILE__, __LINE__);                                                                           \
    }                                                                                                      \
  } while (0)

/* Largest difference over the largest wanted magnitude. NaN when either side is not finite. */
static inline double test_error(const real *got, const real *want, int64_t count) {
  double difference = 0, size = 1e-30;
  for (int64_t i = 0; i < count; i++) {
    double g = (double)got[i], w = (double)want[i];
    if (!isfinite(g) || !isfinite(w)) return (double)NAN;
    difference = fmax(difference, fabs(g - w));
    size = fmax(size, fabs(w));
  }
  return difference / size;
}

static inline void test_close_at(const real *got, const real *want, int64_t count, double tolerance, const char *what,
                                 const char *file, int line) {
  double error = test_error(got, want, count);
  if (!(error <= tolerance)) {
    fprintf(stderr, "%s:%d: %s: relative error %.3g, tolerance %.3g\n", file, line, what, error, tolerance);
    _fail(file, line);
  }
}
#define test_close(got, want, count, tolerance) \
  test_close_at((got), (want), (count), (tolerance), #got, __FILE__, __LINE__)

#define test_ok(call)                                                                       \
  do {                                                                                      \
    if ((call) != CHOIR_OK) {                                                               \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, choir_error_message()); \
      _fail(__FILE__, __LINE__);                                                            \
    }                                                                                       \
  } while (0)

/* A test that this machine cannot run is skipped, which is not passed: it says why, and ./check prints it. */
#define test_skip(reason)                        \
  do {                                           \
    print_message("NOT TESTED: %s\n", (reason)); \
    skip();                                      \
  } while (0)

/* Whether tests/arm64.sh runs them by an emulator, which has neither a CPU's speed nor limits of a process's memory. */
static inline int test_emulated(void) { return getenv("CHOIR_TEST_EMULATED") != NULL; }

/* As kill, but for a process that was found or started: 0 would be the whole group, with ./check in it, and -1 all. */
static inline int test_signal(pid_t process, int number) {
  if (process > 0) return kill(process, number);
  errno = ESRCH;
  return -1;
}

/* A router's own options. */
static inline ch_router_spec test_router(const char *name) {
  const ch_router *router = ch_router_find(name);
  assert_non_null(router);
  return ch_router_default(router);
}

/* A config that says no more than a routing, as choir_route and layers read it; good for a few calls. */
static inline const choir_config *test_config_of(const ch_router_spec *router) {
  static choir_config config[8];
  static int next;
  choir_config *c = &config[next++ % 8];
  c->model.router = *router;
  return c;
}

/* Sets the fields of a config that a text lists: "layers=4 router.name=hash". */
__attribute__((format(printf, 2, 3))) static inline void test_set(choir_config *config, const char *format, ...) {
  char text[512], *rest = NULL;
  va_list values;
  va_start(values, format);
  assert_in_range(vsnprintf(text, sizeof text, format, values), 0, sizeof text - 1);
  va_end(values);
  for (char *field = strtok_r(text, " ", &rest); field; field = strtok_r(NULL, " ", &rest)) {
    char *equals = strchr(field, '=');
    assert_non_null(equals);
    *equals = 0;
    test_ok(choir_config_set(config, field, equals + 1));
  }
}

/* Central differences of loss(context) in x against `gradient`, at up to `probes` elements spread over x.
 * Returns |difference| / |gradient| in the 2-norm over the probed elements; NaN when anything is not finite. `loss`
 * must hold a random cotangent: a plain sum is blind to wrong softmax gradients. Use in double (grad_*.c). */
static inline double test_gradient(double (*loss)(void *), void *context, real *x, int64_t count, const real *gradient,
                                   int64_t probes) {
  double difference = 0, size = 1e-30;
  const double step = 1e-5;
  for (int64_t p = 0; p < (count < probes ? count : probes); p++) {
    int64_t i =
        count <= probes ? p : (int64_t)ch_rng_below(ch_rng_make(7, CH_STREAM_TEST, 99), (uint64_t)p, (uint64_t)count);
    real kept = x[i];
    x[i] = (real)((double)kept + step);
    double up = loss(context);
    x[i] = (real)((double)kept - step);
    double down = loss(context);
    x[i] = kept;
    double numeric = (up - down) / (2 * step);
    if (!isfinite(numeric) || !isfinite((double)gradient[i])) return (double)NAN;
    difference += (numeric - (double)gradient[i]) * (numeric - (double)gradient[i]);
    size += numeric * numeric;
  }
  return sqrt(difference / size);
}

/* test_gradient of an op in double: to 1e-8. */
static inline void test_gradient_agrees(const char *what, double (*loss)(void *), void *context, const real *x,
                                        int64_t count, const real *gradient) {
  double error = test_gradient(loss, context, (real *)x, count, gradient, 1000);
  if (!(error <= 1e-8)) fail_msg("%s: relative error of the gradient: %.3g", what, error);
}

static inline double test_dot(const real *a, const real *b, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; i++) sum += (double)a[i] * (double)b[i];
  return sum;
}

/* ch_exec_commit of memory that is NaN, with marked bytes behind what was planned; `planned` keeps where they begin. */
enum { TEST_BEYOND = 1 << 16 };
static inline void test_commit(ch_exec *x, size_t planned[2]) {
  ch_arena *const arena[] = {&x->tape, &x->scratch};
  char marks[TEST_BEYOND], nan[TEST_BEYOND];
  memset(marks, 0xA5, sizeof marks);
  memset(nan, 0xFF, sizeof nan);
  if (x->host) test_ok(ch_exec_commit(x->host));
  for (int i = 0; i < 2; i++) {
    planned[i] = arena[i]->peak;
    arena[i]->peak += TEST_BEYOND;
    test_ok(ch_arena_commit(arena[i]));
    arena[i]->peak = planned[i];
    for (size_t at = 0; at < planned[i]; at += sizeof nan) x->memory->upload(arena[i]->base + at, nan, sizeof nan);
    x->memory->upload(arena[i]->base + planned[i], marks, sizeof marks);
  }
}

/* Nobody asked for more than was planned, or wrote behind it. */
static inline void test_within_plan(const ch_exec *x, const size_t planned[2]) {
  const ch_arena *const arena[] = {&x->tape, &x->scratch};
  for (int i = 0; i < 2; i++) {
    if (arena[i]->peak != planned[i])
      fail_msg("%s: %zu bytes asked for, %zu planned", arena[i]->name, arena[i]->peak, planned[i]);
    unsigned char marks[TEST_BEYOND];
    x->memory->download(marks, arena[i]->base + planned[i], sizeof marks);
    for (size_t at = 0; at < sizeof marks; at++)
      if (marks[at] != 0xA5) fail_msg("%s: written %zu bytes behind it", arena[i]->name, at);
  }
}

/* The backend that a test asks for, or the one that CHOIR_TEST_BACKEND puts into its place: "cuda" runs the whole
 * test on the kernels of devices. */
static inline const char *test_backend(const char *asked) {
#ifndef CHOIR_DOUBLE
  const char *other = getenv("CHOIR_TEST_BACKEND");
  if (!other) return asked;
  ch_device_takes_host_pointers = 1;
  return other;
#else
  return asked;
#endif
}

/* Runs `body` twice, counting and for real, on a fresh executor: ch_exec x is in scope; ends with the executor freed.
 */
#define TEST_EXEC(backend, compute, threads, ...)                              \
  do {                                                                         \
    ch_exec x;                                                                 \
    size_t planned_[2] = {0};                                                  \
    test_ok(ch_exec_init(&x, test_backend(backend), (compute), 1, (threads))); \
    for (int pass_ = 0; pass_ < 2; pass_++) {                                  \
      if (pass_) test_commit(&x, planned_);                                    \
      __VA_ARGS__;                                                             \
    }                                                                          \
    test_within_plan(&x, planned_);                                            \
    ch_exec_free(&x);                                                          \
  } while (0)

#endif
