/* Capacity that is not one number: by MoE layer, and over the steps of training. */
#ifndef CH_MODEL_CAPACITY_H
#define CH_MODEL_CAPACITY_H

#include "config/config.h"

/* The router's options in MoE layer number `moe`: capacity factors times the layer's weight of layer_capacity over the
 * mean of all weights. */
ch_router_spec ch_config_layer_router(const ch_model_config *c, int moe);

/* The same with the capacity factor of training times `scale`. */
ch_router_spec ch_router_scaled(const ch_router_spec *o, double scale);

/* Factor of capacity_start for the capacity factor at a training step (from 0); and its maximum over all steps. */
double ch_config_capacity_at(const choir_config *c, int64_t step);
double ch_config_capacity_max(const choir_config *c);

/* The router's own check of n tokens, in every MoE layer and at both ends of training. CHOIR_ERROR_ARGUMENT; also
 * names weights of layer_capacity that are not one number above 0 for each MoE layer. */
int ch_config_check_capacity(const choir_config *c, int n);

#endif
