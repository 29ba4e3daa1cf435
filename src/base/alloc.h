/* Host memory for a few arrays per call, with error messages. */
#ifndef CH_BASE_ALLOC_H
#define CH_BASE_ALLOC_H

#include <stddef.h>

#include "base/error.h"

CHOIR_C_BEGIN

/* CH_ALLOC(&p, count, "targets of %s", name): sets p to a new array of `count` elements (at least one), all 0; release
 * it with free(). On CHOIR_ERROR_MEMORY the message is "no memory for targets of NAME: COUNT x SIZE bytes" and p is
 * NULL. */
#define CH_ALLOC(pointer, count, ...) ch_alloc((void *)(pointer), (size_t)(count), sizeof **(pointer), __VA_ARGS__)

/* Resizes the array p (NULL: allocates it) to `count` elements. Existing elements keep their values, new ones are
 * undefined. CHOIR_ERROR_MEMORY: p is unchanged. */
#define CH_RESIZE(pointer, count, ...) ch_resize((void *)(pointer), (size_t)(count), sizeof **(pointer), __VA_ARGS__)

/* pointer: the address of a pointer to elements of `size` bytes. */
int ch_alloc(void *pointer, size_t count, size_t size, const char *format, ...) __attribute__((format(printf, 4, 5)));
int ch_resize(void *pointer, size_t count, size_t size, const char *format, ...) __attribute__((format(printf, 4, 5)));

CHOIR_C_END

#endif
