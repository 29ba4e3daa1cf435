/* Runs a model on a text, and collects statistics of the routing of every layer. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "comm/collective.h"
#include "model/config.h"
#include "pages/inspect.h"
#include "train/evaluate.h"

void ch_inspection_free(ch_inspection *inspection) {
  for (int i = 0; inspection->layer && i < inspection->layers; i++) choir_route_stats_clear(&inspection->layer[i]);
  free(inspection->layer);
  free(inspection->locality);
  free(inspection->expert_reuse);
  free(inspection->token_loss);
  ch_trade_free(inspection);
  *inspection = (ch_inspection){0};
}

/* Limits the batch size and sequence length to the text. */
static int begin_inspection(const choir_model *model, const ch_text_tokens *text, const ch_inspect_options *o,
                            ch_inspection *inspection) {
  const choir_config *config = choir_model_config(model);
  int64_t targets = (int64_t)text->count - 1;
  *inspection =
      (ch_inspection){.batch_sequences = o->batch_sequences ? o->batch_sequences : config->train.batch_sequences,
                      .sequence_length = o->sequence_length ? o->sequence_length : config->train.sequence_length,
                      .cut = text->cut};
  if (o->mask_ratio != 0 && config->train.objective != CH_MASKED_DIFFUSION)
    return ch_error(
        CHOIR_ERROR_ARGUMENT,
        "a mask ratio of %g with train.objective %s: only models of masked_diffusion have mask ratios; omit it",
        o->mask_ratio, ch_objectives[config->train.objective]);
  if (!(o->mask_ratio >= 0 && o->mask_ratio <= 1))
    return ch_error(CHOIR_ERROR_ARGUMENT, "a mask ratio of %g: must be a number from 0 to 1", o->mask_ratio);
  if (targets < 1)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: %zu tokens; at least two are needed to predict one", o->text, text->count);
  if (!choir_model_moe_layer_count(model))
    return ch_error(CHOIR_ERROR_ARGUMENT, "the model has no MoE layer: there is no routing to see");
  for (size_t i = 0; i < text->count; i++)
    if (text->ids[i] >= config->model.vocab_size)
      return ch_error(CHOIR_ERROR_FORMAT, "%s: the tokenizer has pieces beyond the model's %d", o->text,
                      config->model.vocab_size);
  if (inspection->sequence_length > targets) inspection->sequence_length = (int)targets;
  int64_t windows = (targets + inspection->sequence_length - 1) / inspection->sequence_length;
  if (inspection->batch_sequences > windows) inspection->batch_sequences = (int)windows;
  return CHOIR_OK;
}

static void keep_losses(void *context, int64_t index, const int32_t *target, const float *loss) {
  const ch_inspection *inspection = context;
  float *losses = inspection->token_loss + index * inspection->sequence_length + inspection->predicts_next;
  for (int t = 0; t < inspection->sequence_length; t++)
    if (target[t] >= 0) losses[t] = loss[t];
}

static int evaluate_text(choir_model *model, const ch_text_tokens *text, const ch_inspect_options *o,
                         const ch_trade *trade, ch_inspection *inspection) {
  int V = choir_model_config(model)->model.vocab_size;
  double *unigram = NULL;
  uint64_t *counts;
  int code = CH_ALLOC(&counts, V, "unigram counts");
  for (size_t i = 0; !code && i < text->count; i++) counts[text->ids[i]]++;
  if (!code) code = ch_unigram_log(counts, V, &unigram);
  ch_windows windows = ch_windows_text(text->ids, (int64_t)text->count, inspection->sequence_length);
  inspection->predicts_next = !ch_config_masked(choir_model_config(model));
  windows.mask_at = o->mask_ratio;
  windows.seen = keep_losses;
  windows.context = inspection;
  windows.prefer = trade->prefer;
  if (!code) code = CH_ALLOC(&inspection->token_loss, text->count, "losses of tokens");
  if (!code) inspection->token_loss[0] = NAN;
  code = ch_comm_agree(model->x.comm, code);
  if (!code)
    code = ch_evaluate(model, &windows, inspection->batch_sequences, 0, unigram, o->progress, o->context,
                       &inspection->eval);
  free(unigram);
  free(counts);
  if (!code) ch_eval_text_bytes(&inspection->eval, text);
  return code ? code : ch_model_check_loss(model, inspection->eval.loss);
}

/* The requested routing; if none was and the text is too short for the model's own, threshold routing. NULL: the
 * model's own. */
static const char *routing_for(const choir_model *model, const char *asked, const ch_inspection *inspection) {
  const choir_config *c = choir_model_config(model);
  int n = inspection->batch_sequences * inspection->sequence_length;
  if (asked || model->causal || !ch_router_has_thresholds(model->net.router)) return asked;
  int code = model->net.router->check(&c->model.router, n, c->model.experts, inspection->sequence_length);
  return code ? "threshold" : NULL;
}

static int make_expert_reuse(const ch_layer_stats *w, ch_inspection *inspection) {
  if (!w->log) return CHOIR_OK;
  int e = w->log->experts;
  CH_TRY(CH_ALLOC(&inspection->expert_reuse, (int64_t)w->layers * e, "reuse of experts"));
  for (int i = 0; i < w->layers; i++) ch_locality_expert_reuse(&w->log[i], inspection->expert_reuse + (int64_t)i * e);
  return CHOIR_OK;
}

int ch_inspect_tokens(choir_model *model, const ch_text_tokens *text, const ch_inspect_options *o,
                      choir_routing_callback also, void *context, ch_inspection *inspection) {
  char routing_before[CHOIR_NAME_BYTES];
  ch_layer_stats w = {.also = also, .context = context};
  ch_trade trade = {0};
  snprintf(routing_before, sizeof routing_before, "%s", choir_model_routing(model));
  int code = begin_inspection(model, text, o, inspection);
  int trades = o->cache || o->among;
  if (!code && trades) code = ch_trade_check(model, o);
  const char *routing = code ? NULL : trades ? "threshold" : routing_for(model, o->routing, inspection);
  if (!code && routing) code = choir_model_set_routing(model, routing);
  if (!code)
    code = ch_layer_stats_begin(model, choir_model_config(model)->model.vocab_size, inspection->sequence_length, &w);
  if (!code && trades) code = ch_trade_begin(model, o, &trade);
  code = ch_comm_agree(model->x.comm, code);
  if (!code) code = evaluate_text(model, text, o, &trade, inspection);
  choir_model_on_routing(model, NULL, NULL);
  if (!code) code = ch_layer_stats_locality(&w, &inspection->locality);
  if (!code) code = make_expert_reuse(&w, inspection);
  for (int i = 0; w.log && i < w.layers; i++) ch_route_log_free(&w.log[i]);
  free(w.log);
  inspection->layers = w.layers;
  inspection->layer = w.layer;
  if (!code && trades) code = ch_trade_measure(model, text, o, &trade, inspection);
  ch_trade_end(&trade);
  if (routing) inspection->eval.routing = routing; /* the model's name for its own routing is replaced */
  int restored = choir_model_set_routing(model, routing_before);
  return code ? code : restored;
}

/* Reports progress while the number of windows is still unknown. */
static int report_encoding(void *context) {
  const ch_inspect_options *o = context;
  return o->progress(o->context, &(choir_progress){.unit = "sequences"});
}

int ch_inspect_text(choir_model *model, const choir_tokenizer *tokenizer, const ch_inspect_options *options,
                    ch_inspection *inspection) {
  ch_text_tokens text = {0};
  *inspection = (ch_inspection){0};
  size_t max = options->tokens ? (size_t)options->tokens + 1 : 0; /* the last token is only a target */
  int code = ch_text_tokens_read(tokenizer, options->text, max, options->progress ? report_encoding : NULL,
                                 (void *)(uintptr_t)options, &text);
  code = ch_comm_agree(model->x.comm, code);
  if (!code) code = ch_inspect_tokens(model, &text, options, NULL, NULL, inspection);
  free(text.ids);
  return code;
}
