/* Backends: what can run a model. */
#ifndef CHOIR_BACKEND_H
#define CHOIR_BACKEND_H

#include <stddef.h>
#include <stdint.h>

#include "choir/error.h"

CHOIR_C_BEGIN

/* The backends of this build, from 0: "cpu", "reference", "opencl", "cuda"; NULL after the last. */
CHOIR_API const char *choir_backend_name(int index);

/* Whether that backend can run here: CHOIR_OK, or CHOIR_ERROR_UNSUPPORTED with what is missing. */
CHOIR_API int choir_backend_check(int index);

/* Device `number` of that backend in words, cut to `size` bytes; 0: there is none, or it is not one of devices.
 * A backend's name takes such a number after a colon: "cuda:1". */
CHOIR_API int choir_backend_device(int index, int number, char *text, size_t size);

CHOIR_C_END
#endif
