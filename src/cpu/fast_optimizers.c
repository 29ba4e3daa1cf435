#include "cpu/fast.h"
#include "cpu/simd_fill.h"

void ch_fast_fill_optimizers(ch_ops *ops) {
  CH_SIMD_PICK(ch_fill_adafactor)(ops);
  CH_SIMD_PICK(ch_fill_adamw)(ops);
}
