/* A study from its rates to its report. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/machine.h"
#include "file/claim.h"
#include "file/json.h"
#include "study/study.h"
#include "study/study_jobs.h"
#include "study/study_tuned.h"
#include "train/directory.h"

typedef struct work {
  ch_study study;
  const choir_study_options *options;
  ch_jobs jobs;
  double begun, worked; /* of the whole study */
  int failed;
} work;

static int say(const work *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int say(const work *w, const char *format, ...) {
  char text[800];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  choir_study_event e = {.kind = CHOIR_STUDY_MESSAGE, .text = text};
  return w->options->event ? w->options->event(w->options->context, &e) : 0;
}

/* ---- phases ---- */

static int run_phase(work *w) {
  int code = ch_jobs_run(&w->jobs);
  for (int i = 0; i < w->jobs.count; i++) w->failed += w->jobs.job[i].state == CH_JOB_FAILED;
  return code;
}

/* What the runs themselves will take when rates are known, but for what the search leaves behind of them. */
static double work_of_runs(const ch_study *s) {
  double flops = 0;
  for (int i = 0; i < s->arms; i++) flops += s->arm[i].costs.train_flops_per_token;
  return flops * (double)(s->steps * s->step_tokens) * s->seeds;
}

static int search_rates(work *w) {
  ch_study *s = &w->study;
  w->jobs.phase = "rates";
  w->jobs.later = work_of_runs(s) + ch_study_tune_work(s);
  CH_TRY(ch_jobs_room(&w->jobs, s->arms * s->rates));
  for (int r = 0; r < s->rates && s->rates > 1; r++)
    for (int i = 0; i < s->arms; i++)
      if (s->arm[i].rate_of == i) CH_TRY(ch_jobs_add_run(&w->jobs, s, i, s->rate[r], 1, s->rate_steps));
  CH_TRY(run_phase(w));
  CH_TRY(ch_study_find_rates(s));
  for (int i = 0; i < s->arms; i++)
    if (s->arm[i].rate_of == i) {
      if (s->arm[i].rate > 0)
        say(w, "%s: rate %g of %d", s->arm[i].name, s->arm[i].rate, s->rates);
      else
        say(w, "%s: no rate worked; the arm is left out", s->arm[i].name);
    }
  return CHOIR_OK;
}

/* One seed of all arms before the next: a study that is stopped early has something of everything. */
static int train_all(work *w) {
  const ch_study *s = &w->study;
  w->jobs.phase = "runs";
  w->jobs.later = ch_study_tune_work(s);
  CH_TRY(ch_jobs_room(&w->jobs, s->arms * s->seeds));
  for (int seed = 1; seed <= s->seeds; seed++)
    for (int i = 0; i < s->arms; i++)
      if (s->arm[i].rate > 0) CH_TRY(ch_jobs_add_run(&w->jobs, s, i, s->arm[i].rate, seed, s->steps));
  return run_phase(w);
}

static int measure_all(work *w) {
  const ch_study *s = &w->study;
  w->jobs.phase = "measuring";
  if (!ch_study_measures(s, "pools") && !ch_study_measures(s, "tokens")) return CHOIR_OK;
  CH_TRY(ch_jobs_room(&w->jobs, s->arms * s->seeds));
  for (int seed = 1; seed <= s->seeds; seed++)
    for (int i = 0; i < s->arms; i++)
      if (s->arm[i].rate > 0) CH_TRY(ch_jobs_add_measurement(&w->jobs, s, i, seed));
  return run_phase(w);
}

/* One seed of all arms and tasks before the next, as in training. */
static int tune_all(work *w) {
  const ch_study *s = &w->study;
  w->jobs.phase = "fine-tuning";
  w->jobs.later = 0;
  if (!s->tune.tasks) return CHOIR_OK;
  CH_TRY(ch_jobs_room(&w->jobs, s->arms * s->seeds * s->tune.tasks));
  for (int seed = 1; seed <= s->seeds; seed++)
    for (int task = 0; task < s->tune.tasks; task++)
      for (int i = 0; i < s->arms; i++)
        if (s->arm[i].rate > 0) CH_TRY(ch_jobs_add_tuning(&w->jobs, s, task, i, seed));
  int left_out = s->arms * s->seeds * s->tune.tasks - w->jobs.count;
  if (left_out)
    say(w, "%d runs of fine-tuning have nothing to begin with: pre-training failed, or went on to more tokens",
        left_out);
  return run_phase(w);
}

static int asked_to_stop(void *context) {
  const work *w = context;
  double now = ch_machine_seconds();
  choir_study_event e = {.kind = CHOIR_STUDY_PROGRESS, .seconds_left = (double)NAN, .text = "step times, in turns"};
  if (w->jobs.deadline > 0 && now >= w->jobs.deadline) return 1;
  return w->options->event ? w->options->event(w->options->context, &e) : 0;
}

static int work_through(work *w) {
  CH_TRY(search_rates(w));
  CH_TRY(train_all(w));
  CH_TRY(measure_all(w));
  CH_TRY(tune_all(w));
  if (!ch_study_measures(&w->study, "time")) return CHOIR_OK;
  int code = ch_study_time(&w->study, w->jobs.threads, asked_to_stop, w);
  if (!code || code == CHOIR_ERROR_INTERRUPTED) return code;
  w->failed++;
  say(w, "failed: step times: %s", choir_error_message());
  return CHOIR_OK;
}

/* Tasks without files. */
static void tell_missing(const work *w) {
  const json_t *missing = w->study.tune.missing, *name;
  char list[600] = "";
  size_t i, used = 0;
  json_array_foreach(missing, i, name) if (used < sizeof list) used +=
      (size_t)snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", json_string_value(name));
  if (json_array_size(missing)) say(w, "warning: %s: no files of %s, left out", w->study.tune.directory, list);
}

/* What will be fine-tuned, and what room the weights of its newest and best checkpoints take. */
static void introduce_tuning(const work *w) {
  const ch_study *s = &w->study;
  int runs = s->seeds * s->tune.tasks;
  double bytes = 0;
  for (int a = 0; a < s->arms; a++) bytes += 2.0 * sizeof(float) * (double)s->arm[a].costs.parameters * runs;
  say(w, "then %d runs of fine-tuning: %d tasks, %" PRId64 " steps of %d texts each, up to %.1f GB of weights",
      s->arms * runs, s->tune.tasks, s->tune.steps, s->tune.batch_sequences, 1e-9 * bytes);
}

/* What is equal in all arms, and what is not, before anything runs. */
static void introduce(const work *w) {
  const ch_study *s = &w->study;
  double first = s->arm[0].costs.train_flops_per_token,
         epochs = (double)(s->steps * s->step_tokens) / (double)s->data_tokens;
  say(w, "%s at %s: %d arms, %d seeds, %" PRId64 " steps of %" PRId64 " tokens (%.4g M, %.2f times the data)", s->name,
      s->scale_name, s->arms, s->seeds, s->steps, s->step_tokens, 1e-6 * (double)(s->steps * s->step_tokens), epochs);
  for (int a = 0; a < s->arms; a++)
    say(w, "  %-28s %8.3f M parameters, %7.3f M active, %8.3f MFLOP a token (x%.2f)", s->arm[a].name,
        1e-6 * (double)s->arm[a].costs.parameters, 1e-6 * (double)s->arm[a].costs.active_parameters,
        1e-6 * s->arm[a].costs.train_flops_per_token, s->arm[a].costs.train_flops_per_token / first);
  if (s->tune.tasks) introduce_tuning(w);
  tell_missing(w);
  if (epochs > 2) say(w, "warning: tokens are seen %.1f times; above 2 runs learn the data by heart", epochs);
}

static int write_results(ch_study *s) {
  char path[PATH_MAX + 16];
  json_t *summary = ch_study_summary(s);
  if (!summary) return ch_error_in(CHOIR_ERROR_FORMAT, "%s: no summary", s->own);
  snprintf(path, sizeof path, "%s/report.html", s->own);
  int code = ch_study_page(s, summary, path);
  snprintf(path, sizeof path, "%s/table.md", s->own);
  if (!code && json_object_get(summary, "tuned")) code = ch_tuned_markdown(summary, path);
  snprintf(path, sizeof path, "%s/summary.json", s->own);
  if (code) json_decref(summary);
  return code ? code : ch_json_save(summary, path);
}

static int run_locked(work *w) {
  const choir_study_options *o = w->options;
  ch_study *s = &w->study;
  CH_TRY(ch_study_set_up(o, s));
  introduce(w);
  int cpus = ch_machine_cpus();
  w->begun = ch_machine_seconds();
  w->jobs = (ch_jobs){.options = o, .slots = o->jobs > 0 ? o->jobs : cpus, .begun = &w->begun, .worked = &w->worked};
  w->jobs.threads = cpus / w->jobs.slots > 0 ? cpus / w->jobs.slots : 1;
  w->jobs.deadline = o->minutes > 0 ? w->begun + 60 * o->minutes : 0;
  int code = work_through(w);
  if (code && code != CHOIR_ERROR_INTERRUPTED) return code;
  CH_TRY(write_results(s));
  return code ? ch_error(code, "stopped; the report is of what there is so far") : CHOIR_OK;
}

int choir_study_run(const choir_study_options *options, int *failed) {
  work w = {.options = options};
  ch_claim claim;
  *failed = 0;
  if (!options->out || !options->data || !options->recipe || !options->program)
    return ch_error(CHOIR_ERROR_ARGUMENT, "a study needs a recipe, data, a directory and the program");
  CH_TRY(ch_run_directory_check(options->out));
  CH_TRY(ch_claim_take(&claim, options->out));
  int code =
      realpath(options->out, w.study.directory) ? run_locked(&w) : ch_error_errno("%s: cannot open", options->out);
  *failed = w.failed;
  free(w.jobs.job);
  ch_study_free(&w.study);
  ch_claim_release(&claim, code != CHOIR_OK);
  return code;
}

typedef struct told {
  void (*tell)(void *context, const char *page);
  void *context;
} told;

static int report_one(void *context, ch_study *s) {
  const told *t = context;
  char path[PATH_MAX + 16];
  CH_TRY(ch_study_find_rates(s));
  CH_TRY(write_results(s));
  snprintf(path, sizeof path, "%s/report.html", s->own);
  if (t->tell) t->tell(t->context, path);
  return CHOIR_OK;
}

int choir_study_report(const char *directory, void (*tell)(void *context, const char *page), void *context) {
  told t = {tell, context};
  return ch_study_each(directory, report_one, &t);
}
