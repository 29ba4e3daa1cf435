/* The report on a run's metrics: what tests of the whole program do not meet. */
#include <unistd.h>

#include "file/dir.h"
#include "file/file.h"
#include "pages/history.h"
#include "pages/report.h"
#include "testing.h"

static char directory[] = "/tmp/choir-report-XXXXXX";

static int make(void **state) {
  (void)state;
  return !mkdtemp(directory);
}

static int drop(void **state) {
  (void)state;
  return ch_dir_remove(directory);
}

static const char *in(const char *name) {
  static char path[2][64];
  static int turn;
  snprintf(path[turn ^= 1], sizeof path[0], "%s/%s", directory, name);
  return path[turn];
}

/* The page about these logs; NULL: the library's error. */
static char *report_of(const char *metrics, const char *timing) {
  char *html;
  size_t bytes;
  test_ok(ch_file_save(in("metrics.jsonl"), metrics, strlen(metrics)));
  test_ok(ch_file_save(in("timing.jsonl"), timing, strlen(timing)));
  alarm(60); /* rather than draw ticks for ever */
  int code = ch_report_write(directory, in("report.html"));
  alarm(0);
  if (code) return NULL;
  test_ok(ch_file_read(in("report.html"), 1 << 24, &html, &bytes));
  assert_null(strstr(html, "nan"));
  assert_null(strstr(html, "inf"));
  return html;
}

/* A loss that never changes: means of its bins differ in the last bit, and an axis must not be made of that. */
static void constant_curves(void **state) {
  (void)state;
  static char metrics[1 << 17];
  for (int step = 1, used = 0; step <= 1001; step++)
    used += snprintf(metrics + used, sizeof metrics - (size_t)used,
                     "{\"event\":\"step\",\"step\":%d,\"loss\":0.9,\"aux_loss\":0,\"gradient_norm\":0.3}\n", step);
  char *html = report_of(metrics, "");
  assert_non_null(strstr(html, "Loss</strong>"));
  assert_non_null(strstr(html, "Gradient norm</strong>"));
  assert_null(strstr(html, "Auxiliary loss</strong>")); /* nothing but zeros */
  free(html);
}

#define STEP(n, loss, rate) "{\"event\":\"step\",\"step\":" #n ",\"loss\":" #loss ",\"rate\":" #rate "}\n"

/* Numbers at the ends of what a double can hold. */
static void extreme_numbers(void **state) {
  (void)state;
  free(report_of(STEP(1, 1, 4.9e-324) STEP(2, 2, 4.9e-324), ""));
  free(report_of(STEP(1, 5e-320, 0) STEP(2, 9e-320, 1e-308), ""));
  free(report_of(STEP(1, -1.7e308, 1.7e308) STEP(2, 1.7e308, -1.7e308), ""));
  free(report_of(STEP(-1e308, 1, 1) STEP(1e308, 1, 1), ""));
  free(report_of(STEP(1, 1e-13, 1e300) STEP(1.0000000001, 1.0000000001e-13, 1e300), ""));
  free(report_of(
      STEP(1, 1, 1) "{\"event\":\"eval\",\"step\":1,\"loss\":1,\"unigram_loss\":1e300,\"layers\":[{\"layer\":1e300,"
                    "\"assignments\":1e308,\"load\":[1e308,5e-324],\"demand\":[1e308,1e308],\"histogram\":"
                    "[1e308,1e308]}]}\n",
      ""));
}

/* Lists of a layer that do not go together, or hold what is no count. */
static void lists_of_any_length(void **state) {
  (void)state;
  static const char *const layers[] = {
      "{\"layer\":1,\"load\":[1,2,3,4,5,6,7,8,9,10,11,12],\"demand\":[5],\"histogram\":[3]}",
      "{\"load\":[1],\"demand\":[5,6,7,8,9]}",
      "{\"load\":[-1,null,\"x\",[]],\"demand\":[{}],\"histogram\":[-1,-2]}",
      "{\"load\":{},\"demand\":3,\"histogram\":\"x\"}",
      "[]",
      "7",
      "{}"};
  for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
    char metrics[512];
    snprintf(metrics, sizeof metrics, "%s{\"event\":\"eval\",\"step\":1,\"loss\":1,\"layers\":[%s]}\n", STEP(1, 1, 1),
             layers[i]);
    char *html = report_of(metrics, "");
    assert_non_null(html);
    free(html);
  }
}

#define LOADS "{\"event\":\"eval\",\"step\":1,\"loss\":1,\"layers\":[{\"layer\":3,\"load\":[5,5]}]"

/* Loads that serving would see stand beside those of a batch; an evaluation without them shows none. */
static void loads_as_in_serving(void **state) {
  (void)state;
  static const char title[] = "Routing as in serving";
  char *html =
      report_of(STEP(1, 1, 1) LOADS ",\"threshold\":{\"loss\":2,\"layers\":[{\"layer\":3,\"load\":[7,1]}]}}\n", "");
  assert_non_null(html);
  char *by_batch = strstr(html, "expert 0: 5</title>"), *head = strstr(html, title);
  assert_true(by_batch && head && by_batch < head);
  assert_non_null(strstr(head, "expert 0: 7</title>"));
  assert_null(strstr(head, "expert 0: 5</title>"));
  free(html);
  html = report_of(STEP(1, 1, 1) LOADS "}\n", "");
  assert_non_null(html);
  assert_null(strstr(html, title));
  free(html);
}

/* Lines that a killed process, or a machine without power, left in the logs are left out, and said. */
static void broken_lines_are_left_out(void **state) {
  (void)state;
  char *html = report_of(STEP(1, 1, 1),
                         "{\"step\":1,\"seconds\":0.1,\"tok{\"step\":2,\"tokens_per_second\":5}\n"
                         "{\"step\":3,\"tokens_per_second\":7}\n\n[]\n{\"step\":4");
  assert_non_null(html);
  assert_non_null(strstr(html, "Speed</strong>"));
  free(html);
  const char *told = choir_notices();
  assert_non_null(strstr(told, "timing.jsonl: 3 lines that are not JSON are left out; the first is line 1: "));
  assert_null(strstr(told, "metrics"));
  assert_null(report_of("{}\n", ""));
  assert_non_null(strstr(choir_error_message(), "has no step yet"));
}

static void pages_may_fetch_and_run_nothing(void **state) {
  (void)state;
  char *html = report_of(STEP(1, 1, 1), "");
  assert_non_null(strstr(html,
                         "Content-Security-Policy content=\"default-src 'none'; base-uri 'none'; form-action 'none'; "
                         "style-src 'unsafe-inline'\">"));
  free(html);
}

/* Lines out of memory, as the fuzz target has them, are taken as those of files are. */
static void parses_what_it_reads(void **state) {
  (void)state;
  char lines[] =
      "{\"event\":\"step\",\"step\":1,\"loss\":2}\n{\"event\":\"eval\",\"step\":1,\"loss\":3,\"threshold\":{\"loss\":4}"
      "}\n";
  FILE *metrics = fmemopen(lines, sizeof lines - 1, "r"), *timing = fopen("/dev/null", "r");
  ch_history history;
  assert_true(metrics && timing);
  test_ok(ch_history_parse(metrics, timing, &history));
  assert_int_equal(json_array_size(history.evals), 1);
  assert_true(history.curve[CH_THRESHOLD_LOSS].count == 1 && history.curve[CH_THRESHOLD_LOSS].y[0] == 4);
  ch_history_free(&history);
  fclose(metrics);
  fclose(timing);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(constant_curves),           cmocka_unit_test(extreme_numbers),
      cmocka_unit_test(lists_of_any_length),       cmocka_unit_test(loads_as_in_serving),
      cmocka_unit_test(broken_lines_are_left_out), cmocka_unit_test(pages_may_fetch_and_run_nothing),
      cmocka_unit_test(parses_what_it_reads)};
  return cmocka_run_group_tests(tests, make, drop);
}
