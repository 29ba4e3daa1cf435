/* choir score --task: accuracy of a model on a labelled set. */
#include <math.h>
#include <string.h>

#include "cli.h"

/* Prints a line with accuracy and the task's other measures. */
static void print_measure(const choir_task_measure *m, int by_batch, int batch_sequences) {
  char more[96] = "";
  if (!isnan(m->matthews)) snprintf(more, sizeof more, "  Matthews" CLI_TIE "%.3f", m->matthews);
  if (!isnan(m->f1))
    snprintf(more + strlen(more), sizeof more - strlen(more), "  F1" CLI_TIE "%.2f" CLI_TIE "%%", 100 * m->f1);
  cli_print(11, "%-10s accuracy %6.2f %%  %s of %s%s  %s", m->routing, 100 * m->accuracy, cli_grouped(m->correct),
            cli_grouped(m->labelled), more,
            by_batch ? cli_whole("in batches of %d texts", batch_sequences) : cli_whole("each text by itself"));
}

static void print_result(const cli_score_options *o, const choir_task *task, const choir_task_result *r) {
  char cut[48] = "";
  if (r->cut) snprintf(cut, sizeof cut, ", %s cut to fit", cli_grouped(r->cut));
  cli_print(2, "%s: %s texts of %s%s", cli_shown(choir_task_name(task)), cli_grouped(r->examples), cli_shown(r->file),
            cut);
  if (r->malformed)
    cli_print(4, "  %s malformed rows left out; the first, %s", cli_grouped(r->malformed),
              cli_shown(r->first_malformed));
  if (!r->measure[0].labelled) printf("no labels: nothing to compare the predictions with\n");
  for (int i = 0; i < r->measures && r->measure[0].labelled; i++)
    print_measure(&r->measure[i], i, o->of_task.batch_sequences);
  if (r->majority_label)
    printf("%-10s accuracy %6.2f %%  always '%s'\n", "majority", 100 * r->majority, cli_shown(r->majority_label));
  printf("%.1f texts/s", r->seconds > 0 ? (double)r->examples / r->seconds : 0);
  if (o->of_task.out) printf("; predictions in %s", cli_shown(o->of_task.out));
  putchar('\n');
}

static json_t *measure_json(const choir_task_measure *m) {
  return json_pack("{s:s, s:I, s:I, s:o, s:o, s:o}", "routing", m->routing, "labelled", (json_int_t)m->labelled,
                   "correct", (json_int_t)m->correct, "accuracy", cli_json_real(m->accuracy), "matthews",
                   cli_json_real(m->matthews), "f1", cli_json_real(m->f1));
}

/* `own`: the name of the measure with each text routed by itself. */
static int print_task_json(const cli_score_options *o, const choir_task *task, const choir_task_result *r,
                           const char *own) {
  json_t *root =
      json_pack("{s:s, s:s, s:I, s:I, s:I, s:o, s:o}", "task", choir_task_name(task), "file", r->file, "examples",
                (json_int_t)r->examples, "malformed", (json_int_t)r->malformed, "cut", (json_int_t)r->cut, "majority",
                cli_json_real(r->majority), own, measure_json(&r->measure[0]));
  if (r->measures > 1) {
    json_t *batch = measure_json(&r->measure[1]);
    json_object_set_new(batch, "batch_sequences", json_integer(o->of_task.batch_sequences));
    json_object_set_new(root, "batch", batch);
  }
  return cli_json_print(root);
}

static int score_task(cli_score_options *o, const choir_task *task, choir_model *model,
                      const choir_tokenizer *tokenizer) {
  choir_task_result result;
  cli_progress progress;
  o->scoring.progress = cli_progress_count;
  o->scoring.context = &progress;
  o->of_task.score = &o->scoring;
  cli_progress_begin(&progress, stderr);
  int code = choir_task_score(model, tokenizer, task, &o->of_task, &result);
  cli_progress_clear(&progress);
  if (code) return cli_fail();
  int masked = cli_predicts_masked(model);
  if (o->json) return print_task_json(o, task, &result, masked ? "own" : "threshold");
  print_result(o, task, &result);
  return 0;
}

int cli_score_task(cli_score_options *o, choir_model *model, const choir_tokenizer *tokenizer) {
  choir_task *task;
  if (choir_task_load(o->task, &task)) return cli_fail();
  int status = score_task(o, task, model, tokenizer);
  choir_task_free(task);
  return status;
}
