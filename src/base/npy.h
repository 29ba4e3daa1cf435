/* .npy from memory: fuzzing. */
#ifndef CH_BASE_NPY_H
#define CH_BASE_NPY_H

#include "choir/npy.h"

/* choir_npy_read on the bytes of a file; `name` starts every message. */
int ch_npy_parse(const void *data, size_t size, const char *name, choir_npy_type as, int dims, choir_npy *array);

#endif
