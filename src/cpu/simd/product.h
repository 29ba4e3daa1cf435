/* Products on one thread, in variants by instruction set (product.c). */
#ifndef CH_CPU_SIMD_PRODUCT_H
#define CH_CPU_SIMD_PRODUCT_H

#include "cpu/product.h"
#include "cpu/simd/simd.h"

/* Runs p (floats, or bf16 widened to floats) with CH_PRODUCT_SCRATCH bytes of scratch, aligned like a vector. Requires
 * k >= 1. */
CH_SIMD_DECLARE(void, ch_product_own, (const ch_product *p, float *scratch));

/* Packs B, independent of m: consecutive panels, each with all steps of the depth. */
CH_SIMD_DECLARE(void, ch_product_pack, (const ch_product *p, float *panels));

#if defined(CH_SIMD_PAIRS)
/* Variants that multiply pairs of bf16 with the instruction vdpbf16ps (arm64: bfdot) if ch_product_in_pairs. */
void CH_SIMD_PAIRS(ch_product_own)(const ch_product *p, float *scratch);
void CH_SIMD_PAIRS(ch_product_pack)(const ch_product *p, float *panels);
#endif

#if defined(__x86_64__)
/* Variant with AMX tiles, for bf16 products of every shape (product_amx.c). */
void ch_product_own_amx(const ch_product *p, float *scratch);
#endif

#endif
