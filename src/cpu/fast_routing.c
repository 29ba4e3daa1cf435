#include "cpu/fast.h"
#include "cpu/simd_fill.h"

/* The index by token stays the reference's: a counting sort of a few integers a token. */
void ch_fast_fill_routing(ch_ops *ops) {
  CH_SIMD_PICK(ch_fill_rows)(ops);
  CH_SIMD_PICK(ch_fill_select)(ops);
  CH_SIMD_PICK(ch_fill_exchange)(ops);
  CH_SIMD_PICK(ch_fill_dykstra)(ops);
}
