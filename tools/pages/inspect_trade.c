/* What it costs to prefer cached experts: loss against hit rate, for ever more experts that a token chooses among. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "comm/collective.h"
#include "file/json.h"
#include "pages/inspect.h"
#include "train/evaluate.h"

/* Experts that the router gives a token; where experts choose, it may be any number, also one. */
static int own_choices(const choir_model *model) {
  int choices = ch_router_choices(&choir_model_config(model)->model.router);
  return choices ? choices : 1;
}

int ch_trade_check(const choir_model *model, const ch_inspect_options *o) {
  int e = choir_model_config(model)->model.experts, own = own_choices(model);
  const ch_router *router = model->net.router;
  CH_TRY(ch_prefer_check(router));
  if (o->cache < 1 || o->cache > e)
    return ch_error(CHOIR_ERROR_ARGUMENT, "a cache of %d experts: must be 1 to %d, the experts of a layer", o->cache,
                    e);
  if (o->among <= own || o->among > e)
    return ch_error(
        CHOIR_ERROR_ARGUMENT,
        "among %d experts: a token of router '%s' chooses from more than its %d, and at most %d, the experts "
        "of a layer",
        o->among, router->name, own, e);
  if (o->routing && strcmp(o->routing, "threshold"))
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "routing '%s' with a cache of experts: a token's choice depends on the tokens before it, so the "
                    "routing must be threshold",
                    o->routing);
  return CHOIR_OK;
}

/* 2, 3, 4, 6, 8, 12, 16, ... */
static int next_among(int among) { return among & (among - 1) ? among / 3 * 4 : among / 2 * 3; }

static int measure_point(choir_model *model, const ch_text_tokens *text, const ch_inspect_options *o,
                         const ch_inspection *inspection, ch_prefer *prefer, ch_trade_point *point) {
  int layers = inspection->layers;
  ch_windows windows = ch_windows_text(text->ids, (int64_t)text->count, inspection->sequence_length);
  choir_eval_result found;
  int code = CH_ALLOC(&point->hits, layers + 1, "hits of caches");
  for (int i = 0; i < layers; i++) prefer[i] = (ch_prefer){.size = o->cache, .among = point->among};
  windows.prefer = prefer;
  code = ch_comm_agree(model->x.comm, code);
  if (!code) code = ch_evaluate(model, &windows, inspection->batch_sequences, 0, NULL, o->progress, o->context, &found);
  if (!code) code = ch_model_check_loss(model, found.loss);
  if (code) return code;
  point->loss = found.loss;
  point->perplexity = found.perplexity;
  for (int i = 0; i < layers; i++) {
    point->hits[i] = prefer[i].hits;
    point->hits[layers].part += prefer[i].hits.part;
    point->hits[layers].whole += prefer[i].hits.whole;
  }
  return CHOIR_OK;
}

int ch_trade_measure(choir_model *model, const ch_text_tokens *text, const ch_inspect_options *o,
                     ch_inspection *inspection) {
  enum { MAX_POINTS = 64 };
  int own = own_choices(model), first = 2;
  ch_prefer *prefer;
  int code = CH_ALLOC(&prefer, inspection->layers, "caches of experts");
  if (!code) code = CH_ALLOC(&inspection->trade, MAX_POINTS, "a curve of loss and hits");
  code = ch_comm_agree(model->x.comm, code);
  while (first <= own) first = next_among(first);
  for (int among = 0; !code;) {
    ch_trade_point *point = &inspection->trade[inspection->trade_points++];
    point->among = among;
    code = measure_point(model, text, o, inspection, prefer, point);
    if (among == o->among) break;
    among = among ? next_among(among) : first;
    if (among > o->among) among = o->among;
  }
  free(prefer);
  return code;
}

void ch_trade_free(ch_inspection *inspection) {
  for (int i = 0; i < inspection->trade_points; i++) free(inspection->trade[i].hits);
  free(inspection->trade);
}

json_t *ch_trade_json(const ch_inspection *inspection, int cache) {
  json_t *curve = json_array();
  for (int p = 0; p < inspection->trade_points; p++) {
    const ch_trade_point *at = &inspection->trade[p];
    json_t *point = json_object(), *layers = json_array();
    for (int i = 0; i < inspection->layers; i++) ch_json_add(layers, ch_ratio_json(at->hits[i]));
    ch_json_put(point, "among", at->among ? json_integer(at->among) : json_null());
    ch_json_put(point, "loss", ch_json_number(at->loss));
    ch_json_put(point, "perplexity", ch_json_number(at->perplexity));
    ch_json_put(point, "hit_rate", ch_ratio_json(at->hits[inspection->layers]));
    ch_json_put(point, "layers", layers);
    ch_json_add(curve, point);
  }
  return json_pack("{s:i, s:o}", "cache", cache, "curve", curve);
}
