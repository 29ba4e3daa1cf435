/* Helpers of most kernels. */

/* Loop over i < count, distributed over all items of all groups. */
#define EACH(i, count) for (I64 i = GID * GROUP + LID; i < (count); i += GROUPS * GROUP)
#define IS_FINITE(x) ((x) - (x) == 0)

/* Rounds to nearest, ties to even; NaN stays NaN. */
INLINE ushort to_bf16(float x) {
  U32 bits = FLOAT_BITS(x);
  return (ushort)(x == x ? (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16 : (bits >> 16 | 0x40u));
}

INLINE float from_bf16(ushort x) { return BITS_FLOAT((U32)x << 16); }

/* The two bf16 numbers of a 32-bit word. */
INLINE float low_of(U32 pair) { return BITS_FLOAT(pair << 16); }
INLINE float high_of(U32 pair) { return BITS_FLOAT(pair & 0xffff0000u); }
INLINE U32 pair_of(float low, float high) { return to_bf16(low) | (U32)to_bf16(high) << 16; }

/* Rounds eight floats, read as bits, to bf16. */
INLINE uint4 rounded_eight(GLOBAL const uint4 *x) {
  uint4 first = x[0], second = x[1], y;
  y.x = pair_of(BITS_FLOAT(first.x), BITS_FLOAT(first.y));
  y.y = pair_of(BITS_FLOAT(first.z), BITS_FLOAT(first.w));
  y.z = pair_of(BITS_FLOAT(second.x), BITS_FLOAT(second.y));
  y.w = pair_of(BITS_FLOAT(second.z), BITS_FLOAT(second.w));
  return y;
}

/* Whether a field is 16-byte aligned, so that an item can access 16 bytes at once, which is faster than smaller
 * accesses. */
#define IN_SIXTEENS(field) ((U64)P(char, field) % 16 == 0)

/* The sum of the values of `items` items in a row, a power of two that divides GROUP, as a fixed tree; each of them
 * gets it. All items of a group must call it. scratch: [GROUP]. */
INLINE double sum_of(double value, LOCAL double *scratch, int items) {
  scratch[LID] = value;
  SYNC;
  for (int step = items / 2; step > 0; step /= 2) {
    if (LID % items < step) scratch[LID] += scratch[LID + step];
    SYNC;
  }
  double sum = scratch[LID / items * items];
  SYNC;
  return sum;
}

INLINE float largest_of(float value, LOCAL float *scratch, int items) {
  scratch[LID] = value;
  SYNC;
  for (int step = items / 2; step > 0; step /= 2) {
    if (LID % items < step && scratch[LID + step] > scratch[LID]) scratch[LID] = scratch[LID + step];
    SYNC;
  }
  float largest = scratch[LID / items * items];
  SYNC;
  return largest;
}

/* The same over all items of a group. */
INLINE double sum_over(double value, LOCAL double *scratch) { return sum_of(value, scratch, GROUP); }
INLINE float largest_over(float value, LOCAL float *scratch) { return largest_of(value, scratch, GROUP); }

/* Number of earlier items with says = 1; *all: number over all items. scratch: [GROUP]. */
INLINE int rank_over(int says, LOCAL int *scratch, int *all) {
  scratch[LID] = says;
  SYNC;
  for (int step = 1; step < GROUP; step *= 2) {
    int before = LID >= step ? scratch[LID - step] : 0;
    SYNC;
    scratch[LID] += before;
    SYNC;
  }
  int rank = scratch[LID] - says;
  *all = scratch[GROUP - 1];
  SYNC;
  return rank;
}

/* Philox4x32-10 of Random123 (Salmon et al. 2011): number `index` of a stream; the same bits as ch_rng_bits. */
INLINE U64 random_bits(U64 seed, U32 stream, U32 sub, U64 index) {
  U32 c0 = (U32)index, c1 = (U32)(index >> 32), c2 = stream, c3 = sub, k0 = (U32)seed, k1 = (U32)(seed >> 32);
  for (int round = 0; round < 10; round++) {
    U64 p0 = (U64)0xD2511F53u * c0, p1 = (U64)0xCD9E8D57u * c2;
    c0 = (U32)(p1 >> 32) ^ c1 ^ k0;
    c1 = (U32)p1;
    c2 = (U32)(p0 >> 32) ^ c3 ^ k1;
    c3 = (U32)p0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return (U64)c1 << 32 | c0;
}
