/* Attention of one sequence's head on one thread; variants by instruction set (simd/attention.c). */
#ifndef CH_CPU_SIMD_ATTENTION_H
#define CH_CPU_SIMD_ATTENTION_H

#include "cpu/simd/attention_head.h"

/* Rows begin .. end-1 of out and lse; begin is a multiple of CH_ATTENTION_CHUNK. */
CH_SIMD_DECLARE(void, ch_attention_forward, (const ch_attention_head *h, int begin, int end));
CH_SIMD_DECLARE(void, ch_attention_backward, (const ch_attention_head *h));

#endif
