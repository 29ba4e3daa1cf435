#include "base/memory.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/machine.h"

/* ---- staging ---- */

typedef struct {
  uintptr_t base;
  size_t bytes;
  const ch_memory *memory;
  char *twin; /* the area's staging copy in host memory */
} memory_area;
static memory_area *areas;
static atomic_int count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Maps the twin immediately, because an exchange cannot fail; its pages are allocated on first use. */
static int stage_add(const ch_memory *memory, const void CH_DEV *base, size_t bytes) {
  char *twin = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (twin == MAP_FAILED)
    return ch_error(CHOIR_ERROR_MEMORY, "no addresses on the host for the copy of %zu MiB of a device's memory",
                    bytes >> 20);
  pthread_mutex_lock(&lock);
  memory_area *more = reallocarray(areas, (size_t)count + 1, sizeof *areas);
  if (more) {
    areas = more;
    areas[count++] = (memory_area){.base = (uintptr_t)base, .bytes = bytes, .memory = memory, .twin = twin};
  }
  pthread_mutex_unlock(&lock);
  if (more) return CHOIR_OK;
  munmap(twin, bytes);
  return ch_error(CHOIR_ERROR_MEMORY, "no memory for the list of a device's arenas");
}

static void stage_remove(const void CH_DEV *base) {
  int i = 0;
  pthread_mutex_lock(&lock);
  while (areas[i].base != (uintptr_t)base) i++;
  munmap(areas[i].twin, areas[i].bytes);
  areas[i] = areas[--count];
  if (!count) {
    free(areas);
    areas = NULL;
  }
  pthread_mutex_unlock(&lock);
}

int ch_stage_is_used(void) { return count > 0; }

void *ch_stage_twin(const void *p, const ch_memory **memory) {
  char *twin = NULL;
  if (!ch_stage_is_used()) return NULL;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < count && !twin; i++) {
    size_t at = (uintptr_t)p - areas[i].base;
    if (at >= areas[i].bytes) continue;
    twin = areas[i].twin + at;
    *memory = areas[i].memory;
  }
  pthread_mutex_unlock(&lock);
  return twin;
}

void ch_stage_copy(void *to, const void *from, size_t bytes) {
  const ch_memory *target = NULL, *source = NULL;
  ch_stage_twin(to, &target);
  ch_stage_twin(from, &source);
  if (target && source)
    target->copy(CH_AS_DEV(void, to), CH_AS_DEV(const void, from), bytes);
  else if (target)
    target->upload(CH_AS_DEV(void, to), from, bytes);
  else if (source)
    source->download(to, CH_AS_DEV(const void, from), bytes);
  else if (bytes) /* with 0 bytes, either may be NULL */
    memcpy(to, from, bytes);
}

/* ---- host memory ---- */

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

static void host_upload(void CH_DEV *to, const void *from, size_t bytes) { memcpy(CH_AS_HOST(void, to), from, bytes); }

static void host_download(void *to, const void CH_DEV *from, size_t bytes) {
  memcpy(to, CH_AS_HOST(const void, from), bytes);
}

static void host_synchronise(void) {}

const ch_memory ch_memory_host = {.host = 1,
                                  .alloc = host_alloc,
                                  .free = host_free,
                                  .available = ch_machine_available_memory,
                                  .zero = host_zero,
                                  .copy = host_copy,
                                  .upload = host_upload,
                                  .download = host_download,
                                  .synchronise = host_synchronise};

enum { ALIGNMENT = 64, HUGE_PAGE = 2 << 20 };
/* Base of the addresses of counting arenas: never NULL, aligned, and unmapped, so a stray read crashes. */
#define COUNTING_BASE CH_AS_DEV(char, ALIGNMENT)

void ch_arena_init(ch_arena *a, const char *name, const ch_memory *memory) {
  *a = (ch_arena){.name = name, .memory = memory};
}

size_t ch_arena_size(size_t peak) { return (peak + HUGE_PAGE) & ~(size_t)(HUGE_PAGE - 1); }

int ch_arena_commit(ch_arena *a) {
  size_t bytes = ch_arena_size(a->peak);
  /* Not for small arenas: the query reads several system files, which is slower than routing a few tokens. */
  size_t available = bytes > HUGE_PAGE ? a->memory->available() : 0;
  if (available && bytes > available)
    return ch_error(CHOIR_ERROR_MEMORY,
                    "%s: %.2f GiB needed but only %.2f GiB of memory is available; use a smaller model or batch",
                    a->name, (double)bytes / 0x1p30, (double)available / 0x1p30);
  void CH_DEV *p = a->memory->alloc(a->name, bytes);
  if (!p && a->memory->check) CH_TRY(a->memory->check());
  if (!p) return ch_error(CHOIR_ERROR_MEMORY, "%s: cannot reserve %.2f GiB of memory", a->name, (double)bytes / 0x1p30);
  int code = a->memory->host ? CHOIR_OK : stage_add(a->memory, p, bytes);
  if (code) {
    a->memory->free(p, bytes);
    return code;
  }
  a->base = p;
  a->size = bytes;
  a->used = 0;
  return CHOIR_OK;
}

void ch_arena_free(ch_arena *a) {
  if (a->base && !a->memory->host) stage_remove(a->base);
  if (a->base) a->memory->free(a->base, a->size);
  ch_arena_init(a, a->name, a->memory);
}

void CH_DEV *ch_arena_alloc(ch_arena *a, size_t bytes) {
  size_t begin = a->used;
  a->used += (bytes + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1);
  if (a->used > a->peak) a->peak = a->used;
  if (!a->base) return COUNTING_BASE + begin;
  if (a->used > a->size) {
    fprintf(stderr, "choir: arena %s: %zu bytes asked for, %zu planned\n", a->name, a->used, a->size);
    abort();
  }
  return a->base + begin;
}

const void CH_DEV *ch_upload(ch_arena *a, const void *from, size_t bytes) {
  if (a->memory->host) return CH_AS_DEV(const void, from);
  void CH_DEV *to = ch_arena_alloc(a, bytes);
  if (!ch_arena_counting(a)) a->memory->upload(to, from, bytes);
  return to;
}

void CH_DEV *ch_staging(ch_arena *a, void *host, size_t bytes) {
  return a->memory->host ? CH_AS_DEV(void, host) : ch_arena_alloc(a, bytes);
}

void ch_download_into(const ch_arena *a, void *host, const void CH_DEV *from, size_t bytes) {
  if (!ch_arena_counting(a) && (uintptr_t)from != (uintptr_t)host) a->memory->download(host, from, bytes);
}
