/* The report on a run's metrics: what tests of the whole program do not meet. */
#include <unistd.h>

#include "base/dir.h"
#include "base/file.h"
#include "choir/report.h"
#include "testing.h"

/* A loss that never changes: means of its bins differ in the last bit, and an axis must not be made of that. */
static void constant_curves(void **state) {
  (void)state;
  char directory[] = "/tmp/choir-report-XXXXXX", metrics[64], page[64], *html;
  size_t bytes;
  assert_non_null(mkdtemp(directory));
  snprintf(metrics, sizeof metrics, "%s/metrics.jsonl", directory);
  snprintf(page, sizeof page, "%s/report.html", directory);
  FILE *file = fopen(metrics, "w");
  for (int step = 1; step <= 1001; step++)
    fprintf(file, "{\"event\":\"step\",\"step\":%d,\"loss\":0.9,\"aux_loss\":0,\"gradient_norm\":0.3}\n", step);
  assert_int_equal(fclose(file), 0);
  alarm(60); /* rather than draw ticks for ever */
  test_ok(choir_report_write(directory, page));
  alarm(0);
  test_ok(ch_file_read(page, 1 << 20, &html, &bytes));
  assert_non_null(strstr(html, "Loss</strong>"));
  assert_non_null(strstr(html, "Gradient norm</strong>"));
  assert_null(strstr(html, "Auxiliary loss</strong>")); /* nothing but zeros */
  assert_null(strstr(html, "nan"));
  free(html);
  test_ok(ch_dir_remove(directory));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(constant_curves)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
