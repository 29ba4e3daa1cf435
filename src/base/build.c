#include "base/build.h"

#include <link.h>
#include <string.h>

#include "base/hash.h"
#include "choir/version.h"

/* The build id (GNU note) of an ELF object; 0: none. */
static uint64_t find_id(const char *note, size_t size) {
  const ElfW(Nhdr) * n;
  for (size_t at = 0; at + sizeof *n <= size;) {
    n = (const void *)(note + at);
    size_t name = at + sizeof *n, id = name + ((n->n_namesz + 3U) & ~3U), next = id + ((n->n_descsz + 3U) & ~3U);
    if (next > size) return 0;
    if (n->n_type == NT_GNU_BUILD_ID && n->n_namesz == 4 && !memcmp(note + name, "GNU", 4))
      return XXH64(note + id, n->n_descsz, 0);
    at = next;
  }
  return 0;
}

/* Whether the object contains this function. */
static int is_own(const struct dl_phdr_info *o) {
  const uintptr_t address = (uintptr_t)&ch_build_number;
  for (int i = 0; i < o->dlpi_phnum; i++) {
    const ElfW(Phdr) *part = &o->dlpi_phdr[i];
    if (part->p_type == PT_LOAD && address - (o->dlpi_addr + part->p_vaddr) < part->p_memsz) return 1;
  }
  return 0;
}

static int look(struct dl_phdr_info *o, size_t size, void *number) {
  (void)size;
  if (!is_own(o)) return 0;
  for (int i = 0; i < o->dlpi_phnum; i++) {
    const ElfW(Phdr) *part = &o->dlpi_phdr[i];
    uint64_t id = part->p_type == PT_NOTE ? find_id((const char *)(o->dlpi_addr + part->p_vaddr), part->p_memsz) : 0;
    if (id) *(uint64_t *)number = id;
  }
  return 1;
}

uint64_t ch_build_number(void) {
  uint64_t number = 0;
  dl_iterate_phdr(look, &number);
  return number;
}

const char *choir_version(void) { return CHOIR_VERSION; }
