/* The cost of preferring cached experts: loss against hit rate, for an increasing number of candidates per token. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "comm/collective.h"
#include "file/json.h"
#include "pages/inspect.h"
#include "train/evaluate.h"

/* Experts per token by the router's own choice; with expert choice, the mean. */
static int own_choices(const choir_model *model) {
  const ch_router_spec *o = &choir_model_config(model)->model.router;
  int choices = ch_router_choices(o);
  return choices ? choices : (int)ch_router_factor(o, 0);
}

int ch_trade_check(const choir_model *model, const ch_inspect_options *o) {
  int e = choir_model_config(model)->model.experts, own = own_choices(model);
  const ch_router *router = model->net.router;
  if (ch_config_bidirectional(&choir_model_config(model)->model)) return choir_model_check_causal(model);
  CH_TRY(ch_prefer_check(router));
  if (o->cache < 1 || o->cache > e)
    return ch_error(CHOIR_ERROR_ARGUMENT, "cache is %d: must be 1 to %d, the experts of a layer", o->cache, e);
  if (o->among <= own || o->among > e)
    return ch_error(
        CHOIR_ERROR_ARGUMENT,
        "among is %d: must be above %d, the experts per token of router '%s', and at most %d, the experts of a layer",
        o->among, own, router->name, e);
  if (o->routing && strcmp(o->routing, "threshold"))
    return ch_error(
        CHOIR_ERROR_ARGUMENT,
        "routing '%s' with a cache of experts: a token's choice depends on the tokens before it; omit routing, "
        "or set it to threshold",
        o->routing);
  return CHOIR_OK;
}

enum { MAX_POINTS = 64 };

/* The next number of the series 2, 3, 4, 6, 8, 12, 16, ... */
static int next_among(int among) { return among & (among - 1) ? among / 3 * 4 : among / 2 * 3; }

typedef struct trade {
  choir_model *model;
  const ch_text_tokens *text;
  const ch_inspect_options *o;
  ch_inspection *inspection;
  ch_prefer *prefer; /* [layers] */
  int64_t *margins;  /* [layers,CH_MARGIN_BINS] histogram of the router's own routing, for expert choice; or NULL */
} trade;

static int allocate_trade(trade *t) {
  int layers = t->inspection->layers;
  CH_TRY(CH_ALLOC(&t->prefer, layers, "caches of experts"));
  CH_TRY(CH_ALLOC(&t->inspection->trade, MAX_POINTS, "a curve of loss and hits"));
  if (ch_router_choices(&choir_model_config(t->model)->model.router)) return CHOIR_OK;
  return CH_ALLOC(&t->margins, (int64_t)layers * CH_MARGIN_BINS, "margins of scores");
}

static int begin_point(const trade *t, int among, ch_trade_point *point) {
  int layers = t->inspection->layers;
  point->among = among;
  CH_TRY(CH_ALLOC(&point->hits, layers + 1, "hits of caches"));
  if (t->margins) CH_TRY(CH_ALLOC(&point->lowered, layers, "lower thresholds"));
  for (int i = 0; i < layers; i++) {
    int64_t *margins = t->margins ? t->margins + (int64_t)i * CH_MARGIN_BINS : NULL;
    t->prefer[i] = (ch_prefer){.size = t->o->cache, .among = among, .margins = among ? NULL : margins};
    if (!among || !margins) continue;
    t->prefer[i].lowered = ch_prefer_lowered(margins, t->inspection->eval.tokens, among);
    point->lowered[i] = (double)t->prefer[i].lowered;
  }
  return CHOIR_OK;
}

static int measure_point(const trade *t, int among, ch_trade_point *point) {
  const ch_inspection *inspection = t->inspection;
  ch_windows windows = ch_windows_text(t->text->ids, (int64_t)t->text->count, inspection->sequence_length);
  choir_eval_result found;
  windows.prefer = t->prefer;
  int code = ch_comm_agree(t->model->x.comm, begin_point(t, among, point));
  if (!code)
    code = ch_evaluate(t->model, &windows, inspection->batch_sequences, 0, NULL, t->o->progress, t->o->context, &found);
  if (!code) code = ch_model_check_loss(t->model, found.loss);
  if (code) return code;
  point->loss = found.loss;
  point->perplexity = found.perplexity;
  for (int i = 0; i < inspection->layers; i++) {
    point->hits[i] = t->prefer[i].hits;
    point->hits[inspection->layers].part += t->prefer[i].hits.part;
    point->hits[inspection->layers].whole += t->prefer[i].hits.whole;
  }
  return CHOIR_OK;
}

int ch_trade_measure(choir_model *model, const ch_text_tokens *text, const ch_inspect_options *o,
                     ch_inspection *inspection) {
  trade t = {model, text, o, inspection, NULL, NULL};
  int own = own_choices(model), first = 2;
  int code = ch_comm_agree(model->x.comm, allocate_trade(&t));
  while (first <= own) first = next_among(first);
  for (int among = 0; !code;) {
    code = measure_point(&t, among, &inspection->trade[inspection->trade_points++]);
    if (among == o->among) break;
    among = among ? next_among(among) : first;
    if (among > o->among) among = o->among;
  }
  free(t.prefer);
  free(t.margins);
  return code;
}

void ch_trade_free(ch_inspection *inspection) {
  for (int i = 0; i < inspection->trade_points; i++) {
    free(inspection->trade[i].hits);
    free(inspection->trade[i].lowered);
  }
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
    if (at->lowered) ch_json_put(point, "lowered", ch_json_numbers(at->lowered, inspection->layers));
    ch_json_add(curve, point);
  }
  return json_pack("{s:i, s:o}", "cache", cache, "curve", curve);
}
