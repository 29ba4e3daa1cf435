/* Device backends: the driver interface (cuda.c implements it), and kernel launches by ops. The ops themselves
 * (model.c, products.c, routing.c) are the same for all drivers. The kernels (kernels/) are CUDA C. */
#ifndef CH_DEVICE_DEVICE_H
#define CH_DEVICE_DEVICE_H

#include "op/backend.h"
/* After the structs of ops, some of which are kernel arguments. */
#include "device/kernels/args.h"

#define CH_KERNEL_NUMBER(name) CH_KERNEL_##name,
typedef enum { KERNELS(CH_KERNEL_NUMBER) CH_KERNELS } ch_kernel;
#undef CH_KERNEL_NUMBER

/* Per kernel: its name and the size of its arguments. */
typedef struct ch_kernel_info {
  const char *name;
  size_t bytes;
} ch_kernel_info;
extern const ch_kernel_info ch_kernel_infos[CH_KERNELS];

/* A driver. `memory` is the first member, so an executor's memory points to its driver. */
typedef struct ch_device {
  ch_memory memory;
  void (*launch)(ch_kernel kernel, int64_t groups, const void *args);
  /* Runs a batch of products with the device's library; may be NULL. 0: not supported, use choir's kernel. */
  int (*multiply)(const product_args *p, int64_t batch);
  int64_t (*cache)(void); /* bytes of the L2 cache */
} ch_device;

/* A driver's state. A process opens one device per driver, once. Launches and copies have no return code: the first
 * failure is noted, later calls do nothing, downloads return bytes 0xff (NaN), and ch_memory's `check` reports the
 * failure. */
typedef struct ch_driver {
  const char *name, *instead; /* for messages: the backend, and the remedy if it is unavailable */
  int (*start)(void);         /* opens a device and sets `number`; 0: the failure has been noted */
  int opened, number;
  int failed;        /* some call has */
  char problem[512]; /* message of the first failure */
} ch_driver;

/* Stores the first failure's message for `check`; returns 0. */
int ch_driver_note(ch_driver *d, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Opens the requested device unless one is open. CHOIR_ERROR_UNSUPPORTED: the message names the missing part. */
int ch_driver_open(ch_driver *d);

/* Number of the device to open, out of `count`; -1: no suitable device; the reason has been noted. */
int ch_device_choose(ch_driver *d, int count);

/* CHOIR_OK, or CHOIR_ERROR_IO with the first failure since the device was opened. */
int ch_driver_check(const ch_driver *d);

/* The device that a driver opens: `--backend cuda:1` is number 1. -1: by the process's local rank. */
extern int ch_device_wanted;

/* For tests of single ops; set before the device is opened: choir allocates host memory, and ops accept any host
 * pointers. CUDA supports this if memory does not move after opening, which testing.h ensures. */
extern int ch_device_takes_host_pointers;

/* The source of all kernels, for the device's compiler. */
extern const char ch_device_text[];

/* Number of groups for `count` elements, at most CH_MAX_GROUPS; kernels loop over the rest. */
enum { CH_MAX_GROUPS = 4096 };
static inline int64_t ch_groups(int64_t count) {
  int64_t groups = (count + GROUP - 1) / GROUP;
  return groups < CH_MAX_GROUPS ? groups : CH_MAX_GROUPS;
}

/* Number of groups for `n` rows if a group processes one row at a time. */
static inline int64_t ch_rows_at_once(int64_t n) { return n < CH_MAX_GROUPS ? n : CH_MAX_GROUPS; }

/* Launches a kernel in `groups` groups; the remaining arguments are fields of its struct. No effect with 0 groups or in
 * a counting run. */
#define CH_LAUNCH(x, kernel, groups, ...) ch_launch((x), CH_KERNEL_##kernel, (groups), &(kernel##_args){__VA_ARGS__})
static inline void ch_launch(ch_exec *x, ch_kernel kernel, int64_t groups, const void *args) {
  if (groups > 0 && !ch_counting(x)) ((const ch_device *)x->memory)->launch(kernel, groups, args);
}

/* A batch of products: by the driver's library if it supports them, else by choir's kernel. */
void ch_multiply_batch(ch_exec *x, const product_args *p, int64_t batch);

/* Head of an op's function with parameters x and a. */
#define CH_DEVICE_OP(op) void ch_device_##op(ch_exec *x, const ch_args_of_##op *a)
#define CH_DEVICE_DECLARE(op, args) CH_DEVICE_OP(op);
CH_DEVICE_OPS(CH_DEVICE_DECLARE)

/* Defines an op that is one kernel with the same name and arguments. */
#define CH_ONE_KERNEL(op, groups)                 \
  CH_DEVICE_OP(op) {                              \
    const op##_args *args = a;                    \
    ch_launch(x, CH_KERNEL_##op, (groups), args); \
  }

/* Fills in every op of the table except those of the host (op/routing.h). */
void ch_device_fill(ch_ops *ops, ch_compute compute);

#endif
