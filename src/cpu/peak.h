/* The machine's peak (peak.c), measured by loops that keep its arithmetic units busy with values in registers
 * (peak_units.c). */
#ifndef CH_CPU_PEAK_H
#define CH_CPU_PEAK_H

#include <stdint.h>

#include "op/backend.h"

/* The `peak` of ch_backend_cpu. */
int ch_cpu_peak(int threads, double seconds, int memory, ch_peak *peak);

/* An arithmetic unit: `loop` does `rounds` rounds of `flops` operations each on the calling thread, and returns a
 * number that depends on every operation, so that compilers remove none. `read` (float units only) does the same with
 * `count` floats at a 64-byte boundary, count a multiple of 128; `triad` sets a = b + 3 c. */
typedef struct ch_peak_unit {
  const char *name;
  double flops;
  float (*loop)(int64_t rounds);
  float (*read)(const float *x, int64_t count);
  void (*triad)(float *a, const float *b, const float *c, int64_t count);
} ch_peak_unit;

/* The widest float unit in use, and the units for bf16 (NULL-terminated by name; at most 3). */
ch_peak_unit ch_peak_fp32(void);
void ch_peak_bf16(ch_peak_unit unit[4]);

#endif
