#include "export/import.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/real.h"
#include "choir/tokenizer.h"
#include "export/names.h"
#include "export/plan.h"
#include "file/binding.h"
#include "file/dir.h"
#include "file/file.h"
#include "model/param.h"

typedef struct job {
  const choir_import_options *options;
  choir_import_result *result;
  choir_config config;
  double gate_scale;
  ch_kind kind;
  ch_params params;
  choir_tensors *from;
  choir_tensor *tensor;      /* [all parameters] as they are written */
  float *values;             /* room for the largest */
  int64_t done, total, used; /* used: tensors of the folder */
  int code;
} job;

static float value_at(const choir_tensor *t, int64_t i) {
  return t->dtype == CHOIR_BF16 ? ch_bf16_value(((const ch_bf16 *)t->data)[i]) : ((const float *)t->data)[i];
}

/* The tensor that a matrix comes from, of the shape [rows,columns] or, of dims 1, [columns]. */
static int find_source(job *j, const ch_param *p, const ch_export_row *row, int expert, int dims, int64_t rows,
                       int64_t columns, const choir_tensor **t) {
  char name[128];
  ch_export_name(j->kind, CH_EXPORT_HF, row, p->layer, expert, name);
  *t = choir_tensors_find(j->from, name);
  if (!*t) return ch_error(CHOIR_ERROR_FORMAT, "%s: tensor '%s' is missing", j->options->folder, name);
  if ((*t)->dtype != CHOIR_F32 && (*t)->dtype != CHOIR_BF16)
    return ch_error(CHOIR_ERROR_UNSUPPORTED, "%s: tensor '%s' is %s: choir reads F32 and BF16", j->options->folder,
                    name, ch_dtype_name((*t)->dtype));
  if ((*t)->dims != dims || (*t)->shape[dims - 1] != columns || (dims == 2 && (*t)->shape[0] != rows))
    return ch_error(CHOIR_ERROR_FORMAT, "%s: tensor '%s' is not of the shape that config.json says, %lld x %lld",
                    j->options->folder, name, (long long)rows, (long long)columns);
  return CHOIR_OK;
}

/* One matrix of a parameter, turned where the table says so. */
static void copy(const choir_tensor *t, int turned, double factor, int64_t rows, int64_t columns, float *out) {
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < columns; c++)
      out[r * columns + c] = (float)(factor * value_at(t, turned ? c * rows + r : r * columns + c));
}

static int fill(job *j, const ch_param *p, float *out) {
  const ch_export_row *row = ch_export_find(p->name);
  const choir_tensor *t = NULL;
  if (!row) return ch_error(CHOIR_ERROR_UNSUPPORTED, "%s has no counterpart in %s", p->name, j->result->architecture);
  int bias = row->role == CH_ROLE_BIAS, turned = row->turned;
  int64_t blocks = p->dims == 3 ? p->shape[0] : 1, columns = p->shape[p->dims - 1],
          rows = p->dims > 1 ? p->shape[p->dims - 2] : 1;
  if (bias && j->kind != CH_KIND_GLM4_MOE) { /* nothing is added to scores */
    memset(out, 0, (size_t)p->whole * sizeof *out);
    return CHOIR_OK;
  }
  double factor = bias ? -1 : !strcmp(row->from, "moe.experts.w2") ? j->gate_scale : 1;
  for (int64_t block = 0; block < blocks; block++) {
    CH_TRY(
        find_source(j, p, row, (int)block, p->dims > 1 ? 2 : 1, turned ? columns : rows, turned ? rows : columns, &t));
    copy(t, turned, factor, rows, columns, out + block * rows * columns);
    ch_tensors_forget(j->from, t);
    j->used++;
  }
  for (int64_t i = 0; i < p->whole; i++)
    if (!isfinite(out[i])) return ch_error(CHOIR_ERROR_NUMERIC, "%s has a value that is not finite", p->name);
  return CHOIR_OK;
}

static const void *fetch(void *context, const choir_tensor *tensor) {
  job *j = context;
  const ch_param *p = &j->params.p[tensor - j->tensor];
  j->done += p->whole;
  if (j->options->progress && j->options->progress(j->options->context, "reading", (double)j->done / (double)j->total))
    j->code = ch_error(CHOIR_ERROR_INTERRUPTED, "stopped; nothing was written");
  else
    j->code = fill(j, p, j->values);
  return j->code ? NULL : j->values;
}

/* Every tensor of the folder has gone somewhere; a head that is the embedding may stand there once more. */
static int check_used(const job *j) {
  int64_t count = choir_tensors_count(j->from);
  if (j->config.model.tied && choir_tensors_find(j->from, "lm_head.weight")) count--;
  return j->used == count
             ? CHOIR_OK
             : ch_error(CHOIR_ERROR_FORMAT, "%s: has %lld tensors, of which %lld have a place in a model of choir's",
                        j->options->folder, (long long)count, (long long)j->used);
}

static int list(job *j) {
  int count = j->params.count + j->params.buffers;
  int64_t largest = 1;
  j->tensor = calloc((size_t)count, sizeof *j->tensor);
  for (int i = 0; j->tensor && i < count; i++) {
    const ch_param *p = &j->params.p[i];
    choir_tensor *t = &j->tensor[i];
    *t = (choir_tensor){.dtype = CHOIR_F32, .dims = p->dims, .bytes = (size_t)p->whole * sizeof(float)};
    snprintf(t->name, sizeof t->name, "%s", p->name);
    memcpy(t->shape, p->shape, sizeof p->shape);
    j->total += p->whole;
    if (p->whole > largest) largest = p->whole;
  }
  j->values = reallocarray(NULL, (size_t)largest, sizeof *j->values);
  return j->tensor && j->values ? CHOIR_OK
                                : ch_error(CHOIR_ERROR_MEMORY, "not enough memory for the largest tensor, %lld values",
                                           (long long)largest);
}

static int write_weights(job *j, const char *directory, const char *path) {
  ch_binding binding;
  const char *metadata[5];
  CH_TRY(ch_binding_of(directory, &binding));
  ch_binding_metadata(&binding, metadata);
  CH_TRY(ch_export_files(path, j->tensor, j->params.count + j->params.buffers, j->config.train.file_bytes, metadata,
                         fetch, j, &j->code));
  return check_used(j);
}

/* A tokenizer that would change texts is left out, with a notice; one that the caller names must be right. */
static int copy_tokenizer(job *j, const char *directory) {
  char path[PATH_MAX];
  choir_tokenizer *t;
  const void *bytes;
  size_t size;
  snprintf(path, sizeof path, "%s/tokenizer.model", j->options->folder);
  const char *from = j->options->tokenizer ? j->options->tokenizer : path;
  if (!j->options->tokenizer && access(path, F_OK)) return CHOIR_OK;
  int code = choir_tokenizer_load(from, &t);
  if (code && j->options->tokenizer) return code;
  if (code) return ch_notice("%s; the checkpoint has no tokenizer", choir_error_message()), CHOIR_OK;
  bytes = choir_tokenizer_bytes(t, &size);
  snprintf(path, sizeof path, "%s/tokenizer.model", directory);
  code = choir_tokenizer_vocab_size(t) == j->config.model.vocab_size
             ? ch_file_save(path, bytes, size)
             : ch_error(CHOIR_ERROR_FORMAT, "%s: has %d pieces, \"vocab_size\" is %d", from,
                        choir_tokenizer_vocab_size(t), j->config.model.vocab_size);
  choir_tokenizer_free(t);
  j->result->tokenizer = !code;
  return code;
}

static int write_all(job *j, const char *directory) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s/config.json", directory);
  CH_TRY(choir_config_save(&j->config, path));
  CH_TRY(copy_tokenizer(j, directory));
  snprintf(path, sizeof path, "%s/model.safetensors", directory);
  return write_weights(j, directory, path);
}

static int run(job *j) {
  char path[PATH_MAX];
  json_t *root;
  ch_dir dir;
  if (snprintf(path, sizeof path, "%s/config.json", j->options->folder) >= PATH_MAX - 32)
    return ch_error(CHOIR_ERROR_ARGUMENT, "%.100s...: the name is too long", j->options->folder);
  CH_TRY(ch_json_load(path, &root));
  int code = ch_import_config(root, path, &j->config, &j->gate_scale, &j->kind);
  json_decref(root);
  if (code) return code;
  j->result->architecture = ch_kind_names[j->kind].architecture[CH_EXPORT_HF];
  snprintf(path, sizeof path, "%s/model.safetensors", j->options->folder);
  CH_TRY(choir_tensors_open(path, 0, &j->from));
  CH_TRY(ch_params_build(&j->config.model, &j->params));
  CH_TRY(list(j));
  j->result->parameters = ch_params_total(&j->params);
  CH_TRY(ch_dir_begin(&dir, j->options->out));
  code = write_all(j, dir.temporary);
  if (!code) return ch_dir_commit(&dir);
  ch_dir_abandon(&dir);
  return code;
}

int choir_import(const choir_import_options *options, choir_import_result *result) {
  job j = {.options = options, .result = result};
  *result = (choir_import_result){0};
  int code = run(&j);
  ch_params_free(&j.params);
  choir_tensors_close(j.from);
  free(j.tensor);
  free(j.values);
  return code;
}
