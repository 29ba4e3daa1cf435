/* A pass by shards (op/shards.h). */
#ifndef CH_MODEL_SHARDS_H
#define CH_MODEL_SHARDS_H

#include "model/transformer.h"
#include "op/shards.h"

/* Shards of a pass: how many, the sequences of one, a layer's tape of attention from the first row of shard `number`
 * on, and a weight's gradient as a sum over them. */
int ch_pass_shards(const ch_pass *p);
ch_pass ch_shard_of_pass(const ch_pass *p);
ch_block ch_shard_of_block(const ch_transformer *m, const ch_block *b, const ch_pass *shard, int number);
ch_sum ch_sum_of(const ch_param *w);

#endif
