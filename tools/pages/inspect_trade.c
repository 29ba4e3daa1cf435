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

static void set_caches(const ch_trade *t, const ch_inspect_options *o, int layers, int among) {
  for (int i = 0; i < layers; i++)
    t->prefer[i] = (ch_prefer){.size = o->cache,
                               .among = among,
                               .margins = !among && t->margins ? t->margins + (int64_t)i * CH_MARGIN_BINS : NULL};
}

int ch_trade_begin(const choir_model *model, const ch_inspect_options *o, ch_trade *t) {
  int layers = choir_model_moe_layer_count(model);
  CH_TRY(CH_ALLOC(&t->prefer, layers, "caches of experts"));
  if (!ch_router_choices(&choir_model_config(model)->model.router))
    CH_TRY(CH_ALLOC(&t->margins, (int64_t)layers * CH_MARGIN_BINS, "margins of scores"));
  set_caches(t, o, layers, 0);
  return CHOIR_OK;
}

void ch_trade_end(ch_trade *t) {
  free(t->prefer);
  free(t->margins);
}

/* Appends a point with space for its layers. */
static int add_point(const ch_trade *t, int among, ch_inspection *inspection, ch_trade_point **point) {
  int layers = inspection->layers;
  *point = &inspection->trade[inspection->trade_points++];
  (*point)->among = among;
  CH_TRY(CH_ALLOC(&(*point)->hits, layers + 1, "hits of caches"));
  return t->margins ? CH_ALLOC(&(*point)->lowered, layers, "lower thresholds") : CHOIR_OK;
}

/* Takes over the result of an evaluation with the caches of t. */
static void fill_point(const ch_trade *t, const choir_eval_result *found, int layers, ch_trade_point *point) {
  point->loss = found->loss;
  point->perplexity = found->perplexity;
  for (int i = 0; i < layers; i++) {
    point->hits[i] = t->prefer[i].hits;
    point->hits[layers].part += t->prefer[i].hits.part;
    point->hits[layers].whole += t->prefer[i].hits.whole;
    if (t->margins) point->lowered[i] = (double)t->prefer[i].lowered;
  }
}

static int first_point(const ch_trade *t, ch_inspection *inspection) {
  ch_trade_point *point;
  CH_TRY(CH_ALLOC(&inspection->trade, MAX_POINTS, "a curve of loss and hits"));
  CH_TRY(add_point(t, 0, inspection, &point));
  fill_point(t, &inspection->eval, inspection->layers, point);
  return CHOIR_OK;
}

static int measure_point(choir_model *model, const ch_text_tokens *text, const ch_inspect_options *o, const ch_trade *t,
                         int among, ch_inspection *inspection) {
  int layers = inspection->layers;
  ch_windows windows = ch_windows_text(text->ids, (int64_t)text->count, inspection->sequence_length);
  choir_eval_result found;
  ch_trade_point *point;
  CH_TRY(ch_comm_agree(model->x.comm, add_point(t, among, inspection, &point)));
  set_caches(t, o, layers, among);
  for (int i = 0; t->margins && i < layers; i++)
    t->prefer[i].lowered = ch_prefer_lowered(t->margins + (int64_t)i * CH_MARGIN_BINS, inspection->eval.tokens, among);
  windows.prefer = t->prefer;
  CH_TRY(ch_evaluate(model, &windows, inspection->batch_sequences, 0, NULL, o->progress, o->context, &found));
  CH_TRY(ch_model_check_loss(model, found.loss));
  fill_point(t, &found, layers, point);
  return CHOIR_OK;
}

int ch_trade_measure(choir_model *model, const ch_text_tokens *text, const ch_inspect_options *o, const ch_trade *t,
                     ch_inspection *inspection) {
  int own = own_choices(model), among = 2;
  CH_TRY(ch_comm_agree(model->x.comm, first_point(t, inspection)));
  while (among <= own) among = next_among(among);
  for (int last = 0; !last; among = next_among(among)) {
    last = among >= o->among;
    CH_TRY(measure_point(model, text, o, t, last ? o->among : among, inspection));
  }
  return CHOIR_OK;
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
