#include "base/memory.h"

#include <string.h>
#include <sys/mman.h>

#include "base/machine.h"

static void CH_DEV *host_alloc(const char *name, size_t bytes) {
  (void)name;
  void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return NULL;
  madvise(p, bytes, MADV_HUGEPAGE); /* advice only: fewer page faults on the first step */
  return CH_AS_DEV(void, p);
}

static void host_free(void CH_DEV *p, size_t bytes) { munmap(CH_AS_HOST(void, p), bytes); }

static void host_zero(void CH_DEV *to, size_t bytes) { memset(CH_AS_HOST(void, to), 0, bytes); }

static void host_copy(void CH_DEV *to, const void CH_DEV *from, size_t bytes) {
  memcpy(CH_AS_HOST(void, to), CH_AS_HOST(const void, from), bytes);
}

static void host_put(void CH_DEV *to, const void *from, size_t bytes) { memcpy(CH_AS_HOST(void, to), from, bytes); }

static void host_get(void *to, const void CH_DEV *from, size_t bytes) {
  memcpy(to, CH_AS_HOST(const void, from), bytes);
}

static void host_synchronise(void) {}

const ch_memory ch_memory_host = {.host = 1,
                                  .alloc = host_alloc,
                                  .free = host_free,
                                  .available = ch_machine_available_memory,
                                  .zero = host_zero,
                                  .copy = host_copy,
                                  .put = host_put,
                                  .get = host_get,
                                  .synchronise = host_synchronise};
