/* The public evaluation of a model on built data or on a text. */
#include <math.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/reserved.h"
#include "data/reader.h"
#include "data/text_tokens.h"
#include "train/evaluate.h"

/* A window holds T tokens and one more: no longer than what there is. */
static int shorter(int T, int64_t tokens) { return tokens > 1 && T > tokens - 1 ? (int)(tokens - 1) : T; }

static int eval_windows(choir_model *model, const choir_eval_options *o, const ch_windows *w, const uint64_t *counts,
                        choir_eval_result *result) {
  int V = model->config.model.vocab_size;
  int64_t B = o->batch_sequences ? o->batch_sequences : model->config.train.batch_sequences;
  if (B > w->count && w->count) B = w->count; /* rows of padding alone change nothing but the time */
  ch_windows windows = *w;
  if (o->in_order) windows.stride = 1;
  double *unigram = ch_unigram_log(counts, V);
  if (!unigram) return ch_error(CHOIR_ERROR_MEMORY, "no memory for %d unigram probabilities", V);
  int code = ch_evaluate(model, &windows, (int)B, o->sequences, unigram, o->progress, o->context, result);
  free(unigram);
  return code ? code : ch_model_check_loss(model, result->loss);
}

static int eval_data(choir_model *model, const choir_tokenizer *tokenizer, const choir_eval_options *o, int T,
                     choir_eval_result *result) {
  choir_data *data;
  choir_data_info info;
  CH_TRY(choir_data_open(o->data, &data));
  choir_data_get_info(data, &info);
  int V = model->config.model.vocab_size, code;
  uint64_t *counts = calloc((size_t)info.vocab_size, sizeof *counts);
  if (!counts)
    code = ch_error(CHOIR_ERROR_MEMORY, "no memory for %d unigram counts", V);
  else if (info.vocab_size != V || (tokenizer && choir_tokenizer_hash(tokenizer) != ch_data_tokenizer_hash(data)))
    code = ch_error(CHOIR_ERROR_FORMAT,
                    "%s: built with another tokenizer (%d pieces) than the checkpoint's (%d pieces); "
                    "build the data with the checkpoint's tokenizer.model",
                    o->data, info.vocab_size, V);
  else {
    ch_windows w = ch_windows_heldout(data, shorter(T, (int64_t)info.heldout_tokens));
    ch_data_unigram(data, counts);
    code = eval_windows(model, o, &w, counts, result);
  }
  if (!code) ch_eval_bytes(result, ch_heldout_bytes(data, result->tokens));
  free(counts);
  choir_data_close(data);
  return code;
}

static int eval_tokens(choir_model *model, const choir_eval_options *o, int T, const int32_t *ids, size_t count,
                       size_t bytes, choir_eval_result *result) {
  int V = model->config.model.vocab_size;
  if (count < 2)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: %zu tokens; at least two are needed to predict one", o->text, count);
  uint64_t *counts = calloc((size_t)V, sizeof *counts);
  if (!counts) return ch_error(CHOIR_ERROR_MEMORY, "no memory for %d unigram counts", V);
  int code = CHOIR_OK;
  for (size_t i = 0; i < count && !code; i++) {
    if (ids[i] >= V)
      code = ch_error(CHOIR_ERROR_FORMAT, "%s: the tokenizer has pieces beyond the model's %d", o->text, V);
    else
      counts[ids[i]]++;
  }
  ch_windows w = ch_windows_text(ids, (int64_t)count, shorter(T, (int64_t)count));
  if (!code) code = eval_windows(model, o, &w, counts, result);
  free(counts);
  if (!code) ch_eval_bytes(result, (double)bytes);
  return code;
}

static int eval_text(choir_model *model, const choir_tokenizer *tokenizer, const choir_eval_options *o, int T,
                     choir_eval_result *result) {
  ch_text_tokens text;
  CH_TRY(ch_text_tokens_read(tokenizer, o->text, 0, &text));
  int code = eval_tokens(model, o, T, text.ids, text.count, text.bytes, result);
  free(text.ids);
  return code;
}

int choir_eval(choir_model *model, const choir_tokenizer *tokenizer, const choir_eval_options *options,
               choir_eval_result *result) {
  int T = options->sequence_length ? options->sequence_length : model->config.train.sequence_length;
  CH_CHECK_RESERVED(options, "choir_eval_options");
  if (!options->data == !options->text) return ch_error(CHOIR_ERROR_ARGUMENT, "evaluation takes either data or a text");
  return options->data ? eval_data(model, tokenizer, options, T, result)
                       : eval_text(model, tokenizer, options, T, result);
}
