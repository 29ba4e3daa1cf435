/* Statistics of every MoE layer while a model is evaluated. */
#ifndef CH_TRAIN_LAYER_STATS_H
#define CH_TRAIN_LAYER_STATS_H

#include "choir/model.h"

typedef struct ch_layer_stats {
  int layers;
  choir_route_stats *layer;    /* [layers] */
  choir_routing_callback also; /* sees what the statistics see; or NULL */
  void *context;
} ch_layer_stats;

/* Empty statistics, and from now on they grow with every pass of the model; `also` and `context` stay. vocab_size 0:
 * the cheap ones. *w must stay in its place until ch_layer_stats_end. CHOIR_ERROR_MEMORY. */
int ch_layer_stats_begin(choir_model *model, int vocab_size, ch_layer_stats *w);

/* Nobody looks any more; the statistics stay. */
void ch_layer_stats_end(choir_model *model);
void ch_layer_stats_free(ch_layer_stats *w);

#endif
