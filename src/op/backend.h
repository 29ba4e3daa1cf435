/* Backends: a table of ops, the memory that they work on, and who is there. */
#ifndef CH_OP_BACKEND_H
#define CH_OP_BACKEND_H

#include "op/op.h"

typedef struct ch_backend {
  const char *name; /* "cpu", "reference" */
  const ch_memory *memory;
  /* Refuses by name what it cannot do (CHOIR_ERROR_UNSUPPORTED). */
  int (*supports)(ch_compute compute, int emulate);
  /* Every op of the table, `name` apart. */
  void (*fill)(ch_ops *ops, ch_compute compute);
  /* Of a backend that has several devices, else NULL: the number of the one to take, -1 (any) unless the name says
   * which
   * ("cuda:1"), and what device `number` is, in words; 0: there is none of that number. */
  int *device;
  int (*describe)(int number, char *text, size_t size);
} ch_backend;

/* Adds a backend to those of this build (CH_BACKENDS in backend.c): a test's, or a program's own. It must stay. Not
 * while another thread uses backends. CHOIR_ERROR_ARGUMENT: the name is taken, or there are too many. */
int ch_backend_register(const ch_backend *backend);

/* The backend of that name (behind a colon: the number of a device), or NULL with a message that lists the known ones
 * and says what to do. */
const ch_backend *ch_backend_find(const char *name);

/* Backend `index` of this build, or NULL. */
const ch_backend *ch_backend_at(int index);

/* The one that stands first of those whose memory is the host's. */
const ch_backend *ch_backend_of_host(void);

#endif
