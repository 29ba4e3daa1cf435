/* Bench case `moe`: moe.c times the layer that moe_sample.c defines and whose error it measures. */
#ifndef CH_BENCH_MOE_H
#define CH_BENCH_MOE_H

#include "bench/cases.h"
#include "moe/layer.h"

/* Allocates the layer's outputs in b->memory. */
void ch_bench_moe_results(ch_bench *b, ch_moe_args *args);

/* Runs one repetition. */
void ch_bench_moe_layer(ch_exec *x, ch_moe_args *args, ch_moe_saved *saved);

/* Adds the error of outputs and gradients at CH_BENCH_SAMPLES sampled tokens to the result. `saved` is of the last
 * repetition; args cannot be used afterwards. */
enum { CH_BENCH_SAMPLES = 12 };
int ch_bench_moe_sample(ch_bench *b, ch_exec *x, ch_moe_args *args, ch_moe_saved *saved);

#endif
