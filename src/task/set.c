#include "task/set.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/enter.h"
#include "base/error.h"
#include "base/machine.h"
#include "base/options.h"
#include "file/file.h"
#include "file/json.h"
#include "file/path_status.h"
#include "infer/score.h"
#include "model/config.h"

/* Official sets have a few malformed rows; many mean that the file has another format. */
static int check_rows(const ch_rows *rows) {
  if (!rows->lines) return ch_error(CHOIR_ERROR_FORMAT, "%s: has no rows", rows->name);
  if ((rows->malformed <= 1 || rows->malformed <= rows->lines / 100) && rows->count) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_FORMAT, "%s: %" PRId64 " of %" PRId64 " rows are malformed for task %s; the first, %s",
                  rows->name, rows->malformed, rows->lines, rows->task->name, rows->first);
}

int ch_rows_parse(const choir_task *task, const char *name, const char *text, size_t size, int labelled,
                  ch_rows *rows) {
  *rows = (ch_rows){.task = task, .name = name};
  int code = task->jsonl ? ch_jsonl_rows(rows, text, size, labelled) : ch_tsv_rows(rows, text, size, labelled);
  if (!code) code = check_rows(rows);
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

/* The unit of sequence lengths in a batch. With pool sequence, routers refuse sequences with fewer tokens than
 * experts. */
static int length_step(const choir_config *config) {
  int pools = config && config->model.moe_every && config->model.router.pool == CH_POOL_SEQUENCE;
  int min = pools ? config->model.experts : 1;
  return (min + CH_LENGTH_STEP - 1) / CH_LENGTH_STEP * CH_LENGTH_STEP;
}

int ch_set_open(const choir_task *task, const char *directory, const char *split, const choir_tokenizer *tokenizer,
                const choir_config *config, int length, int labelled, ch_set *set) {
  const int32_t mask = choir_config_mask_token(config);
  *set = (ch_set){0};
  CH_TRY(ch_task_file(task, directory, split, set->path));
  CH_TRY(ch_rows_read(task, set->path, labelled, &set->rows));
  int code = ch_examples_make(&set->rows, tokenizer, length + (mask < 0), labelled, &set->examples);
  set->examples.mask = mask;
  set->examples.step = length_step(config);
  if (!code && !set->examples.count)
    code = ch_error(CHOIR_ERROR_FORMAT, "%s: none of its %lld rows has a label", set->path, (long long)set->rows.count);
  if (code) ch_set_close(set);
  return code;
}

void ch_set_close(ch_set *set) {
  ch_examples_free(&set->examples);
  ch_rows_free(&set->rows);
}

/* Matthews' correlation and F1 of two labels; both are 0 if all labels or predictions are the same. */
static void binary(const int64_t table[2][2], choir_task_measure *m) { /* [label][prediction] */
  double tn = (double)table[0][0], fp = (double)table[0][1], fn = (double)table[1][0], tp = (double)table[1][1];
  double scale = sqrt(tp + fp) * sqrt(tp + fn) * sqrt(tn + fp) * sqrt(tn + fn);
  m->matthews = scale > 0 ? (tp * tn - fp * fn) / scale : 0;
  m->f1 = 2 * tp + fp + fn > 0 ? 2 * tp / (2 * tp + fp + fn) : 0;
}

choir_task_measure ch_measure(const choir_task *task, const ch_examples *e, const ch_predictions *p) {
  choir_task_measure m = {.accuracy = (double)NAN, .matthews = (double)NAN, .f1 = (double)NAN};
  int64_t table[2][2] = {{0}};
  for (int64_t i = 0; i < e->count; i++) {
    if (e->label[i] < 0) continue;
    m.labelled++;
    m.correct += p->label[i] == e->label[i];
    if (task->labels == 2) table[e->label[i]][p->label[i]]++;
  }
  if (!m.labelled) return m;
  m.accuracy = (double)m.correct / (double)m.labelled;
  choir_task_measure both = {0};
  binary(table, &both);
  if (task->matthews) m.matthews = both.matthews;
  if (task->f1) m.f1 = both.f1;
  return m;
}

int ch_majority(const choir_task *task, const ch_examples *e, double *share) {
  int64_t count[CH_TASK_LABELS] = {0}, labelled = 0;
  int best = 0;
  for (int64_t i = 0; i < e->count; i++) {
    if (e->label[i] < 0) continue;
    count[e->label[i]]++;
    labelled++;
  }
  for (int l = 1; l < task->labels; l++)
    if (count[l] > count[best]) best = l;
  *share = labelled ? (double)count[best] / (double)labelled : (double)NAN;
  return labelled ? best : -1;
}

/* "5" becomes a number in JSON, any other index a string. */
static json_t *index_json(ch_value index) {
  char text[24];
  if (index.size && index.size < 18) {
    snprintf(text, sizeof text, "%.*s", (int)index.size, index.text);
    if (strspn(text, "0123456789") == index.size && (text[0] != '0' || index.size == 1))
      return json_integer(strtoll(text, NULL, 10));
  }
  return json_stringn(index.text, index.size);
}

static void write_json(ch_file *file, ch_value index, const char *label) {
  json_t *line = json_pack("{s:o, s:s}", "idx", index_json(index), "label", label);
  char *text = ch_json_dump(line, 0);
  json_decref(line);
  if (!text) {
    file->error = ENOMEM;
    return;
  }
  ch_file_write(file, text, strlen(text));
  ch_file_write(file, "\n", 1);
  free(text);
}

static void write_tsv(ch_file *file, ch_value index, const char *label) {
  ch_file_write(file, index.text, index.size);
  ch_file_write(file, "\t", 1);
  ch_file_write(file, label, strlen(label));
  ch_file_write(file, "\n", 1);
}

int ch_predictions_write(const char *path, const ch_rows *rows, const ch_examples *e, const ch_predictions *p) {
  static const char head[] = "index\tprediction\n";
  size_t length = strlen(path);
  int json = length > 6 && !strcmp(path + length - 6, ".jsonl");
  ch_file file;
  CH_TRY(ch_file_begin(&file, path));
  if (!json) ch_file_write(&file, head, sizeof head - 1);
  for (int64_t i = 0; i < e->count; i++)
    (json ? write_json : write_tsv)(&file, ch_rows_value(rows, e->row[i], rows->task->columns),
                                    rows->task->label[p->label[i]]);
  return ch_file_commit(&file);
}

int ch_set_measure(choir_model *model, const ch_set *set, int by_batch, const choir_task_options *o, const char *out,
                   choir_task_measure *m) {
  ch_predictions p;
  int was = model->causal, masked = ch_config_masked(&model->config);
  model->causal = by_batch ? CH_NOT_CAUSAL : was || masked ? was : CH_BY_THRESHOLDS;
  int code = by_batch ? ch_predict_batches(model, &set->examples, o->batch_sequences, o->score, &p)
                      : ch_predict_alone(model, &set->examples, o->score, &p);
  const char *routing = masked ? ch_masked_routing(model) : choir_model_routing(model);
  model->causal = was;
  CH_TRY(code);
  *m = ch_measure(set->rows.task, &set->examples, &p);
  m->routing = routing;
  if (out) code = ch_predictions_write(out, &set->rows, &set->examples, &p);
  ch_predictions_free(&p);
  return code;
}

/* ---- choir_task_score: from a task's file to its measures ---- */

static int check_set(choir_model *model, const choir_tokenizer *tokenizer, const choir_task_options *o) {
  if (!o->data) return ch_error(CHOIR_ERROR_ARGUMENT, "scoring a task needs the directory of its files");
  CH_TRY(ch_check_mask_samples(model, o->score));
  CH_TRY(ch_check_tokenizer(tokenizer, ch_config_pieces(&model->config)));
  if (o->batch_sequences < 0 || o->score->batch < 1 || o->score->chunk < 1)
    return ch_error(CHOIR_ERROR_ARGUMENT, "batch_sequences %d must not be negative, batch %d and chunk %d at least 1",
                    o->batch_sequences, o->score->batch, o->score->chunk);
  if (o->sequence_length < 0 || o->sequence_length > 1 << 20) /* the range of train.sequence_length */
    return ch_error(CHOIR_ERROR_ARGUMENT, "sequence_length is %d: must be 1 to %d, or 0 for the config's",
                    o->sequence_length, 1 << 20);
  if (!(o->capacity_factor >= 0 && o->capacity_factor <= 65536))
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "capacity_factor is %g: must be above 0 and 65536 at most, or 0 for the config's",
                    o->capacity_factor);
  return CHOIR_OK;
}

static int plan_batches(choir_model *model, const ch_examples *e, int asked) {
  ch_pass *passes;
  int count;
  CH_TRY(ch_predict_passes(e, asked, model->config.model.experts, &passes, &count));
  int code = ch_model_plan_passes(model, passes, count);
  free(passes);
  return code;
}

int ch_set_has_batches(const choir_model *model) {
  return !ch_config_masked(&model->config) && choir_model_looks_across_tokens(model);
}

static int measure_batches(choir_model *model, const ch_set *set, const choir_task_options *o, choir_task_result *r) {
  double factor = model->net.config.router.eval_capacity_factor;
  int was = model->causal, code = CHOIR_OK;
  model->causal = 0;
  if (o->capacity_factor > 0) ch_transformer_set_eval_capacity(&model->net, o->capacity_factor);
  if (o->batch_sequences > 0 && ch_set_has_batches(model)) {
    code = plan_batches(model, &set->examples, o->batch_sequences);
    if (!code) code = ch_set_measure(model, set, 1, o, NULL, &r->measure[r->measures++]);
  }
  ch_transformer_set_eval_capacity(&model->net, factor);
  model->causal = was;
  return code;
}

static void describe_set(const ch_set *set, choir_task_result *r) {
  const ch_examples *e = &set->examples;
  int max = ch_majority(set->rows.task, e, &r->majority);
  r->majority_label = max < 0 ? NULL : set->rows.task->label[max];
  r->examples = e->count;
  r->malformed = set->rows.malformed;
  r->cut = e->cut;
  snprintf(r->file, sizeof r->file, "%s", set->path);
  if (r->malformed) snprintf(r->first_malformed, sizeof r->first_malformed, "%s", set->rows.first);
}

int choir_task_score(choir_model *model, const choir_tokenizer *tokenizer, const choir_task *task,
                     const choir_task_options *options, choir_task_result *result) {
  CH_ENTER(model, tokenizer, task, options, result);
  ch_set set;
  *result = (choir_task_result){0};
  CH_OPTIONS(choir_task_options, o, options, CHOIR_TASK_OPTIONS_INIT);
  CH_OPTIONS(choir_score_options, score, o.score, CHOIR_SCORE_OPTIONS_INIT);
  o.score = &score;
  CH_TRY(ch_model_alone(model, "choir_task_score"));
  CH_TRY(check_set(model, tokenizer, &o));
  if (!ch_config_masked(&model->config) || model->causal) CH_TRY(ch_model_check_thresholds(model));
  int length = o.sequence_length ? o.sequence_length : model->config.train.sequence_length;
  double begin = ch_machine_seconds();
  CH_TRY(ch_set_open(task, o.data, o.split ? o.split : "dev", tokenizer, &model->config, length, 0, &set));
  describe_set(&set, result);
  int code = CHOIR_OK;
  if (o.out && ch_same_file(o.out, set.path))
    code = ch_error(CHOIR_ERROR_ARGUMENT, "%s: is the labelled set itself; name another file for predictions", o.out);
  if (!code) code = ch_set_measure(model, &set, 0, &o, o.out, &result->measure[result->measures++]);
  if (!code) code = measure_batches(model, &set, &o, result);
  ch_set_close(&set);
  result->seconds = ch_machine_seconds() - begin;
  return code;
}
