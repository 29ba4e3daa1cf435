/* The page of choir inspect. */
#include <math.h>
#include <stdlib.h>

#include "api/model.h"
#include "base/error.h"
#include "base/text.h"
#include "choir/version.h"
#include "data/encoder.h"
#include "file/json.h"
#include "pages/inspect.h"
#include "pages/page.h"

/* A page of more tokens than this a browser would not like. */
enum { MOST_TOKENS = 65536 };

/* Adds to an array for each layer, for each token, its experts and gates in ten-thousandths, in turn. */
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

/* The bytes of a token: a string, or where they are no UTF-8 an array of their numbers. */
static json_t *piece_json(const choir_tokenizer *t, int32_t id) {
  ch_surface s = t->surface[id];
  if (!s.size) return json_string(choir_tokenizer_piece(t, id)); /* a control piece */
  if (ch_utf8_valid(s.text, s.size) == s.size) return json_stringn(s.text, s.size);
  json_t *bytes = json_array();
  for (size_t i = 0; i < s.size; i++) ch_json_add(bytes, json_integer((unsigned char)s.text[i]));
  return bytes;
}

/* "pieces": every token of the vocabulary that the text has, "ids": their numbers, "text": places in "pieces".
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

static int inspect(choir_model *model, const choir_tokenizer *tokenizer, const ch_inspect_options *o,
                   const ch_text_tokens *text, const char *output) {
  ch_inspection shown = {0};
  json_t *data = json_object(), *routes = json_array();
  for (int i = 0; i < choir_model_moe_layers(model); i++) ch_json_add(routes, json_array());
  ch_json_put(data, "version", json_string(choir_version()));
  ch_json_put(data, "routes", routes);
  int code = ch_inspect_tokens(model, text, o, keep_routes, routes, &shown);
  if (!code) code = put_text(data, tokenizer, text->ids, shown.eval.tokens);
  if (!code) {
    json_t *inspection = ch_inspection_json(model, tokenizer, o, &shown);
    const char *name = json_string_value(json_object_get(inspection, "text"));
    const ch_page page = {name ? name : "inspect", ch_inspect_html, {ch_inspect_text_js, ch_inspect_js}};
    json_t *losses = json_array();
    for (int64_t t = 0; t < shown.eval.tokens; t++)
      ch_json_add(losses, ch_json_number(round(1e3 * (double)shown.token_loss[t]) / 1e3));
    ch_json_put(data, "losses", losses);
    ch_json_put(data, "inspection", inspection);
    code = ch_page_save(&page, data, output);
  } else {
    json_decref(data);
  }
  ch_inspection_free(&shown);
  return code;
}

int ch_inspect_page(choir_model *model, const choir_tokenizer *tokenizer, const ch_inspect_options *options,
                    const char *output) {
  ch_text_tokens text;
  size_t most = options->tokens && options->tokens < MOST_TOKENS ? (size_t)options->tokens : MOST_TOKENS;
  CH_TRY(ch_model_alone(model, "ch_inspect_page"));
  CH_TRY(
      ch_text_tokens_read(tokenizer, options->text, most + 1, NULL, NULL, &text)); /* the last one is only predicted */
  int code = inspect(model, tokenizer, options, &text, output);
  free(text.ids);
  return code;
}
