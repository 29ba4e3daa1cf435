/* Facts about the machine: asked once, at plan time, never inside a step. */
#ifndef CH_BASE_MACHINE_H
#define CH_BASE_MACHINE_H

#include <stddef.h>

/* Instruction sets that kernels are compiled for, in ascending order. */
typedef enum { CH_ISA_GENERIC = 0, CH_ISA_AVX2, CH_ISA_AVX512 } ch_isa;

/* Best set this CPU and operating system run; CHOIR_ISA=generic|avx2|avx512 in the environment lowers it (tests). */
ch_isa ch_machine_isa(void);
const char *ch_isa_name(ch_isa isa);

/* CHOIR_ERROR_ARGUMENT if CHOIR_ISA names no instruction set, so that a typo does not silently measure another one. */
int ch_machine_check_wish(void);

/* Nonzero when bf16 products run in hardware: avx512_bf16 or AMX; on arm64 bfdot, unless CHOIR_ISA=generic. */
int ch_machine_has_bf16(void);

/* Nonzero when they are faster there than products of floats. Without AMX, which a virtual machine may not show,
 * Intel's CPUs do half as many operations a second by avx512_bf16 as on floats (measured on an Emerald Rapids); Cooper
 * Lake is said to be the exception. On arm64 bfdot does twice as much as an instruction for floats; no such machine has
 * been measured. */
int ch_machine_has_fast_bf16(void);

/* Nonzero when the CPU shows AMX's tiles for bf16 and the system lets this process use them, for which it is asked: it
 * may refuse where a signal stack is too small to save them on. CHOIR_ISA=avx512 leaves them alone. */
int ch_machine_has_amx(void);

/* Nonzero when the CPU has vpdpbusd (avx512_vnni), which multiplies and adds four bytes at once. */
int ch_machine_has_vnni(void);

/* CPUs this process may run on: of its affinity, and at most the quota of its control groups, rounded up. */
int ch_machine_cpus(void);

/* CPUs that the quotas of control groups leave (cpu.max; version 1: cpu.cfs_quota_us), by /proc and /sys below `root`,
 * rounded up; 0: no quota. */
int ch_machine_quota_at(const char *root);

/* Bytes of memory that can be had without swapping: what the system has, the limits of every control group that this
 * process is in (version 1 and 2, memory.max and memory.high, of the group and of all above it), and ulimits; 0 when
 * unknown. */
size_t ch_machine_available_memory(void);
/* The same with /proc and /sys below `root`, without ulimits: tests. */
size_t ch_machine_available_memory_at(const char *root);

/* Seconds on a clock that only goes forward. */
double ch_machine_seconds(void);
/* Seconds of CPU time used so far by all threads of the process. */
double ch_machine_cpu_seconds(void);

#endif
