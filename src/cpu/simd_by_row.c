/* Tiles of a product held in registers. A tile may have any number of rows and, where B is transposed, of columns:
 * each of its elements goes through the same additions in all of them. */
#include "cpu/by_row.h"
#include "cpu/vector.h"

enum {
  ROWS = CH_LANES == 16 ? 6 : 3, /* with COLUMNS or VECTORS columns, accumulators and operands fill the registers */
  COLUMNS = CH_LANES == 16 ? 4 : 3,
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

INLINE float element(const void *b, int64_t at, int bf16) {
  return bf16 ? ch_bf16_value(((const ch_bf16 *)b)[at]) : ((const float *)b)[at];
}

INLINE void put(const ch_product *p, int64_t i, int64_t j, float sum) {
  float *c = p->c + i * p->ldc + j;
  float value = p->alpha * sum;
  *c = p->accumulate ? *c + value : value;
}

/* B stored [n,k]: lanes run along k, and what is left of k is added to their sum. */
INLINE void dots(const ch_product *p, int64_t i, int64_t j, int rows, int columns, int bf16) {
  ch_vector sum[ROWS][COLUMNS];
  const float *a = (const float *)p->a + i * p->lda;
  int64_t k = p->k, whole = k / CH_LANES * CH_LANES, at = j * p->ldb;
  for (int r = 0; r < rows; r++)
    for (int c = 0; c < columns; c++) sum[r][c] = (ch_vector){0};
  for (int64_t l = 0; l < whole; l += CH_LANES) {
    ch_vector b[COLUMNS];
    for (int c = 0; c < columns; c++) b[c] = load(p->b, at + c * p->ldb + l, bf16);
    for (int r = 0; r < rows; r++) {
      ch_vector left = ch_load(a + r * p->lda + l);
      for (int c = 0; c < columns; c++) sum[r][c] += left * b[c];
    }
  }
  for (int r = 0; r < rows; r++)
    for (int c = 0; c < columns; c++) {
      float total = ch_vector_sum(sum[r][c]);
      for (int64_t l = whole; l < k; l++) total += a[r * p->lda + l] * element(p->b, at + c * p->ldb + l, bf16);
      put(p, i + r, j + c, total);
    }
}

/* B stored [k,n]: lanes run along n. */
INLINE void sums(const ch_product *p, int64_t i, int64_t j, int rows, int vectors, int bf16) {
  ch_vector sum[ROWS][VECTORS];
  const float *a = (const float *)p->a + i * p->lda;
  for (int r = 0; r < rows; r++)
    for (int v = 0; v < vectors; v++) sum[r][v] = (ch_vector){0};
  for (int64_t l = 0; l < p->k; l++) {
    ch_vector b[VECTORS];
    int64_t at = l * p->ldb + j;
    for (int v = 0; v < vectors; v++) {
      __builtin_prefetch((const char *)p->b + (at + AHEAD * p->ldb + v * CH_LANES) * (bf16 ? 2 : 4));
      b[v] = load(p->b, at + v * CH_LANES, bf16);
    }
    for (int r = 0; r < rows; r++)
      for (int v = 0; v < vectors; v++) sum[r][v] += a[r * p->lda + l] * b[v];
  }
  for (int r = 0; r < rows; r++)
    for (int v = 0; v < vectors; v++) {
      float *c = p->c + (i + r) * p->ldc + j + v * CH_LANES;
      ch_vector value = p->alpha * sum[r][v];
      if (p->accumulate) value += ch_load(c);
      ch_store(c, value);
    }
}

/* Columns that fill no vector. */
INLINE void single_sums(const ch_product *p, int64_t i, int64_t j, int rows, int bf16) {
  for (int r = 0; r < rows; r++)
    for (int64_t c = j; c < p->n; c++) {
      float sum = 0;
      for (int64_t l = 0; l < p->k; l++)
        sum += ((const float *)p->a)[(i + r) * p->lda + l] * element(p->b, l * p->ldb + c, bf16);
      put(p, i + r, c, sum);
    }
}

INLINE void strip(const ch_product *p, int64_t i, int rows, int bf16) {
  int64_t j = 0;
  if (p->trans_b) {
    for (; j + COLUMNS <= p->n; j += COLUMNS) dots(p, i, j, rows, COLUMNS, bf16);
    for (; j < p->n; j++) dots(p, i, j, rows, 1, bf16);
  } else {
    for (; j + VECTORS * CH_LANES <= p->n; j += VECTORS * CH_LANES) sums(p, i, j, rows, VECTORS, bf16);
    for (; j + CH_LANES <= p->n; j += CH_LANES) sums(p, i, j, rows, 1, bf16);
    single_sums(p, i, j, rows, bf16);
  }
}

/* All rows, ROWS at a time and what is left one by one. */
INLINE void whole(const ch_product *p, int bf16) {
  int64_t i = 0;
  for (; i + ROWS <= p->m; i += ROWS) strip(p, i, ROWS, bf16);
  for (; i + 2 <= p->m; i += 2) strip(p, i, 2, bf16);
  if (i < p->m) strip(p, i, 1, bf16);
}

void CH_SIMD(ch_by_row)(const ch_product *p) {
  if (p->bf16)
    whole(p, 1);
  else
    whole(p, 0);
}
