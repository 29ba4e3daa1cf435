/* Checks the options of a build before any file is read. */
#ifndef CH_DATA_BUILD_CHECK_H
#define CH_DATA_BUILD_CHECK_H

#include "choir/data.h"

/* CHOIR_ERROR_ARGUMENT, naming option or source and value; CHOIR_ERROR_IO: the output is there and not empty. */
int ch_build_check(const choir_data_build_options *options);

#endif
