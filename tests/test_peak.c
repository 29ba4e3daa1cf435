/* The machine's measured peak: plausible, named, and refusing nonsense. */
#include "base/machine.h"
#include "choir/machine.h"
#include "testing.h"

static void measures(void **state) {
  (void)state;
  choir_machine_peak peak;
  test_ok(choir_machine_measure(1, 0.05, &peak));
  assert_int_equal(peak.threads, 1);
  assert_string_equal(peak.isa, ch_isa_name(ch_machine_isa()));
  assert_true(peak.fp32_gflops > 0.5 && peak.fp32_gflops < 1e4);
  assert_true(peak.read_gbs > 0.01 && peak.read_gbs < 1e4);
  assert_true(peak.triad_gbs > 0.01 && peak.triad_gbs < 1e4);
  assert_int_equal(peak.bf16_gflops > 0, ch_machine_has_bf16());
  assert_int_equal(strcmp(peak.bf16_unit, "none") != 0, ch_machine_has_bf16());
}

static void refuses(void **state) {
  (void)state;
  choir_machine_peak peak;
  assert_int_equal(choir_machine_measure(1, -1, &peak), CHOIR_ERROR_ARGUMENT);
  assert_int_equal(choir_machine_measure(1, (double)NAN, &peak), CHOIR_ERROR_ARGUMENT);
  assert_int_equal(choir_machine_measure(1, 0, NULL), CHOIR_ERROR_ARGUMENT);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(measures), cmocka_unit_test(refuses)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
