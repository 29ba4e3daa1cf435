/* Backends that can run a model. */
#ifndef CHOIR_BACKEND_H
#define CHOIR_BACKEND_H

#include <stddef.h>
#include <stdint.h>

#include "choir/error.h"

CHOIR_C_BEGIN

/* The names of this build's backends, NULL-terminated: "cpu", "reference", "cuda". */
CHOIR_API const char *const *choir_backend_names(void);

/* CHOIR_OK: the backend can run here. CHOIR_ERROR_UNSUPPORTED: the message says what is missing.
 * CHOIR_ERROR_ARGUMENT: no such backend. */
CHOIR_API int choir_backend_check(const char *name);

/* Writes a description of device `number` of a backend to text [size], truncated if necessary. CHOIR_ERROR_ARGUMENT: no
 * such device or backend, or the backend has no devices. To select a device, append its number to the backend's name:
 * "cuda:1". */
CHOIR_API int choir_backend_get_device(const char *name, int number, char *text, size_t size);

CHOIR_C_END
#endif
