/* Statistics of every MoE layer while a model is evaluated. */
#ifndef CH_TRAIN_WATCH_H
#define CH_TRAIN_WATCH_H

#include "choir/model.h"

typedef struct ch_watch {
  int layers;
  choir_routing_stats *layer; /* [layers] */
  choir_look also;            /* sees what the statistics see; or NULL */
  void *context;
} ch_watch;

/* Empty statistics, and from now on they grow with every pass of the model; `also` and `context` stay. vocab_size 0:
 * the cheap ones. *w must stay in its place until ch_watch_end. CHOIR_ERROR_MEMORY. */
int ch_watch_begin(choir_model *model, int vocab_size, ch_watch *w);

/* Nobody looks any more; the statistics stay. */
void ch_watch_end(choir_model *model);
void ch_watch_free(ch_watch *w);

#endif
