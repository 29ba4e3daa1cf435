/* A host program with a decimal comma (tests/CMakeLists.txt says which): what is written is JSON and SVG all the same,
 * and numbers in text are read as ever. */
#include "bench/bench.h"
#include "choir/choir.h"
#include "model/config.h"
#include "page.h"
#include "pages/report.h"

static int has_comma(void) {
  char text[8];
  snprintf(text, sizeof text, "%.1f", 0.5);
  if (!strcmp(text, "0,5")) return 1;
  printf("NOT TESTED: a decimal comma: no such locale is there\n");
  return 0;
}

static void numbers_have_points(void **state) {
  char text[64], *end;
  ch_format(text, sizeof text, "%.1f and %g", 0.5, 2.25);
  assert_string_equal(text, "0.5 and 2.25");
  assert_true(ch_number("1.5,", &end) == 1.5 && *end == ',');
  ch_error(CHOIR_ERROR_ARGUMENT, "%g", 0.125);
  assert_string_equal(choir_error_message(), "0.125");
  has_comma();
  assert_ptr_equal(uselocale((locale_t)0), LC_GLOBAL_LOCALE); /* the thread still has the host's */
}

/* Every line of a file is a JSON object, and no line was lost. */
static void is_json(const char *path, int min) {
  size_t size;
  int lines = 0;
  char *text = program_read(path, &size);
  assert_non_null(text);
  for (char *rest = text, *line; (line = strsep(&rest, "\n")) && *line; lines++) {
    json_t *root = json_loads(line, 0, NULL);
    if (!json_is_object(root)) fail_msg("%s: %s", path, line);
    json_decref(root);
  }
  assert_true(lines >= min);
  free(text);
}

static void runs_and_reports(void **state) {
  choir_config config;
  choir_train_options o = CHOIR_TRAIN_OPTIONS_INIT;
  choir_model_options model = {.size = sizeof model, .threads = 1};
  test_ok(ch_config_load("config.json", &config));
  config.train.steps = 4;
  o.config = &config, o.data = "data", o.out = "run", o.model = &model, o.disk_minutes = -1.5;
  test_fails(choir_train(&o), CHOIR_ERROR_ARGUMENT, "disk_minutes is -1.5");
  o.disk_minutes = (double)NAN;
  test_fails(choir_train(&o), CHOIR_ERROR_ARGUMENT, "disk_minutes");
  o.disk_minutes = 0;
  test_ok(choir_train(&o));
  is_json("run/metrics.jsonl", 5);
  is_json("run/timing.jsonl", 5);
  test_ok(ch_report_write((const char *const[]){"run"}, 1, "report.html"));
  json_t *data = page_data("report.html"), *run = json_array_get(json_object_get(data, "runs"), 0);
  const json_t *loss = json_object_get(json_object_get(run, "curves"), "loss");
  for (size_t i = 0; i < 4; i++) {
    assert_true(json_integer_value(json_array_get(json_object_get(loss, "x"), i)) == (json_int_t)i + 1);
    assert_true(json_is_real(json_array_get(json_object_get(loss, "y"), i)));
  }
  json_decref(data);
}

static void problems_are_read(void **state) {
  ch_bench_result r;
  const ch_peak peak = {.threads = 1, .fp32_gflops = 1, .read_gbs = 1, .triad_gbs = 1};
  const ch_bench_options options = {.threads = 1, .repetitions = 1, .seconds = 1e-6, .peak = &peak};
  test_ok(ch_bench_run("moe n=32 d=8 h=16 e=4 c=1.5", &options, &r));
  assert_non_null(strstr(r.problem, " c=1.5 "));
}

TEST_MAIN(program_setup, program_directory_remove, numbers_have_points, runs_and_reports, problems_are_read)
