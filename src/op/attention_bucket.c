/* Which bucket of the bias a distance falls into: every backend asks the same function. */
#include <math.h>

#include "op/op.h"

int ch_attention_bucket(int distance, int buckets, int max_distance) {
  int exact = buckets / 2;
  if (distance < exact) return distance;
  if (exact < 1 || max_distance <= exact) return buckets - 1;
  double share = log((double)distance / exact) / log((double)max_distance / exact);
  double bucket = exact + share * (buckets - exact);
  return bucket < buckets - 1 ? (int)bucket : buckets - 1;
}
