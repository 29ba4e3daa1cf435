/* Panels of 16 outputs are multiplied by groups of rows: a panel is loaded once per group, and read from memory once
 * for all groups. With few rows reading dominates. Hardware prefetching leaves a third of the bandwidth unused, so
 * lines are prefetched twice, into L2 and then into L1. */
#include "cpu/simd/q8.h"

#include <math.h>
#include <string.h>

#include "base/real.h"
#include "cpu/simd/vector.h"

#define INLINE static inline __attribute__((always_inline))
#define TILE _Pragma("GCC unroll 8") for

enum { GROUPS = CH_Q8_VALUES / 4, LINE = 64, NEAR = 512, FAR = 4096 };

/* ---- rows ---- */

#if !defined(__AVX512VNNI__) /* the VNNI variant uses the rows code of avx512 */
/* Rounds to nearest, ties to even: the addition shifts the fraction out of the mantissa. */
INLINE int32_t to_integer(float x) { return (int32_t)(x + 0x1.8p23f - 0x1.8p23f); }

/* Bits of float magnitudes sort like the magnitudes; NaN and infinity are largest. */
INLINE void round_block(const float *x, int8_t *q, ch_q8_block *block) {
  const int32_t infinity = 0x7f800000;
  int32_t bits[CH_Q8_VALUES], max = 0, sum = 0;
  float amax;
  memcpy(bits, x, sizeof bits);
  for (int i = 0; i < CH_Q8_VALUES; i++) {
    int32_t magnitude = bits[i] & INT32_MAX;
    max = magnitude > max ? magnitude : max;
  }
  memcpy(&amax, &max, sizeof amax);
  int counts = max < infinity && amax >= CH_Q8_MIN;
  float inverse = counts ? 127 / amax : 0;
  for (int i = 0; i < CH_Q8_VALUES; i++) {
    int32_t value = counts ? to_integer(x[i] * inverse) : 0;
    q[i] = (int8_t)value;
    sum += value;
  }
  block->scale = max >= infinity ? (float)NAN : counts ? amax / 127 : 0;
  block->offset = -128 * sum;
}

void CH_SIMD(ch_q8_round_rows)(int64_t rows, int64_t depth, const float *x, int64_t ld, ch_q8_rows y) {
  int64_t blocks = ch_q8_blocks(depth);
  for (int64_t r = 0; r < rows; r++)
    for (int64_t b = 0; b < blocks; b++) {
      const float *from = x + r * ld + b * CH_Q8_VALUES;
      float last[CH_Q8_VALUES] = {0};
      int64_t left = depth - b * CH_Q8_VALUES;
      if (left < CH_Q8_VALUES) from = memcpy(last, from, (size_t)left * sizeof *last);
      round_block(from, y.q + (r * blocks + b) * CH_Q8_VALUES, y.block + r * blocks + b);
    }
}

#endif

/* ---- products ---- */

/* A group of rows: bytes, and sums of one panel. */
typedef struct {
  const int8_t *q;
  const ch_q8_block *block;
  int64_t ldq, blocks;
} row_group;

/* Four bytes of row r: inputs 4g .. 4g+3 of a block. */
INLINE int32_t four_of(const row_group *a, int r, int64_t block, int g) {
  int32_t four;
  memcpy(&four, a->q + r * a->ldq + block * CH_Q8_VALUES + 4 * g, sizeof four);
  return four;
}

INLINE void fetch(const ch_q8 *line) {
  __builtin_prefetch(line + NEAR);
  __builtin_prefetch(line + FAR, 0, 2);
}

#if defined(__AVX512VNNI__)
enum { ROWS = 8 };
typedef __m512 panel_sums; /* of 16 outputs */

INLINE panel_sums zeros(void) { return _mm512_setzero_ps(); }
INLINE void store(float *c, panel_sums s) { _mm512_storeu_ps(c, s); }

/* Unsigned bytes weight + 128 times signed bytes of the row (vpdpbusd); the sum starts with the block's offset, which
 * removes the excess. */
INLINE void add_block(const ch_q8 *bytes, const ch_q8 *scales, const row_group *a, int64_t block, int rows, int fetches,
                      panel_sums sum[ROWS]) {
  __m512i n[ROWS];
  TILE(int r = 0; r < rows; r++) n[r] = _mm512_set1_epi32(a->block[r * a->blocks + block].offset);
  TILE(int g = 0; g < GROUPS; g++) {
    if (fetches) fetch(bytes + LINE * g);
    __m512i w = _mm512_xor_si512(_mm512_load_si512(bytes + LINE * g), _mm512_set1_epi8(-128));
    TILE(int r = 0; r < rows; r++) n[r] = _mm512_dpbusd_epi32(n[r], w, _mm512_set1_epi32(four_of(a, r, block, g)));
  }
  __m512 scale = _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)scales));
  TILE(int r = 0; r < rows; r++) {
    __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(n[r]), _mm512_set1_ps(a->block[r * a->blocks + block].scale));
    sum[r] = _mm512_add_ps(sum[r], _mm512_mul_ps(scaled, scale));
  }
}

#elif defined(__AVX2__)
enum { ROWS = 4 };
typedef struct {
  __m256 half[2];
} panel_sums;

INLINE panel_sums zeros(void) { return (panel_sums){{_mm256_setzero_ps(), _mm256_setzero_ps()}}; }
INLINE void store(float *c, panel_sums s) {
  _mm256_storeu_ps(c, s.half[0]);
  _mm256_storeu_ps(c + 8, s.half[1]);
}

INLINE __m256 scales_of(const ch_q8 *scales, int half) {
#if defined(__AVX512F__) /* avx512f converts sixteen; eight would need F16C */
  __m512 all = _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)scales));
  return half ? _mm512_extractf32x8_ps(all, 1) : _mm512_castps512_ps256(all);
#else
  return _mm256_cvtph_ps(_mm_load_si128((const __m128i *)scales + half));
#endif
}

/* Magnitudes of weights (at most 128) times the row's bytes with the weights' signs (at most 127): a sum of two
 * products fits into 16 bits. */
INLINE void add_block(const ch_q8 *bytes, const ch_q8 *scales, const row_group *a, int64_t block, int rows, int fetches,
                      panel_sums sum[ROWS]) {
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i n[ROWS][2];
  TILE(int r = 0; r < rows; r++) n[r][0] = n[r][1] = _mm256_setzero_si256();
  TILE(int g = 0; g < GROUPS; g++) {
    if (fetches) fetch(bytes + LINE * g);
    TILE(int half = 0; half < 2; half++) {
      __m256i w = _mm256_load_si256((const __m256i *)(bytes + LINE * g) + half), size = _mm256_abs_epi8(w);
      TILE(int r = 0; r < rows; r++) {
        __m256i x = _mm256_sign_epi8(_mm256_set1_epi32(four_of(a, r, block, g)), w);
        n[r][half] = _mm256_add_epi32(n[r][half], _mm256_madd_epi16(_mm256_maddubs_epi16(size, x), ones));
      }
    }
  }
  TILE(int half = 0; half < 2; half++) {
    __m256 scale = scales_of(scales, half);
    TILE(int r = 0; r < rows; r++) {
      __m256 scaled =
          _mm256_mul_ps(_mm256_cvtepi32_ps(n[r][half]), _mm256_set1_ps(a->block[r * a->blocks + block].scale));
      sum[r].half[half] = _mm256_add_ps(sum[r].half[half], _mm256_mul_ps(scaled, scale));
    }
  }
}

#else
enum { ROWS = 2, QUARTERS = 4, QUARTER = CH_Q8_OUTPUTS / QUARTERS };
typedef int16_t words __attribute__((vector_size(16), may_alias));
typedef int32_t integers __attribute__((vector_size(16), may_alias));
typedef struct {
  float output[CH_Q8_OUTPUTS];
} panel_sums;

INLINE panel_sums zeros(void) { return (panel_sums){{0}}; }
INLINE void store(float *c, panel_sums s) { memcpy(c, s.output, sizeof s.output); }

/* Splits bytes into words: even and odd positions. */
INLINE void split_bytes(integers bytes, words part[2]) {
  words both = (words)bytes;
  part[0] = both << 8 >> 8;
  part[1] = both >> 8;
}

/* A sum of two products, at most 128 * 127 each, fits into a word. Words of rows and weights have the same order. */
INLINE void add_block(const ch_q8 *bytes, const ch_q8 *scales, const row_group *a, int64_t block, int rows, int fetches,
                      panel_sums sum[ROWS]) {
  integers n[ROWS][QUARTERS] = {{{0}}};
  for (int g = 0; g < GROUPS; g++) {
    words x[ROWS][2], w[2];
    if (fetches) fetch(bytes + LINE * g);
    TILE(int r = 0; r < rows; r++) split_bytes(four_of(a, r, block, g) - (integers){0}, x[r]);
    TILE(int v = 0; v < QUARTERS; v++) {
      split_bytes(((const integers *)(bytes + LINE * g))[v], w);
      TILE(int r = 0; r < rows; r++) {
        integers pairs = (integers)(w[0] * x[r][0] + w[1] * x[r][1]);
        n[r][v] += (pairs << 16 >> 16) + (pairs >> 16);
      }
    }
  }
  for (int o = 0; o < CH_Q8_OUTPUTS; o++) {
    float scale = ch_half_value(((const uint16_t *)scales)[o]);
    int quarter = o / QUARTER;
    for (int r = 0; r < rows; r++) {
      float scaled = (float)n[r][quarter][o % QUARTER] * a->block[r * a->blocks + block].scale;
      sum[r].output[o] += scaled * scale;
    }
  }
}
#endif

/* Writes sums [rows][16] up to the last output. Not inlined, because compilers would scalarize the sums. */
static __attribute__((noinline)) void put_sums(const ch_q8_product *p, int64_t row, int64_t output, int rows,
                                               const float *sum) {
  int64_t left = p->n - output, count = left < CH_Q8_OUTPUTS ? left : CH_Q8_OUTPUTS;
  for (int r = 0; r < rows; r++, sum += CH_Q8_OUTPUTS) {
    float *c = p->c + (row + r) * p->ldc + output;
    if (p->accumulate)
      for (int64_t o = 0; o < count; o++) c[o] += p->alpha * sum[o];
    else
      for (int64_t o = 0; o < count; o++) c[o] = p->alpha * sum[o];
  }
}

/* Multiplies rows row .. row+rows-1 with one panel. */
INLINE void group_with_panel(const ch_q8_product *p, int64_t panel, int64_t row, int rows, int fetches) {
  int64_t blocks = ch_q8_blocks(p->depth);
  const ch_q8 *scales = p->b + panel * ch_q8_panel_bytes(p->depth), *bytes = scales + ch_q8_scale_bytes(p->depth);
  const row_group a = {p->a.q + row * blocks * CH_Q8_VALUES, p->a.block + row * blocks, blocks * CH_Q8_VALUES, blocks};
  float out[ROWS * CH_Q8_OUTPUTS];
  panel_sums sum[ROWS];
  TILE(int r = 0; r < rows; r++) sum[r] = zeros();
  for (int64_t b = 0; b < blocks; b++)
    add_block(bytes + b * CH_Q8_BLOCK, scales + b * CH_Q8_OUTPUTS * 2, &a, b, rows, fetches, sum);
  TILE(int r = 0; r < rows; r++) store(out + r * CH_Q8_OUTPUTS, sum[r]);
  put_sums(p, row, panel * CH_Q8_OUTPUTS, rows, out);
}

/* Groups of as many rows as fit the registers, then halves of that; the first group prefetches the panel. */
#define WITH_GROUPS(size)                     \
  if (!row && size <= ROWS && p->m >= size) { \
    group_with_panel(p, panel, 0, size, 1);   \
    row = size;                               \
  }                                           \
  for (; size <= ROWS && row && p->m - row >= size; row += size) group_with_panel(p, panel, row, size, 0)

void CH_SIMD(ch_q8_product_run)(const ch_q8_product *p) {
  for (int64_t panel = 0; panel < ch_q8_panels(p->n); panel++) {
    int64_t row = 0;
    WITH_GROUPS(8);
    WITH_GROUPS(4);
    WITH_GROUPS(2);
    WITH_GROUPS(1);
  }
}
