/* Backends: a table of ops and their memory, and the list of backends. */
#ifndef CH_OP_BACKEND_H
#define CH_OP_BACKEND_H

#include "op/op.h"

/* The peak rates of the hardware, measured; 0: not known. */
typedef struct ch_peak {
  int threads;
  double fp32_gflops;    /* fused multiply-adds of the widest vectors in use */
  double bf16_gflops;    /* of bf16_unit; 0 if the CPU has no bf16 instructions */
  double read_gbs;       /* main memory, reading */
  double triad_gbs;      /* main memory, a = b + s c */
  const char *isa;       /* generic, avx2, avx512 */
  const char *bf16_unit; /* the fastest of avx512_bf16, amx, bfdot, avx512 (bf16 widened to fp32); or none */
} ch_peak;

typedef struct ch_backend {
  const char *name; /* "cpu", "reference" */
  const ch_memory *memory;
  /* CHOIR_ERROR_UNSUPPORTED, naming the compute type, if the backend does not support it on this machine. */
  int (*supports)(ch_compute compute, int emulate);
  /* Sets all ops of the table, but not its `name`; a backend with device memory sets those of CH_DEVICE_OPS. */
  void (*fill)(ch_ops *ops, ch_compute compute);
  /* For backends with several devices, else NULL. *device: number of the device to open, taken from the name
   * ("cuda:1"), or -1 for any. describe: writes a description of device `number`; 0: no such device. */
  int *device;
  int (*describe)(int number, char *text, size_t size);
  /* Measures peak rates for about `seconds`. If `memory` is set, half of the time goes to main memory, with 768 MiB of
   * buffers; otherwise its rates are 0. CHOIR_ERROR_MEMORY. NULL: this backend has no way to measure them. */
  int (*peak)(int threads, double seconds, int memory, ch_peak *peak);
} ch_backend;

/* Adds a backend to those of this build (CH_BACKENDS in backend.c): for tests and embedding programs. `backend` must
 * stay valid; not thread-safe. CHOIR_ERROR_ARGUMENT: the name is in use, or there are too many backends. */
int ch_backend_register(const ch_backend *backend);

/* The backend of that name (optionally with a colon and the number of a device), or NULL with a message that lists the
 * known backends and a remedy. */
const ch_backend *ch_backend_find(const char *name);

/* Measures the peak rates of backend `name`'s hardware; all 0 if the backend cannot measure them. threads 0: all CPUs
 * of the process. CHOIR_ERROR_ARGUMENT: no such backend, or seconds that are not above 0; CHOIR_ERROR_UNSUPPORTED: this
 * machine cannot run it. */
int ch_backend_peak(const char *name, int threads, double seconds, int memory, ch_peak *peak);

/* The first listed backend that computes in host memory. */
const ch_backend *ch_backend_of_host(void);

#endif
