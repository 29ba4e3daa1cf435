/* Backends on devices: what a driver provides (cuda.c), and how an op launches a kernel. The ops themselves (model.c,
 * products.c, routing.c) are the same for all drivers. The kernels (kernels/) are CUDA C. */
#ifndef CH_DEVICE_DEVICE_H
#define CH_DEVICE_DEVICE_H

#include "op/backend.h"
/* Behind the structs of ops, some of which are kernels'. */
#include "device/kernels/args.h"

#define CH_KERNEL_NUMBER(name) CH_KERNEL_##name,
typedef enum { KERNELS(CH_KERNEL_NUMBER) CH_KERNELS } ch_kernel;
#undef CH_KERNEL_NUMBER

/* By number: a kernel's name, and the size of its arguments. */
typedef struct ch_kernel_info {
  const char *name;
  size_t bytes;
} ch_kernel_info;
extern const ch_kernel_info ch_kernel_infos[CH_KERNELS];

/* A driver. Its memory stands first, so that an executor's memory says who launches. */
typedef struct ch_device {
  ch_memory memory;
  void (*launch)(ch_kernel kernel, int64_t groups, const void *args);
  /* A batch of products by a library of the device's, or NULL; 0: not this one, the kernel is to do it. */
  int (*multiply)(const product_args *p, int64_t batch);
} ch_device;

/* A driver's state. A process opens one device of a driver, once. A launch or a copy that fails cannot say so there: it
 * is noted, nothing is done from then on, `get` gives bytes of all ones, which are no finite numbers, and ch_memory's
 * `check` says what it was. */
typedef struct ch_driver {
  const char *name, *instead; /* for messages: the backend, and the remedy if it is unavailable */
  int (*start)(void);         /* opens a device, `number`; 0: what failed has been noted */
  int opened, number;
  int failed;        /* some call has */
  char problem[512]; /* the first one that did, in words */
} ch_driver;

/* Keeps the first failure's message for `check`; returns 0. */
int ch_driver_note(ch_driver *d, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Opens the device that is wanted unless one is open. CHOIR_ERROR_UNSUPPORTED says what is missing. */
int ch_driver_open(ch_driver *d);

/* Number of the device to open, out of `count`; -1: no suitable device, and a note says why. */
int ch_device_choose(ch_driver *d, int count);

/* CHOIR_OK, or CHOIR_ERROR_IO with what failed since the device was opened. */
int ch_driver_check(const ch_driver *d);

/* The device that a driver takes when it opens: `--backend cuda:1` is number 1. -1: each process of a machine the next
 * one. */
extern int ch_device_wanted;

/* For tests of single ops, set before the device is opened: what choir allocates is the host's memory, and ops take
 * pointers to the host's own. A CUDA device can do this where memory does not move after the opening: testing.h sees
 * to it. */
extern int ch_device_takes_host_pointers;

/* The text of all kernels, for a compiler of the device's. */
extern const char ch_device_text[];

/* Groups for `count` elements; a kernel's loop takes the rest where that is more than CH_MOST_GROUPS. */
enum { CH_MAX_GROUPS = 4096 };
static inline int64_t ch_groups(int64_t count) {
  int64_t groups = (count + GROUP - 1) / GROUP;
  return groups < CH_MAX_GROUPS ? groups : CH_MAX_GROUPS;
}

/* Groups for `n` rows where a group takes one row at a time. */
static inline int64_t ch_rows_at_once(int64_t n) { return n < CH_MAX_GROUPS ? n : CH_MAX_GROUPS; }

/* Launches a kernel in `groups` groups; the rest are its arguments by name. Nothing to do: no groups, or a dry run. */
#define CH_LAUNCH(x, kernel, groups, ...) ch_launch((x), CH_KERNEL_##kernel, (groups), &(kernel##_args){__VA_ARGS__})
static inline void ch_launch(ch_exec *x, ch_kernel kernel, int64_t groups, const void *args) {
  if (groups > 0 && !ch_counting(x)) ((const ch_device *)x->memory)->launch(kernel, groups, args);
}

/* A batch of products: by the driver's library where it takes them, else by the kernel. */
void ch_multiply_batch(ch_exec *x, const product_args *p, int64_t batch);

/* Begins the function of an op, whose parameters are x and a. */
#define CH_DEVICE_OP(op) void ch_device_##op(ch_exec *x, const ch_args_of_##op *a)
#define CH_DEVICE_DECLARE(op, args) CH_DEVICE_OP(op);
CH_DEVICE_OPS(CH_DEVICE_DECLARE)

/* An op that is one kernel of the same name, which takes the same arguments. */
#define CH_ONE_KERNEL(op, groups)                 \
  CH_DEVICE_OP(op) {                              \
    const op##_args *args = a;                    \
    ch_launch(x, CH_KERNEL_##op, (groups), args); \
  }

/* Every op of the table but those of the host (op/routing.h). */
void ch_device_fill(ch_ops *ops, ch_compute compute);

#endif
