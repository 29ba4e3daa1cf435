/* Tiles of a product held in registers. A tile may have any number of rows and, where B is transposed, of columns:
 * each of its elements goes through the same additions in all of them. Few rows are limited by how fast B comes from
 * memory, which takes many lines under way at once: hence wide rows, places far apart, and prefetching. */
#include "cpu/batch_invariant.h"

#include "cpu/simd/vector.h"

enum {
  ROWS = CH_LANES == 16 ? 6 : 3, /* with so many columns or vectors, accumulators and operands fill the registers */
  COLUMNS = 4,
  VECTORS = 4,
  FEW = 2,  /* rows for which memory is what takes the time; in bf16 they have room for */
  WIDE = 8, /* so many vectors, which are as many bytes as VECTORS of floats */
  LINE = 64,
  AHEAD = 1024, /* bytes that are asked for early where lanes run along a row of B, */
  STEPS = 8 /* and rows where they do not, which lie too far apart for the hardware to guess; in bf16 twice as many */
};

#define INLINE static inline __attribute__((always_inline))

INLINE ch_vector load(const void *b, int64_t at, int bf16) {
  return bf16 ? ch_load_bf16((const ch_bf16 *)b + at) : ch_load((const float *)b + at);
}

/* The first `count` lanes; the others are 0. Loops over single elements would not do for what is left of a row: there
 * compilers fuse a multiplication with its addition in some places and not in others. */
INLINE ch_vector load_some(const void *b, int64_t at, int count, int bf16) {
  float lane[CH_LANES] = {0};
  for (int l = 0; l < count; l++)
    lane[l] = bf16 ? ch_bf16_value(((const ch_bf16 *)b)[at + l]) : ((const float *)b)[at + l];
  return ch_load(lane);
}

INLINE void put(const ch_product *p, int64_t i, int64_t j, float sum) {
  float *c = p->c + i * p->ldc + j;
  *c = p->accumulate ? ch_fma(p->alpha, sum, *c) : p->alpha * sum;
}

/* Loops over the rows and columns of a tile are unrolled, so that it stays in registers. */
#define TILE _Pragma("GCC unroll 8") for

/* One step of a tile: A's rows from `a` on, B's columns from `b` on. */
#define DOTS_STEP(load_a, load_b)                                                          \
  do {                                                                                     \
    ch_vector left[ROWS];                                                                  \
    TILE(int r = 0; r < rows; r++) left[r] = load_a;                                       \
    TILE(int c = 0; c < columns; c++) {                                                    \
      ch_vector right = load_b;                                                            \
      TILE(int r = 0; r < rows; r++) sum[r][c] = ch_vector_fma(left[r], right, sum[r][c]); \
    }                                                                                      \
  } while (0)

/* B stored [n,k]: lanes run along k. The tile's columns lie `apart`, which to the hardware are so many arrays that are
 * read in order: it fetches ahead in each. */
INLINE void dots(const ch_product *p, int64_t i, int64_t j, int64_t apart, int rows, int columns, int bf16) {
  ch_vector sum[ROWS][COLUMNS];
  const float *a = (const float *)p->a + i * p->lda;
  const void *b = p->b;
  int64_t lda = p->lda, step = apart * p->ldb, at = j * p->ldb, whole = p->k / CH_LANES * CH_LANES;
  int64_t size = bf16 ? sizeof(ch_bf16) : sizeof(float);
  int rest = (int)(p->k - whole);
  TILE(int r = 0; r < rows; r++) TILE(int c = 0; c < COLUMNS; c++) sum[r][c] = (ch_vector){0};
  for (int64_t l = 0; l < whole; l += CH_LANES) {
    if (rows <= FEW && l * size % LINE == 0)
      TILE(int c = 0; c < columns; c++) __builtin_prefetch((const char *)b + (at + c * step + l) * size + AHEAD);
    DOTS_STEP(ch_load(a + r * lda + l), load(b, at + c * step + l, bf16));
  }
  if (rest) DOTS_STEP(load_some(a, r * lda + whole, rest, 0), load_some(b, at + c * step + whole, rest, bf16));
  TILE(int r = 0; r < rows; r++) {
    ch_quad sums = ch_vector_sums(sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
    TILE(int c = 0; c < columns; c++) put(p, i + r, j + c * apart, sums[c]);
  }
}

/* Two vectors of a row of B: neighbours, or of bf16 its even and its odd elements, which take fewer instructions. */
INLINE void load_pair(const void *b, int64_t at, int bf16, ch_vector pair[2]) {
  if (bf16) {
    ch_words both = *(const ch_words *)((const ch_bf16 *)b + at);
    pair[0] = (ch_vector)(both << 16);
    pair[1] = (ch_vector)(both & 0xffff0000U);
  } else {
    pair[0] = load(b, at, 0);
    pair[1] = load(b, at + CH_LANES, 0);
  }
}

/* Such a pair as neighbours. */
INLINE void order_pair(int bf16, ch_vector pair[2]) {
  float lane[2 * CH_LANES];
  if (!bf16) return;
  for (int l = 0; l < CH_LANES; l++) {
    lane[2 * l] = pair[0][l];
    lane[2 * l + 1] = pair[1][l];
  }
  pair[0] = ch_load(lane);
  pair[1] = ch_load(lane + CH_LANES);
}

INLINE void put_vector(const ch_product *p, int64_t i, int64_t j, ch_vector sum) {
  float *c = p->c + i * p->ldc + j;
  if (p->accumulate)
    ch_store(c, ch_vector_fma(ch_splat(p->alpha), sum, ch_load(c)));
  else
    ch_store(c, p->alpha * sum);
}

/* B stored [k,n]: lanes run along n. */
INLINE void sums(const ch_product *p, int64_t i, int64_t j, int rows, int vectors, int bf16) {
  ch_vector sum[ROWS][WIDE];
  const float *a = (const float *)p->a + i * p->lda;
  int64_t lda = p->lda, ldb = p->ldb, size = bf16 ? sizeof(ch_bf16) : sizeof(float);
  int64_t ahead = (bf16 ? 2 * STEPS : STEPS) * ldb;
  TILE(int r = 0; r < rows; r++) TILE(int v = 0; v < vectors; v++) sum[r][v] = (ch_vector){0};
  for (int64_t l = 0; l < p->k; l++) {
    int64_t at = l * ldb + j;
    ch_vector left[ROWS];
    TILE(int r = 0; r < rows; r++) left[r] = ch_splat(a[r * lda + l]);
    TILE(int64_t byte = 0; byte < vectors * CH_LANES * size; byte += LINE) {
      __builtin_prefetch((const char *)p->b + (at + ahead) * size + byte);
    }
    TILE(int v = 0; v < vectors; v += 2) {
      ch_vector b[2];
      load_pair(p->b, at + v * CH_LANES, bf16, b);
      TILE(int r = 0; r < rows; r++) {
        sum[r][v] = ch_vector_fma(left[r], b[0], sum[r][v]);
        sum[r][v + 1] = ch_vector_fma(left[r], b[1], sum[r][v + 1]);
      }
    }
  }
  TILE(int r = 0; r < rows; r++) TILE(int v = 0; v < vectors; v += 2) {
    order_pair(bf16, &sum[r][v]);
    put_vector(p, i + r, j + v * CH_LANES, sum[r][v]);
    put_vector(p, i + r, j + (v + 1) * CH_LANES, sum[r][v + 1]);
  }
}

/* The last vectors of a row: those that are no pair, and one that is not full. */
INLINE void last_sums(const ch_product *p, int64_t i, int64_t j, int rows, int bf16) {
  int count = p->n - j < CH_LANES ? (int)(p->n - j) : CH_LANES;
  ch_vector sum[ROWS];
  const float *a = (const float *)p->a + i * p->lda;
  TILE(int r = 0; r < rows; r++) sum[r] = (ch_vector){0};
  for (int64_t l = 0, at = j; l < p->k; l++, at += p->ldb) {
    ch_vector b = count == CH_LANES ? load(p->b, at, bf16) : load_some(p->b, at, count, bf16);
    TILE(int r = 0; r < rows; r++) sum[r] = ch_vector_fma(ch_splat(a[r * p->lda + l]), b, sum[r]);
  }
  for (int r = 0; r < rows; r++)
    for (int c = 0; c < count; c++) put(p, i + r, j + c, sum[r][c]);
}

INLINE void strip(const ch_product *p, int64_t i, int rows, int bf16) {
  int64_t j = 0, apart = p->n / COLUMNS;
  if (p->trans_b) {
    for (; j < apart; j++) dots(p, i, j, apart, rows, COLUMNS, bf16);
    for (j = apart * COLUMNS; j < p->n; j++) dots(p, i, j, 0, rows, 1, bf16);
  } else {
    if (bf16 && rows <= FEW)
      for (; j + WIDE * CH_LANES <= p->n; j += WIDE * CH_LANES) sums(p, i, j, rows, WIDE, 1);
    for (; j + VECTORS * CH_LANES <= p->n; j += VECTORS * CH_LANES) sums(p, i, j, rows, VECTORS, bf16);
    for (; j + 2 * CH_LANES <= p->n; j += 2 * CH_LANES) sums(p, i, j, rows, 2, bf16);
    for (; j < p->n; j += CH_LANES) last_sums(p, i, j, rows, bf16);
  }
}

/* All rows, ROWS at a time and what is left one by one. */
INLINE void whole(const ch_product *p, int bf16) {
  int64_t i = 0;
  for (; i + ROWS <= p->m; i += ROWS) strip(p, i, ROWS, bf16);
  for (; i + 2 <= p->m; i += 2) strip(p, i, 2, bf16);
  if (i < p->m) strip(p, i, 1, bf16);
}

/* Where B is not transposed the inner dimension is sliced as the own product slices it: so both give the same bits. */
void CH_SIMD(ch_invariant_product)(const ch_product *p) {
  int64_t step = p->trans_b ? p->k : ch_product_slice(p->k, CH_PRODUCT_DEPTH);
  int64_t size = p->bf16 ? sizeof(ch_bf16) : sizeof(float), first = 0;
  ch_product part = *p;
  do {
    part.k = p->k - first < step ? p->k - first : step;
    part.a = (const float *)p->a + first;
    part.b = (const char *)p->b + first * p->ldb * size;
    part.accumulate = p->accumulate || first > 0;
    if (p->bf16)
      whole(&part, 1);
    else
      whole(&part, 0);
    first += step;
  } while (first < p->k);
}
