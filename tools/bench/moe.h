/* Bench case `moe`: moe.c times the layer of moe_sample.c, which also looks at its error. */
#ifndef CH_BENCH_MOE_H
#define CH_BENCH_MOE_H

#include "bench/cases.h"
#include "moe/layer.h"

/* Arrays in b->memory for what the layer writes. */
void ch_bench_moe_results(ch_bench *b, ch_moe_args *args);

/* One repetition. */
void ch_bench_moe_layer(ch_exec *x, ch_moe_args *args, ch_moe_saved *saved);

/* The error of output and gradients at so many sampled tokens, to the result. `saved` is of the last repetition; args
 * are of no use after. */
enum { CH_BENCH_SAMPLES = 12 };
int ch_bench_moe_sample(ch_bench *b, ch_exec *x, ch_moe_args *args, ch_moe_saved *saved);

#endif
