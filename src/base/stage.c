#include "base/stage.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"

typedef struct {
  uintptr_t base;
  size_t bytes;
  const ch_memory *memory;
  char *twin; /* NULL before the first use */
} area;
static area *areas;
static atomic_int count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

int ch_stage_add(const ch_memory *memory, const void CH_DEV *base, size_t bytes) {
  pthread_mutex_lock(&lock);
  area *more = reallocarray(areas, (size_t)count + 1, sizeof *areas);
  if (more) {
    areas = more;
    areas[count++] = (area){.base = (uintptr_t)base, .bytes = bytes, .memory = memory};
  }
  pthread_mutex_unlock(&lock);
  return more ? CHOIR_OK : ch_error(CHOIR_ERROR_MEMORY, "no memory for the list of a device's arenas");
}

void ch_stage_remove(const void CH_DEV *base) {
  int i = 0;
  pthread_mutex_lock(&lock);
  while (areas[i].base != (uintptr_t)base) i++;
  if (areas[i].twin) munmap(areas[i].twin, areas[i].bytes);
  areas[i] = areas[--count];
  if (!count) {
    free(areas);
    areas = NULL;
  }
  pthread_mutex_unlock(&lock);
}

/* An exchange cannot fail: a process without room for it ends, and its launcher ends the rest. */
static char *new_twin(size_t bytes) {
  char *twin = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (twin != MAP_FAILED) return twin;
  fprintf(stderr, "choir: no room on the host beside %zu MiB of a device's memory, which ranks exchange\n",
          bytes >> 20);
  abort();
}

int ch_stage_is_used(void) { return count > 0; }

void *ch_stage_twin(const void *p, const ch_memory **memory) {
  char *twin = NULL;
  if (!ch_stage_is_used()) return NULL;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < count && !twin; i++) {
    size_t at = (uintptr_t)p - areas[i].base;
    if (at >= areas[i].bytes) continue;
    if (!areas[i].twin) areas[i].twin = new_twin(areas[i].bytes);
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
    target->put(CH_AS_DEV(void, to), from, bytes);
  else if (source)
    source->get(to, CH_AS_DEV(const void, from), bytes);
  else
    memcpy(to, from, bytes);
}
