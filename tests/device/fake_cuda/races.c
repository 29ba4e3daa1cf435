/* What kernels may not do to memory. The compiler calls a function of this file at each of their reads and writes
 * (kernels.cc alone is compiled with -fsanitize=thread; this stands in the place of its runtime).
 *
 * One number says when: it grows with each launch, group and barrier, for groups run one after the other. By word stand
 * the last write and the last reads. Two items must not meet at a word that one of them writes, unless a barrier of
 * their group lies between, or both count (atomicAdd). The same is found whatever the order in which items run. */
#include <stdint.h>
#include <stdlib.h>

#include "fake.h"

/* An entry is `when << SHIFT | OTHERS | who`: an item of a group, or SEVERAL; OTHERS: other groups of this launch, too.
 */
enum { SEVERAL = 1024, COUNTING = 1025, WHO = 2047, OTHERS = 2048, SHIFT = 12, SHADOWS = 1 << 20 };

/* Of words of four bytes, and of the bytes of smaller numbers. Those whose numbers differ by a multiple of SHADOWS
 * share a place: the newer one takes it. */
static struct shadow {
  uintptr_t address;
  uint64_t written, read;
} * words, *bytes;
static uint64_t now, launch_began, group_began;

void fake_begin_launch(void) { launch_began = ++now; }
void fake_begin_group(void) { group_began = ++now; }
void fake_pass_barrier(void) { ++now; }

static uint64_t when(uint64_t entry) { return entry >> SHIFT; }
static int who(uint64_t entry) { return (int)(entry & WHO); }

/* Whether an entry of this launch tells of other groups; what a group shares no other group sees. */
static int tells_of_others(uint64_t entry, int shared) {
  return !shared && when(entry) >= launch_began && (entry & OTHERS || when(entry) < group_began);
}

/* Whether there is no order between what an entry tells of and what `self` does now. */
static int meets(uint64_t entry, int self, int shared) {
  if (who(entry) == COUNTING && self == COUNTING) return 0;
  return (when(entry) == now && who(entry) != self) || tells_of_others(entry, shared);
}

static void enter(uint64_t *entry, int self, int shared) {
  int others = tells_of_others(*entry, shared) ? OTHERS : 0;
  if (when(*entry) == now && who(*entry) != self) self = SEVERAL;
  *entry = now << SHIFT | (uint64_t)(others | self);
}

static struct shadow *shadow_of(uintptr_t address, size_t unit) {
  struct shadow **table = unit == 1 ? &bytes : &words;
  if (!*table && !(*table = calloc(SHADOWS, sizeof **table))) fake_wrong("no memory for shadows");
  struct shadow *s = &(*table)[address / unit % SHADOWS];
  if (s->address != address) *s = (struct shadow){.address = address};
  return s;
}

static void touch(const void *p, size_t size, int writes, int self) {
  int shared = fake_is_shared(p);
  if (!shared && !fake_is_global(p, size)) {
    if (!fake_is_stack(p)) fake_wrong("%s: %p, which is touched, is no address of the device", fake_running(), p);
    return;
  }
  size_t unit = size < 4 ? 1 : 4;
  for (size_t i = 0; i < size; i += unit) {
    struct shadow *s = shadow_of((uintptr_t)p + i, unit);
    int with_write = meets(s->written, self, shared);
    if (with_write || (writes && meets(s->read, self, shared)))
      fake_wrong("%s: race: an item %s %s that another one %s", fake_running(), writes ? "writes" : "reads",
                 shared ? "what a group shares" : "memory", with_write ? "writes" : "reads");
    enter(writes ? &s->written : &s->read, self, shared);
  }
}

void fake_count(int *p) { touch(p, sizeof *p, 1, COUNTING); }

/* ---- what the compiler calls ---- */

#define HOOK(name, size, writes) \
  void __tsan_##name(void *p) { touch(p, size, writes, (int)threadIdx.x); }
#define HOOKS(size)                   \
  HOOK(read##size, size, 0)           \
  HOOK(write##size, size, 1)          \
  HOOK(unaligned_read##size, size, 0) \
  HOOK(unaligned_write##size, size, 1)
HOOKS(1) HOOKS(2) HOOKS(4) HOOKS(8) HOOKS(16) void __tsan_read_range(void *p, size_t size) {
  touch(p, size, 0, (int)threadIdx.x);
}
void __tsan_write_range(void *p, size_t size) { touch(p, size, 1, (int)threadIdx.x); }
void __tsan_init(void) {}
void __tsan_func_entry(void *from) { (void)from; }
void __tsan_func_exit(void) {}
