/* The public evaluation of a model on built data or on a text. */
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/enter.h"
#include "base/options.h"
#include "comm/collective.h"
#include "data/data.h"
#include "data/encoder.h"
#include "model/config.h"
#include "train/evaluate.h"

/* The evaluated text: held-out data or a text. */
typedef struct {
  choir_data *data;
  ch_text_tokens text;
  uint64_t *counts; /* [V] token counts of the unigram baseline */
  ch_windows windows;
  choir_eval_source *source; /* [data->count] sums of losses by source; NULL: a text */
  int calibrate;             /* the model's thresholds are replaced by the cut-off scores of the batches */
} material;

/* Shortens T to the available tokens; a window has T+1 tokens. */
static int shorter(int T, int64_t tokens) { return tokens > 1 && T > tokens - 1 ? (int)(tokens - 1) : T; }

/* code: of the preceding steps, which may have failed on this rank alone. */
static int eval_windows(int code, choir_model *model, const choir_eval_options *o, material *m,
                        choir_eval_result *result) {
  int V = ch_config_pieces(&model->config);
  ch_windows *w = &m->windows;
  int64_t B = o->batch_sequences ? o->batch_sequences : model->config.train.batch_sequences;
  if (B > w->count && w->count) B = w->count; /* rows of padding alone change nothing but the time */
  if (o->in_order) w->stride = 1;
  w->observe = m->calibrate;
  w->mask_samples = o->mask_samples;
  double *unigram = NULL;
  if (!code) code = ch_unigram_log(m->counts, V, &unigram);
  code = ch_comm_agree(model->x.comm, code);
  if (!code) code = ch_evaluate(model, w, (int)B, o->sequences, unigram, o->progress, o->context, result);
  free(unigram);
  if (!code && m->data) code = ch_comm_agree(model->x.comm, ch_data_intact(m->data));
  return code ? code : ch_model_check_loss(model, result->loss);
}

static void add_window(void *context, int64_t index, const int32_t *target, const float *loss) {
  const material *m = context;
  int length = m->windows.length, source = ch_data_heldout_source(m->data, length, &index);
  for (int t = 0; t < length; t++) {
    if (target[t] < 0) continue;
    m->source[source].loss += (double)loss[t];
    m->source[source].tokens++;
  }
}

static int open_heldout(choir_model *model, const choir_tokenizer *tokenizer, const choir_eval_options *o, int T,
                        material *m) {
  choir_data_info info;
  CH_TRY(choir_data_load(o->data, &m->data));
  choir_data_get_info(m->data, &info);
  int V = ch_config_pieces(&model->config);
  if (info.vocab_size != V || (tokenizer && choir_tokenizer_hash(tokenizer) != m->data->tokenizer_hash))
    return ch_error(CHOIR_ERROR_FORMAT,
                    "%s: built with another tokenizer (%d pieces) than the checkpoint's (%d pieces); "
                    "build the data with the checkpoint's tokenizer.model",
                    o->data, info.vocab_size, V);
  m->windows = ch_windows_heldout(m->data, shorter(T, (int64_t)info.heldout_tokens));
  ch_data_unigram(m->data, m->counts);
  m->windows.seen = add_window;
  m->windows.context = m;
  return CH_ALLOC(&m->source, m->data->count, "losses of sources");
}

typedef struct {
  choir_model *model;
  const choir_eval_options *o;
} listener;

/* Reports progress while the number of windows is still unknown. */
static int report_encoding(void *context) {
  const listener *l = context;
  return ch_model_check_cancelled(l->model, l->o->progress, l->o->context, 0, 0, "sequences");
}

static int open_text(choir_model *model, const choir_tokenizer *tokenizer, const choir_eval_options *o, int T,
                     material *m) {
  int V = ch_config_pieces(&model->config);
  ch_text_tokens *text = &m->text;
  CH_TRY(ch_text_tokens_read(tokenizer, o->text, 0, o->progress ? report_encoding : NULL, &(listener){model, o}, text));
  if (text->count < 2)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: %zu tokens; at least two are needed to predict one", o->text, text->count);
  for (size_t i = 0; i < text->count; i++) {
    if (text->ids[i] >= V)
      return ch_error(CHOIR_ERROR_FORMAT, "%s: the tokenizer has pieces beyond the model's %d", o->text, V);
    m->counts[text->ids[i]]++;
  }
  m->windows = ch_windows_text(text->ids, (int64_t)text->count, shorter(T, (int64_t)text->count));
  return CHOIR_OK;
}

/* Divides each source's sums by its counts and moves the sources to the result. */
static void give_sources(const material *m, int samples, choir_eval_result *r) {
  for (int i = 0; i < m->data->count; i++) {
    choir_eval_source *s = &m->source[i];
    snprintf(s->name, sizeof s->name, "%s", m->data->sources[i].name);
    s->loss /= (double)s->tokens;
    s->tokens /= samples;
  }
  r->sources = m->source;
  r->source_count = m->data->count;
}

static int eval(choir_model *model, const choir_tokenizer *tokenizer, const choir_eval_options *o, int calibrate,
                choir_eval_result *result) {
  int V = ch_config_pieces(&model->config);
  int T = o->sequence_length ? o->sequence_length : model->config.train.sequence_length;
  material m = {.calibrate = calibrate};
  int code = CH_ALLOC(&m.counts, V, "unigram counts");
  if (!code) code = (o->data ? open_heldout : open_text)(model, tokenizer, o, T, &m);
  code = eval_windows(code, model, o, &m, result);
  if (!code && o->data)
    ch_eval_bytes(result, ch_heldout_bytes(m.data, result->tokens));
  else if (!code)
    ch_eval_text_bytes(result, &m.text);
  if (!code && o->data)
    give_sources(&m, o->mask_samples > 1 ? o->mask_samples : 1, result);
  else
    free(m.source);
  free(m.counts);
  free(m.text.ids);
  choir_data_free(m.data);
  return code;
}

static int check_eval(const choir_model *model, const choir_eval_options *o, int calibrate) {
  const ch_router *router = model->net.router;
  if (o->mask_samples < 0 || (o->mask_samples && !ch_config_masked(&model->config)))
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "mask_samples is %d: must be at least 0, and 0 for a model of train.objective next_token",
                    o->mask_samples);
  if (!o->data == !o->text) return ch_error(CHOIR_ERROR_ARGUMENT, "evaluation takes either data or a text");
  if (calibrate && (!ch_router_calibrates(router) || model->causal || !model->net.moe_layers))
    return ch_error(CHOIR_ERROR_UNSUPPORTED,
                    "router '%s' finds no cut-offs by routing '%s', so nothing can be calibrated; a model can be whose "
                    "experts choose, by its routing of training, or of router quantile_balanced",
                    router->name, choir_model_routing(model));
  return choir_config_check(&model->config);
}

/* Releases the plan of the passes: another capacity needs buffers of another size. */
static void set_capacity(choir_model *model, double factor) {
  model->config.model.router.eval_capacity_factor = factor;
  ch_transformer_set_eval_capacity(&model->net, factor);
  model->planned_B = model->planned_T = 0;
}

/* Restores the capacity factor afterwards, unless the evaluation set thresholds: the config records the capacity
 * that they belong to. */
static int eval_with_capacity(choir_model *model, const choir_tokenizer *tokenizer, const choir_eval_options *options,
                              int calibrate, choir_eval_result *result) {
  choir_eval_options o = {0};
  double before = model->config.model.router.eval_capacity_factor;
  int code = ch_options_read(&o, sizeof o, options, "choir_eval_options");
  if (o.capacity_factor != 0) set_capacity(model, o.capacity_factor);
  code = ch_comm_agree(model->x.comm, code ? code : check_eval(model, &o, calibrate));
  if (!code) code = eval(model, tokenizer, &o, calibrate, result);
  if (code) *result = (choir_eval_result){0};
  if (o.capacity_factor != 0 && (code || !calibrate)) set_capacity(model, before);
  return code;
}

int choir_eval(choir_model *model, const choir_tokenizer *tokenizer, const choir_eval_options *options,
               choir_eval_result *result) {
  CH_ENTER(model, options, result);
  return eval_with_capacity(model, tokenizer, options, 0, result);
}

void choir_eval_result_clear(choir_eval_result *result) {
  if (!result) return;
  free(result->sources);
  *result = (choir_eval_result){0};
}

int choir_calibrate(choir_model *model, const choir_tokenizer *tokenizer, const choir_eval_options *options,
                    choir_eval_result *result) {
  CH_ENTER(model, options, result);
  return eval_with_capacity(model, tokenizer, options, 1, result);
}
