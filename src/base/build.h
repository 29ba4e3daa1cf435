/* Identity of the build. Two builds of the same version may round differently, or exchange messages in a different
 * order. */
#ifndef CH_BASE_BUILD_H
#define CH_BASE_BUILD_H

#include <stdint.h>

/* A number from the linker's build id (a hash of the contents) of the program or library that contains this function;
 * 0: no build id. */
uint64_t ch_build_number(void);

#endif
