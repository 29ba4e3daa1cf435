/* What this machine can do, measured; and what else could run a model. */
#ifndef CHOIR_MACHINE_H
#define CHOIR_MACHINE_H

#include <stddef.h>
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

/* The backends of this build, from 0: "cpu", "reference", "opencl", "cuda"; NULL behind the last. */
CHOIR_API const char *choir_backend_name(int index);

/* Whether that backend can run here: CHOIR_OK, or CHOIR_ERROR_UNSUPPORTED with what is missing. */
CHOIR_API int choir_backend_check(int index);

/* Device `number` of that backend in words, cut to `size` bytes; 0: there is none, or it is not one of devices.
 * A backend's name takes such a number behind a colon: "cuda:1". */
CHOIR_API int choir_backend_device(int index, int number, char *text, size_t size);

#ifdef __cplusplus
}
#endif
#endif
