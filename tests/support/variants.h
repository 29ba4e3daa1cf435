/* One op, every way it can run: the fast backend in each instruction set and with 1 to 3 threads against the reference.
 */
#ifndef CH_TESTS_VARIANTS_H
#define CH_TESTS_VARIANTS_H

#include "base/machine.h"
#include "stand_in.h"
#include "testing.h"

/* Calls ops on inputs it makes from `context` and leaves all results in `out`, which comes in poisoned. */
typedef void (*test_run)(ch_exec *x, const void *context, real *out);

static const char *const test_isas[] = {"generic", "avx2", "avx512"};
enum { TEST_ISAS = 3, TEST_GUARD = 32 };

/* Ops use this instruction set from here on. On a machine with less a line NOT TESTED says so. */
static inline void test_use_isa(const char *isa) {
  static unsigned said;
  setenv("CHOIR_ISA", isa, 1);
  for (int i = 0; i < TEST_ISAS; i++) {
    if (strcmp(isa, test_isas[i]) || !strcmp(ch_isa_name(ch_machine_isa()), isa) || said >> i & 1) continue;
    print_message("NOT TESTED: %s; this machine runs %s in its place\n", isa, ch_isa_name(ch_machine_isa()));
    said |= 1u << i;
  }
}

/* Results of one way to run, freed by the caller. Whoever writes past `count` is found out. */
static inline real *test_run_on(const char *backend, const char *isa, int threads, test_run run, const void *context,
                                int64_t count) {
  real *out = test_new(count + TEST_GUARD);
  test_use_isa(isa);
  TEST_EXEC(backend, CH_COMPUTE_FP32, threads, {
    test_poison(out, count + TEST_GUARD);
    run(&x, context, out);
    x.memory->synchronise();
    assert_int_equal(x.scratch.used, 0);
  });
  unsetenv("CHOIR_ISA");
  for (int i = 0; i < TEST_GUARD; i++) assert_true(isnan(out[count + i]));
  return out;
}

/* The kernels of devices; those take the host's own memory here. */
static inline int test_has_device(void) {
#ifdef CHOIR_SANITIZED
  return 0; /* the stand-in's fibers are not for sanitizers */
#else
  setenv("FAKE_CUDA_HOST", "1", 1);
  ch_device_takes_host_pointers = 1;
  if (ch_backend_find("cuda")->supports(CH_COMPUTE_FP32, 0)) fail_msg("%s", choir_error_message());
  return 1;
#endif
}

static inline void test_parts(const char *what, const char *how, const real *got, const real *want,
                              const int64_t *count, double tolerance) {
  for (int i = 0; count[i]; got += count[i], want += count[i], i++) {
    double error = test_error(got, want, count[i]);
    if (!(error <= tolerance)) fail_msg("%s (%s): relative error %.3g in result %d", what, how, error, i);
  }
}

/* The results consist of parts of count[0], count[1], ... (ended by 0) elements, each compared by itself. */
static inline void test_variants_of_cpu(const char *what, test_run run, const void *context, const int64_t *count,
                                        double tolerance) {
  int64_t total = 0;
  for (int i = 0; count[i]; i++) total += count[i];
  real *want = test_run_on("reference", "generic", 2, run, context, total);
  for (int isa = 0; isa < TEST_ISAS; isa++) {
    real *one = test_run_on("cpu", test_isas[isa], 1, run, context, total);
    test_parts(what, test_isas[isa], one, want, count, tolerance);
    for (int threads = 2; threads <= 3; threads++) {
      real *more = test_run_on("cpu", test_isas[isa], threads, run, context, total);
      if (memcmp(one, more, (size_t)total * sizeof *one))
        fail_msg("%s (%s): %d threads differ from 1", what, test_isas[isa], threads);
      free(more);
    }
    free(one);
  }
  free(want);
}

/* ... and on devices, but for those of the host (op/routing.h). */
static inline void test_variants(const char *what, test_run run, const void *context, const int64_t *count,
                                 double tolerance) {
  test_variants_of_cpu(what, run, context, count, tolerance);
  if (!test_has_device()) return;
  int64_t total = 0;
  for (int i = 0; count[i]; i++) total += count[i];
  real *want = test_run_on("reference", "generic", 2, run, context, total);
  real *got = test_run_on("cuda", "generic", 1, run, context, total);
  real *again = test_run_on("cuda", "generic", 1, run, context, total);
  test_parts(what, "cuda", got, want, count, tolerance);
  if (memcmp(got, again, (size_t)total * sizeof *got)) fail_msg("%s (cuda): not the same twice", what);
  free(want), free(got), free(again);
}
#define TEST_PARTS(...) ((const int64_t[]){__VA_ARGS__, 0})

/* Runs the body with an executor x of "cpu" in every instruction set. */
#define TEST_EACH_ISA(...)                               \
  for (int isa = 0; isa < TEST_ISAS; isa++) {            \
    test_use_isa(test_isas[isa]);                        \
    TEST_EXEC("cpu", CH_COMPUTE_FP32, 2, {__VA_ARGS__}); \
    unsetenv("CHOIR_ISA");                               \
  }

#endif
