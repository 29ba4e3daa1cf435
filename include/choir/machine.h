/* What this machine can do, measured. */
#ifndef CHOIR_MACHINE_H
#define CHOIR_MACHINE_H

#include <stdint.h>

#include "choir/error.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct choir_machine_peak {
  int threads;
  double fp32_gflops;    /* fused multiply-adds of the widest vectors in use */
  double bf16_gflops;    /* vdpbf16ps or AMX tiles, whichever is faster; 0 where the CPU has neither */
  double read_gbs;       /* main memory, reading */
  double triad_gbs;      /* main memory, a = b + s c */
  const char *isa;       /* generic, avx2, avx512 */
  const char *bf16_unit; /* none, avx512_bf16, amx */
  int64_t reserved[8];
} choir_machine_peak;

/* Measures for about `seconds` in all (0: 0.5). threads 0: all CPUs of the process. CHOIR_ERROR_MEMORY. */
CHOIR_API int choir_machine_measure(int threads, double seconds, choir_machine_peak *peak);

/* The same without main memory, whose rates stay 0, in half the time; it needs no memory itself, the other 768 MiB. */
CHOIR_API int choir_machine_measure_arithmetic(int threads, double seconds, choir_machine_peak *peak);

#ifdef __cplusplus
}
#endif
#endif
