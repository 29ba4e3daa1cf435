/* choir study: experiments, from recipe to report. */
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "study/choir_study.h"

static struct {
  const char *data, *out, *scale, *tasks, *words;
  int seeds, jobs, json, threads;
  int64_t tokens, sequences, tune_steps, tune_rows;
  double minutes;
} o;

/* ---- run ---- */

static int on_event(void *context, const choir_study_event *e) {
  cli_progress *progress = context;
  char left[40] = "";
  if (e->kind == CHOIR_STUDY_MESSAGE) {
    cli_progress_clear(progress);
    printf("%s\n", e->text);
    fflush(stdout);
  } else if (cli_progress_due(progress)) {
    if (isfinite(e->seconds_left)) snprintf(left, sizeof left, "  %s left", cli_duration(e->seconds_left));
    char done[64] = "";
    if (e->total) snprintf(done, sizeof done, "%d of %d done%s", e->done, e->total, e->failed ? ", some FAILED" : "");
    cli_progress_line(progress, "%s%s%s%s", done, left, e->total ? "  " : "", e->text);
  }
  return cli_stop_requested();
}

static void show_summary(const json_t *summary, const char *page);

/* The summary that a run of a recipe left. */
static int show_written(const char *recipe) {
  char *text;
  json_error_t error;
  size_t i;
  json_t *study, *studies;
  if (choir_study_status(o.out, &text)) return cli_fail();
  studies = json_loads(text, 0, &error);
  free(text);
  json_array_foreach(studies, i, study) {
    const char *name = json_string_value(json_object_get(study, "name")), *slash = strrchr(recipe, '/');
    char page[PATH_MAX], file[128];
    snprintf(page, sizeof page, "%s/report.html", json_string_value(json_object_get(study, "directory")));
    snprintf(file, sizeof file, "%s.json", name);
    if (!strcmp(name, recipe) || !strcmp(file, slash ? slash + 1 : recipe))
      show_summary(json_object_get(study, "summary"), page);
  }
  json_decref(studies);
  return 0;
}

static int run_one(const char *recipe) {
  cli_progress progress;
  char program[PATH_MAX];
  int failed;
  ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
  if (length < 0) return cli_fail_with("/proc/self/exe: cannot be read");
  program[length] = 0;
  cli_progress_begin(&progress, stderr);
  choir_study_options options = {.recipe = recipe,
                                 .data = o.data,
                                 .out = o.out,
                                 .scale = o.scale,
                                 .program = program,
                                 .seeds = o.seeds,
                                 .tokens = o.tokens,
                                 .jobs = o.jobs,
                                 .minutes = o.minutes,
                                 .tasks = o.tasks,
                                 .words = o.words,
                                 .tune_steps = o.tune_steps,
                                 .tune_rows = o.tune_rows,
                                 .event = on_event,
                                 .context = &progress};
  int code = choir_study_run(&options, &failed);
  cli_progress_clear(&progress);
  if (code && code != CHOIR_ERROR_INTERRUPTED) return cli_fail();
  int status = show_written(recipe);
  if (status) return status;
  if (code) printf("stopped, and saved; the same command goes on\n");
  if (failed) return cli_fail_with("%d run%s failed; see %s/logs", failed, failed == 1 ? "" : "s", o.out);
  return code && cli_stop_requested() ? CLI_INTERRUPTED : 0;
}

static int run(int count, const char *const *operands) {
  if (o.minutes < 0) return cli_usage("--minutes %g: must be a number of minutes, or 0 for no limit", o.minutes);
  if (o.tune_steps < 0 || o.tune_rows < 0) return cli_usage("--tune-steps and --tune-rows must not be negative");
  cli_catch_signals();
  int worst = 0;
  for (int i = 0; i < count && !cli_stop_requested(); i++) {
    int status = run_one(operands[i]);
    if (status > worst) worst = status;
  }
  return worst;
}

/* ---- the summary in twenty lines ---- */

static double at(const json_t *object, const char *key) {
  const json_t *value = json_object_get(object, key);
  return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

static const char *text(const json_t *object, const char *key) {
  const char *value = json_string_value(json_object_get(object, key));
  return value ? value : "";
}

/* A number, or "-". */
static const char *figure(const char *format, double value) {
  static char ring[8][32];
  static int next;
  char *out = ring[next++ % 8];
  if (!isfinite(value)) return "-";
  snprintf(out, sizeof ring[0], format, value);
  return out;
}

static void show_claim(const json_t *claim) {
  const json_t *e = json_object_get(claim, "causal");
  int share = !strcmp(text(claim, "unit"), "share");
  const char *format = share ? "%.3f" : !strcmp(text(claim, "unit"), "times") ? "%.2f" : "%+.4f";
  if (!strcmp(text(claim, "unit"), "points")) format = "%+.2f";
  printf("  %-26s %s %s", text(claim, "verdict"), text(claim, "text"), figure(format, at(e, "mean")));
  if (isfinite(at(e, "low"))) printf(" (%s to %s)", figure(format, at(e, "low")), figure(format, at(e, "high")));
  printf(" %s%s%s\n", share ? "of tokens" : text(claim, "unit"), *text(claim, "paper") ? "; paper: " : "",
         text(claim, "paper"));
}

/* "+-0.0123", as wide where there is none: one seed has no deviation. */
static const char *deviation(const char *format, double value) {
  static char text[32];
  if (isfinite(value))
    snprintf(text, sizeof text, "+-%-7s", figure(format, value));
  else
    snprintf(text, sizeof text, "%9s", "");
  return text;
}

static void show_arm(const json_t *arm) {
  const json_t *causal = json_object_get(arm, "causal"), *own = json_object_get(arm, "own"),
               *difference = json_object_get(json_object_get(arm, "difference"), "causal");
  printf("  %-28s %9s %s %9s  %9s %s\n", text(arm, "name"), figure("%.4f", at(causal, "mean")),
         deviation("%.4f", at(causal, "deviation")), figure("%.4f", at(own, "mean")),
         figure("%+.4f", at(difference, "mean")), figure("rate %g", at(arm, "rate")));
}

/* Averages of fine-tuning, where the recipe fine-tunes. */
static void show_tuned(const json_t *tuned) {
  const json_t *arm;
  size_t i;
  if (!tuned) return;
  printf("  %-28s %9s   %-7s %9s\n", "accuracy in %, average", "causal", "", "by batch");
  json_array_foreach(json_object_get(tuned, "arms"), i, arm) {
    const json_t *average = json_object_get(arm, "average"), *own = json_object_get(average, "own");
    printf("  %-28s %9s %s %9s\n", text(arm, "name"), figure("%.2f", at(own, "mean")),
           deviation("%.2f", at(own, "deviation")), figure("%.2f", at(json_object_get(average, "batch"), "mean")));
  }
}

static void show_summary(const json_t *summary, const char *page) {
  enum { CLAIMS = 8, ARMS = 9 };
  const json_t *item;
  size_t i;
  if (!json_is_object(summary)) return;
  printf("%s (%s, %s): %s tokens, %.0f seeds\n", text(summary, "title"), text(summary, "figure"),
         text(summary, "scale"), cli_count(at(summary, "tokens")), at(summary, "seeds"));
  json_array_foreach(json_object_get(summary, "claims"), i, item) if (i < CLAIMS) show_claim(item);
  if (i > CLAIMS) printf("  and %zu more claims\n", i - CLAIMS);
  printf("  %-28s %9s   %-7s %9s  %9s\n", "held-out loss", "causal", "", "own", "to first");
  json_array_foreach(json_object_get(summary, "arms"), i, item) if (i < ARMS) show_arm(item);
  if (i > ARMS) printf("  and %zu more arms\n", i - ARMS);
  show_tuned(json_object_get(summary, "tuned"));
  printf("%s\n", page);
}

/* ---- list, status, report, measure ---- */

static int list(int count, const char *const *operands) {
  choir_study_recipe_info info;
  (void)count, (void)operands;
  for (int i = 0; choir_study_recipe(i, &info); i++)
    printf("%-12s %s (%s); %d arms, %d claims\n             %s\n", info.name, info.title, info.figure, info.arms,
           info.claims, info.question);
  return 0;
}

static void status_of(const json_t *study) {
  const json_t *arm, *run;
  size_t i, j;
  printf("%s, %s: %s\n", text(study, "name"), text(study, "scale"), text(study, "directory"));
  json_array_foreach(json_object_get(study, "arms"), i, arm) {
    printf("  %-28s %-10s", text(arm, "name"),
           isfinite(at(arm, "rate")) ? figure("rate %g", at(arm, "rate")) : "no rate yet");
    json_array_foreach(json_object_get(arm, "runs"), j, run)
        printf("  seed %.0f %.0f %%", at(run, "seed"), 100 * fmin(1, at(run, "step") / at(run, "steps")));
    putchar('\n');
  }
  const json_t *tuned = json_object_get(study, "tuned");
  if (json_is_object(tuned)) printf("  fine-tuning: %.0f of %.0f runs\n", at(tuned, "ended"), at(tuned, "runs"));
}

static int status(int count, const char *const *operands) {
  char *json;
  json_error_t error;
  size_t i;
  json_t *study;
  (void)count;
  if (choir_study_status(operands[0], &json)) return cli_fail();
  if (o.json) {
    puts(json);
    free(json);
    return 0;
  }
  json_t *studies = json_loads(json, 0, &error);
  free(json);
  json_array_foreach(studies, i, study) status_of(study);
  json_decref(studies);
  return 0;
}

static void told(void *context, const char *page) {
  (void)context;
  printf("%s\n", page);
}

static int report(int count, const char *const *operands) {
  (void)count;
  return choir_study_report(operands[0], told, NULL) ? cli_fail() : 0;
}

static int measure(int count, const char *const *operands) {
  (void)count;
  choir_study_measure_options options = {
      .run = operands[0], .data = o.data, .out = o.out, .sequences = o.sequences, .threads = o.threads};
  return choir_study_measure(&options) ? cli_fail() : 0;
}

static const cli_option run_options[] = {
    {"data", "DIR", CLI_PATH, &o.data, NULL, "what 'data build' made", 1},
    {"out", "DIR", CLI_PATH, &o.out, NULL, "directory of studies, which share runs", 1},
    {"scale", "NAME", CLI_TEXT, &o.scale, "pico", "pico, nano, small, 0.1b, or a JSON file", 0},
    {"seeds", "N", CLI_INT, &o.seeds, "0", "runs of every arm; 0: the scale's number", 0},
    {"tokens", "M", CLI_INT64, &o.tokens, "0", "training tokens of a run; 0: the scale's number", 0},
    {"jobs", "J", CLI_INT, &o.jobs, "0", "runs at once, on disjoint CPUs; 0: one for every CPU", 0},
    {"tasks", "DIR", CLI_PATH, &o.tasks, NULL, "a folder for each labelled task, for a recipe that fine-tunes", 0},
    {"tune-steps", "N", CLI_INT64, &o.tune_steps, "0", "steps of fine-tuning on a task; 0: the scale's number", 0},
    {"tune-rows", "N", CLI_INT64, &o.tune_rows, "0", "rows of a dev set that are measured; 0: the scale's number", 0},
    {"words", "FILE", CLI_INPUT, &o.words, NULL, "what 'bench/bag_of_words --json' printed, to stand in the table", 0},
    {"minutes", "T", CLI_REAL, &o.minutes, NULL, "stop after T minutes of a recipe, saved; 0: never", 0},
    {0}};
static const cli_option list_options[] = {{0}};
static const cli_option report_options[] = {{0}};
static const cli_option status_options[] = {{"json", NULL, CLI_FLAG, &o.json, NULL, "print JSON", 0}, {0}};
static const cli_option measure_options[] = {
    {"data", "DIR", CLI_PATH, &o.data, NULL, "what 'data build' made", 1},
    {"out", "FILE.json", CLI_PATH, &o.out, NULL, "the file to write", 1},
    {"sequences", "N", CLI_INT64, &o.sequences, "0", "held-out sequences at most; 0: 1,024", 0},
    CLI_THREADS(&o.threads),
    {0}};

const cli_verb cli_study_run = {
    "study run",
    "RECIPE...",
    1,
    -1,
    "run an experiment: all its arms and seeds, and a report",
    "RECIPE is a name of 'choir study list' or a JSON file. Each arm's rate is searched at a short budget; then every "
    "arm is trained with every seed, measured, and compared. What is in DIR already is used: finished runs are "
    "skipped, "
    "cut-off ones go on, more seeds or tokens add to what is there, and recipes share the runs that they have in "
    "common. A run that fails is told, and the others go on. Ctrl-C (or SIGTERM) saves everything and writes the "
    "report "
    "of what there is; the same command goes on. DIR/RECIPE-SCALE gets report.html and summary.json. A recipe that "
    "fine-tunes ('finetune') needs --tasks, goes on with every run on every task, and writes table.md as well.",
    run_options,
    run};
const cli_verb cli_study_list = {"study list", "", 0, 0, "the experiments that are built in", NULL, list_options, list};
const cli_verb cli_study_status = {"study status", "DIR", 1, 1, "how far the runs of a directory of studies are", NULL,
                                   status_options, status};
const cli_verb cli_study_report = {
    "study report", "DIR", 1, 1, "write the reports of a directory of studies anew, from the runs as they are", NULL,
    report_options, report};
const cli_verb cli_study_measure = {
    "study measure",
    "RUN",
    1,
    1,
    "evaluate a run as studies do: in pools of several sizes and mixtures, and which tokens get how many experts",
    "Writes JSON. Pools are of neighbouring sequences, pieces of one document, and of scattered ones, mixtures as in "
    "training; the causal loss stands beside them.",
    measure_options,
    measure};
