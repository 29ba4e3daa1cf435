#include "cpu/fast.h"

void ch_fast_fill_products(ch_ops *ops, ch_compute compute) { (void)ops; (void)compute; }
