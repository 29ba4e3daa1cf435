/* Arenas: plan once, run many.
 *
 * The same code runs twice. First with a counting arena, which hands out addresses that may be stored and
 * offset but never read, and only adds up what is asked for; then, after ch_arena_commit, with real memory of
 * exactly that size. So a step allocates nothing, and what it needs is known before it starts. */
#ifndef CH_BASE_ARENA_H
#define CH_BASE_ARENA_H

#include "base/memory.h"

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
size_t ch_arena_room(size_t peak);

/* Turns a counting arena into a real one of `peak` bytes, empty and zeroed. CHOIR_ERROR_MEMORY (with the size and what
 * there is) when there is not enough. */
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

/* ---- between host and device: each costs nothing where the memory is the host's ---- */

/* A host array for ops: itself where the arena's memory is the host's, else a copy in the arena. */
const void CH_DEV *ch_put(ch_arena *a, const void *from, size_t bytes);

/* Where ops may write what a host array is to receive: the array itself where the arena's memory is the host's, else a
 * stand-in. ch_get_into then brings it to the host array, unless it is there. */
void CH_DEV *ch_stand_in(ch_arena *a, void *host, size_t bytes);
void ch_get_into(const ch_arena *a, void *host, const void CH_DEV *from, size_t bytes);

#endif
