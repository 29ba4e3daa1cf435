/* One sequence and head, and the layout of its packed arrays. */
#ifndef CH_CPU_SIMD_ATTENTION_HEAD_H
#define CH_CPU_SIMD_ATTENTION_HEAD_H

#include <stdint.h>

#include "cpu/simd/rows.h"

/* Pointers to position 0 of the head. Strides between positions: kv_ld for k and v, dkv_ld for dk and dv, ld for all
 * others. bias and dbias: layout of rows.h. */
typedef struct ch_attention_head {
  int T, dh, bidirectional;
  int64_t ld, kv_ld, dkv_ld;
  float scale;
  const float *q, *k, *v, *bias, *dout;
  float *out, *lse, *dq, *dk, *dv;
  float *dbias; /* = */
  float *work;  /* ch_attention_work floats of the calling thread, 64-byte aligned */
} ch_attention_head;

/* Rows and keys per block: a right operand has 16 KiB at d_head=64, a third of L1. Forward stores scores of all keys,
 * so it uses fewer rows. */
enum { CH_ATTENTION_CHUNK = CH_SCORES_CHUNK, CH_ATTENTION_FORWARD_ROWS = CH_ATTENTION_CHUNK / 2 };

/* Stride between rows of scores: one extra cache line, so that a column's elements fall into different cache sets. */
enum { CH_ATTENTION_GAP = 16, CH_ATTENTION_LD = CH_ATTENTION_CHUNK + CH_ATTENTION_GAP };

static inline int64_t ch_attention_padded(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

/* Packed arrays are padded to whole chunks of positions and whole vectors of a head's columns. */
static inline int64_t ch_attention_keys(int T) { return ch_attention_padded(T, CH_ATTENTION_CHUNK); }
static inline int64_t ch_attention_width(int dh) { return ch_attention_padded(dh, 16); }
static inline int64_t ch_attention_stride(int T) { return ch_attention_keys(T) + CH_ATTENTION_GAP; }

/* Floats of scratch, enough for forward (scores of all keys for a block of rows) and backward (packed arrays of three
 * heads and five chunks, two blocks of scores, one number per position). */
static inline int64_t ch_attention_work(int T, int dh) {
  int64_t positions = ch_attention_keys(T), width = ch_attention_width(dh);
  return CH_ATTENTION_FORWARD_ROWS * ch_attention_stride(T) + (3 * positions + 5 * CH_ATTENTION_CHUNK) * width +
         2 * CH_ATTENTION_CHUNK * CH_ATTENTION_LD + positions;
}

/* Attention of one head on one thread; variants by instruction set (simd/attention.c). Forward writes rows begin ..
 * end-1 of out and lse; begin is a multiple of CH_ATTENTION_CHUNK. */
CH_SIMD_DECLARE(void, ch_attention_forward, (const ch_attention_head *h, int begin, int end));
CH_SIMD_DECLARE(void, ch_attention_backward, (const ch_attention_head *h));

#endif
