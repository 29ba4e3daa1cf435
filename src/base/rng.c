#include "base/rng.h"

#include <Random123/philox.h>
#include <math.h>

static philox4x32_ctr_t block(ch_rng r, uint64_t index) {
  philox4x32_ctr_t counter = {{(uint32_t)index, (uint32_t)(index >> 32), r.stream, r.sub}};
  philox4x32_key_t key = {{(uint32_t)r.seed, (uint32_t)(r.seed >> 32)}};
  return philox4x32(counter, key);
}

static uint64_t join(uint32_t low, uint32_t high) { return (uint64_t)high << 32 | low; }
static double unit(uint64_t bits) { return ((double)(bits >> 11) + 0.5) * 0x1p-53; }

uint64_t ch_rng_bits(ch_rng r, uint64_t index) {
  philox4x32_ctr_t b = block(r, index);
  return join(b.v[0], b.v[1]);
}

double ch_rng_uniform(ch_rng r, uint64_t index) { return unit(ch_rng_bits(r, index)); }

double ch_rng_normal(ch_rng r, uint64_t index) {
  philox4x32_ctr_t b = block(r, index);
  const double two_pi = 6.283185307179586476925286766559;
  return sqrt(-2.0 * log(unit(join(b.v[0], b.v[1])))) * cos(two_pi * unit(join(b.v[2], b.v[3])));
}

uint64_t ch_rng_below(ch_rng r, uint64_t index, uint64_t n) {
  return (uint64_t)(((unsigned __int128)ch_rng_bits(r, index) * n) >> 64);
}

/* Six Feistel rounds on the smallest even number of bits that holds n; values that land outside [0,n) walk on
 * until they land inside. At most four walks on average. */
uint64_t ch_rng_permute(ch_rng r, uint64_t index, uint64_t n) {
  if (n < 2) return index;
  int half = 1;
  while (half < 32 && (UINT64_C(1) << (2 * half)) < n) half++;
  uint64_t mask = (UINT64_C(1) << half) - 1;
  do {
    uint64_t left = index >> half, right = index & mask;
    for (uint64_t round = 0; round < 6; round++) {
      uint64_t mixed = ch_rng_bits(r, round << 56 | right) & mask; /* half <= 32 bits: rounds never meet */
      uint64_t next = left ^ mixed;
      left = right;
      right = next;
    }
    index = left << half | right;
  } while (index >= n);
  return index;
}
