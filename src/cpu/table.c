/* The fast table: overrides of the reference, by instruction set where loops are vectorised. */
#include "cpu/cpu.h"
#include "cpu/fast.h"

void ch_fill_cpu(ch_ops *ops, ch_compute compute) {
  ch_fast_fill_pointwise(ops);
  ch_fast_fill_routing(ops);
  ch_fast_fill_optimizers(ops);
  ch_fast_fill_products(ops, compute);
}
