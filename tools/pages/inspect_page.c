/* The page of choir inspect. */
#include <math.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/text.h"
#include "choir/version.h"
#include "data/encoder.h"
#include "file/json.h"
#include "handle/model.h"
#include "moe/router.h"
#include "pages/inspect.h"
#include "pages/page.h"

/* Browsers become slow with more tokens on a page. */
enum { MAX_TOKENS = 65536 };

/* Appends to an array for each layer, for each token, its experts alternating with their gates in ten-thousandths. */
static void keep_routes(void *context, const choir_routing *r) {
  json_t *layer = json_array_get(context, (size_t)r->moe);
  for (int t = 0; t < r->tokens; t++) {
    if (r->valid && !r->valid[t]) continue;
    json_t *route = json_array();
    for (int at = r->token_begin[t]; at < r->token_begin[t + 1]; at++) {
      int slot = r->token_slot[at];
      ch_json_add(route, json_integer(choir_routing_expert(r, slot)));
      ch_json_add(route, json_integer(lrint(1e4 * (double)r->slot_gate[slot])));
    }
    ch_json_add(layer, route);
  }
}

/* The bytes of a token: a string, or an array of byte values if they are not UTF-8. */
static json_t *piece_json(const choir_tokenizer *t, int32_t id) {
  ch_surface s = t->surface[id];
  if (!s.size) return json_string(choir_tokenizer_piece(t, id)); /* a control token */
  if (ch_utf8_valid(s.text, s.size) == s.size) return json_stringn(s.text, s.size);
  json_t *bytes = json_array();
  for (size_t i = 0; i < s.size; i++) ch_json_add(bytes, json_integer((unsigned char)s.text[i]));
  return bytes;
}

/* Adds "pieces": the distinct tokens in the text, "ids": their ids, "text": indices into "pieces".
 * CHOIR_ERROR_MEMORY. */
static int put_text(json_t *data, const choir_tokenizer *t, const int32_t *ids, int64_t count) {
  json_t *pieces = json_array(), *numbers = json_array(), *places = json_array();
  int32_t *place = reallocarray(NULL, (size_t)t->vocab, sizeof *place);
  for (int i = 0; place && i < t->vocab; i++) place[i] = -1;
  for (int64_t i = 0; place && i < count; i++) {
    if (place[ids[i]] < 0) {
      place[ids[i]] = (int32_t)json_array_size(pieces);
      json_t *piece = piece_json(t, ids[i]);
      ch_json_add(pieces, piece ? piece : json_string("?"));
      ch_json_add(numbers, json_integer(ids[i]));
    }
    ch_json_add(places, json_integer(place[ids[i]]));
  }
  ch_json_put(data, "text", places);
  ch_json_put(data, "pieces", pieces);
  ch_json_put(data, "ids", numbers);
  free(place);
  return place ? CHOIR_OK : ch_error(CHOIR_ERROR_MEMORY, "no memory for the page");
}

/* Adds "threshold_loss" if the routing depends on later tokens: the loss with which the model generates. Omitted if
 * training has set no thresholds. */
static int put_threshold_loss(choir_model *model, const ch_inspect_options *o, const ch_text_tokens *text,
                              const ch_inspection *shown, json_t *inspection) {
  ch_inspect_options by = *o;
  ch_inspection causal = {0};
  if (!shown->eval.looks_across_tokens || !ch_router_has_thresholds(model->net.router)) return CHOIR_OK;
  by.routing = "threshold";
  int code = ch_inspect_tokens(model, text, &by, NULL, NULL, &causal);
  if (!code) ch_json_put(inspection, "threshold_loss", ch_json_number(causal.eval.loss));
  ch_inspection_free(&causal);
  return code == CHOIR_ERROR_UNSUPPORTED ? CHOIR_OK : code;
}

/* Makes the data of one checkpoint: "inspection", "routes", "losses", and the text. */
static int make_view(choir_model *model, const choir_tokenizer *tokenizer, const ch_inspect_options *o,
                     const ch_text_tokens *text, json_t *view) {
  ch_inspection shown = {0};
  json_t *routes = json_array(), *losses = json_array();
  for (int i = 0; i < choir_model_moe_layer_count(model); i++) ch_json_add(routes, json_array());
  ch_json_put(view, "routes", routes);
  ch_json_put(view, "losses", losses);
  int code = ch_inspect_tokens(model, text, o, keep_routes, routes, &shown);
  if (!code) code = put_text(view, tokenizer, text->ids, shown.eval.tokens);
  for (int64_t t = 0; !code && t < shown.eval.tokens; t++)
    ch_json_add(losses, ch_json_number(round(1e3 * (double)shown.token_loss[t]) / 1e3));
  json_t *inspection = code ? NULL : ch_inspection_json(model, tokenizer, o, &shown);
  if (!code) code = put_threshold_loss(model, o, text, &shown, inspection);
  if (inspection) ch_json_put(view, "inspection", inspection);
  ch_inspection_free(&shown);
  return code;
}

static json_t *about(const json_t *view, const char *key) {
  return json_object_get(json_object_get(view, "inspection"), key);
}

/* Checks that two views have the same text: the slider can only show different results. */
static int same_text(const json_t *a, const json_t *b) {
  static const char *const keys[] = {"experts", "sequence_length", "batch_sequences"};
  int same = json_equal(json_object_get(a, "text"), json_object_get(b, "text")) &&
             json_equal(json_object_get(a, "ids"), json_object_get(b, "ids")) &&
             json_array_size(about(a, "layers")) == json_array_size(about(b, "layers"));
  for (int i = 0; i < 3; i++) same &= json_equal(about(a, keys[i]), about(b, keys[i]));
  return same;
}

/* Adds a view: the first is the page itself, others are in its list "later". */
static int add_view(json_t *page, json_t *view, const char *checkpoint) {
  if (!json_object_size(page))
    return json_object_update(page, view) ? ch_error(CHOIR_ERROR_MEMORY, "no memory for a page") : 0;
  if (!same_text(page, view))
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "%s: has another tokenizer, or other MoE layers or sequences, than the first checkpoint; a page "
                    "leads through checkpoints of one run",
                    checkpoint);
  for (int i = 0; i < 3; i++) json_object_del(view, ((const char *const[]){"text", "pieces", "ids"})[i]);
  json_t *later = json_object_get(page, "later");
  if (!later) ch_json_put(page, "later", later = json_array());
  ch_json_add(later, json_incref(view));
  return CHOIR_OK;
}

int ch_inspect_add(choir_model *model, const choir_tokenizer *tokenizer, const ch_inspect_options *o, int views,
                   json_t *page) {
  ch_text_tokens text;
  size_t max = MAX_TOKENS / (views > 0 ? (size_t)views : 1);
  if (o->tokens && (size_t)o->tokens < max) max = (size_t)o->tokens;
  CH_TRY(ch_model_alone(model, "ch_inspect_add"));
  CH_TRY(ch_text_tokens_read(tokenizer, o->text, max + 1, NULL, NULL, &text)); /* the last token is only a target */
  json_t *view = json_object();
  int code = make_view(model, tokenizer, o, &text, view);
  if (!code) code = add_view(page, view, o->checkpoint ? o->checkpoint : "a checkpoint");
  json_decref(view);
  free(text.ids);
  return code;
}

int ch_inspect_save(json_t *data, const char *output) {
  const char *path = json_string_value(about(data, "text")), *slash = path ? strrchr(path, '/') : NULL;
  const char *name = slash ? slash + 1 : path;
  const ch_page page = {name ? name : "inspect", ch_inspect_html, {ch_inspect_text_js, ch_inspect_js}};
  ch_json_put(data, "version", json_string(choir_version()));
  return ch_page_save(&page, data, output);
}
