/* The complete reference table, from the parts that the ref_*.c files fill. */
#include "cpu/cpu.h"
#include "cpu/ref.h"

void ch_fill_reference(ch_ops *ops, ch_compute compute) {
  (void)compute;
  ch_ref_fill_products(ops);
  ch_ref_fill_pointwise(ops);
  ch_ref_fill_norm(ops);
  ch_ref_fill_routing(ops);
  ch_ref_fill_assign(ops);
  ch_ref_fill_optimizers(ops);
}
