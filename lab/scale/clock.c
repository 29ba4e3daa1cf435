/* Linked into the program that lab/scale/run simulates: matrix products of layers take simulated time, as many
 * floating-point operations as they have, and run for real beside. */
#include <smpi/smpi.h>

#include "cpu/threaded/product.h"

void __real_ch_products_run(ch_exec *x, int count, double wanted, const ch_product *products);
void __wrap_ch_products_run(ch_exec *x, int count, double wanted, const ch_product *products);

void __wrap_ch_products_run(ch_exec *x, int count, double wanted, const ch_product *products) {
  double flops = 0;
  for (int i = 0; i < count && !ch_counting(x); i++)
    flops += 2 * (double)products[i].m * (double)products[i].n * (double)products[i].k;
  if (flops > 0) smpi_execute_flops(flops);
  __real_ch_products_run(x, count, wanted, products);
}
