#include "base/machine.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

static ch_isa detected_isa(void) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    return CH_ISA_AVX512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return CH_ISA_AVX2;
#endif
  return CH_ISA_GENERIC;
}

ch_isa ch_machine_isa(void) {
  ch_isa best = detected_isa();
  const char *requested = getenv("CHOIR_ISA");
  for (ch_isa isa = CH_ISA_GENERIC; requested && isa < best; isa++)
    if (!strcmp(requested, ch_isa_name(isa))) return isa;
  return best;
}

const char *ch_isa_name(ch_isa isa) {
  static const char *const names[] = {"generic", "avx2", "avx512"};
  return names[isa];
}

int ch_machine_check_isa(void) {
  const char *requested = getenv("CHOIR_ISA");
  for (ch_isa isa = CH_ISA_GENERIC; isa <= CH_ISA_AVX512; isa++)
    if (!requested || !*requested || !strcmp(requested, ch_isa_name(isa))) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_ARGUMENT, "CHOIR_ISA is '%.40s' in the environment: must be generic, avx2 or avx512",
                  requested);
}

int ch_machine_has_bf16(void) {
#if defined(__x86_64__)
  unsigned a, b, c, d;
  if (ch_machine_isa() < CH_ISA_AVX512) return 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & (1u << 5)) != 0; /* avx512_bf16; every AMX machine has it */
#elif defined(__aarch64__)
  enum { BF16 = 1 << 14 }; /* HWCAP2_BF16 of Linux: bfdot, among others */
  const char *requested = getenv("CHOIR_ISA");
  return (getauxval(AT_HWCAP2) & BF16) != 0 && !(requested && !strcmp(requested, ch_isa_name(CH_ISA_GENERIC)));
#else
  return 0;
#endif
}

int ch_machine_has_amx(void) {
#if defined(__x86_64__)
  enum { AMX = 1 << 24 | 1 << 22, REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
  const char *requested = getenv("CHOIR_ISA");
  unsigned a, b, c, d;
  if (!ch_machine_has_bf16() || (requested && !strcmp(requested, ch_isa_name(CH_ISA_AVX512)))) return 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & AMX) != AMX) return 0;
  return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
  return 0;
#endif
}

int ch_machine_has_fast_bf16(void) {
#if defined(__x86_64__)
  enum { FAMILY = 0xfff0ff0, COOPER_LAKE = 0x50650 };
  unsigned a, b, c, d;
  if (!ch_machine_has_bf16()) return 0;
  if (ch_machine_has_amx() || !__builtin_cpu_is("intel")) return 1;
  return __get_cpuid(1, &a, &b, &c, &d) && (a & FAMILY) == COOPER_LAKE;
#else
  return ch_machine_has_bf16();
#endif
}

int ch_machine_has_vnni(void) {
#if defined(__x86_64__)
  return ch_machine_isa() == CH_ISA_AVX512 && __builtin_cpu_supports("avx512vnni");
#else
  return 0;
#endif
}

int ch_machine_cpus(void) {
  cpu_set_t set;
  long n = sched_getaffinity(0, sizeof set, &set) ? sysconf(_SC_NPROCESSORS_ONLN) : CPU_COUNT(&set);
  int quota = ch_machine_quota_at(""), cpus = n > 0 ? (int)n : 1;
  return quota && quota < cpus ? quota : cpus;
}

static double seconds_of(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double ch_machine_seconds(void) { return seconds_of(CLOCK_MONOTONIC); }

double ch_machine_cpu_seconds(void) { return seconds_of(CLOCK_PROCESS_CPUTIME_ID); }
