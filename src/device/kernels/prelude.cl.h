/* The common subset of OpenCL C 1.2 and CUDA C, in which all kernels are written, and their shared helpers.
 *
 * A kernel takes one struct, its pointers first (args.h). CUDA passes the struct unchanged. OpenCL knows buffers, not
 * addresses: there each pointer comes as a buffer, and the struct's field holds the offset into it. P() makes a pointer
 * of both; 0 stays 0. Groups have one dimension, of GROUP items. */
#ifdef __OPENCL_C_VERSION__
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#define GLOBAL __global
#define LOCAL __local
#define SHARED __local
#define INLINE static inline
#define LID ((int)get_local_id(0))
#define GID ((I64)get_group_id(0))
#define GROUPS ((I64)get_num_groups(0))
#define SYNC barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#define INF INFINITY
#define HIGH_PRODUCT(a, b) mul_hi((U64)(a), (U64)(b))
#define FLOAT_BITS(x) as_uint(x)
#define BITS_FLOAT(x) as_float(x)
#define ADD_TO(p, more) atomic_add((p), (more))
typedef long I64;
typedef int I32;
typedef ulong U64;
typedef uint U32;
typedef ulong PTR;
#define P(type, field) (b_##field ? (GLOBAL type *)(b_##field + a.field) : (GLOBAL type *)0)
#define BUFFER(field) __global char *b_##field,
#define NO_BUFFER(type, field)
#define KERNEL(name) __kernel void name(name##_fields(BUFFER, NO_BUFFER) name##_args a)
#else
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
typedef int I32;
typedef unsigned long long U64;
typedef unsigned int U32;
typedef void *PTR;
typedef unsigned char uchar;
typedef unsigned short ushort;
#define P(type, field) ((type *)a.field)
#define KERNEL(name) extern "C" __global__ void name(name##_args a)
#endif

#define FIELD(name) PTR name;
#define VALUE(type, name) type name;
typedef float F32;
typedef float real;
typedef double F64;
