/* FLOPs of a config, by part. */
#ifndef CH_TRAIN_COST_H
#define CH_TRAIN_COST_H

#include "model/param.h"

typedef enum {
  CH_FLOPS_ATTENTION, /* its four products, scores, and their weighted sum over the causal half */
  CH_FLOPS_DENSE,     /* feed-forward layers that are not MoE */
  CH_FLOPS_ROUTER,    /* X Wg */
  CH_FLOPS_EXPERTS,
  CH_FLOPS_HEAD, /* logits */
  CH_FLOPS_PARTS
} ch_flops_part;

/* Which part a weight that is a factor of products (p->product) belongs to. */
ch_flops_part ch_flops_part_of(const ch_param *p);

/* Counts multiplications and additions of one token, forward. Training is three times that for every draw
 * (ch_pass_sequences). */
void ch_count_flops(const choir_config *config, const ch_params *params, double flops[CH_FLOPS_PARTS]);

#endif
