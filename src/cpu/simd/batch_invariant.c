/* Tiles of a product held in registers. A tile may have any number of rows and, if B is transposed, of columns: an
 * element's additions do not depend on the tile's size. With few rows the speed is limited by loading B, which needs
 * many cache lines in flight: hence wide rows, several distant streams, and prefetching. */
#include "cpu/batch_invariant.h"

#include <string.h>

#include "cpu/simd/vector.h"

enum {
  ROWS = CH_LANES == 16 ? 6 : 3, /* rows per tile: accumulators and operands fill the registers */
  COLUMNS = 4,
  VECTORS = 4,
  SMALL = 2, /* up to this many rows loading B dominates */
  WIDE = 8,  /* vectors per bf16 tile of so few rows: as many bytes of B as VECTORS vectors of floats */
  LINE = 64,
  AHEAD = 1024,               /* prefetch distance in bytes if lanes run along a row of B, */
  STEPS = 8,                  /* else in rows, too far apart for hardware prefetching; twice as many for bf16 */
  BROAD = CH_INVARIANT_BROAD, /* columns whose sums (of one row of A) stay in L1, */
  DEEP = 4                    /* and steps per pass over these sums */
};

#define INLINE static inline __attribute__((always_inline))

/* Types of operands: both floats; bf16 B and float A; or both bf16, multiplied in pairs (two steps at once). */
typedef enum { FLOATS, HALVES, PAIRS } kind;

/* Steps per lane, and bytes per element of B. */
INLINE int64_t each_of(kind of) { return of == PAIRS ? 2 : 1; }
INLINE int64_t size_of(kind of) { return of == FLOATS ? sizeof(float) : sizeof(ch_bf16); }

/* Loads the vector at index `at` of a row of B, or of a row of A of the same kind. */
INLINE ch_vector load_vector(const void *b, int64_t at, kind of) {
  if (of == PAIRS) return (ch_vector) * (const ch_u32_lanes *)((const ch_bf16 *)b + at);
  return of == HALVES ? ch_load_bf16((const ch_bf16 *)b + at) : ch_load((const float *)b + at);
}

/* Loads the first `count` elements; the other lanes are 0. A row's tail is not a scalar loop, because compilers fuse
 * multiply and add in some loops and not in others, which changes bits. */
INLINE ch_vector load_some(const void *b, int64_t at, int count, kind of) {
  float lane[CH_LANES] = {0};
  if (of == PAIRS) memcpy(lane, (const ch_bf16 *)b + at, (size_t)count * sizeof(ch_bf16));
  for (int l = 0; l < count && of != PAIRS; l++)
    lane[l] = of == HALVES ? ch_bf16_value(((const ch_bf16 *)b)[at + l]) : ((const float *)b)[at + l];
  return ch_load(lane);
}

/* Broadcasts the element (or pair) at index `at` of a row of A to all lanes. */
INLINE ch_vector splat(const void *a, int64_t at, kind of) {
  typedef float word __attribute__((may_alias, aligned(2)));
  return ch_splat(of == PAIRS ? *(const word *)((const ch_bf16 *)a + at) : ((const float *)a)[at]);
}

INLINE ch_vector multiply(ch_vector a, ch_vector b, ch_vector sum, kind of) {
  return of == PAIRS ? ch_vector_pairs(a, b, sum) : ch_vector_fma(a, b, sum);
}

INLINE void put(const ch_product *p, int64_t i, int64_t j, float sum) {
  float *c = p->c + i * p->ldc + j;
  *c = p->accumulate ? ch_fma(p->alpha, sum, *c) : p->alpha * sum;
}

/* Loops over the rows and columns of a tile are unrolled, so that it stays in registers. */
#define TILE _Pragma("GCC unroll 8") for

/* One step of a tile: rows of A from `a` on, columns of B from `b` on. */
#define DOTS_STEP(load_a, load_b)                                                         \
  do {                                                                                    \
    ch_vector left[ROWS];                                                                 \
    TILE(int r = 0; r < rows; r++) left[r] = load_a;                                      \
    TILE(int c = 0; c < columns; c++) {                                                   \
      ch_vector right = load_b;                                                           \
      TILE(int r = 0; r < rows; r++) sum[r][c] = multiply(left[r], right, sum[r][c], of); \
    }                                                                                     \
  } while (0)

/* B stored [n,k]: lanes run along k. The columns of a tile are `apart` columns from each other, so that each is a
 * separate sequential stream for the hardware prefetcher. */
INLINE void dots(const ch_product *p, int64_t i, int64_t j, int64_t apart, int rows, int columns, kind of) {
  ch_vector sum[ROWS][COLUMNS];
  const kind of_a = of == HALVES ? FLOATS : of;
  const void *a = p->a, *b = p->b;
  int64_t row = i * p->lda, lda = p->lda, at = j * p->ldb, step = apart * p->ldb;
  int64_t lanes = CH_LANES * each_of(of), whole = p->k / lanes * lanes, size = size_of(of);
  int rest = (int)(p->k - whole);
  TILE(int r = 0; r < rows; r++) TILE(int c = 0; c < COLUMNS; c++) sum[r][c] = (ch_vector){0};
  for (int64_t l = 0; l < whole; l += lanes) {
    if (rows <= SMALL && l * size % LINE == 0)
      TILE(int c = 0; c < columns; c++) __builtin_prefetch((const char *)b + (at + c * step + l) * size + AHEAD);
    DOTS_STEP(load_vector(a, row + r * lda + l, of_a), load_vector(b, at + c * step + l, of));
  }
  if (rest) DOTS_STEP(load_some(a, row + r * lda + whole, rest, of_a), load_some(b, at + c * step + whole, rest, of));
  TILE(int r = 0; r < rows; r++) {
    ch_quad sums = ch_vector_sums(sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
    TILE(int c = 0; c < columns; c++) put(p, i + r, j + c * apart, sums[c]);
  }
}

/* Loads two vectors of a step of B: consecutive elements or, for bf16, the even and the odd elements, which takes fewer
 * instructions. */
INLINE void load_two(const void *b, int64_t at, int64_t ldb, kind of, ch_vector two[2]) {
  const ch_bf16 *half = (const ch_bf16 *)b + at;
  const uint32_t high = 0xffff0000U;
  if (of == FLOATS) {
    two[0] = load_vector(b, at, of);
    two[1] = load_vector(b, at + CH_LANES, of);
  } else if (of == HALVES) {
    ch_u32_lanes both = *(const ch_u32_lanes *)half;
    two[0] = (ch_vector)(both << 16);
    two[1] = (ch_vector)(both & high);
  } else {
    ch_u32_lanes first = *(const ch_u32_lanes *)half, second = *(const ch_u32_lanes *)(half + ldb);
    two[0] = (ch_vector)((first & ~high) | second << 16);
    two[1] = (ch_vector)(first >> 16 | (second & high));
  }
}

/* Reorders two vectors from load_two to consecutive elements. */
INLINE void order_two(kind of, ch_vector two[2]) {
  float lane[2 * CH_LANES];
  if (of == FLOATS) return;
  for (int l = 0; l < CH_LANES; l++) {
    lane[2 * l] = two[0][l];
    lane[2 * l + 1] = two[1][l];
  }
  two[0] = ch_load(lane);
  two[1] = ch_load(lane + CH_LANES);
}

INLINE void put_vector(const ch_product *p, int64_t i, int64_t j, ch_vector sum) {
  float *c = p->c + i * p->ldc + j;
  if (p->accumulate)
    ch_store(c, ch_vector_fma(ch_splat(p->alpha), sum, ch_load(c)));
  else
    ch_store(c, p->alpha * sum);
}

/* B stored [k,n]: lanes run along n. With pairs k is even. */
INLINE void sums(const ch_product *p, int64_t i, int64_t j, int rows, int vectors, kind of) {
  ch_vector sum[ROWS][WIDE];
  int64_t row = i * p->lda, lda = p->lda, ldb = p->ldb, size = size_of(of), each = each_of(of);
  int64_t ahead = (of == FLOATS ? STEPS : 2 * STEPS) * ldb;
  TILE(int r = 0; r < rows; r++) TILE(int v = 0; v < vectors; v++) sum[r][v] = (ch_vector){0};
  for (int64_t l = 0; l < p->k; l += each) {
    int64_t at = l * ldb + j;
    ch_vector left[ROWS];
    TILE(int r = 0; r < rows; r++) left[r] = splat(p->a, row + r * lda + l, of);
    TILE(int64_t next = 0; next < each; next++) TILE(int64_t byte = 0; byte < vectors * CH_LANES * size; byte += LINE) {
      __builtin_prefetch((const char *)p->b + (at + ahead + next * ldb) * size + byte);
    }
    TILE(int v = 0; v < vectors; v += 2) {
      ch_vector b[2];
      load_two(p->b, at + v * CH_LANES, ldb, of, b);
      TILE(int r = 0; r < rows; r++) {
        sum[r][v] = multiply(left[r], b[0], sum[r][v], of);
        sum[r][v + 1] = multiply(left[r], b[1], sum[r][v + 1], of);
      }
    }
  }
  TILE(int r = 0; r < rows; r++) TILE(int v = 0; v < vectors; v += 2) {
    order_two(of, &sum[r][v]);
    put_vector(p, i + r, j + v * CH_LANES, sum[r][v]);
    put_vector(p, i + r, j + (v + 1) * CH_LANES, sum[r][v + 1]);
  }
}

/* Adds DEEP steps to two adjacent vectors of sums, and prefetches their lines of later rows of B. */
INLINE void broad_steps(const ch_vector *left, const char *b, int64_t ldb, kind of, ch_vector two[2]) {
  const int64_t row = ldb * size_of(of), each = each_of(of);
  TILE(int64_t s = 0; s < DEEP * each; s++)
  TILE(int64_t byte = 0; byte < 2 * CH_LANES * size_of(of); byte += LINE)
  __builtin_prefetch(b + (2 * DEEP * each + s) * row + byte, 0, 2);
  TILE(int s = 0; s < DEEP; s++) {
    ch_vector right[2];
    load_two(b + s * each * row, 0, ldb, of, right);
    two[0] = multiply(left[s], right[0], two[0], of);
    two[1] = multiply(left[s], right[1], two[1], of);
  }
}

/* One row of A, B stored [k,n]: reads each row of B over all `columns`, in memory order. Reading only a tile's width of
 * each row loses a third of the bandwidth. `columns` is a multiple of two vectors. */
INLINE void broad_sums(const ch_product *p, int64_t i, int64_t j, int64_t columns, kind of) {
  ch_vector sum[BROAD / CH_LANES];
  int64_t row = i * p->lda, ldb = p->ldb, size = size_of(of), each = each_of(of), l = 0, vectors = columns / CH_LANES;
  for (int64_t v = 0; v < vectors; v++) sum[v] = (ch_vector){0};
  for (; l + DEEP * each <= p->k; l += DEEP * each) {
    ch_vector left[DEEP];
    TILE(int s = 0; s < DEEP; s++) left[s] = splat(p->a, row + l + s * each, of);
    for (int64_t v = 0; v < vectors; v += 2)
      broad_steps(left, (const char *)p->b + (l * ldb + j + v * CH_LANES) * size, ldb, of, &sum[v]);
  }
  for (; l < p->k; l += each)
    for (int64_t v = 0; v < vectors; v += 2) {
      ch_vector right[2], left = splat(p->a, row + l, of);
      load_two(p->b, l * ldb + j + v * CH_LANES, ldb, of, right);
      sum[v] = multiply(left, right[0], sum[v], of);
      sum[v + 1] = multiply(left, right[1], sum[v + 1], of);
    }
  for (int64_t v = 0; v < vectors; v += 2) {
    order_two(of, &sum[v]);
    put_vector(p, i, j + v * CH_LANES, sum[v]);
    put_vector(p, i, j + (v + 1) * CH_LANES, sum[v + 1]);
  }
}

/* Loads up to a vector of a row of B, or of a pair of rows. Lanes beyond `count` hold the following elements of B if
 * there are enough; their sums are not stored. */
INLINE ch_vector load_row(const ch_product *p, int64_t at, int count, kind of) {
  int follows = at + CH_LANES <= (p->k - 1) * p->ldb + p->n;
  return follows ? load_vector(p->b, at, of) : load_some(p->b, at, count, of);
}
INLINE ch_vector load_last(const ch_product *p, int64_t at, int count, kind of) {
  if (of != PAIRS) return load_row(p, at, count, of);
  ch_u32_lanes first = (ch_u32_lanes)load_row(p, at, count, HALVES),
               second = (ch_u32_lanes)load_row(p, at + p->ldb, count, HALVES);
  return (ch_vector)(first >> 16 | second);
}

/* The last columns of a row: a single vector, and a partial one. */
INLINE void last_sums(const ch_product *p, int64_t i, int64_t j, int rows, kind of) {
  int count = p->n - j < CH_LANES ? (int)(p->n - j) : CH_LANES;
  ch_vector sum[ROWS];
  TILE(int r = 0; r < rows; r++) sum[r] = (ch_vector){0};
  for (int64_t l = 0; l < p->k; l += each_of(of)) {
    ch_vector b = load_last(p, l * p->ldb + j, count, of);
    TILE(int r = 0; r < rows; r++) sum[r] = multiply(splat(p->a, (i + r) * p->lda + l, of), b, sum[r], of);
  }
  for (int r = 0; r < rows; r++)
    for (int c = 0; c < count; c++) put(p, i + r, j + c, sum[r][c]);
}

INLINE void strip(const ch_product *p, int64_t i, int rows, kind of) {
  const int64_t two = 2 * CH_LANES;
  int64_t j = 0, apart = p->n / COLUMNS;
  if (p->trans_b) {
    for (; j < apart; j++) dots(p, i, j, apart, rows, COLUMNS, of);
    for (j = apart * COLUMNS; j < p->n; j++) dots(p, i, j, 0, rows, 1, of);
  } else {
    for (int64_t left; rows == 1 && (left = (p->n - j) / two * two) > 0; j += left < BROAD ? left : BROAD)
      broad_sums(p, i, j, left < BROAD ? left : BROAD, of);
    if (of != FLOATS && rows <= SMALL)
      for (; j + WIDE * CH_LANES <= p->n; j += WIDE * CH_LANES) sums(p, i, j, rows, WIDE, of);
    for (; j + VECTORS * CH_LANES <= p->n; j += VECTORS * CH_LANES) sums(p, i, j, rows, VECTORS, of);
    for (; j + 2 * CH_LANES <= p->n; j += 2 * CH_LANES) sums(p, i, j, rows, 2, of);
    for (; j < p->n; j += CH_LANES) last_sums(p, i, j, rows, of);
  }
}

/* All rows: ROWS at a time, the remainder one at a time. */
INLINE void whole(const ch_product *p, kind of) {
  int64_t i = 0;
  for (; i + ROWS <= p->m; i += ROWS) strip(p, i, ROWS, of);
  for (; i + 2 <= p->m; i += 2) strip(p, i, 2, of);
  if (i < p->m) strip(p, i, 1, of);
}

/* If B is not transposed, the inner dimension is sliced as in choir's own product (product.c), so both give the same
 * bits. */
INLINE void in_slices(const ch_product *p, kind of) {
  int64_t each = each_of(of), first = 0;
  int64_t step = p->trans_b ? p->k : each * ch_product_slice((p->k + each - 1) / each, CH_PRODUCT_DEPTH);
  ch_product part = *p;
  do {
    part.k = p->k - first < step ? p->k - first : step;
    part.a = (const char *)p->a + first * (of == PAIRS ? size_of(PAIRS) : size_of(FLOATS));
    part.b = (const char *)p->b + first * p->ldb * size_of(of);
    part.accumulate = p->accumulate || first > 0;
    whole(&part, of);
    first += step;
  } while (first < p->k);
}

#if CH_HAS_PAIRS
void CH_SIMD(ch_invariant_pairs)(const ch_product *p) { in_slices(p, PAIRS); }
#else
void CH_SIMD(ch_invariant_product)(const ch_product *p) {
  if (p->bf16)
    in_slices(p, HALVES);
  else
    in_slices(p, FLOATS);
}
#endif
