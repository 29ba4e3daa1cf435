/* The update of one step: inside the backward pass, layer by layer, where nothing needs all gradients at once. */
#ifndef CH_TRAIN_UPDATE_H
#define CH_TRAIN_UPDATE_H

#include "api/model.h"
#include "train/optimizer.h"

typedef struct ch_update {
  ch_exec *x;
  ch_optimizer *optimizer;
  int64_t step; /* from 1 */
  int stopped;  /* at the end: a loss or gradient is not finite, and nothing was updated from there on */
} ch_update;

/* Nonzero when layers may be updated within the backward pass: their gradients then need the memory of one layer only.
 * Clipping needs the norm of all, micro-batches need their sum. */
int ch_update_in_backward(const choir_train_config *config);

/* For ch_pass.ready, context being a ch_update: updates the layer. */
void ch_update_layer(void *context, const ch_pass *pass, int layer);

/* Does the rest of the update after the pass, or all of it where layers were not updated within it. Returns the
 * gradient norm, for which it waits for the device. */
double ch_update_finish(ch_update *update, int in_backward, double loss);

/* Counts the scratch of all this. */
void ch_update_count(ch_exec *x, ch_optimizer *optimizer);

#endif
