#include "base/arena.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/machine.h"

enum { ALIGNMENT = 64, HUGE_PAGE = 2 << 20 };
/* Counting arenas hand out addresses from here: never NULL, aligned, and unmapped, so a stray read crashes. */
static char *const counting_base = (char *)(uintptr_t)ALIGNMENT;

void ch_arena_init(ch_arena *a, const char *name) { *a = (ch_arena){.name = name}; }

size_t ch_arena_room(size_t peak) { return (peak + HUGE_PAGE) & ~(size_t)(HUGE_PAGE - 1); }

int ch_arena_commit(ch_arena *a) {
  size_t bytes = ch_arena_room(a->peak);
  size_t available = ch_machine_available_memory();
  if (available && bytes > available)
    return ch_error(CHOIR_ERROR_MEMORY,
                    "%s: %.2f GiB needed but only %.2f GiB of memory is available; use a smaller model or batch",
                    a->name, (double)bytes / 0x1p30, (double)available / 0x1p30);
  void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED)
    return ch_error(CHOIR_ERROR_MEMORY, "%s: cannot reserve %.2f GiB of memory", a->name, (double)bytes / 0x1p30);
  madvise(p, bytes, MADV_HUGEPAGE); /* advice only: fewer page faults on the first step */
  a->base = p;
  a->size = bytes;
  a->used = 0;
  return CHOIR_OK;
}

int ch_arena_spare(size_t bytes) {
  void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED)
    return ch_error(
        CHOIR_ERROR_MEMORY,
        "cannot have %zu MiB more of address space, which libraries need; raise the limit (ulimit -v), or use a "
        "smaller model or batch",
        bytes >> 20);
  munmap(p, bytes);
  return CHOIR_OK;
}

void ch_arena_free(ch_arena *a) {
  if (a->base) munmap(a->base, a->size);
  ch_arena_init(a, a->name);
}

void *ch_arena_alloc(ch_arena *a, size_t bytes) {
  size_t begin = a->used;
  a->used += (bytes + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1);
  if (a->used > a->peak) a->peak = a->used;
  if (!a->base) return counting_base + begin;
  if (a->used > a->size) {
    fprintf(stderr, "choir: arena %s: %zu bytes asked for, %zu planned\n", a->name, a->used, a->size);
    abort();
  }
  return a->base + begin;
}
