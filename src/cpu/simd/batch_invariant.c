/* Tiles of a product held in registers. A tile may have any number of rows and, where B is transposed, of columns:
 * each of its elements goes through the same additions in all of them. */
#include "cpu/batch_invariant.h"

#include "cpu/simd/vector.h"

enum {
  ROWS = CH_LANES == 16 ? 6 : 3, /* with so many columns or vectors, accumulators and operands fill the registers */
  COLUMNS = 4,
  VECTORS = CH_LANES == 16 ? 4 : 3,
  AHEAD = 8 /* steps that rows of B are asked for early: they lie too far apart for the hardware to guess */
};

typedef uint16_t halves __attribute__((vector_size(CH_LANES * sizeof(uint16_t)), aligned(2), may_alias));
typedef uint32_t words __attribute__((vector_size(CH_LANES * sizeof(uint32_t)), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))

INLINE ch_vector load(const void *b, int64_t at, int bf16) {
  if (!bf16) return ch_load((const float *)b + at);
  return (ch_vector)(__builtin_convertvector(*(const halves *)((const ch_bf16 *)b + at), words) << 16);
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

/* B stored [n,k]: lanes run along k. */
INLINE void dots(const ch_product *p, int64_t i, int64_t j, int rows, int columns, int bf16) {
  ch_vector sum[ROWS][COLUMNS];
  const float *a = (const float *)p->a + i * p->lda;
  const void *b = p->b;
  int64_t lda = p->lda, ldb = p->ldb, at = j * ldb, whole = p->k / CH_LANES * CH_LANES;
  int rest = (int)(p->k - whole);
  TILE(int r = 0; r < rows; r++) TILE(int c = 0; c < COLUMNS; c++) sum[r][c] = (ch_vector){0};
  for (int64_t l = 0; l < whole; l += CH_LANES) DOTS_STEP(ch_load(a + r * lda + l), load(b, at + c * ldb + l, bf16));
  if (rest) DOTS_STEP(load_some(a, r * lda + whole, rest, 0), load_some(b, at + c * ldb + whole, rest, bf16));
  TILE(int r = 0; r < rows; r++) {
    ch_quad sums = ch_vector_sums(sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
    TILE(int c = 0; c < columns; c++) put(p, i + r, j + c, sums[c]);
  }
}

/* B stored [k,n]: lanes run along n. */
INLINE void sums(const ch_product *p, int64_t i, int64_t j, int rows, int vectors, int bf16) {
  ch_vector sum[ROWS][VECTORS];
  const float *a = (const float *)p->a + i * p->lda;
  int64_t lda = p->lda, ldb = p->ldb, size = bf16 ? sizeof(ch_bf16) : sizeof(float);
  TILE(int r = 0; r < rows; r++) TILE(int v = 0; v < vectors; v++) sum[r][v] = (ch_vector){0};
  for (int64_t l = 0; l < p->k; l++) {
    ch_vector b[VECTORS];
    int64_t at = l * ldb + j;
    TILE(int v = 0; v < vectors; v++) {
      __builtin_prefetch((const char *)p->b + (at + AHEAD * ldb + v * CH_LANES) * size);
      b[v] = load(p->b, at + v * CH_LANES, bf16);
    }
    TILE(int r = 0; r < rows; r++) {
      ch_vector left = ch_splat(a[r * lda + l]);
      TILE(int v = 0; v < vectors; v++) sum[r][v] = ch_vector_fma(left, b[v], sum[r][v]);
    }
  }
  TILE(int r = 0; r < rows; r++) TILE(int v = 0; v < vectors; v++) {
    float *c = p->c + (i + r) * p->ldc + j + v * CH_LANES;
    if (p->accumulate)
      ch_store(c, ch_vector_fma(ch_splat(p->alpha), sum[r][v], ch_load(c)));
    else
      ch_store(c, p->alpha * sum[r][v]);
  }
}

/* The last columns, which fill no vector. */
INLINE void last_sums(const ch_product *p, int64_t i, int64_t j, int rows, int bf16) {
  int count = (int)(p->n - j);
  ch_vector sum[ROWS];
  for (int r = 0; r < rows; r++) sum[r] = (ch_vector){0};
  for (int64_t l = 0; l < p->k; l++) {
    ch_vector b = load_some(p->b, l * p->ldb + j, count, bf16);
    for (int r = 0; r < rows; r++)
      sum[r] = ch_vector_fma(ch_splat(((const float *)p->a)[(i + r) * p->lda + l]), b, sum[r]);
  }
  for (int r = 0; r < rows; r++)
    for (int c = 0; c < count; c++) put(p, i + r, j + c, sum[r][c]);
}

INLINE void strip(const ch_product *p, int64_t i, int rows, int bf16) {
  int64_t j = 0;
  if (p->trans_b) {
    for (; j + COLUMNS <= p->n; j += COLUMNS) dots(p, i, j, rows, COLUMNS, bf16);
    for (; j < p->n; j++) dots(p, i, j, rows, 1, bf16);
  } else {
    for (; j + VECTORS * CH_LANES <= p->n; j += VECTORS * CH_LANES) sums(p, i, j, rows, VECTORS, bf16);
    for (; j + 2 * CH_LANES <= p->n; j += 2 * CH_LANES) sums(p, i, j, rows, 2, bf16);
    if (j + CH_LANES <= p->n) sums(p, i, j, rows, 1, bf16), j += CH_LANES;
    if (j < p->n) last_sums(p, i, j, rows, bf16);
  }
}

/* All rows, ROWS at a time and what is left one by one. */
INLINE void whole(const ch_product *p, int bf16) {
  int64_t i = 0;
  for (; i + ROWS <= p->m; i += ROWS) strip(p, i, ROWS, bf16);
  for (; i + 2 <= p->m; i += 2) strip(p, i, 2, bf16);
  if (i < p->m) strip(p, i, 1, bf16);
}

void CH_SIMD(ch_invariant_product)(const ch_product *p) {
  if (p->bf16)
    whole(p, 1);
  else
    whole(p, 0);
}
