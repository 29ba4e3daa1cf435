/* The peak that a backend measures: plausible, named, all 0 where it cannot tell, and refusing nonsense. */
#include "base/machine.h"
#include "op/backend.h"
#include "testing.h"

static double min_gflops(void) { return test_emulated() ? 0 : 0.5; }

static void measures(void **state) {
  ch_peak peak;
  test_ok(ch_backend_peak("cpu", 1, 0.05, 1, &peak));
  assert_int_equal(peak.threads, 1);
  assert_string_equal(peak.isa, ch_isa_name(ch_machine_isa()));
  assert_true(peak.fp32_gflops > min_gflops() && peak.fp32_gflops < 1e4);
  assert_true(peak.read_gbs > 0.01 && peak.read_gbs < 1e4);
  assert_true(peak.triad_gbs > 0.01 && peak.triad_gbs < 1e4);
  assert_int_equal(peak.bf16_gflops > 0, ch_machine_has_bf16());
  assert_int_equal(strcmp(peak.bf16_unit, "none") != 0, ch_machine_has_bf16());
}

static void unknown_peak(void **state) {
  ch_peak peak = {.fp32_gflops = 1, .triad_gbs = 1};
  test_ok(ch_backend_peak("reference", 1, 0.05, 1, &peak));
  assert_true(!peak.fp32_gflops && !peak.bf16_gflops && !peak.read_gbs && !peak.triad_gbs);
}

/* Main memory takes 768 MiB: only where it is asked for. */
static void leaves_memory_out(void **state) {
  ch_peak peak;
  test_ok(ch_backend_peak("cpu", 1, 0.05, 0, &peak));
  assert_true(peak.fp32_gflops > min_gflops() && !peak.read_gbs && !peak.triad_gbs);
}

static void refuses(void **state) {
  ch_peak peak;
  assert_int_equal(ch_backend_peak("cpu", 1, -1, 0, &peak), CHOIR_ERROR_ARGUMENT);
  assert_int_equal(ch_backend_peak("cpu", 1, (double)NAN, 0, &peak), CHOIR_ERROR_ARGUMENT);
  assert_int_equal(ch_backend_peak("nothing", 1, 1, 0, &peak), CHOIR_ERROR_ARGUMENT);
}

TEST_MAIN(NULL, NULL, measures, unknown_peak, leaves_memory_out, refuses)
