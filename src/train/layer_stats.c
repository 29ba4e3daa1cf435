#include "train/layer_stats.h"

#include <stdlib.h>

#include "base/error.h"

static void count(void *context, const choir_routing *routing) {
  const ch_layer_stats *w = context;
  choir_route_stats_count(&w->layer[routing->moe], routing);
  if (w->also) w->also(w->context, routing);
}

int ch_layer_stats_begin(choir_model *model, int vocab_size, ch_layer_stats *w) {
  int layers = choir_model_moe_layers(model);
  w->layers = 0;
  w->layer = calloc((size_t)layers + 1, sizeof *w->layer);
  if (!w->layer) return ch_error(CHOIR_ERROR_MEMORY, "no memory for the statistics of %d layers", layers);
  for (; w->layers < layers; w->layers++) {
    int code = choir_route_stats_begin(choir_model_config_of(model)->model.experts, vocab_size, &w->layer[w->layers]);
    if (!code) continue;
    ch_layer_stats_free(w);
    return code;
  }
  choir_model_on_routing(model, count, w);
  return CHOIR_OK;
}

void ch_layer_stats_end(choir_model *model) { choir_model_on_routing(model, NULL, NULL); }

void ch_layer_stats_free(ch_layer_stats *w) {
  for (int i = 0; i < w->layers; i++) choir_route_stats_free(&w->layer[i]);
  free(w->layer);
  w->layer = NULL;
  w->layers = 0;
}
