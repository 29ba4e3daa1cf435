/* The memory that ops work on: the host's own, or a device's. A backend brings its table (op/backend.h). Arenas hand it
 * out. */
#ifndef CH_BASE_MEMORY_H
#define CH_BASE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

/* A pointer marked CH_DEV leads into a backend's memory: ops and the functions below follow it, nobody else does. One
 * without the mark is the host's. tests/device_pointers.sh lets clang check that, everywhere but in backends: with
 * CH_CHECK_DEVICE a marked pointer is of a type of its own, and following it is an error. Otherwise the mark is empty.
 */
#ifdef CH_CHECK_DEVICE
#define CH_DEV __attribute__((noderef, address_space(1)))
#else
#define CH_DEV
#endif

/* All calls of one memory, and all ops on it, happen in the order in which they are asked for. What the host hands to
 * `upload`, and host arrays that ops are given, have been read when the call returns; what `download` fills is there
 * when it returns. Everything else may still be under way: `synchronise` waits for it. */
typedef struct ch_memory {
  int host; /* the host may follow pointers to it: it is the host's own, and nothing has to be copied */
  void CH_DEV *(*alloc)(const char *name, size_t bytes); /* page-aligned, all 0; NULL: cannot be had */
  void (*free)(void CH_DEV *p, size_t bytes);
  size_t (*available)(void); /* bytes that can be had; 0: unknown */
  void (*zero)(void CH_DEV *to, size_t bytes);
  void (*copy)(void CH_DEV *to, const void CH_DEV *from, size_t bytes); /* on the device */
  void (*upload)(void CH_DEV *to, const void *from, size_t bytes);      /* from the host */
  void (*download)(void *to, const void CH_DEV *from, size_t bytes);    /* to the host */
  void (*synchronise)(void);
  int (*check)(void); /* CHOIR_OK, or the error of a call above that could not say so; NULL: there are none */
} ch_memory;

/* The host's own. */
extern const ch_memory ch_memory_host;

/* An address of CH_DEV as the host's, for code that runs on the host on purpose, on an executor whose memory is the
 * host's; and back. */
#define CH_AS_HOST(type, p) ((type *)(uintptr_t)(p))
#define CH_AS_DEV(type, p) ((type CH_DEV *)(uintptr_t)(p))

/* ---- arenas: plan once, run many ----
 * The same code runs twice. First with a counting arena, which hands out addresses that may be stored and
 * offset but never read, and only adds up what is asked for; then, after ch_arena_commit, with real memory of
 * exactly that size. So a step allocates nothing, and what it needs is known before it starts. */
typedef struct ch_arena {
  const char *name;        /* for messages: "weights", "activations", "scratch" */
  const ch_memory *memory; /* where it is */
  char CH_DEV *base;       /* NULL while counting */
  size_t used;             /* bytes handed out and not released */
  size_t peak;             /* largest `used` ever */
  size_t size;             /* bytes committed; 0 while counting */
} ch_arena;

/* A counting arena. */
void ch_arena_init(ch_arena *a, const char *name, const ch_memory *memory);

/* Bytes that an arena of `peak` bytes takes: whole huge pages. */
size_t ch_arena_size(size_t peak);

/* Turns a counting arena into a real one of `peak` bytes, empty and zeroed. CHOIR_ERROR_MEMORY names the size wanted
 * and the memory available. */
int ch_arena_commit(ch_arena *a);

/* Gives the memory back; the arena counts again, from nothing. */
void ch_arena_free(ch_arena *a);

/* `bytes` at a 64-byte boundary; contents undefined. Running out in run mode is a bug in the plan and aborts. */
void CH_DEV *ch_arena_alloc(ch_arena *a, size_t bytes);

static inline int ch_arena_counting(const ch_arena *a) { return a->base == NULL; }

/* A mark, and the return to it: everything allocated since is free again. */
static inline size_t ch_arena_mark(const ch_arena *a) { return a->used; }
static inline void ch_arena_release(ch_arena *a, size_t mark) { a->used = mark; }

/* An array of `count` elements; CH_NEW_HOST: from an arena of the host's own memory, for the host itself. */
#define CH_NEW(arena, type, count) ((type CH_DEV *)ch_arena_alloc((arena), (size_t)(count) * sizeof(type)))
#define CH_NEW_HOST(arena, type, count) CH_AS_HOST(type, ch_arena_alloc((arena), (size_t)(count) * sizeof(type)))

/* ---- staging ----
 * What ranks send each other goes through the host's memory, also where it is on a device. Every arena of
 * a device's memory has a twin of the same size on the host, which takes no memory before something is staged there. */

/* Whether there is such an arena. */
int ch_stage_is_used(void);

/* The host's copy of the device address `p`, and the memory that `p` belongs to; NULL if `p` is a host address. */
void *ch_stage_twin(const void *p, const ch_memory **memory);

/* A copy from either side to either side. */
void ch_stage_copy(void *to, const void *from, size_t bytes);

/* ---- between host and device: each costs nothing where the memory is the host's ---- */

/* A host array for ops: itself where the arena's memory is the host's, else a copy in the arena. */
const void CH_DEV *ch_upload(ch_arena *a, const void *from, size_t bytes);

/* Where ops may write what a host array is to receive: the array itself where the arena's memory is the host's, else a
 * stand-in. ch_download_into then brings it to the host array, unless it is there. */
void CH_DEV *ch_staging(ch_arena *a, void *host, size_t bytes);
void ch_download_into(const ch_arena *a, void *host, const void CH_DEV *from, size_t bytes);

#endif
