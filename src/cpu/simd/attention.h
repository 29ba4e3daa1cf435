/* Attention of one sequence's head on one thread; variants by instruction set (simd/attention.c). */
#ifndef CH_CPU_SIMD_ATTENTION_H
#define CH_CPU_SIMD_ATTENTION_H

#include <stdint.h>

#include "cpu/simd/rows.h"

/* Pointers to position 0 of the head; `ld` between positions. bias and dbias are as rows.h wants them, with
 * CH_CAUSAL_PAD elements more than T. */
typedef struct ch_attention_head {
  int T, dh;
  int64_t ld;
  float scale;
  const float *q, *k, *v, *bias, *dout;
  float *out, *lse, *dq, *dk, *dv;
  float *dbias; /* = */
  float *work;  /* ch_attention_work floats of the calling thread's own, at a 64-byte boundary */
} ch_attention_head;

/* Rows begin .. end-1 of out and lse; begin is a multiple of CH_ATTENTION_ROWS. */
CH_SIMD_DECLARE(void, ch_attention_forward, (const ch_attention_head *h, int begin, int end));
CH_SIMD_DECLARE(void, ch_attention_backward, (const ch_attention_head *h));

/* Rows that forward and backward handle at a time, and the width that packed arrays are padded to. */
enum { CH_ATTENTION_ROWS = 64, CH_ATTENTION_PAD = 32 };

static inline int64_t ch_attention_padded(int64_t count) {
  return (count + CH_ATTENTION_PAD - 1) / CH_ATTENTION_PAD * CH_ATTENTION_PAD;
}

/* Between rows of scores: one cache line more than whole columns, so that a column's elements do not fall on each
 * other. */
static inline int64_t ch_attention_stride(int T) { return ch_attention_padded(T) + 16; }

/* Floats of scratch: five packed arrays of the head's size, two blocks of scores, three of rows, a number for each row.
 */
static inline int64_t ch_attention_work(int T, int dh) {
  int64_t keys = ch_attention_padded(T), width = ch_attention_padded(dh);
  return 5 * keys * width + CH_ATTENTION_ROWS * (2 * ch_attention_stride(T) + 3 * width + 1);
}

#endif
