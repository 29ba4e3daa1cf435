/* Functions compiled once per instruction set and selected at run time.
 *
 * A C file of src/cpu/simd is built as generic, avx2 and avx512 (CMakeLists.txt) with CH_ISA_SUFFIX set, and defines
 * every external function as CH_SIMD(name). A header declares all variants at once, CH_SIMD_DECLARE(void, ch_exp_rows,
 * (int64_t n, const float *x, float *y)); and the code that fills the op table selects the best variant for this
 * machine: CH_SIMD_PICK(ch_exp_rows). Products are also built with the instruction for pairs of bf16, as avx512_bf16
 * or, for arm64, as bfdot (CH_SIMD_PAIRS), and product_amx.c only for AMX, as amx; their headers declare these
 * variants. */
#ifndef CH_CPU_SIMD_SIMD_H
#define CH_CPU_SIMD_SIMD_H

#include "base/machine.h"

#define CH_SIMD_PASTE2(name, suffix) name##_##suffix
#define CH_SIMD_PASTE(name, suffix) CH_SIMD_PASTE2(name, suffix)
#define CH_SIMD(name) CH_SIMD_PASTE(name, CH_ISA_SUFFIX)

#if defined(__x86_64__)
#define CH_SIMD_DECLARE(type, name, arguments) \
  type name##_generic arguments;               \
  type name##_avx2 arguments;                  \
  type name##_avx512 arguments
#define CH_SIMD_PICK(name) \
  (ch_machine_isa() == CH_ISA_AVX512 ? name##_avx512 : ch_machine_isa() == CH_ISA_AVX2 ? name##_avx2 : name##_generic)
#define CH_SIMD_PAIRS(name) name##_avx512_bf16
#else
#define CH_SIMD_DECLARE(type, name, arguments) type name##_generic arguments
#define CH_SIMD_PICK(name) name##_generic
#if defined(__aarch64__)
#define CH_SIMD_PAIRS(name) name##_bfdot
#endif
#endif

#endif
