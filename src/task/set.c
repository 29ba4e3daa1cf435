#include "task/set.h"

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
  model->causal = !by_batch;
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
