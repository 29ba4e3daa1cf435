/* Order statistics. */
#ifndef CH_BASE_ORDER_H
#define CH_BASE_ORDER_H

#include "base/real.h"

/* The k-th largest of value [count], which it reorders; 1 <= k <= count, none NaN. */
real ch_kth_largest(real *value, int count, int k);

#endif
