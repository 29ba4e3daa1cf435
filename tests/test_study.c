/* choir study: two tiny arms end to end; killed and resumed; runs that fail; runs that are shared; the page in a
 * browser. */
#include <dirent.h>
#include <errno.h>
#include <time.h>

#include "program.h"

static const char scale[] =
    "{\"config\": {\"model\": {\"name\": \"tiny\", \"layers\": 2, \"d_model\": 32, \"d_hidden\": 64, \"heads\": 2, "
    "\"experts\": 4},\n"
    "  \"train\": {\"sequence_length\": 32, \"batch_sequences\": 4, \"eval_sequences\": 8}},\n"
    " \"tokens\": 20480, \"seeds\": 2, \"rates\": [0.02, 0.05], \"rate_tokens\": 2560, \"eval_tokens\": 1280}\n";

static const char two[] =
    "{\"name\": \"two\", \"title\": \"Two <tiny> arms\", \"question\": \"Does it work?\", \"figure\": \"none\",\n"
    " \"arms\": [{\"name\": \"EC\", \"set\": {\"router.name\": \"expert_choice\"}},\n"
    "  {\"name\": \"dense\", \"set\": {\"router.name\": \"dense\", \"model.experts\": 1}, \"times\": "
    "{\"model.d_expert\": 2}}],\n"
    " \"measure\": [\"pools\", \"tokens\"],\n"
    " \"claims\": [{\"text\": \"EC < dense\", \"paper\": \"lower\", \"kind\": \"loss\", \"arm\": \"EC\", \"rival\": "
    "\"dense\"},\n"
    "  {\"text\": \"sooner\", \"kind\": \"steps\", \"arm\": \"EC\", \"rival\": \"dense\", \"figure\": 2},\n"
    "  {\"text\": \"one or two\", \"kind\": \"share\", \"arm\": \"EC\", \"from\": 1, \"to\": 2, \"null\": 0.5},\n"
    "  {\"text\": \"gap\", \"kind\": \"gap\", \"arm\": \"EC\", \"margin\": 10},\n"
    "  {\"text\": \"above ten less\", \"kind\": \"gap\", \"arm\": \"EC\", \"null\": -10},\n"
    "  {\"text\": \"by 1000 nats\", \"kind\": \"gap\", \"arm\": \"EC\", \"null\": -10, \"figure\": 1000}]}\n";

#define STUDY "choir study run two.json --data data --scale ./tiny.json --jobs 2 "

static int setup(void **state) {
  if (program_setup(state)) return -1;
  test_ok(ch_file_save("tiny.json", scale, sizeof scale - 1));
  test_ok(ch_file_save("two.json", two, sizeof two - 1));
  return 0;
}

static json_t *load(const char *path) {
  json_error_t error;
  json_t *root = json_load_file(path, 0, &error);
  if (!root) fail_msg("%s: %s", path, error.text);
  return root;
}

/* What the summary says is what the runs' own files say. */
static void end_to_end(void **state) {
  (void)state;
  program_must(STUDY "--out whole");
  json_t *summary = load("whole/two-tiny/summary.json"), *arms = json_object_get(summary, "arms"), *arm, *run;
  size_t i, j;
  double final[2][2];
  assert_int_equal(json_at(summary, "eval_tokens"), 8 * 32);
  program_must(
      "grep -q '0.02048 M tokens a run.*held-out loss on 256 tokens, in sequences of 32' whole/two-tiny/report.html");
  assert_int_equal(json_array_size(arms), 2);
  assert_true(json_at(json_array_get(arms, 1), "flops_to_first") < 1.01); /* the dense arm has no router, else equal */
  assert_true(json_at(json_array_get(arms, 1), "flops_to_first") > 0.98);
  json_array_foreach(arms, i, arm) {
    assert_int_equal(json_array_size(json_object_get(arm, "runs")), 2);
    assert_int_equal(json_array_size(json_object_get(json_object_get(arm, "curve"), "step")), 16);
    json_array_foreach(json_object_get(arm, "runs"), j, run) {
      char line[4096], path[512];
      snprintf(path, sizeof path, "whole/runs/%s/metrics.jsonl", json_string_value(json_object_get(run, "name")));
      FILE *file = fopen(path, "r");
      assert_non_null(file);
      double causal = 0, own = 0;
      while (fgets(line, sizeof line, file)) {
        json_t *e = json_loads(line, 0, NULL);
        if (e && !strcmp(json_string_value(json_object_get(e, "event")), "eval")) {
          own = json_at(e, "loss");
          causal = i ? own : json_at(json_object_get(e, "threshold"), "loss");
          assert_int_equal(json_at(e, "tokens"), 8 * 32);
        }
        json_decref(e);
      }
      fclose(file);
      assert_true(json_at(run, "causal") == causal && json_at(run, "own") == own);
      final[i][j] = causal;
    }
  }
  json_t *claim = json_array_get(json_object_get(summary, "claims"), 0), *ours = json_object_get(claim, "causal");
  double mean = 0;
  for (int seed = 0; seed < 2; seed++) mean += (final[1][seed] - final[0][seed]) / 2;
  if (!(fabs(json_at(ours, "mean") - mean) < 1e-12)) fail_msg("advantage %g, not %g", json_at(ours, "mean"), mean);
  double half = 12.7062 * fabs((final[1][0] - final[0][0]) - (final[1][1] - final[0][1])) / 2;
  if (!(fabs(json_at(ours, "high") - mean - half) < 1e-4 * half))
    fail_msg("half interval %g, not %g", json_at(ours, "high") - mean, half);
  static const char *const verdicts[] = {"holds", "holds", "does not show at this scale"};
  for (size_t i = 0; i < 3; i++) { /* within ten nats; above -10 of them; and far from 1,000 */
    const json_t *one = json_array_get(json_object_get(summary, "claims"), 3 + i);
    assert_string_equal(json_string_value(json_object_get(one, "verdict")), verdicts[i]);
  }
  json_decref(summary);
}

/* No pool is named larger than what was held out. */
static void pools_are_what_they_say(void **state) {
  (void)state;
  program_must("choir study measure whole/runs/$(ls whole/runs | grep expert | head -n 1) --data data --out m.json");
  json_t *root = load("m.json"), *row;
  double held_out = json_at(json_object_get(root, "own"), "tokens"), largest = 0;
  size_t i;
  json_array_foreach(json_object_get(root, "pools"), i, row) largest = fmax(largest, json_at(row, "pool"));
  if (!(largest > 0 && largest <= held_out)) fail_msg("a pool of %g tokens, of %g", largest, held_out);
  json_decref(root);
}

static int count_runs(const char *directory) {
  char path[256];
  int count = 0;
  snprintf(path, sizeof path, "%s/runs", directory);
  DIR *d = opendir(path);
  assert_non_null(d);
  for (struct dirent *e; (e = readdir(d));) count += e->d_name[0] != '.';
  closedir(d);
  return count;
}

/* Done again nothing is trained; another recipe with the same arm shares its runs; more seeds add to what is there. */
static void runs_are_shared(void **state) {
  (void)state;
  char *before, *after;
  size_t bytes, same;
  before = program_read("whole/two-tiny/summary.json", &bytes);
  int runs = count_runs("whole");
  assert_int_equal(runs, 6); /* two arms: two rates with seed 1, the better one with seed 2 */
  program_must(STUDY "--out whole");
  after = program_read("whole/two-tiny/summary.json", &same);
  assert_true(bytes == same && !memcmp(before, after, bytes));
  free(before);
  free(after);
  program_must(
      "sed -e s/\\\"two\\\"/\\\"more\\\"/ -e s/EC/expert/g two.json >more.json;"
      "choir study run more.json --data data --scale ./tiny.json --jobs 2 --seeds 3 --out whole");
  assert_int_equal(count_runs("whole"), runs + 2);
  program_must(
      "sed -i 's/\"pools\", \"tokens\"/\"time\"/' more.json;"
      "choir study run more.json --data data --scale ./tiny.json --jobs 2 --seeds 3 --out whole");
  json_t *summary = load("whole/more-tiny/summary.json"),
         *timed = json_object_get(json_object_get(summary, "timing"), "arms");
  for (size_t i = 0; i < 2; i++) {
    const json_t *arm = json_array_get(timed, i);
    assert_true(json_at(arm, "step_seconds") > json_at(arm, "expert_seconds") && json_at(arm, "expert_seconds") > 0);
    if (!(json_at(arm, "fullest_holds") < 1.1))
      fail_msg("imbalance %g", json_at(arm, "fullest_holds")); /* even loads */
    const json_t *ratio = json_object_get(arm, "step_to_reference");
    assert_true(json_at(ratio, "count") == 9 && json_at(ratio, "low") <= json_at(ratio, "high"));
  }
  json_decref(summary);
  program_must("choir study status whole");
  assert_non_null(strstr(program_output, "seed 3 100 %"));
}

static void pause_briefly(void) { nanosleep(&(struct timespec){0, 20000000}, NULL); }

/* Some run has written a step beyond its first checkpoint's place. */
static int has_begun(const char *directory) {
  return program_run("grep -qs '\"step\":4[0-9],' %s/runs/*/metrics.jsonl", directory) == 0;
}

/* kill -9 on the study, in the middle of its runs; SIGTERM the next time; the third goes to the end. Its summary is
 * that of a study which nobody stopped. */
static void killed_and_resumed(void **state) {
  (void)state;
  char *whole, *resumed;
  size_t bytes, same;
  for (int signal = 0; signal < 2; signal++) {
    pid_t child = program_start("exec \"$CHOIR\" study run two.json --data data --scale ./tiny.json --jobs 2 --out cut",
                                "cut.txt");
    for (int i = 0; i < 3000 && !has_begun("cut"); i++) pause_briefly();
    kill(child, signal ? SIGTERM : SIGKILL);
    program_wait(child);
  }
  program_must(STUDY "--out cut");
  whole = program_read("whole/two-tiny/summary.json", &bytes);
  resumed = program_read("cut/two-tiny/summary.json", &same);
  if (bytes != same || memcmp(whole, resumed, bytes)) fail_msg("%s", "the summaries differ");
  free(whole);
  free(resumed);
}

/* One run cannot be: it is told, and the others go on. */
static void a_run_fails(void **state) {
  (void)state;
  program_must("mkdir -p hurt/runs; touch hurt/runs/$(ls whole/runs | grep 'expert.*-s2-')");
  program_refuses(1, "failed: EC, seed 2", STUDY "--out hurt");
  assert_non_null(strstr(program_output, "1 run failed; see "));
  json_t *summary = load("hurt/two-tiny/summary.json"), *arms = json_object_get(summary, "arms");
  assert_true(json_at(json_object_get(json_array_get(arms, 0), "causal"), "count") == 1);
  assert_true(json_at(json_object_get(json_array_get(arms, 1), "causal"), "count") == 2);
  const json_t *claim = json_array_get(json_object_get(summary, "claims"), 0);
  assert_string_equal(json_string_value(json_object_get(claim, "verdict")), "one seed: no verdict");
  json_decref(summary);
}

static void refusals(void **state) {
  (void)state;
  program_refuses(1, "efficiency", "choir study run efficency --data data --out r");
  program_refuses(1, "scale 'huge'", "choir study run efficiency --scale huge --data data --out r");
  program_refuses(1, "claims[0]",
                  "sed 's/\"rival\": \"dense\"/\"rival\": \"dens\"/' two.json >bad.json;"
                  "choir study run bad.json --data data --scale ./tiny.json --out r");
  program_refuses(1, "kind 'los'",
                  "sed 's/\"loss\"/\"los\"/' two.json >bad.json;"
                  "choir study run bad.json --data data --scale ./tiny.json --out r");
  program_refuses(1, "unknown key 'arm'",
                  "sed 's/\"arms\"/\"arm\"/' two.json >bad.json;"
                  "choir study run bad.json --data data --scale ./tiny.json --out r");
  program_refuses(1, "no study", "mkdir -p empty; choir study report empty");
  program_refuses(1, "nowhere", "choir study run two.json --data nowhere --scale ./tiny.json --out r");
  program_refuses(1, "d\\xE9: the name must be UTF-8",
                  "data=\"$(printf 'd\\351')\"; cp -r data \"$data\";"
                  "choir study run two.json --data \"$data\" --scale ./tiny.json --out r");
}

/* Every recipe makes arms at every scale: of equal cost, but where the recipe is about cost. */
static void recipes(void **state) {
  (void)state;
  program_must("choir study list");
  static const char *const names[] = {"efficiency", "experts", "capacity", "dense", "capped",  "variable",
                                      "balanced",   "causal",  "pool",     "leak",  "finetune"};
  for (int i = 0; i < 11; i++) {
    if (!strstr(program_output, names[i])) fail_msg("no %s in: %s", names[i], program_output);
  }
}

/* Chromium renders the page without an error on its console. */
static void in_a_browser(void **state) {
  (void)state;
  if (program_run("command -v chromium")) {
    test_skip("the page in a browser: chromium is missing");
  }
  program_must("choir study report whole");
  program_must(
      "timeout 120 chromium --headless --no-sandbox --disable-gpu --enable-logging=stderr --log-level=0 "
      "--user-data-dir=$PWD/browser --virtual-time-budget=3000 --dump-dom \"file://$PWD/whole/two-tiny/report.html\" "
      ">dom.html 2>console.txt");
  if (!program_run("grep -E 'CONSOLE|Uncaught|Refused' console.txt")) fail_msg("%s", program_output);
  program_must("grep -q 'copy as CSV' dom.html"); /* the script ran to its end */
  program_must("grep -q '<polyline' dom.html");
  program_must("grep -q 'EC &lt; dense' dom.html"); /* and text is text */
  program_must("grep -q 'Two &lt;tiny&gt; arms' dom.html");
  if (program_run("grep -E '[ ,\"](nan|inf|-nan)[ ,\"]' dom.html") == 0) fail_msg("%.300s", program_output);
  program_must(
      "for f in whole/two-tiny/figures/*.svg; do timeout 60 chromium --headless --no-sandbox --disable-gpu "
      "--user-data-dir=$PWD/browser --dump-dom \"file://$PWD/$f\" 2>/dev/null | grep -q 'polyline' || exit 1; break; "
      "done");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(end_to_end),      cmocka_unit_test(pools_are_what_they_say),
      cmocka_unit_test(runs_are_shared), cmocka_unit_test(killed_and_resumed),
      cmocka_unit_test(a_run_fails),     cmocka_unit_test(refusals),
      cmocka_unit_test(recipes),         cmocka_unit_test(in_a_browser),
  };
  return cmocka_run_group_tests(tests, setup, program_directory_remove);
}
