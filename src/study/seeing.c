/* A text through a model, and statistics of how every layer routed it. */
#include "study/seeing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "train/evaluate.h"
#include "train/watch.h"

void choir_seen_free(choir_seen *seen) {
  for (int i = 0; seen->layer && i < seen->layers; i++) choir_routing_stats_free(&seen->layer[i]);
  free(seen->layer);
  *seen = (choir_seen){0};
}

/* Sizes that are no larger than the text. */
static int begin(const choir_model *model, const ch_text_tokens *text, const choir_seeing_options *o,
                 choir_seen *seen) {
  const choir_config *config = choir_model_config_of(model);
  int64_t targets = (int64_t)text->count - 1;
  *seen = (choir_seen){.batch_sequences = o->batch_sequences ? o->batch_sequences : config->train.batch_sequences,
                       .sequence_length = o->sequence_length ? o->sequence_length : config->train.sequence_length,
                       .cut = text->cut};
  if (targets < 1)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: %zu tokens; at least two are needed to predict one", o->text, text->count);
  if (!choir_model_moe_layers(model))
    return ch_error(CHOIR_ERROR_ARGUMENT, "the model has no MoE layer: there is no routing to see");
  for (size_t i = 0; i < text->count; i++)
    if (text->ids[i] >= config->model.vocab_size)
      return ch_error(CHOIR_ERROR_FORMAT, "%s: the tokenizer has pieces beyond the model's %d", o->text,
                      config->model.vocab_size);
  if (seen->sequence_length > targets) seen->sequence_length = (int)targets;
  int64_t windows = (targets + seen->sequence_length - 1) / seen->sequence_length;
  if (seen->batch_sequences > windows) seen->batch_sequences = (int)windows;
  return CHOIR_OK;
}

static int evaluate(choir_model *model, const ch_text_tokens *text, const choir_seeing_options *o, choir_seen *seen) {
  int V = choir_model_config_of(model)->model.vocab_size;
  uint64_t *counts = calloc((size_t)V, sizeof *counts);
  for (size_t i = 0; counts && i < text->count; i++) counts[text->ids[i]]++;
  double *unigram = counts ? ch_unigram_log(counts, V) : NULL;
  ch_windows windows = ch_windows_text(text->ids, (int64_t)text->count, seen->sequence_length);
  int code = unigram
                 ? ch_evaluate(model, &windows, seen->batch_sequences, 0, unigram, o->progress, o->context, &seen->eval)
                 : ch_error(CHOIR_ERROR_MEMORY, "no memory for %d unigram counts", V);
  free(unigram);
  free(counts);
  if (!code) ch_eval_bytes(&seen->eval, (double)text->bytes);
  return code ? code : ch_model_check_loss(model, seen->eval.loss);
}

int ch_see(choir_model *model, const ch_text_tokens *text, const choir_seeing_options *o, choir_look also,
           void *context, choir_seen *seen) {
  char own[CHOIR_NAME_BYTES];
  ch_watch w = {.also = also, .context = context};
  CH_TRY(begin(model, text, o, seen));
  snprintf(own, sizeof own, "%s", choir_model_routing(model));
  if (o->routing) CH_TRY(choir_model_set_routing(model, o->routing));
  int code = ch_watch_begin(model, choir_model_config_of(model)->model.vocab_size, &w);
  if (!code) code = evaluate(model, text, o, seen);
  ch_watch_end(model);
  seen->layers = w.layers;
  seen->layer = w.layer;
  if (o->routing) seen->eval.routing = o->routing; /* the model's name for it goes with its own routing */
  int restored = choir_model_set_routing(model, own);
  return code ? code : restored;
}

int choir_see(choir_model *model, const choir_tokenizer *tokenizer, const choir_seeing_options *options,
              choir_seen *seen) {
  ch_text_tokens text;
  *seen = (choir_seen){0};
  size_t most = options->tokens ? (size_t)options->tokens + 1 : 0; /* the last one is only predicted */
  CH_TRY(ch_text_tokens_read(tokenizer, options->text, most, &text));
  int code = ch_see(model, &text, options, NULL, NULL, seen);
  free(text.ids);
  return code;
}
