/* The public evaluation of a model on built data or on a text. */
#include <math.h>
#include <stdlib.h>

#include "base/error.h"
#include "comm/collective.h"
#include "data/data.h"
#include "data/encoder.h"
#include "train/evaluate.h"

/* A window holds T tokens and one more: no longer than what there is. */
static int shorter(int T, int64_t tokens) { return tokens > 1 && T > tokens - 1 ? (int)(tokens - 1) : T; }

/* code: of what came before, which may have gone wrong on one rank alone. */
static int eval_windows(int code, choir_model *model, const choir_eval_options *o, const ch_windows *w,
                        const uint64_t *counts, choir_eval_result *result) {
  int V = model->config.model.vocab_size;
  int64_t B = o->batch_sequences ? o->batch_sequences : model->config.train.batch_sequences;
  if (B > w->count && w->count) B = w->count; /* rows of padding alone change nothing but the time */
  ch_windows windows = *w;
  if (o->in_order) windows.stride = 1;
  windows.observe = o->calibrate;
  double *unigram = code ? NULL : ch_unigram_log(counts, V);
  if (!code && !unigram) code = ch_error(CHOIR_ERROR_MEMORY, "no memory for %d unigram probabilities", V);
  code = ch_comm_agree(model->x.comm, code);
  if (!code) code = ch_evaluate(model, &windows, (int)B, o->sequences, unigram, o->progress, o->context, result);
  free(unigram);
  return code ? code : ch_model_check_loss(model, result->loss);
}

static int open_heldout(const choir_model *model, const choir_tokenizer *tokenizer, const choir_eval_options *o, int T,
                        choir_data **data, uint64_t **counts, ch_windows *w) {
  choir_data_info info;
  CH_TRY(choir_data_open(o->data, data));
  choir_data_get_info(*data, &info);
  int V = model->config.model.vocab_size;
  if (info.vocab_size != V || (tokenizer && choir_tokenizer_hash(tokenizer) != (*data)->tokenizer_hash))
    return ch_error(CHOIR_ERROR_FORMAT,
                    "%s: built with another tokenizer (%d pieces) than the checkpoint's (%d pieces); "
                    "build the data with the checkpoint's tokenizer.model",
                    o->data, info.vocab_size, V);
  *counts = calloc((size_t)V, sizeof **counts);
  if (!*counts) return ch_error(CHOIR_ERROR_MEMORY, "no memory for %d unigram counts", V);
  *w = ch_windows_heldout(*data, shorter(T, (int64_t)info.heldout_tokens));
  ch_data_unigram(*data, *counts);
  return CHOIR_OK;
}

/* Sums of each source's losses. */
typedef struct {
  const choir_data *data;
  int length;
  double *loss;    /* [sources] */
  int64_t *tokens; /* [sources] */
} by_source;

static void add_window(void *context, int64_t index, const int32_t *target, const float *loss) {
  const by_source *s = context;
  int source = ch_data_heldout_source(s->data, s->length, &index);
  for (int t = 0; t < s->length; t++) {
    if (target[t] < 0) continue;
    s->loss[source] += (double)loss[t];
    s->tokens[source]++;
  }
}

static int begin_sources(const choir_data *data, ch_windows *w, by_source *s) {
  size_t count = (size_t)data->count;
  *s = (by_source){.data = data,
                   .length = w->length,
                   .loss = calloc(count, sizeof *s->loss),
                   .tokens = calloc(count, sizeof *s->tokens)};
  w->seen = add_window;
  w->context = s;
  return s->loss && s->tokens ? CHOIR_OK : ch_error(CHOIR_ERROR_MEMORY, "no memory for %zu sources", count);
}

static void tell_sources(const by_source *s, const choir_eval_options *o) {
  for (int i = 0; i < s->data->count; i++)
    o->source(o->context, s->data->sources[i].name, s->tokens[i], s->loss[i] / (double)s->tokens[i]);
}

static int eval_data(choir_model *model, const choir_tokenizer *tokenizer, const choir_eval_options *o, int T,
                     choir_eval_result *result) {
  choir_data *data = NULL;
  uint64_t *counts = NULL;
  ch_windows w = {0};
  by_source sources = {0};
  int code = open_heldout(model, tokenizer, o, T, &data, &counts, &w);
  if (!code && o->source) code = begin_sources(data, &w, &sources);
  code = eval_windows(code, model, o, &w, counts, result);
  if (!code) ch_eval_bytes(result, ch_heldout_bytes(data, result->tokens));
  if (!code && o->source) tell_sources(&sources, o);
  free(sources.loss);
  free(sources.tokens);
  free(counts);
  choir_data_close(data);
  return code;
}

/* Progress before anything is known of the windows. */
static int told(void *context) {
  const choir_eval_options *o = context;
  return o->progress(o->context, 0, 0);
}

static int open_text(const choir_model *model, const choir_tokenizer *tokenizer, const choir_eval_options *o, int T,
                     ch_text_tokens *text, uint64_t **counts, ch_windows *w) {
  int V = model->config.model.vocab_size;
  CH_TRY(ch_text_tokens_read(tokenizer, o->text, 0, o->progress ? told : NULL, (void *)(uintptr_t)o, text));
  if (text->count < 2)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: %zu tokens; at least two are needed to predict one", o->text, text->count);
  *counts = calloc((size_t)V, sizeof **counts);
  if (!*counts) return ch_error(CHOIR_ERROR_MEMORY, "no memory for %d unigram counts", V);
  for (size_t i = 0; i < text->count; i++) {
    if (text->ids[i] >= V)
      return ch_error(CHOIR_ERROR_FORMAT, "%s: the tokenizer has pieces beyond the model's %d", o->text, V);
    (*counts)[text->ids[i]]++;
  }
  *w = ch_windows_text(text->ids, (int64_t)text->count, shorter(T, (int64_t)text->count));
  return CHOIR_OK;
}

static int eval_text(choir_model *model, const choir_tokenizer *tokenizer, const choir_eval_options *o, int T,
                     choir_eval_result *result) {
  ch_text_tokens text = {0};
  uint64_t *counts = NULL;
  ch_windows w = {0};
  int code = open_text(model, tokenizer, o, T, &text, &counts, &w);
  code = eval_windows(code, model, o, &w, counts, result);
  if (!code) ch_eval_text_bytes(result, &text);
  free(counts);
  free(text.ids);
  return code;
}

static int check_calibration(const choir_model *model) {
  const ch_router *router = model->net.router;
  if (router->adapts && !model->causal && model->net.moe_layers) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_UNSUPPORTED,
                  "router '%s' finds no cut-offs by routing '%s', so nothing can be calibrated", router->name,
                  choir_model_routing(model));
}

int choir_eval(choir_model *model, const choir_tokenizer *tokenizer, const choir_eval_options *options,
               choir_eval_result *result) {
  CH_TRY(CH_GIVEN(model, options, result));
  int T = options->sequence_length ? options->sequence_length : model->config.train.sequence_length;
  CH_CHECK_RESERVED(options, "choir_eval_options");
  if (options->calibrate) CH_TRY(check_calibration(model));
  if (!options->data == !options->text) return ch_error(CHOIR_ERROR_ARGUMENT, "evaluation takes either data or a text");
  return options->data ? eval_data(model, tokenizer, options, T, result)
                       : eval_text(model, tokenizer, options, T, result);
}
