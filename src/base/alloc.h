/* Memory of the host for a few arrays of a call, which says by itself that it cannot be had. */
#ifndef CH_BASE_ALLOC_H
#define CH_BASE_ALLOC_H

#include <stddef.h>

#include "base/error.h"

CHOIR_C_BEGIN

/* CH_ALLOC(&p, count, "targets of %s", name): p is a new array of `count` elements (one at least), all 0, to be freed
 * with free(). CHOIR_ERROR_MEMORY says "no memory for targets of NAME: COUNT x SIZE bytes", and p is NULL. */
#define CH_ALLOC(pointer, count, ...) ch_alloc((void *)(pointer), (size_t)(count), sizeof **(pointer), __VA_ARGS__)

/* The array p, or a new one if p is NULL, has `count` elements now: those that it had keep their values, others are
 * undefined. CHOIR_ERROR_MEMORY: p is as it was. */
#define CH_RESIZE(pointer, count, ...) ch_resize((void *)(pointer), (size_t)(count), sizeof **(pointer), __VA_ARGS__)

/* pointer: the address of a pointer to elements of `size` bytes. */
int ch_alloc(void *pointer, size_t count, size_t size, const char *format, ...) __attribute__((format(printf, 4, 5)));
int ch_resize(void *pointer, size_t count, size_t size, const char *format, ...) __attribute__((format(printf, 4, 5)));

CHOIR_C_END

#endif
