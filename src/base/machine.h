/* Properties of the machine, queried once, at plan time, never within a step. */
#ifndef CH_BASE_MACHINE_H
#define CH_BASE_MACHINE_H

#include <stddef.h>

/* Instruction sets that kernels are compiled for, in ascending order. */
typedef enum { CH_ISA_GENERIC = 0, CH_ISA_AVX2, CH_ISA_AVX512 } ch_isa;

/* Best instruction set that this CPU and operating system support; the environment variable
 * CHOIR_ISA=generic|avx2|avx512 lowers it (tests). */
ch_isa ch_machine_isa(void);
const char *ch_isa_name(ch_isa isa);

/* CHOIR_ERROR_ARGUMENT if CHOIR_ISA names no instruction set, so that a typo cannot silently select another one. */
int ch_machine_check_isa(void);

/* Nonzero when bf16 products run in hardware: avx512_bf16 or AMX; on arm64 bfdot, unless CHOIR_ISA=generic. */
int ch_machine_has_bf16(void);

/* Nonzero when bf16 products are faster than float products. Without AMX, which virtual machines may hide, Intel CPUs
 * have half the throughput with avx512_bf16 that they have with floats (measured on an Emerald Rapids); Cooper Lake is
 * reported to be an exception. On arm64 bfdot has twice the throughput of float instructions (not measured). */
int ch_machine_has_fast_bf16(void);

/* Nonzero when the CPU has AMX tiles for bf16 and the system grants this process their use, which is requested here; it
 * refuses if a signal stack is too small to save tiles. CHOIR_ISA=avx512 disables AMX. */
int ch_machine_has_amx(void);

/* Nonzero when the CPU has vpdpbusd (avx512_vnni), which multiplies and adds four bytes at once. */
int ch_machine_has_vnni(void);

/* CPUs this process may run on: those of its affinity mask, at most the quota of its cgroups, rounded up. */
int ch_machine_cpus(void);

/* CPU quota of cgroups (cpu.max; version 1: cpu.cfs_quota_us), rounded up, from /proc and /sys below `root`; 0: no
 * quota. */
int ch_machine_quota_at(const char *root);

/* Bytes of memory available without swapping: the min of the system's memory, the limits of this process's cgroups and
 * their ancestors (version 1 and 2, memory.max and memory.high), and ulimits; 0 if unknown. */
size_t ch_machine_available_memory(void);
/* For tests: with /proc and /sys below `root`, without ulimits. */
size_t ch_machine_available_memory_at(const char *root);

/* Seconds of a monotonic clock. */
double ch_machine_seconds(void);
/* Seconds of CPU time used so far by all threads of the process. */
double ch_machine_cpu_seconds(void);

#endif
