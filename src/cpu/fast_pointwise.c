#include "cpu/fast.h"
#include "cpu/simd_fill.h"

void ch_fast_fill_pointwise(ch_ops *ops) {
  CH_SIMD_PICK(ch_fill_gelu)(ops);
  CH_SIMD_PICK(ch_fill_pointwise)(ops);
  CH_SIMD_PICK(ch_fill_norm)(ops);
}
