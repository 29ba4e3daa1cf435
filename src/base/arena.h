/* Arenas: plan once, run many.
 *
 * The same code runs twice. First with a counting arena, which hands out addresses that may be stored and
 * offset but never read, and only adds up what is asked for; then, after ch_arena_commit, with real memory of
 * exactly that size. So a step allocates nothing, and what it needs is known before it starts. */
#ifndef CH_BASE_ARENA_H
#define CH_BASE_ARENA_H

#include <stddef.h>

typedef struct ch_arena {
  const char *name; /* for messages: "parameters", "tape", "scratch" */
  char *base;       /* NULL while counting */
  size_t used;      /* bytes handed out and not released */
  size_t peak;      /* largest `used` ever */
  size_t size;      /* bytes committed; 0 while counting */
} ch_arena;

/* A counting arena. */
void ch_arena_init(ch_arena *a, const char *name);

/* What memory for `peak` bytes takes: whole huge pages. */
size_t ch_arena_room(size_t peak);

/* Turns a counting arena into a real one of `peak` bytes, empty and zeroed by the system. CHOIR_ERROR_MEMORY
 * (with the size and what the machine has) when there is not enough. */
int ch_arena_commit(ch_arena *a);

void ch_arena_free(ch_arena *a);

/* Whether there is address space for `bytes` more, which libraries will take without asking. CHOIR_ERROR_MEMORY. */
int ch_arena_spare(size_t bytes);

/* `bytes` at a 64-byte boundary; contents undefined. Running out in run mode is a bug in the plan and aborts. */
void *ch_arena_alloc(ch_arena *a, size_t bytes);

static inline int ch_arena_counting(const ch_arena *a) { return a->base == NULL; }

/* A mark, and the return to it: everything allocated since is free again. */
static inline size_t ch_arena_mark(const ch_arena *a) { return a->used; }
static inline void ch_arena_release(ch_arena *a, size_t mark) { a->used = mark; }

#define CH_NEW(arena, type, count) ((type *)ch_arena_alloc((arena), (size_t)(count) * sizeof(type)))

#endif
