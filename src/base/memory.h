/* The memory that ops work on, of the host or of a device: a function table per backend (op/backend.h), and arenas that
 * allocate from it. */
#ifndef CH_BASE_MEMORY_H
#define CH_BASE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

/* A CH_DEV pointer points to a backend's memory: only ops and the functions below dereference it. Other pointers point
 * to host memory. tests/device_pointers.sh checks this with clang, except in backends: with CH_CHECK_DEVICE, CH_DEV
 * pointers have a separate type and dereferencing them is an error. Otherwise CH_DEV is empty. */
#ifdef CH_CHECK_DEVICE
#define CH_DEV __attribute__((noderef, address_space(1)))
#else
#define CH_DEV
#endif

/* All calls of one memory, and all ops on it, execute in the order of the calls. `upload` and ops have read their host
 * arrays when they return; `download` has filled its host array when it returns. All other work may be asynchronous:
 * `synchronise` waits for it. */
typedef struct ch_memory {
  int host; /* it is host memory: the host may dereference pointers to it, and nothing is copied */
  void CH_DEV *(*alloc)(const char *name, size_t bytes); /* page-aligned, all 0; NULL: out of memory */
  void (*free)(void CH_DEV *p, size_t bytes);
  size_t (*available)(void); /* available bytes; 0: unknown */
  void (*zero)(void CH_DEV *to, size_t bytes);
  void (*copy)(void CH_DEV *to, const void CH_DEV *from, size_t bytes); /* on the device */
  void (*upload)(void CH_DEV *to, const void *from, size_t bytes);      /* from the host */
  void (*download)(void *to, const void CH_DEV *from, size_t bytes);    /* to the host */
  void (*synchronise)(void);
  int (*check)(void); /* CHOIR_OK, or the error of an earlier call without a return code; NULL: calls cannot fail */
} ch_memory;

/* Host memory. */
extern const ch_memory ch_memory_host;

/* Casts between CH_DEV and host addresses, for code that runs on the host by design, on an executor with host
 * memory. */
#define CH_AS_HOST(type, p) ((type *)(uintptr_t)(p))
#define CH_AS_DEV(type, p) ((type CH_DEV *)(uintptr_t)(p))

/* ---- arenas: planned once, used many times ----
 * The same code runs twice. First with a counting arena, which only sums up the requested sizes; its addresses may be
 * stored and offset but never read. Then, after ch_arena_commit, with real memory of exactly that size. So a step
 * allocates nothing, and its memory is known before it starts. */
typedef struct ch_arena {
  const char *name;        /* for messages: "weights", "activations", "scratch" */
  const ch_memory *memory; /* where it is */
  char CH_DEV *base;       /* NULL while counting */
  size_t used;             /* bytes allocated and not released */
  size_t peak;             /* max of `used` */
  size_t size;             /* bytes committed; 0 while counting */
} ch_arena;

/* A counting arena. */
void ch_arena_init(ch_arena *a, const char *name, const ch_memory *memory);

/* Bytes allocated for an arena of `peak` bytes: whole huge pages. */
size_t ch_arena_size(size_t peak);

/* Turns a counting arena into a real one of `peak` bytes, empty and zeroed. CHOIR_ERROR_MEMORY: the message has the
 * required size and the available memory. */
int ch_arena_commit(ch_arena *a);

/* Frees the memory; the arena counts again, from 0. */
void ch_arena_free(ch_arena *a);

/* Allocates `bytes`, 64-byte aligned; contents undefined. Exceeding a committed arena is a bug of the plan and
 * aborts. */
void CH_DEV *ch_arena_alloc(ch_arena *a, size_t bytes);

static inline int ch_arena_counting(const ch_arena *a) { return a->base == NULL; }

/* A mark, and release to the mark: frees everything allocated since. */
static inline size_t ch_arena_mark(const ch_arena *a) { return a->used; }
static inline void ch_arena_release(ch_arena *a, size_t mark) { a->used = mark; }

/* An array of `count` elements; CH_NEW_HOST: from an arena in host memory, as a host pointer. */
#define CH_NEW(arena, type, count) ((type CH_DEV *)ch_arena_alloc((arena), (size_t)(count) * sizeof(type)))
#define CH_NEW_HOST(arena, type, count) CH_AS_HOST(type, ch_arena_alloc((arena), (size_t)(count) * sizeof(type)))

/* ---- staging ----
 * Ranks exchange messages through host memory, even for arrays on a device. Every arena in device memory has a twin of
 * the same size on the host, whose pages are allocated on first use. */

/* Whether any arena has a twin. */
int ch_stage_is_used(void);

/* The host's copy of the device address `p`, and the memory that `p` belongs to; NULL if `p` is a host address. */
void *ch_stage_twin(const void *p, const ch_memory **memory);

/* Copies between any two of host and device memory. */
void ch_stage_copy(void *to, const void *from, size_t bytes);

/* ---- between host and device: free of cost if the memory is the host's ---- */

/* A host array as argument of ops: the array itself if the arena is in host memory, else a copy in the arena. */
const void CH_DEV *ch_upload(ch_arena *a, const void *from, size_t bytes);

/* An output array of ops for a host array: the array itself if the arena is in host memory, else an array in the arena.
 * ch_download_into then copies it to the host array if needed. */
void CH_DEV *ch_staging(ch_arena *a, void *host, size_t bytes);
void ch_download_into(const ch_arena *a, void *host, const void CH_DEV *from, size_t bytes);

#endif
