/* How a head's positions come to where tiles read them, and what is fetched meanwhile. */
#ifndef CH_CPU_SIMD_ATTENTION_PACK_H
#define CH_CPU_SIMD_ATTENTION_PACK_H

#include <string.h>

#include "cpu/simd/attention_head.h"
#include "cpu/simd/attention_tile.h"
#include "cpu/simd/transpose.h"

/* y[r,:] = factor x[r,:] for r < rows, padded with zeros to [most,width]. */
static inline void ch_head_pack(const ch_attention_head *h, const float *x, int64_t ld, int rows, int most,
                                float factor, float *y) {
  int64_t width = ch_attention_width(h->dh), dh = h->dh;
  for (int r = 0; r < rows; r++, x += ld, y += width) {
    int c = 0;
    for (; c + CH_LANES <= dh; c += CH_LANES) ch_store(y + c, factor * ch_load(x + c));
    for (; c < dh; c++) y[c] = factor * x[c];
    for (; c < width; c++) y[c] = 0;
  }
  if (rows < most) memset(y, 0, (size_t)((most - rows) * width) * sizeof(float));
}

/* The transpose of x[rows,dh] in panels of [dh,CH_HEAD_COLUMNS], the last one padded with zeros. */
static inline void ch_head_pack_panels(const ch_attention_head *h, const float *x, int64_t ld, int rows, float *y) {
  int dh = h->dh;
  for (int j = 0; j < rows; j += CH_HEAD_COLUMNS, y += CH_HEAD_COLUMNS * dh) {
    int filled = rows - j < CH_HEAD_COLUMNS ? rows - j : CH_HEAD_COLUMNS;
    ch_transpose(filled, dh, x + j * ld, ld, y, CH_HEAD_COLUMNS);
    for (int c = 0; filled < CH_HEAD_COLUMNS && c < dh; c++)
      for (int l = filled; l < CH_HEAD_COLUMNS; l++) y[c * CH_HEAD_COLUMNS + l] = 0;
  }
}

/* Fetches positions first .. first+CH_HEAD_ROWS-1 of x while something else is computed: what is packed next and
 * written next stands in short pieces, each in a page of its own, which the processor does not foresee. */
static inline void ch_head_fetch(const ch_attention_head *h, const float *x, int64_t ld, int first) {
  enum { LINE = 16 };
  for (int r = first; r < first + CH_HEAD_ROWS && r < h->T; r++)
    for (int c = 0; c < h->dh; c += LINE) __builtin_prefetch(x + r * ld + c, 0, 2);
}

#endif
