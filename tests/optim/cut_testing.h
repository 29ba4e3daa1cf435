/* Matrices that several ranks hold by columns, for tests of how they are updated. */
#ifndef CH_TESTS_CUT_TESTING_H
#define CH_TESTS_CUT_TESTING_H

#include "testing.h"

/* Columns first .. first+own-1 of x [lines,cols], by themselves. */
static inline void cut_take(const real *x, int64_t lines, int64_t cols, int64_t first, int64_t own, real *part) {
  for (int64_t i = 0; i < lines; i++) memcpy(part + i * own, x + i * cols + first, (size_t)own * sizeof *x);
}

/* And back. */
static inline void cut_put(const real *part, int64_t lines, int64_t cols, int64_t first, int64_t own, real *x) {
  for (int64_t i = 0; i < lines; i++) memcpy(x + i * cols + first, part + i * own, (size_t)own * sizeof *x);
}

/* N(0,1) numbers [lines,cols] of a size that grows along a row and differs from row to row: no part of the columns
 * stands for the others. */
static inline void cut_normal(real *x, int64_t lines, int64_t cols, double size, uint32_t sub) {
  test_normal(x, lines * cols, sub);
  for (int64_t i = 0; i < lines * cols; i++)
    x[i] *= (real)(size * (1 + 30 * (double)(i % cols) / (double)cols) * (i / cols % 2 ? 0.1 : 1));
}

#endif
