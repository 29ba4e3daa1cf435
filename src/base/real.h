/* The scalar type of the whole library. Production builds compute in float; the test build compiles
 * the same sources with CHOIR_DOUBLE so that every gradient can be checked in double precision. */
#ifndef CH_BASE_REAL_H
#define CH_BASE_REAL_H

#include <stdint.h>

#ifdef CHOIR_DOUBLE
typedef double real;
#else
typedef float real;
#endif

typedef uint16_t ch_bf16; /* bit pattern of a bfloat16 */

/* What the inputs of matrix products are rounded to. Accumulators, master weights, softmax, router,
 * norms and the loss stay in `real` whatever the compute type. */
typedef enum { CH_COMPUTE_FP32 = 0, CH_COMPUTE_BF16 = 1 } ch_compute;

#endif
