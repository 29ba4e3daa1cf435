/* Backends on devices: what a driver brings (opencl.c, cuda.c), and how an op asks for a kernel. The ops themselves
 * (model.c, products.c, routing.c) are the same for all drivers; so are the kernels (kernels/), one text that OpenCL C
 * and CUDA C both understand. */
#ifndef CH_DEVICE_DEVICE_H
#define CH_DEVICE_DEVICE_H

#include "op/backend.h"

/* args.h in the host's words. */
typedef const void CH_DEV *PTR;
typedef int64_t I64;
typedef int32_t I32;
typedef uint64_t U64;
typedef uint32_t U32;
typedef float F32;
typedef double F64;
#define FIELD(name) PTR name;
#include "device/kernels/args.h"
#undef FIELD

#define CH_KERNEL_NUMBER(name) CH_KERNEL_##name,
typedef enum { KERNELS(CH_KERNEL_NUMBER) CH_KERNELS } ch_kernel;
#undef CH_KERNEL_NUMBER

/* By number: a kernel's name, how many pointers its arguments begin with, and the size of these. */
typedef struct ch_kernel_info {
  const char *name;
  int pointers;
  size_t bytes;
} ch_kernel_info;
extern const ch_kernel_info ch_kernel_infos[CH_KERNELS];

/* A driver. Its memory stands first, so that an executor's memory says who launches. What goes wrong in a launch or a
 * copy cannot be said there: the driver notes it, does nothing from then on, and `get` gives bytes of all ones: numbers
 * that are not finite, which end a run. */
typedef struct ch_device {
  ch_memory memory;
  /* Finds the device and builds the kernels, once; CHOIR_ERROR_UNSUPPORTED says what is missing. */
  int (*open)(void);
  void (*launch)(ch_kernel kernel, int64_t groups, const void *args);
  /* A batch of products by a library of the device's, or NULL; 0: not this one, the kernel is to do it. */
  int (*multiply)(const product_args *p, int64_t batch);
} ch_device;

/* The device that a driver takes when it opens: `--backend cuda:1` is the second one. */
extern int ch_device_wanted;

/* For tests of single ops, on an OpenCL driver whose device is the host's own CPU: all memory is the host's, and ops
 * take pointers to any of it. */
extern int ch_opencl_takes_host_pointers;

/* The text of all kernels, for a compiler of the device's. */
extern const char ch_device_text[];

/* Groups for `count` elements; a kernel's loop takes the rest where that is more than CH_MOST_GROUPS. */
enum { CH_MOST_GROUPS = 4096 };
static inline int64_t ch_groups(int64_t count) {
  int64_t groups = (count + GROUP - 1) / GROUP;
  return groups < CH_MOST_GROUPS ? groups : CH_MOST_GROUPS;
}

/* Launches a kernel in `groups` groups; the rest are its arguments by name. Nothing to do: no groups, or a dry run. */
#define CH_LAUNCH(x, kernel, groups, ...) ch_launch((x), CH_KERNEL_##kernel, (groups), &(kernel##_args){__VA_ARGS__})
static inline void ch_launch(ch_exec *x, ch_kernel kernel, int64_t groups, const void *args) {
  if (groups > 0 && !ch_counting(x)) ((const ch_device *)x->memory)->launch(kernel, groups, args);
}

/* Every op of the table but solvers of assignments, which run on the host (op/routing.h). */
void ch_device_fill(ch_ops *ops);
void ch_device_fill_model(ch_ops *ops);
void ch_device_fill_products(ch_ops *ops);
void ch_device_fill_routing(ch_ops *ops);

#endif
