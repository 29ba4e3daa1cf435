/* The report on a run's metrics: what tests of the whole program do not meet. */
#include "page.h"
#include "pages/report.h"

/* Writes the page about these logs and gives the run's part of its data; NULL: the library's error. */
static json_t *report_of(const char *metrics, const char *timing) {
  test_ok(ch_file_save("metrics.jsonl", metrics, strlen(metrics)));
  test_ok(ch_file_save("timing.jsonl", timing, strlen(timing)));
  if (ch_report_write((const char *const[]){"."}, 1, "report.html")) return NULL;
  json_t *data = page_data("report.html"), *run = json_incref(json_array_get(json_object_get(data, "runs"), 0));
  json_decref(data);
  return run;
}

/* The page draws itself whatever its numbers are: axes have ticks, coordinates are numbers. */
#define DRAWN(metrics, timing, ...)                                                            \
  do {                                                                                         \
    json_decref(report_of(metrics, timing));                                                   \
    PAGE_SHOWS("report.html", "'' pointermove 0.7", "<svg", "!NaN", "!Infinity", __VA_ARGS__); \
  } while (0)

/* A loss that never changes: means of neighbours differ in the last bit, and an axis must not be made of that. What is
 * nothing but zeros is not drawn. */
static void constant_curves(void **state) {
  static char metrics[1 << 17];
  for (int step = 1, used = 0; step <= 1001; step++)
    used += snprintf(metrics + used, sizeof metrics - (size_t)used,
                     "{\"event\":\"step\",\"step\":%d,\"loss\":0.9,\"aux_loss\":0,\"gradient_norm\":0.3}\n", step);
  DRAWN(metrics, "", "Loss</strong>", "Gradient norm</strong>", "!Auxiliary loss</strong>", "0.9</b>");
  json_t *run = report_of(metrics, ""), *loss = json_object_get(json_object_get(run, "curves"), "loss");
  assert_true(json_array_size(json_object_get(loss, "y")) == 400 && json_at(loss, "median") == 0.9);
  json_decref(run);
}

#define STEP_WITH(name, n, loss, rate) \
  "{\"event\":\"step\",\"step\":" #n ",\"loss\":" #loss ",\"" name "\":" #rate "}\n"
#define STEP(n, loss, rate) STEP_WITH("learning_rate", n, loss, rate)

/* Numbers at the ends of what a double can hold. */
static void extreme_numbers(void **state) {
  static const char *const metrics[] = {
      STEP(1, 1, 4.9e-324) STEP(2, 2, 4.9e-324), STEP(1, 5e-320, 0) STEP(2, 9e-320, 1e-308),
      STEP(1, -1.7e308, 1.7e308) STEP(2, 1.7e308, -1.7e308), STEP(-1e308, 1, 1) STEP(1e308, 1, 1),
      STEP(1, 1e-13, 1e300) STEP(1.0000000001, 1.0000000001e-13, 1e300),
      STEP(1, 1, 1) "{\"event\":\"eval\",\"step\":1,\"loss\":1,\"unigram_loss\":1e300,\"layers\":[{\"layer\":1e300,"
                    "\"assignments\":1e308,\"load\":[1e308,5e-324],\"demand\":[1e308,1e308],\"histogram\":"
                    "[1e308,1e308]}]}\n"};
  for (size_t i = 0; i < sizeof metrics / sizeof *metrics; i++) DRAWN(metrics[i], "", "Loss</strong>");
}

/* Lists of a layer that do not go together, or hold what is no count. */
static void lists_of_any_length(void **state) {
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
    DRAWN(metrics, "", "Config</h2>");
  }
}

#define LOADS "{\"event\":\"eval\",\"step\":1,\"loss\":1,\"layers\":[{\"layer\":3,\"load\":[5,5]}]"

/* Loads that serving would see stand beside those of a batch; an evaluation without them shows none. */
static void loads_as_in_serving(void **state) {
  DRAWN(STEP(1, 1, 1) LOADS ",\"threshold\":{\"loss\":2,\"layers\":[{\"layer\":3,\"load\":[7,1]}]}}\n", "",
        "Routing, at the last evaluation", "Causal routing", "5 tokens each", "expert 0: 7</title>");
  DRAWN(STEP(1, 1, 1) LOADS "}\n", "", "5 tokens each", "!Causal routing");
}

/* The curve answers to the pointer, and to keys, with the step, its losses and the learning rate, by the name that it
 * had before 0.6, too. */
static void the_curve_answers(void **state) {
  static const char metrics[] = STEP(1, 2.5, 0.125) STEP_WITH("rate", 2, 2.25, 0.0625)
      STEP(3, 1.75, 0.5) "{\"event\":\"eval\",\"step\":3,\"loss\":1.875}\n";
  DRAWN(metrics, "", "held-out figures and routing are of step 3", "step 2</strong>",
        "<div class=\"s0\">training<b>2.25</b>", "held out<b>1.875 at step 3</b>", "learning rate<b>0.0625</b>");
  PAGE_SHOWS("report.html", "'' keydown Home", "step 1</strong>", "training<b>2.5</b>", "learning rate<b>0.125</b>");
}

/* Names, fields and texts of a config are text, in every place. */
static void markup_stays_text(void **state) {
  DRAWN(
      "{\"event\":\"run\",\"parameters\":1234567,\"config\":{\"model\":{\"name\":\"<b>&\\\"'</script>\"},"
      "\"__proto__\":{\"<i>\":[\"<u>\"]},\"x\":null}}\n" STEP(1, 1, 1),
      "", "<h1>&lt;b&gt;&amp;&quot;'&lt;/script&gt;</h1>", "__proto__.&lt;i&gt;", "[&quot;&lt;u&gt;&quot;]",
      "1,234,567</b>", "!<u>");
  program_must("mkdir -p '\xff<b>' && cp metrics.jsonl '\xff<b>'");
  test_ok(ch_report_write((const char *const[]){"\xff<b>"}, 1, "report.html"));
  json_decref(page_data("report.html")); /* its title, too */
}

/* Lines that a killed process, or a machine without power, left in the logs are left out, and said. */
static void broken_lines_are_left_out(void **state) {
  json_t *run = report_of(STEP(1, 1, 1),
                          "{\"step\":1,\"seconds\":0.1,\"tok{\"step\":2,\"tokens_per_second\":5}\n"
                          "{\"step\":3,\"tokens_per_second\":7}\n\n[]\n{\"step\":4");
  assert_true(json_at(json_object_get(json_object_get(run, "curves"), "speed"), "last") == 7);
  json_decref(run);
  const char *told = choir_notices();
  assert_non_null(strstr(told, "timing.jsonl: 3 lines that are not JSON are left out; the first is line 1: "));
  assert_null(strstr(told, "metrics"));
  assert_null(report_of("{}\n", ""));
  assert_non_null(strstr(choir_error_message(), "has no step yet"));
}

#define TIMED(n, speed, gflops) \
  "{\"step\":" #n ",\"tokens_per_second\":" #speed ",\"gflops\":" #gflops ",\"peak_gflops\":8}\n"

/* Times of steps that a resumed run took once more are those of the second time. */
static void steps_taken_twice(void **state) {
  json_t *run = report_of(STEP(1, 1, 1) STEP(4, 1, 1),
                          TIMED(1, 4, 1) TIMED(2, 6, 1) TIMED(3, 7, 1) TIMED(2, 8, 1) TIMED(3, 10, 1) TIMED(4, 20, 2));
  const json_t *curves = json_object_get(run, "curves"), *speed = json_object_get(curves, "speed");
  assert_int_equal(json_array_size(json_object_get(speed, "x")), 4);
  assert_true(json_number_value(json_array_get(json_object_get(speed, "y"), 1)) == 8);
  assert_true(json_at(speed, "median") == 9);
  assert_true(json_at(json_object_get(curves, "peak_share"), "last") == 25);
  json_decref(run);
}

#define SAMPLE(n, text) "{\"event\":\"sample\",\"step\":" #n ",\"prompt\":\"\\n A dog\",\"text\":\"" text "\"}\n"

/* What the model wrote at each step, once, as text; of many evaluations some, the last one among them. */
static void samples_by_step(void **state) {
  DRAWN(STEP(1, 1, 1), SAMPLE(1, "<i>.") SAMPLE(2, " x") SAMPLE(2, " runs.") "{\"event\":\"sample\",\"step\":3}\n",
        "Generated text", "step 1</dt><dd><b> A dog</b>&lt;i&gt;.</dd>", "<b> A dog</b> runs.</dd></dl>", "!<i>",
        "! x<");
  DRAWN(STEP(1, 1, 1), "", "!Generated text");
  json_t *twice = report_of(STEP(1, 1, 1), SAMPLE(1, "a") SAMPLE(3, "b") SAMPLE(2, "c"));
  assert_int_equal(json_array_size(json_object_get(twice, "samples")), 2);
  json_decref(twice);
  char many[1 << 14] = "";
  for (int step = 1, used = 0; step <= 100; step++)
    used += snprintf(many + used, sizeof many - (size_t)used, "{\"event\":\"sample\",\"step\":%d}\n", step);
  json_t *run = report_of(STEP(1, 1, 1), many), *samples = json_object_get(run, "samples");
  assert_int_equal(json_array_size(samples), 12);
  assert_true(json_at(json_array_get(samples, 0), "step") == 8 && json_at(json_array_get(samples, 11), "step") == 100);
  json_decref(run);
}

/* Lines parsed from memory, as in the fuzz target, give the same history as lines of a file. */
static void parses_what_it_reads(void **state) {
  char lines[] =
      "{\"event\":\"step\",\"step\":1,\"loss\":2}\n{\"event\":\"eval\",\"step\":1,\"loss\":3,\"threshold\":{\"loss\":4}"
      "}\n";
  FILE *metrics = fmemopen(lines, sizeof lines - 1, "r"), *timing = fopen("/dev/null", "r");
  ch_history history;
  assert_true(metrics && timing);
  test_ok(ch_history_parse(metrics, timing, &history));
  json_t *json = ch_history_json("run", &history), *curves = json_object_get(json, "curves");
  assert_true(json_at(json_object_get(curves, "causal"), "last") == 4 && json_at(json, "steps") == 1);
  json_decref(json);
  ch_history_free(&history);
  fclose(metrics);
  fclose(timing);
}

TEST_MAIN(program_directory_make, program_directory_remove, constant_curves, extreme_numbers, lists_of_any_length,
          loads_as_in_serving, the_curve_answers, markup_stays_text, steps_taken_twice, samples_by_step,
          parses_what_it_reads, broken_lines_are_left_out)
