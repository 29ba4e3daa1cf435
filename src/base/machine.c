#include "base/machine.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
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
  const char *wish = getenv("CHOIR_ISA");
  for (ch_isa isa = CH_ISA_GENERIC; wish && isa < best; isa++)
    if (!strcmp(wish, ch_isa_name(isa))) return isa;
  return best;
}

const char *ch_isa_name(ch_isa isa) {
  static const char *const names[] = {"generic", "avx2", "avx512"};
  return names[isa];
}

int ch_machine_has_bf16(void) {
#if defined(__x86_64__)
  unsigned a, b, c, d;
  if (ch_machine_isa() < CH_ISA_AVX512) return 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & (1u << 5)) != 0; /* avx512_bf16; every AMX machine has it */
#else
  return 0;
#endif
}

int ch_machine_cpus(void) {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  long n = sysconf(_SC_NPROCESSORS_ONLN);
  return n > 0 ? (int)n : 1;
}

/* The number behind `key` in a file of "key: number kB" lines, in bytes; or the file's only number when key is "". */
static size_t read_number(const char *path, const char *key, size_t unit) {
  FILE *f = fopen(path, "r");
  if (!f) return 0;
  char line[256];
  size_t length = strlen(key), value = 0;
  while (fgets(line, sizeof line, f))
    if (!strncmp(line, key, length)) {
      value = strtoull(line + length, NULL, 10) * unit;
      break;
    }
  fclose(f);
  return value;
}

size_t ch_machine_available_memory(void) {
  size_t available = read_number("/proc/meminfo", "MemAvailable:", 1024);
  size_t limit = read_number("/sys/fs/cgroup/memory.max", "", 1); /* "max" reads as 0 */
  if (limit) {
    size_t current = read_number("/sys/fs/cgroup/memory.current", "", 1);
    size_t cache = read_number("/sys/fs/cgroup/memory.stat", "inactive_file ", 1);
    size_t busy = current > cache ? current - cache : 0;
    size_t left = limit > busy ? limit - busy : 0;
    if (!available || left < available) available = left;
  }
  return available;
}

double ch_machine_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
