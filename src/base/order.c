#include "base/order.h"

real ch_kth_largest(real *value, int count, int k) {
  int low = 0, high = count - 1;
  while (low < high) {
    real pivot = value[low + (high - low) / 2];
    int i = low, j = high;
    while (i <= j) {
      while (value[i] > pivot) i++;
      while (value[j] < pivot) j--;
      if (i > j) break;
      real swap = value[i];
      value[i++] = value[j];
      value[j--] = swap;
    }
    if (k - 1 <= j)
      high = j;
    else if (k - 1 >= i)
      low = i;
    else
      break;
  }
  return value[k - 1];
}
