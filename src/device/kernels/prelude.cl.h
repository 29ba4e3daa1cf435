/* Definitions for all kernels. A kernel has one argument, the struct `a` (args.h); P() casts one of its pointers to
 * another type. An item is a CUDA thread, a group a block. Groups have one dimension, of GROUP items. */
#define GLOBAL
#define LOCAL
#define SHARED __shared__
#define INLINE static __device__ inline
#define LID ((int)threadIdx.x)
#define GID ((I64)blockIdx.x)
#define GROUPS ((I64)gridDim.x)
#define SYNC __syncthreads()
#define INF __int_as_float(0x7f800000)
#define HIGH_PRODUCT(a, b) __umul64hi((a), (b))
#define FLOAT_BITS(x) __float_as_uint(x)
#define BITS_FLOAT(x) __uint_as_float(x)
#define ADD_TO(p, more) atomicAdd((p), (more))
typedef long long I64;
typedef unsigned long long U64;
typedef unsigned int U32;
typedef unsigned char uchar;
typedef unsigned short ushort;
#define P(type, field) ((type *)a.field)
#define KERNEL(name) extern "C" __global__ void name(name##_args a)

/* The host's type names in argument structs. */
typedef float real;
#define CH_DEV
#define int64_t I64
#define int32_t int
#define uint64_t U64
#define uint32_t U32
#define uint8_t uchar
#define ch_bf16 ushort
