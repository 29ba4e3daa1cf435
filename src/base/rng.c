#include "base/rng.h"

#include <Random123/philox.h>
#include <math.h>
#include <string.h>

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

/* Logarithm for x in (0,1), normal numbers only. Not libm's, whose last bit depends on the machine; plain arithmetic
 * gives the same bits everywhere. Error about 1e-16 of the result. */
static inline double logarithm(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  /* x = m 2^e with m in [sqrt(1/2), sqrt(2)) */
  uint64_t shifted = bits - UINT64_C(0x3fe6a09e667f3bcd);
  double e = (double)((int32_t)(shifted >> 32) >> 20), m;
  bits -= shifted & UINT64_C(0xfff0000000000000);
  memcpy(&m, &bits, sizeof m);
  double f = (m - 1) / (m + 1), z = f * f; /* log m = 2 atanh f, |f| < 0.1716 */
  double p = 1.0 / 21;
  for (int k = 19; k >= 3; k -= 2) p = p * z + 1.0 / k;
  return e * 0.69314718055994530942 + 2 * (f + f * z * p);
}

/* Cosine and sine of 2 pi v for v in (0,1): Taylor on an eighth of the circle to either side of the nearest quarter. */
static inline void cosine_and_sine(double v, double *cosine, double *sine) {
  const double round = 0x1.8p52; /* adding it rounds to an integer */
  double quarter = (4 * v + round) - round, a = (4 * v - quarter) * 1.57079632679489661923, z = a * a;
  double s = 1, c = 1;
  for (int k = 16; k >= 2; k -= 2) {
    s = 1 - s * z * (1.0 / (k * (k + 1)));
    c = 1 - c * z * (1.0 / (k * (k - 1)));
  }
  s *= a;
  /* One comparison per decision, so that it vectorizes: quarters 1 and 3 swap sine and cosine, x < 0 in quarters 1 and
   * 2, y < 0 in quarters 2 and 3. */
  int odd = fabs(fabs(quarter - 2) - 1) < 0.5;
  double x = odd ? s : c, y = odd ? c : s;
  *cosine = x * (fabs(quarter - 1.5) < 1 ? -1.0 : 1.0);
  *sine = y * (fabs(quarter - 2.5) < 1 ? -1.0 : 1.0);
}

/* Pairs pair .. pair+count-1, at most GROUP: one block of random bits gives normals 2 pair and 2 pair + 1. In stages
 * that compilers vectorize. */
enum { GROUP = 64 };
static void normal_pairs(ch_rng r, uint64_t pair, int count, double *out) {
  double u[GROUP], v[GROUP], cosine[GROUP], sine[GROUP];
  for (int i = 0; i < count; i++) {
    philox4x32_ctr_t b = block(r, pair + (uint64_t)i);
    u[i] = unit(join(b.v[0], b.v[1]));
    v[i] = unit(join(b.v[2], b.v[3]));
  }
  for (int i = 0; i < count; i++) u[i] = sqrt(-2.0 * logarithm(u[i]));
  for (int i = 0; i < count; i++) cosine_and_sine(v[i], &cosine[i], &sine[i]);
  for (int i = 0; i < count; i++) {
    out[2 * i] = u[i] * cosine[i];
    out[2 * i + 1] = u[i] * sine[i];
  }
}

double ch_rng_normal(ch_rng r, uint64_t index) {
  double both[2];
  normal_pairs(r, index / 2, 1, both);
  return both[index % 2];
}

void ch_rng_normals(ch_rng r, uint64_t index, size_t count, double *out) {
  size_t i = 0;
  if (index % 2 && count) out[i++] = ch_rng_normal(r, index);
  while (count - i >= 2) {
    size_t pairs = (count - i) / 2 < GROUP ? (count - i) / 2 : GROUP;
    normal_pairs(r, (index + i) / 2, (int)pairs, out + i);
    i += 2 * pairs;
  }
  if (i < count) out[i] = ch_rng_normal(r, index + i);
}

uint64_t ch_rng_below(ch_rng r, uint64_t index, uint64_t n) {
  return (uint64_t)(((unsigned __int128)ch_rng_bits(r, index) * n) >> 64);
}

/* Six Feistel rounds on the smallest even number of bits that holds n; cycle walking repeats them until the value is in
 * [0,n), on average at most four times. */
uint64_t ch_rng_permute(ch_rng r, uint64_t index, uint64_t n) {
  if (n < 2) return index;
  int half = 1;
  while (half < 32 && (UINT64_C(1) << (2 * half)) < n) half++;
  uint64_t mask = (UINT64_C(1) << half) - 1;
  do {
    uint64_t left = index >> half, right = index & mask;
    for (uint64_t round = 0; round < 6; round++) {
      uint64_t mixed = ch_rng_bits(r, round << 56 | right) & mask; /* right < 2^32, so rounds use distinct inputs */
      uint64_t next = left ^ mixed;
      left = right;
      right = next;
    }
    index = left << half | right;
  } while (index >= n);
  return index;
}
