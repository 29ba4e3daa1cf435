#include "task/set.h"

#include <inttypes.h>

#include "file/file.h"

/* A few bad rows are a fact of life (official sets have some); many mean that the file is something else. */
static int judge(const ch_rows *rows) {
  if (!rows->lines) return ch_error(CHOIR_ERROR_FORMAT, "%s: has no rows", rows->name);
  if (rows->malformed <= 1 + rows->lines / 100 && rows->count) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_FORMAT, "%s: %" PRId64 " of %" PRId64 " rows are malformed for task %s; the first, %s",
                  rows->name, rows->malformed, rows->lines, rows->task->name, rows->first);
}

int ch_rows_parse(const choir_task *task, const char *name, const char *text, size_t size, int labelled,
                  ch_rows *rows) {
  *rows = (ch_rows){.task = task, .name = name};
  int code = task->jsonl ? ch_jsonl_rows(rows, text, size, labelled) : ch_tsv_rows(rows, text, size, labelled);
  if (!code) code = judge(rows);
  if (code) ch_rows_free(rows);
  return code;
}

int ch_rows_read(const choir_task *task, const char *path, int labelled, ch_rows *rows) {
  const void *text;
  size_t size;
  *rows = (ch_rows){0};
  CH_TRY(ch_file_map(path, &text, &size));
  int code = ch_rows_parse(task, path, text, size, labelled, rows);
  ch_file_unmap(text, size);
  return code;
}

int ch_set_open(const choir_task *task, const char *directory, const char *split, const choir_tokenizer *tokenizer,
                int length, int labelled, ch_set *set) {
  *set = (ch_set){0};
  CH_TRY(ch_task_file(task, directory, split, set->path));
  CH_TRY(ch_rows_read(task, set->path, labelled, &set->rows));
  int code = ch_examples_make(&set->rows, tokenizer, length + 1, labelled, &set->examples);
  if (!code && !set->examples.count)
    code = ch_error(CHOIR_ERROR_FORMAT, "%s: none of its %lld rows has a label", set->path, (long long)set->rows.count);
  if (code) ch_set_close(set);
  return code;
}

void ch_set_close(ch_set *set) {
  ch_examples_free(&set->examples);
  ch_rows_free(&set->rows);
}

int ch_set_measure(choir_model *model, const ch_set *set, int by_batch, const choir_task_options *o, const char *out,
                   choir_task_measure *m) {
  ch_predictions p;
  int was = model->causal;
  model->causal = by_batch ? CH_NOT_CAUSAL : was ? was : CH_BY_THRESHOLDS;
  int code = by_batch ? ch_predict_batches(model, &set->examples, o->batch_sequences, &o->score, &p)
                      : ch_predict_alone(model, &set->examples, &o->score, &p);
  const char *routing = choir_model_routing(model);
  model->causal = was;
  CH_TRY(code);
  *m = ch_measure(set->rows.task, &set->examples, &p);
  m->routing = routing;
  if (out) code = ch_predictions_write(out, &set->rows, &set->examples, &p);
  ch_predictions_free(&p);
  return code;
}
