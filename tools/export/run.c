#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "export/plan.h"
#include "file/checkpoints.h"
#include "file/path_status.h"
#include "model/config.h"
#include "model/weights.h"
#include "moe/routers/threshold.h"

typedef struct export_job {
  const choir_export_options *options;
  choir_export_result *result;
  ch_export_plan plan;
  choir_tensors *weights;
  choir_tokenizer *tokenizer; /* NULL: the checkpoint has none */
  choir_model *model;         /* for measurements */
} export_job;

static int word(const char *what, const char *value, const char *const *words, int *number) {
  char list[128];
  for (*number = 0; words[*number]; (*number)++)
    if (value && !strcmp(words[*number], value)) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_ARGUMENT, "%s is '%.40s'; must be one of %s", what, value ? value : "",
                  ch_word_list(list, sizeof list, words));
}

static int check_export_options(export_job *j) {
  int format, dtype;
  CH_TRY(word("format", j->options->format, ch_export_formats, &format));
  CH_TRY(word("dtype", j->options->dtype, ch_export_dtypes, &dtype));
  if (!(j->options->cut >= 0 && j->options->cut < 1))
    return ch_error(CHOIR_ERROR_ARGUMENT, "cut is %g: it must be a share of tokens, at least 0 and below 1",
                    j->options->cut);
  if (format == CH_EXPORT_HF && dtype == CH_EXPORT_Q8_0)
    return ch_error(CHOIR_ERROR_ARGUMENT, "dtype q8_0 is GGUF's: a folder takes f32 or bf16");
  j->plan.format = (ch_export_format)format, j->plan.dtype = (ch_export_dtype)dtype;
  return CHOIR_OK;
}

/* Thresholds that training has not set would assign every expert to every token; a bias needs an architecture that
 * has one. */
static int check_thresholds(const export_job *j) {
  for (int i = 0; i < choir_tensors_count(j->weights); i++) {
    const choir_tensor *t = choir_tensors_at(j->weights, i);
    if (!strstr(t->name, ".moe.thresholds")) continue;
    int set = ch_thresholds_set(t->data, (int)t->shape[0]);
    if (!set && ch_export_by_thresholds(&j->plan))
      return ch_error(CHOIR_ERROR_UNSUPPORTED, "%s: no training has set them yet; train the model first", t->name);
    if (set && !ch_export_has_bias(j->plan.kind))
      return ch_error(
          CHOIR_ERROR_UNSUPPORTED,
          "%s: router '%s' has prices of experts, and %s none; train with model.router.score \"sigmoid\", or "
          "with model.router.bias_rate 0",
          t->name, j->plan.config.model.router.kind->name, ch_export_architecture(&j->plan));
  }
  return CHOIR_OK;
}

static int open_checkpoint(export_job *j) {
  char path[PATH_MAX + 32];
  const char *directory = j->result->checkpoint;
  int there;
  CH_TRY(choir_checkpoint_find(j->options->checkpoint, j->result->checkpoint, sizeof j->result->checkpoint));
  snprintf(path, sizeof path, "%s/config.json", directory);
  CH_TRY(ch_config_load(path, &j->plan.config));
  CH_TRY(ch_export_choose(&j->plan));
  CH_TRY(ch_imported_load(directory, &j->plan.imported));
  snprintf(path, sizeof path, "%s/tokenizer.model", directory);
  CH_TRY(ch_path_exists(path, &there));
  if (there) CH_TRY(choir_tokenizer_load(path, &j->tokenizer));
  snprintf(path, sizeof path, "%s/model.safetensors", directory);
  CH_TRY(choir_tensors_load(path, 1, &j->weights));
  CH_TRY(ch_binding_check(j->weights, path));
  CH_TRY(ch_weights_same_router(j->plan.config.model.router.kind, path, 0));
  int vocab = j->plan.config.model.vocab_size, mask = ch_config_masked(&j->plan.config);
  if (j->tokenizer && choir_tokenizer_vocab_size(j->tokenizer) != vocab - mask)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: the tokenizer has %d pieces, model.vocab_size is %d%s", directory,
                    choir_tokenizer_vocab_size(j->tokenizer), vocab, mask ? ", one of them the mask" : "");
  j->plan.weights = j->weights;
  return check_thresholds(j);
}

static int write_out(const export_job *j) {
  j->result->architecture = ch_export_architecture(&j->plan);
  j->result->experts_per_token = j->plan.K;
  j->result->null_experts = j->plan.nulls;
  for (int i = 0; i < j->plan.count; i++) {
    const ch_export_tensor *t = &j->plan.tensor[i];
    j->result->bytes += t->blocks * t->rows * ch_export_row_bytes(t->dtype, t->columns);
  }
  if (j->plan.format == CH_EXPORT_GGUF) return ch_export_gguf(&j->plan, j->tokenizer, j->options);
  return ch_export_hf(&j->plan, j->tokenizer, j->options, j->result->checkpoint);
}

static int run_job(export_job *j) {
  choir_model_options options = {.size = sizeof options, .compute = "fp32", .threads = j->options->threads};
  CH_TRY(check_export_options(j));
  CH_TRY(open_checkpoint(j));
  if (j->options->data) CH_TRY(choir_model_load(j->result->checkpoint, &options, &j->model, NULL));
  CH_TRY(ch_export_cut(&j->plan, j->model, j->options, j->result));
  CH_TRY(ch_export_list(&j->plan));
  if (j->model) CH_TRY(ch_export_measure_written(&j->plan, j->model, j->options, j->result));
  choir_model_free(j->model);
  j->model = NULL; /* frees memory that is not needed for writing */
  return write_out(j);
}

int choir_export(const choir_export_options *options, choir_export_result *result) {
  export_job j = {.options = options, .result = result};
  *result = (choir_export_result){0};
  int code = run_job(&j);
  choir_model_free(j.model);
  choir_tokenizer_free(j.tokenizer);
  choir_tensors_free(j.weights);
  json_decref(j.plan.imported.config);
  free(j.plan.tensor);
  return code;
}
