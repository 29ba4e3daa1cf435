/* Which build this is: two of the same version may round otherwise, or speak to each other in another order. */
#ifndef CH_BASE_BUILD_H
#define CH_BASE_BUILD_H

#include <stdint.h>

/* A number of the program or library that holds this function, from the id that the linker gave it, a hash of all that
 * is in it; 0: it gave none. */
uint64_t ch_build_number(void);

#endif
