#include "export/import.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "export/gguf_read.h"
#include "export/imported.h"
#include "export/names.h"
#include "export/plan.h"
#include "file/checkpoints.h"
#include "file/dir.h"
#include "file/tensors.h"
#include "model/param.h"
#include "moe/router.h"

typedef struct import_job {
  const choir_import_options *options;
  choir_import_result *result;
  choir_config config;
  double gate_scale;
  int64_t eos; /* the token that ends a text; -1: config.json does not say */
  ch_kind kind;
  ch_export_format format;
  ch_params params;
  ch_gguf_in gguf; /* a GGUF file, which then owns `from` */
  choir_tensors *from;
  choir_tensor *tensor; /* [all parameters] tensors to write */
  float *values;        /* space for the largest */
  char *used;           /* [tensors in the source] */
  int64_t done, total;
  int code;
} import_job;

/* Finds a tensor by name. Folders saved from a model without its head omit "model." in all names. */
static const choir_tensor *find_tensor(const import_job *j, const char *name) {
  static const char prefix[] = "model.";
  const choir_tensor *t = choir_tensors_find(j->from, name);
  int bare = !t && j->format == CH_EXPORT_HF && !strncmp(name, prefix, sizeof prefix - 1);
  return bare ? choir_tensors_find(j->from, name + sizeof prefix - 1) : t;
}

/* Finds the tensor of a parameter or of one of its experts, which must have the shape [blocks,rows,columns] from the
 * last `dims` dimensions. */
static int find_source(import_job *j, const ch_param *p, const ch_export_row *row, int expert, int dims,
                       const int64_t shape[3], const choir_tensor **t) {
  char name[128];
  ch_export_name(j->kind, j->format, row, p->layer, expert, name);
  *t = find_tensor(j, name);
  if (!*t && j->config.model.tied && !strcmp(row->from, "embed.weight"))
    *t = find_tensor(
        j, ch_export_find("head.weight")->there[j->format]); /* a tied model may have only its head in the file */
  if (!*t) return ch_error(CHOIR_ERROR_FORMAT, "%s: tensor '%s' is missing", j->options->from, name);
  if ((*t)->dims < 1) return ch_error(CHOIR_ERROR_FORMAT, "%s: tensor '%s' is a single number", j->options->from, name);
  choir_dtype dtype = (*t)->dtype;
  if (dtype != CHOIR_F64 && dtype != CHOIR_F32 && dtype != CHOIR_F16 && dtype != CHOIR_BF16 &&
      !(dtype == CHOIR_U8 && j->format == CH_EXPORT_GGUF))
    return ch_error(CHOIR_ERROR_UNSUPPORTED, "%s: tensor '%s' is %s: choir reads F64, F32, F16 and BF16",
                    j->options->from, name, ch_dtype_name(dtype));
  int64_t columns = (*t)->shape[(*t)->dims - 1];
  if (dtype == CHOIR_U8) columns = columns / CH_Q8_BYTES * CH_Q8_VALUES;
  if ((*t)->dims != dims || columns != shape[2] || (dims > 1 && (*t)->shape[dims - 2] != shape[1]) ||
      (dims > 2 && (*t)->shape[0] != shape[0]))
    return ch_error(CHOIR_ERROR_FORMAT, "%s: tensor '%s' is not of the shape that the config says, %lld x %lld",
                    j->options->from, name, (long long)shape[1], (long long)shape[2]);
  j->used[*t - choir_tensors_at(j->from, 0)] = 1;
  return CHOIR_OK;
}

/* Copies one matrix of a parameter, from element `first` on, transposed if the table says so; head: rows are
 * interleaved. */
static void copy_matrix(const choir_tensor *t, int64_t first, int turned, int64_t head, double factor, int64_t rows,
                        int64_t columns, float *out) {
  for (int64_t r = 0; r < rows; r++) {
    float *to = out + (head ? ch_export_interleaved(r, head) : r) * columns;
    for (int64_t c = 0; c < columns; c++)
      to[c] = (float)(factor * ch_export_value(t->dtype, t->data, first + (turned ? c * rows + r : r * columns + c)));
  }
}

static int fill_param(import_job *j, const ch_param *p, float *out) {
  const ch_export_row *row = ch_export_find(p->name);
  const choir_tensor *t = NULL;
  if (!row) return ch_error(CHOIR_ERROR_UNSUPPORTED, "%s has no counterpart in %s", p->name, j->result->architecture);
  int bias = row->role == CH_ROLE_BIAS, turned = row->turned;
  int64_t blocks = p->dims == 3 ? p->shape[0] : 1, columns = p->shape[p->dims - 1],
          rows = p->dims > 1 ? p->shape[p->dims - 2] : 1;
  if (bias && !ch_export_has_bias(j->kind)) { /* the architecture has no bias on scores */
    memset(out, 0, (size_t)p->whole * sizeof *out);
    return CHOIR_OK;
  }
  double factor = bias ? -1 : !strcmp(row->from, "moe.experts.w2") ? j->gate_scale : 1;
  int together = p->dims == 3 && j->format == CH_EXPORT_GGUF; /* all experts are in one tensor */
  int64_t shape[3] = {blocks, turned ? columns : rows, turned ? rows : columns}, head = 0;
  if (row->role == CH_ROLE_ROTATED && ch_export_is_interleaved(j->kind, j->format))
    head = ch_config_d_head(&j->config.model);
  for (int64_t block = 0; block < blocks; block++) {
    CH_TRY(find_source(j, p, row, (int)block, together ? 3 : p->dims > 1 ? 2 : 1, shape, &t));
    float *matrix = out + block * rows * columns;
    copy_matrix(t, together ? block * rows * columns : 0, turned, head, factor, rows, columns, matrix);
    for (int64_t i = 0; i < rows * columns; i++)
      if (!isfinite(matrix[i]))
        return ch_error(CHOIR_ERROR_NUMERIC, "%s: tensor '%s' has a value that is not finite", j->options->from,
                        t->name);
    if (!together) ch_tensors_forget(j->from, t);
  }
  if (together) ch_tensors_forget(j->from, t);
  return CHOIR_OK;
}

static const void *fetch_import(void *context, const choir_tensor *tensor) {
  import_job *j = context;
  const ch_param *p = &j->params.p[tensor - j->tensor];
  j->done += p->whole;
  if (j->options->progress && j->options->progress(j->options->context, "reading", (double)j->done / (double)j->total))
    j->code = ch_error(CHOIR_ERROR_INTERRUPTED, "stopped; nothing was written");
  else
    j->code = fill_param(j, p, j->values);
  return j->code ? NULL : j->values;
}

/* Whether a tensor has the rope frequencies given by rope_theta, up to rounding to 16 bits. Older versions of
 * transformers wrote them to the file. */
static int are_frequencies(const import_job *j, const choir_tensor *t) {
  static const char end[] = ".rotary_emb.inv_freq";
  const ch_model_config *m = &j->config.model;
  size_t length = strlen(t->name);
  double columns = m->rope_fraction * ch_config_d_head(m);
  int known = t->dtype == CHOIR_F32 || t->dtype == CHOIR_F16 || t->dtype == CHOIR_BF16;
  if (j->format != CH_EXPORT_HF || length < sizeof end || strcmp(t->name + length - (sizeof end - 1), end) || !known ||
      t->dims != 1 || (double)t->shape[0] != columns / 2)
    return 0;
  for (int64_t i = 0; i < t->shape[0]; i++) {
    double wanted = pow(m->rope_theta, -2 * (double)i / columns);
    if (!(fabs(ch_export_value(t->dtype, t->data, i) - wanted) <= 0.01 * wanted + 1e-7)) return 0;
  }
  return 1;
}

/* Checks that every tensor was used; a tied head may occur in addition to the embedding. */
static int check_used(const import_job *j) {
  const char *head = j->format == CH_EXPORT_GGUF ? "output.weight" : "lm_head.weight";
  for (int i = 0; i < choir_tensors_count(j->from); i++) {
    const choir_tensor *t = choir_tensors_at(j->from, i);
    if (j->used[i] || (j->config.model.tied && !strcmp(t->name, head)) || are_frequencies(j, t)) continue;
    return ch_error(CHOIR_ERROR_FORMAT, "%s: tensor '%s' has no counterpart: choir has no such tensor",
                    j->options->from, t->name);
  }
  return CHOIR_OK;
}

static int list(import_job *j) {
  int count = j->params.count + j->params.buffers;
  int64_t largest = 1;
  CH_TRY(CH_ALLOC(&j->tensor, count, "the model's tensors"));
  for (int i = 0; i < count; i++) {
    const ch_param *p = &j->params.p[i];
    choir_tensor *t = &j->tensor[i];
    *t = (choir_tensor){.dtype = CHOIR_F32, .dims = p->dims, .bytes = (size_t)p->whole * sizeof(float)};
    snprintf(t->name, sizeof t->name, "%s", p->name);
    memcpy(t->shape, p->shape, sizeof p->shape);
    j->total += p->whole;
    if (p->whole > largest) largest = p->whole;
  }
  CH_TRY(CH_ALLOC(&j->values, largest, "the largest tensor"));
  return CH_ALLOC(&j->used, choir_tensors_count(j->from), "the tensors that were read");
}

static int write_weights(import_job *j, const char *directory, const char *path) {
  ch_binding binding;
  const char *metadata[5];
  CH_TRY(ch_binding_of(directory, &binding));
  ch_binding_metadata(&binding, metadata);
  CH_TRY(ch_export_files(path, j->tensor, j->params.count + j->params.buffers, j->config.train.file_bytes, metadata,
                         fetch_import, j, &j->code));
  return check_used(j);
}

static int write_checkpoint(import_job *j, const char *directory) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s/config.json", directory);
  CH_TRY(choir_config_save(&j->config, path));
  const ch_tokenizer_source source = {.from = j->options->from,
                                      .gguf = j->format == CH_EXPORT_GGUF ? &j->gguf : NULL,
                                      .named = j->options->tokenizer,
                                      .eos = j->eos,
                                      .vocab = j->config.model.vocab_size};
  CH_TRY(ch_import_add_tokenizer(&source, directory, &j->result->tokenizer));
  CH_TRY(j->format == CH_EXPORT_GGUF ? ch_imported_keep_keys(j->gguf.keys, directory)
                                     : ch_imported_keep(j->options->from, !j->options->tokenizer, directory));
  snprintf(path, sizeof path, "%s/model.safetensors", directory);
  return write_weights(j, directory, path);
}

/* Notes the load-balancing method of the model's authors. An export restores it; training in choir uses its own
 * loss. */
static void note_balance(const json_t *root, const char *name, const ch_router_spec *router) {
  static const char *const keys[] = {"router_aux_loss_coef", "router_jitter_noise"};
  for (int i = 0; i < 2; i++) {
    double value = json_number_value(json_object_get(root, keys[i]));
    if (value != 0)
      ch_notice(
          "%s: \"%s\" is %g: training here does not take it up; router '%s' has aux_loss_weight %g, which counts "
          "in another way (choir help routers), and no noise",
          name, keys[i], value, router->kind->name, router->aux_loss_weight);
  }
}

static int read_config(import_job *j, const char *name, json_t *root) {
  int code = ch_import_config(root, name, &j->config, &j->gate_scale, &j->kind);
  const json_t *eos = json_object_get(root, "eos_token_id"), *first = json_array_get(eos, 0);
  j->eos = json_is_integer(eos) ? json_integer_value(eos) : first ? json_integer_value(first) : -1;
  if (!code && json_array_size(eos) > 1)
    ch_notice("%s: \"eos_token_id\" names %zu tokens; the first, %lld, ends texts here; an export names all", name,
              json_array_size(eos), (long long)j->eos);
  if (!code && j->kind >= CH_KIND_MIXTRAL) note_balance(root, name, &j->config.model.router);
  json_decref(root);
  return code;
}

/* A head with the same bytes as the embedding is stored as tied, which some stock programs cannot express. If the
 * config says that the head is tied but its bytes differ, some programs use its bytes and others the embedding's. */
static int tie(import_job *j) {
  const choir_tensor *embed = find_tensor(j, ch_export_find("embed.weight")->there[j->format]),
                     *head = find_tensor(j, ch_export_find("head.weight")->there[j->format]);
  if (!embed || !head) return CHOIR_OK;
  int same = embed->dtype == head->dtype && embed->bytes == head->bytes &&
             !memcmp(embed->shape, head->shape, sizeof head->shape) && !memcmp(embed->data, head->data, head->bytes);
  if (j->config.model.tied && !same)
    return ch_error(CHOIR_ERROR_FORMAT,
                    "%s: \"tie_word_embeddings\" is true, but tensor '%s' is not '%s'; say false if "
                    "the model has a head of its own",
                    j->options->from, head->name, embed->name);
  j->config.model.tied = same;
  return CHOIR_OK;
}

static int open_folder(import_job *j) {
  char path[PATH_MAX];
  json_t *root;
  if (snprintf(path, sizeof path, "%s/config.json", j->options->from) >= PATH_MAX - 32)
    return ch_error(CHOIR_ERROR_ARGUMENT, "%.100s...: the name is too long", j->options->from);
  CH_TRY(ch_import_refuse_pickle(j->options->from));
  CH_TRY(ch_json_load(path, &root));
  int code = ch_import_defaults(root);
  if (code) return json_decref(root), code;
  CH_TRY(read_config(j, path, root));
  if (j->config.model.rope_fraction != 1 &&
      j->kind != CH_KIND_GLM4_MOE) /* transformers rotates all dimensions here, vLLM a part */
    return ch_error(CHOIR_ERROR_UNSUPPORTED,
                    "%s: \"partial_rotary_factor\" is %g: choir reads it of glm4_moe only; take it out if "
                    "whole heads turn, as in transformers",
                    path, j->config.model.rope_fraction);
  snprintf(path, sizeof path, "%s/model.safetensors", j->options->from);
  CH_TRY(ch_import_refuse_pickled_folder(j->options->from, path));
  return ch_tensors_open_unaligned(path, 0, &j->from);
}

static int open_file(import_job *j) {
  json_t *root;
  CH_TRY(ch_gguf_open(j->options->from, &j->gguf));
  j->from = j->gguf.tensors;
  CH_TRY(ch_gguf_config(&j->gguf, j->options->from, &root));
  CH_TRY(read_config(j, j->options->from, root));
  const char *name = json_string_value(json_object_get(j->gguf.keys, "general.name"));
  size_t size = name ? strlen(name) : 0, max_bytes = sizeof j->config.model.name - 1;
  if (size > max_bytes) size = ch_utf8_cut(name, max_bytes); /* at most the size of the config's field */
  if (name) snprintf(j->config.model.name, max_bytes + 1, "%.*s", (int)size, name);
  return CHOIR_OK;
}

static int import_weights(import_job *j) {
  ch_dir dir;
  j->format = ch_gguf_is(j->options->from) ? CH_EXPORT_GGUF : CH_EXPORT_HF;
  CH_TRY(j->format == CH_EXPORT_GGUF ? open_file(j) : open_folder(j));
  CH_TRY(tie(j));
  j->result->architecture = ch_kind_names[j->kind].architecture[j->format];
  CH_TRY(ch_params_build(&j->config.model, &j->params));
  CH_TRY(list(j));
  j->result->parameters = ch_params_total(&j->params);
  CH_TRY(ch_dir_begin(&dir, j->options->out));
  return ch_dir_end(&dir, write_checkpoint(j, dir.temporary));
}

int choir_import(const choir_import_options *options, choir_import_result *result) {
  import_job j = {.options = options, .result = result};
  *result = (choir_import_result){0};
  int code = import_weights(&j);
  ch_params_free(&j.params);
  if (j.format == CH_EXPORT_GGUF)
    ch_gguf_close_in(&j.gguf);
  else
    choir_tensors_free(j.from);
  free(j.used);
  free(j.tensor);
  free(j.values);
  return code;
}
