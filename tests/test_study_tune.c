/* A study that fine-tunes: two tiny arms on two made-up tasks, end to end; killed and resumed; runs that fail; recipes
 * that are wrong. */
#include "made_up_task.h"

static const char scale[] =
    "{\"config\": {\"model\": {\"name\": \"tiny\", \"layers\": 2, \"d_model\": 32, \"d_hidden\": 64, \"heads\": 2, "
    "\"experts\": 4},\n"
    "  \"train\": {\"sequence_length\": 32, \"batch_sequences\": 4, \"eval_sequences\": 8}},\n"
    " \"tokens\": 2560, \"seeds\": 2, \"rates\": [0.05], \"rate_tokens\": 1280, \"eval_tokens\": 1280,\n"
    " \"tune\": {\"steps\": 40, \"evaluations\": 4, \"rows\": 50}}\n";

static const char recipe[] =
    "{\"name\": \"two\", \"title\": \"Two <tuned> arms\", \"question\": \"Does it work?\",\n"
    " \"arms\": [{\"name\": \"EC\", \"set\": {\"router.name\": \"expert_choice\"}},\n"
    "  {\"name\": \"den|se\", \"set\": {\"router.name\": \"dense\", \"model.experts\": 1}}],\n"
    " \"tune\": {\"tasks\": [\"./mine.json\", \"./other.json\", \"WNLI\"], \"recipe\": \"continued\",\n"
    "  \"set\": {\"train.batch_sequences\": 8, \"train.rate\": 0.03}, \"paper_note\": \"no table\",\n"
    "  \"paper\": {\"EC\": {\"mine\": 81.2, \"other\": 77, \"WNLI\": 60, \"average\": 50}, \"den|se\": {\"average\": "
    "64}}},\n"
    " \"claims\": [{\"text\": \"EC < dense\", \"kind\": \"accuracy\", \"arm\": \"EC\", \"rival\": \"den|se\"}]}\n";

enum { ARMS = 2, TASKS = 2, SEEDS = 2 };
#define STUDY "choir study run two.json --data data --scale ./tiny.json --jobs 2 "
#define TASKED STUDY "--tasks tasks --words words.jsonl "

static int set_up(void **state) {
  if (program_setup(state)) return -1;
  test_ok(ch_file_save("tiny.json", scale, sizeof scale - 1));
  test_ok(ch_file_save("two.json", recipe, sizeof recipe - 1));
  test_ok(ch_file_save("mine.json", made_up_task, sizeof made_up_task - 1));
  program_must(
      "sed 's/\"mine\"/\"other\"/' mine.json >other.json; mkdir -p tasks/mine tasks/other none;"
      "echo '{\"task\": \"mine\", \"accuracy\": 0.625}' >words.jsonl");
  made_up_rows("tasks/mine/train.tsv", 200, 1);
  made_up_rows("tasks/mine/dev.tsv", 60, 2);
  made_up_rows("tasks/other/train.tsv", 90, 3);
  made_up_rows("tasks/other/dev.tsv", 40, 4);
  return 0;
}

static json_t *load(const char *format, const char *name) {
  char path[512];
  json_error_t error;
  snprintf(path, sizeof path, format, name);
  json_t *root = json_load_file(path, 0, &error);
  if (!root) fail_msg("%s: %s", path, error.text);
  return root;
}

/* A run's accuracy in percent, as its own files have it, after a look at what it was made of. */
static double accuracy_of(const char *name, const char *from, int seed, const char *routing) {
  json_t *result = load("whole/tuned/%s/result.json", name), *config = load("whole/tuned/%s/config.json", name),
         *train = json_object_get(config, "train");
  if (!strstr(json_string_value(json_object_get(result, "from")), from))
    fail_msg("from %s, not %s", json_string_value(json_object_get(result, "from")), from);
  assert_true(json_at(result, "seed") == seed && json_at(train, "steps") == 40 && json_at(train, "eval_every") == 10);
  assert_true(json_at(train, "batch_sequences") == 8 && json_at(train, "rate") == 0.03);
  assert_true(json_at(train, "schedule_start") == 20); /* "continued", from the step of the study */
  double value = 100 * json_at(json_object_get(result, routing), "accuracy");
  json_decref(result);
  json_decref(config);
  return value;
}

/* What the summary says is what the runs' own files say. */
static void end_to_end(void **state) {
  (void)state;
  program_must(TASKED "--out whole");
  if (!strstr(program_output, "no files of WNLI")) fail_msg("%s", program_output);
  json_t *summary = load("%s", "whole/two-tiny/summary.json"), *tuned = json_object_get(summary, "tuned"), *arm;
  double average[ARMS][SEEDS] = {{0}}, learned = 0;
  size_t i;
  json_array_foreach(json_object_get(tuned, "arms"), i, arm) {
    const json_t *runs = json_object_get(json_array_get(json_object_get(summary, "arms"), i), "runs");
    for (size_t task = 0; task < TASKS; task++) {
      const json_t *cell = json_array_get(json_object_get(arm, "tasks"), task);
      double own = 0, batch = 0;
      for (size_t seed = 0; seed < SEEDS; seed++) {
        const json_t *run = json_array_get(json_object_get(cell, "runs"), seed);
        const char *name = json_string_value(json_object_get(run, "name")),
                   *from = json_string_value(json_object_get(json_array_get(runs, seed), "name"));
        double value = accuracy_of(name, from, (int)seed + 1, "own");
        own += value / SEEDS;
        batch += i ? 0 : accuracy_of(name, from, (int)seed + 1, "batch") / SEEDS;
        average[i][seed] += value / TASKS;
        learned += value > 95;
      }
      assert_true(fabs(json_at(json_object_get(cell, "own"), "mean") - own) < 1e-9);
      if (own > 95) assert_true(json_is_true(json_object_get(cell, "above")));
      if (!i) assert_true(fabs(json_at(json_object_get(cell, "batch"), "mean") - batch) < 1e-9);
      if (i) assert_true(json_is_null(json_object_get(cell, "batch"))); /* a dense model looks at nothing */
    }
    assert_true(fabs(json_at(json_object_get(json_object_get(arm, "average"), "own"), "mean") -
                     (average[i][0] + average[i][1]) / 2) < 1e-9);
  }
  assert_true(learned > 0); /* or all accuracies could be the commonest label's */
  const json_t *ours = json_object_get(json_array_get(json_object_get(summary, "claims"), 0), "causal");
  for (size_t seed = 0; seed < SEEDS; seed++)
    assert_true(fabs(json_number_value(json_array_get(json_object_get(ours, "values"), seed)) -
                     (average[0][seed] - average[1][seed])) < 1e-9);
  assert_string_equal(json_string_value(json_array_get(json_object_get(tuned, "missing"), 0)), "WNLI");
  assert_true(json_at(json_array_get(json_object_get(tuned, "tasks"), 0), "words") == 62.5);
  json_decref(summary);
  program_must(
      "set -e; cd whole/two-tiny; has() { grep -q \"$1\" table.md; };"
      "has '^| task | commonest label | bag of words | EC | den.|se | paper: EC | paper: den.|se |$';"
      "has '^| mine | .* | 62.5 | .* | 81.2 | - |$'; has '^| average of 2 | .* | - | .* | 79.1 | - |$';"
      "has 'Left out.*WNLI'; grep -q 'Two &lt;tuned&gt; arms' report.html; grep -q '<td>average of 2</td>' "
      "report.html");
}

static int runs_of(const char *directory) {
  program_must("ls %s/tuned | wc -l", directory);
  return atoi(program_output);
}

/* Done again nothing is trained, and the report from the runs alone is the same. Other budgets are other runs. */
static void runs_stand(void **state) {
  (void)state;
  program_must("cp whole/two-tiny/summary.json before.json; ls -lR --time-style=full-iso whole/tuned >before.txt");
  program_must(TASKED "--out whole");
  program_must(
      "ls -lR --time-style=full-iso whole/tuned | cmp - before.txt; cmp whole/two-tiny/summary.json before.json");
  program_must("rm whole/two-tiny/summary.json; choir study report whole; cmp whole/two-tiny/summary.json before.json");
  assert_int_equal(runs_of("whole"), ARMS * TASKS * SEEDS);
  program_must(
      "cp -r whole part; cd part/tuned/mine-dense-s1-*/checkpoints; rm -rf *30; mv *40 00000030; cd ../../../..;" /* not
                                                                                                                     all
                                                                                                                     steps
                                                                                                                   */
      "choir study report part; test $(grep -c '\"best_step\": [0-9]' part/two-tiny/summary.json) -eq 7");
  program_must("cp -r whole less; " STUDY "--tasks tasks --tune-steps 2 --tune-rows 20 --out less");
  assert_int_equal(runs_of("less"), 2 * ARMS * TASKS * SEEDS);
  json_t *summary = load("%s", "less/two-tiny/summary.json"),
         *arm = json_array_get(json_object_get(json_object_get(summary, "tuned"), "arms"), 0),
         *run = json_array_get(json_object_get(json_array_get(json_object_get(arm, "tasks"), 0), "runs"), 0);
  assert_true(json_at(json_object_get(run, "own"), "labelled") == 20 && json_at(run, "best_step") <= 2);
  const json_t *claim = json_array_get(json_object_get(summary, "claims"), 0);
  assert_string_equal(json_string_value(json_object_get(claim, "verdict")), "nothing learned: no verdict");
  program_must("grep -q 'no task with any arm' less/two-tiny/table.md; grep -q 'mine with' whole/two-tiny/table.md");
  json_decref(summary);
}

/* kill -9 on the study and all it runs, in the middle of fine-tuning; SIGTERM on the study the next time; the third
 * goes to the end. Its summary is that of a study which nobody stopped. */
static void killed_and_resumed(void **state) {
  (void)state;
  program_must("mkdir cut; cp -r whole/runs cut");
  for (int round = 0; round < 2; round++) {
    pid_t child = program_start(
        "exec \"$CHOIR\" study run two.json --data data --scale ./tiny.json --jobs 1 --tasks tasks "
        "--words words.jsonl --out cut",
        "cut.txt");
    for (int i = 0; i < 3000; i++, program_nap(0.01)) /* until the second or the fourth run is in its steps */
      if (!program_run("test $(grep -ls '\"step\":15,' cut/tuned/*/metrics.jsonl | wc -l) -gt %d", 1 + 2 * round))
        break;
    if (!round) program_run("kill -9 $(cat /proc/%d/task/%d/children)", child, child);
    kill(child, round ? SIGTERM : SIGKILL);
    program_wait(child);
    if (program_run("test $(cat cut/tuned/*/result.json | wc -l) -gt 0 -a $(ls cut/tuned | wc -l) -lt %d",
                    ARMS * TASKS * SEEDS))
      fail_msg("%s", "not in the middle of fine-tuning");
  }
  program_must(TASKED "--out cut");
  program_must("cmp whole/two-tiny/summary.json cut/two-tiny/summary.json");
  program_must("cmp whole/two-tiny/table.md cut/two-tiny/table.md");
}

/* One run cannot be: it is told, and the others go on; averages are over the seed that all have. */
static void a_run_fails(void **state) {
  (void)state;
  program_must(
      "mkdir -p hurt/tuned; cp -r whole/runs hurt; touch hurt/tuned/$(ls whole/tuned | grep 'other-exp.*-s2-')");
  program_refuses(1, "failed: other, EC, seed 2", TASKED "--out hurt");
  assert_non_null(strstr(program_output, "1 run failed; see hurt/logs"));
  program_must("choir study status hurt | grep -q 'fine-tuning: 7 of 8 runs'");
  json_t *summary = load("%s", "hurt/two-tiny/summary.json"), *tuned = json_object_get(summary, "tuned"), *arm;
  const json_t *ours = json_object_get(json_array_get(json_object_get(summary, "claims"), 0), "causal");
  size_t i;
  double first[ARMS];
  json_array_foreach(json_object_get(tuned, "arms"), i, arm) {
    const json_t *average = json_object_get(json_object_get(arm, "average"), "own");
    first[i] = 0;
    for (size_t task = 0; task < TASKS; task++) {
      const json_t *run =
          json_array_get(json_object_get(json_array_get(json_object_get(arm, "tasks"), task), "runs"), 0);
      first[i] += 100 * json_at(json_object_get(run, "own"), "accuracy") / TASKS;
    }
    assert_true(json_at(average, "count") == 1 && fabs(json_at(average, "mean") - first[i]) < 1e-9);
  }
  assert_true(json_at(ours, "count") == 1 && fabs(json_at(ours, "mean") - (first[0] - first[1])) < 1e-9);
  json_decref(summary);
}

#define WRONG(text, edit) \
  program_refuses(1, text, "sed '" edit "' two.json >bad.json; choir study run bad.json --tasks tasks " REST)
#define REST "--data data --scale ./tiny.json --out r"

static void refusals(void **state) {
  (void)state;
  program_refuses(1, "--tasks", STUDY "--out r");
  program_refuses(1, "none of the recipe's tasks", STUDY "--tasks none --out r");
  program_refuses(1, "absent", STUDY "--tasks absent --out r");
  program_refuses(1, "two.json", STUDY "--tasks tasks --words two.json --out r");
  WRONG("did you mean 'WNLI'", "s/WNLI/WNIL/");
  WRONG("absent.json", "s/other.json/absent.json/");
  WRONG("two tasks are called 'mine'", "s/other.json/mine.json/");
  WRONG("unknown key 'task'", "s/\"tasks\"/\"task\"/");
  WRONG("did you mean 'continued'", "s/continued/continue/");
  WRONG("train.rat", "s/train.rate/train.rat/");
  WRONG("train.batch_sequences", "s/sequences\": 8/sequences\": -8/");
  WRONG("\"EC\"", "s/{\"mine.*50}/3/");
  WRONG("arm 'den|se'", "s/\"train.rate\": 0.03/\"router.capacity_factor\": 3/");
  WRONG("paper: 'dens'", "s/\"paper\": {\"EC\"/\"paper\": {\"dens\"/");
  WRONG("\"tasks\" has 0 entries", "s/\\[\"..mine.*WNLI\"\\]/[]/");
  program_refuses(1, "fine-tunes nothing", "choir study run capacity --tasks tasks " REST);
  program_refuses(1, "the recipe has no \"tune\"",
                  "python3 -c \"import json; r = json.load(open('two.json')); del r['tune']; "
                  "json.dump(r, open('bad.json', 'w'))\"; choir study run bad.json " REST);
  program_refuses(1, "\"tune\"",
                  "grep -v tune tiny.json | sed 's/1280,$/1280}/' >bare.json;"
                  "choir study run two.json --tasks tasks --data data --scale ./bare.json --out r");
  program_must("test ! -e r/runs");
}

#define SPOIL(file, edit)                                                                                 \
  "rm -rf spoilt; cp -r whole spoilt; cd spoilt; python3 -c \"import json, glob; name = glob.glob('" file \
  "')[0];"                                                                                                \
  "j = json.load(open(name)); " edit "; json.dump(j, open(name, 'w'))\"; cd ..; choir study report spoilt"

/* Files of a study that somebody changed are refused by file and place, not taken for what they are not. */
static void damaged(void **state) {
  (void)state;
  program_must(
      "echo '{\"threads\": 1, \"rounds\": 9, \"arms\": {\"EC\": {\"step\": [1], \"expert\": [1], "
      "\"load\": [1], \"demand\": [1]}}}' >whole/two-tiny/time.json");
  program_must(SPOIL("two-tiny/time.json", "j['rounds'] = 1"));
  program_refuses(1, "time.json: arm 'EC': \"load\" has 2 rounds",
                  SPOIL("two-tiny/time.json", "j['arms']['EC']['load'] = [1, 1]"));
  program_refuses(1, "time.json: arm 'EC': demand[0] is \"1\"",
                  SPOIL("two-tiny/time.json", "j['arms']['EC']['demand'] = ['1']"));
  program_refuses(1, "result.json: own: \"accuracy\" is 1.5",
                  SPOIL("tuned/mine-*-s1-*/result.json", "j['own']['accuracy'] = 1.5"));
  program_refuses(1, "result.json: \"batch\" is []", SPOIL("tuned/mine-exp*/result.json", "j['batch'] = []"));
  program_refuses(1, "study.json: missing[0]", SPOIL("two-tiny/study.json", "j['tune']['missing'] = [3]"));
  program_refuses(1, "\"words\" is \"mine\"", SPOIL("two-tiny/study.json", "j['tune']['words'] = 'mine'"));
  program_must("rm whole/two-tiny/time.json");
  program_refuses(1, "bad.jsonl, row 3: \"accuracy\" is 2",
                  "(cat words.jsonl; echo; sed 's/0.625/2/' words.jsonl) >bad.jsonl;" STUDY
                  "--tasks tasks --words bad.jsonl --out r");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(end_to_end),         cmocka_unit_test(runs_stand),
                                     cmocka_unit_test(killed_and_resumed), cmocka_unit_test(a_run_fails),
                                     cmocka_unit_test(refusals),           cmocka_unit_test(damaged)};
  return cmocka_run_group_tests(tests, set_up, program_directory_remove);
}
