/* The memory that ops work on: the host's own, or a device's. A backend brings its table (op/backend.h). */
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
 * `put`, and host arrays that ops are given, have been read when the call returns; what `get` fills is there when it
 * returns. Everything else may still be under way: `synchronise` waits for it. */
typedef struct ch_memory {
  int host; /* the host may follow pointers to it: it is the host's own, and nothing has to be copied */
  void CH_DEV *(*alloc)(const char *name, size_t bytes); /* page-aligned, all 0; NULL: cannot be had */
  void (*free)(void CH_DEV *p, size_t bytes);
  size_t (*available)(void); /* bytes that can be had; 0: unknown */
  void (*zero)(void CH_DEV *to, size_t bytes);
  void (*copy)(void CH_DEV *to, const void CH_DEV *from, size_t bytes); /* on the device */
  void (*put)(void CH_DEV *to, const void *from, size_t bytes);         /* from the host */
  void (*get)(void *to, const void CH_DEV *from, size_t bytes);         /* to the host */
  void (*synchronise)(void);
  int (*check)(void); /* CHOIR_OK, or the error of a call above that could not say so; NULL: there are none */
} ch_memory;

/* The host's own. */
extern const ch_memory ch_memory_host;

/* An address from the other side: for what runs on the host on purpose, on an executor whose memory is the host's, and
 * for exchanges between ranks, which follow either (base/stage.h). */
#define CH_AS_HOST(type, p) ((type *)(uintptr_t)(p))
#define CH_AS_DEV(type, p) ((type CH_DEV *)(uintptr_t)(p))

#endif
