/* The inspection of a text as JSON: printed by `choir stats --json` and part of the page of `choir inspect`. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "file/json.h"
#include "moe/router.h"
#include "pages/inspect.h"

/* A ratio whose denominator may be 0. */
static json_t *share(int64_t part, int64_t whole) { return json_real(whole ? (double)part / (double)whole : 0); }

static json_t *over_capacity(const choir_route_stats *s) {
  json_t *array = json_array();
  for (int i = 0; i < s->experts; i++) {
    int64_t over = s->demand[i] - s->capacity;
    ch_json_add(array, json_integer(over > 0 ? over : 0));
  }
  return array;
}

static json_t *overlap(const choir_route_stats *s) {
  json_t *rows = json_array();
  for (int i = 0; i < s->experts; i++) {
    json_t *row = json_array();
    for (int j = 0; j < s->experts; j++)
      ch_json_add(row, json_real(round(choir_route_stats_overlap(s, i, j) * 1e4) * 1e-4));
    ch_json_add(rows, row);
  }
  return rows;
}

typedef int favourites(const choir_route_stats *s, int expert, int max, choir_favourite *best);

static json_t *favourite_tokens(const choir_route_stats *s, const choir_tokenizer *tokenizer, favourites *find,
                                choir_favourite *buffer, int top) {
  json_t *experts = json_array();
  for (int i = 0; i < s->experts; i++) {
    json_t *list = json_array();
    int count = find(s, i, top, buffer);
    for (int f = 0; f < count; f++) {
      const char *piece = choir_tokenizer_piece(tokenizer, buffer[f].token);
      if (!piece) piece = "<mask>"; /* a mask, which the tokenizer does not have */
      json_t *name = json_string(piece ? piece : "");
      ch_json_add(list, json_pack("{s:i, s:o, s:I, s:I, s:f}", "token", buffer[f].token, "piece",
                                  name ? name : json_null(), "held", (json_int_t)buffer[f].held, "text",
                                  (json_int_t)buffer[f].text, "lift", buffer[f].lift));
    }
    ch_json_add(experts, list);
  }
  return experts;
}

/* null: the routing is not causal. */
static json_t *locality_json(const ch_inspection *inspection, int layer, int experts) {
  return inspection->locality ? ch_locality_json(&inspection->locality[layer], experts) : json_null();
}

/* The most used expert that is not pinned yet; of equal ones the lower index. */
static int next_pin(const choir_route_stats *s, const uint8_t *pinned) {
  int best = -1;
  for (int i = 0; i < s->experts; i++)
    if (!pinned[i] && (best < 0 || s->load[i] > s->load[best])) best = i;
  return best;
}

/* For each cache size: the experts to pin in it, and their share of all uses. */
static json_t *pins_json(const choir_route_stats *s) {
  uint8_t pinned[s->experts];
  json_t *pins = json_object(), *experts = json_array();
  int64_t uses = 0;
  for (int i = 0; i < s->experts; i++) pinned[i] = 0;
  for (int c = 0; c < CH_CACHE_SIZES; c++) {
    char size[16];
    snprintf(size, sizeof size, "%d", ch_cache_size(s->experts, c));
    while ((int)json_array_size(experts) < ch_cache_size(s->experts, c)) {
      int i = next_pin(s, pinned);
      pinned[i] = 1;
      uses += s->load[i];
      ch_json_add(experts, json_integer(i));
    }
    ch_json_put(pins, size,
                json_pack("{s:o, s:o}", "experts", json_copy(experts), "hits",
                          ch_ratio_json((ch_ratio){uses, s->assignments})));
  }
  json_decref(experts);
  return pins;
}

/* Statistics for runtimes: for each expert how often tokens use it, and how often the previous token did, too. null:
 * the routing is not causal. */
static json_t *profile_json(const ch_inspection *inspection, int layer) {
  const choir_route_stats *s = &inspection->layer[layer];
  if (!inspection->expert_reuse) return json_null();
  json_t *frequency = json_array(), *reuse = json_array();
  for (int i = 0; i < s->experts; i++) {
    ch_json_add(frequency, share(s->load[i], s->tokens));
    ch_json_add(reuse, ch_ratio_json(inspection->expert_reuse[(int64_t)layer * s->experts + i]));
  }
  return json_pack("{s:o, s:o, s:o}", "frequency", frequency, "reuse", reuse, "pins", pins_json(s));
}

static json_t *layer_json(const choir_route_stats *s, const choir_tokenizer *tokenizer, choir_favourite *buffer,
                          int top) {
  int e = s->experts;
  json_t *layer = json_pack("{s:i, s:I, s:I, s:I, s:I, s:f, s:o, s:o, s:f, s:f}", "layer", s->layer, "tokens",
                            (json_int_t)s->tokens, "assignments", (json_int_t)s->assignments, "dropped",
                            (json_int_t)s->dropped, "capacity", (json_int_t)s->capacity, "target", s->target,
                            "dropped_share", share(s->dropped, s->dropped + s->assignments), "none_share",
                            share(s->histogram[0], s->tokens), "experts_per_token",
                            s->tokens ? (double)s->assignments / (double)s->tokens : 0, "gate_mass", s->gate_mass);
  ch_json_put(layer, "token_entropy", ch_json_number(s->token_entropy));
  ch_json_put(layer, "load_entropy", ch_json_number(s->load_entropy));
  ch_json_put(layer, "most_entropy", json_real(log(e)));
  ch_json_put(layer, "drift", ch_json_number(s->drift));
  ch_json_put(layer, "histogram", ch_json_integers(s->histogram, e + 1));
  ch_json_put(layer, "load", ch_json_integers(s->load, e));
  ch_json_put(layer, "demand", ch_json_integers(s->demand, e));
  ch_json_put(layer, "over_capacity", over_capacity(s));
  ch_json_put(layer, "gate", ch_json_numbers(s->gate, e));
  ch_json_put(layer, "threshold", ch_json_numbers(s->threshold, e));
  ch_json_put(layer, "cutoff", ch_json_numbers(s->cutoff, e));
  ch_json_put(layer, "overlap", overlap(s));
  ch_json_put(layer, "frequent", favourite_tokens(s, tokenizer, choir_route_stats_get_frequent, buffer, top));
  ch_json_put(layer, "typical", favourite_tokens(s, tokenizer, choir_route_stats_get_typical, buffer, top));
  return layer;
}

static void add_name(json_t *root, const char *key, const char *text) {
  ch_json_put(root, key, text ? ch_json_name(text) : json_null());
}

json_t *ch_inspection_json(const choir_model *model, const choir_tokenizer *tokenizer, const ch_inspect_options *o,
                           const ch_inspection *inspection) {
  const ch_model_config *config = &choir_model_config(model)->model;
  const choir_eval_result *r = &inspection->eval;
  int top = o->top > 0 ? o->top : 0;
  choir_favourite *buffer = reallocarray(NULL, (size_t)top + 1, sizeof *buffer);
  json_t *root = json_object(), *layers = json_array();
  for (int i = 0; buffer && i < inspection->layers; i++) {
    json_t *layer = layer_json(&inspection->layer[i], tokenizer, buffer, top);
    ch_json_put(layer, "locality", locality_json(inspection, i, config->experts));
    ch_json_put(layer, "profile", profile_json(inspection, i));
    ch_json_add(layers, layer);
  }
  add_name(root, "checkpoint", o->checkpoint);
  add_name(root, "model", config->name);
  add_name(root, "router", config->router.kind->name);
  add_name(root, "routing", r->routing);
  add_name(root, "text", o->text);
  ch_json_put(root, "looks_across_tokens", json_boolean(r->looks_across_tokens));
  ch_json_put(root, "capacity_factor", json_real(config->router.capacity_factor));
  ch_json_put(root, "experts", json_integer(config->experts));
  ch_json_put(root, "tokens", json_integer(r->tokens));
  ch_json_put(root, "bytes", json_integer(r->bytes));
  ch_json_put(root, "cut", json_boolean(inspection->cut));
  ch_json_put(root, "batch_sequences", json_integer(inspection->batch_sequences));
  ch_json_put(root, "sequence_length", json_integer(inspection->sequence_length));
  if (o->mask_ratio > 0) ch_json_put(root, "mask_ratio", json_real(o->mask_ratio));
  ch_json_put(root, "loss", ch_json_number(r->loss));
  ch_json_put(root, "perplexity", ch_json_number(r->perplexity));
  ch_json_put(root, "bits_per_byte", ch_json_number(r->bits_per_byte));
  ch_json_put(root, "unigram_loss", ch_json_number(r->unigram_loss));
  ch_json_put(root, "gzip_bits_per_byte", ch_json_number(r->gzip_bits_per_byte));
  ch_json_put(root, "all",
              json_pack("{s:o}", "locality", locality_json(inspection, inspection->layers, config->experts)));
  if (inspection->trade) ch_json_put(root, "trade", ch_trade_json(inspection, o->cache));
  ch_json_put(root, "layers", layers);
  free(buffer);
  if (buffer) return root;
  json_decref(root);
  return NULL;
}
