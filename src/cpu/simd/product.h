/* Products on one thread, in variants by instruction set (product.c). */
#ifndef CH_CPU_SIMD_PRODUCT_H
#define CH_CPU_SIMD_PRODUCT_H

#include "cpu/product.h"
#include "cpu/simd/simd.h"

/* Runs p, of floats or of bf16 that is widened to floats, with CH_PRODUCT_SCRATCH bytes of scratch, aligned like a
 * vector. k is at least 1. */
CH_SIMD_DECLARE(void, ch_product_own, (const ch_product *p, float *scratch));

/* Packs B, whatever p's m: panel after panel, each with all steps of the depth. */
CH_SIMD_DECLARE(void, ch_product_pack, (const ch_product *p, float *panels));

#if defined(CH_SIMD_PAIRS)
/* The same, but that bf16 is multiplied as it is, two at a time, by the instruction vdpbf16ps (arm64: bfdot), where
 * ch_product_in_pairs allows it. */
void CH_SIMD_PAIRS(ch_product_own)(const ch_product *p, float *scratch);
void CH_SIMD_PAIRS(ch_product_pack)(const ch_product *p, float *panels);
#endif

#if defined(__x86_64__)
/* The same by AMX's tiles, of bf16 only, in every form (product_amx.c). */
void ch_product_own_amx(const ch_product *p, float *scratch);
#endif

#endif
