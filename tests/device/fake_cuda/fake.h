/* A GPU that is none, for tests of backend "cuda": libcuda, libnvrtc and libcublas in one library. driver.c and
 * stream.c have the calls, kernels.cc the kernels, fibers.c runs them, and races.c looks at what they read and write.
 *
 * Device memory stands twice: where its addresses point nothing may be touched, and the bytes are `fake_apart` farther
 * on. A call that CUDA would leave undefined, a race of kernels, or an access beside what was
 * allocated ends the process with a message.
 *
 * The environment says more:
 *   FAKE_CUDA_FAIL=CALL:N   the N-th call of that name fails, and all that follow it, as with a device that is lost;
 *                           CALL:N:once: this one alone
 *   FAKE_CUDA_REPORT=FILE   at the end: what was not given back, and how often each kernel ran
 *   FAKE_CUDA_HOST=1        host pointers are welcome everywhere, as tests of single ops want it */
#ifndef CH_TESTS_FAKE_H
#define CH_TESTS_FAKE_H

#include <stddef.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Ends the process. */
void fake_wrong(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* Where the bytes of device memory stand; 0 stays 0. Ends the process where p .. p + bytes is not in one allocation. */
void *fake_bytes(const void *p, size_t bytes, const char *what);

/* Whether it is an address of device memory that is allocated. */
int fake_is_allocated(const void *p);

/* Whether these bytes, where they stand, are memory that all items reach; ends the process if device memory was not
 * allocated there. */
int fake_is_global(const void *p, size_t bytes);

/* Kernels; behind the last one a row without a name. */
typedef struct fake_kernel {
  const char *name;
  size_t bytes; /* of the arguments */
  void (*run)(const void *args);
} fake_kernel;
extern const fake_kernel fake_kernels[];

/* Runs one. */
void fake_run(const fake_kernel *kernel, long groups, int items, const void *args);

/* Inside a kernel: its name; CUDA's own names; what a pointer leads to. */
typedef struct {
  unsigned x;
} fake_place;
extern fake_place threadIdx, blockIdx, gridDim;
void __syncthreads(void);
const char *fake_running(void);
int fake_is_stack(const void *p); /* or the arguments, or a name of CUDA */
int fake_is_shared(const void *p);

/* C (= or +=) alpha A B, column by column: A [m,k], B [k,n]. type: 0 is fp32, else bf16. */
typedef struct {
  void *at;
  int type, ld, transposed;
  long long stride;
} fake_matrix;
typedef struct {
  int m, n, k, batch;
  float alpha, beta;
  fake_matrix a, b, c;
} fake_product;
void fake_multiply(const fake_product *q);

/* What the stream is asked for. It happens when the host waits for the stream, and not before: what the host has
 * changed or freed until then shows. */
typedef struct {
  enum { FAKE_KERNEL, FAKE_SET, FAKE_MOVE, FAKE_PRODUCT } kind;
  const fake_kernel *kernel;
  unsigned groups, items;
  char args[256];
  char *to; /* as bytes stand */
  const char *from;
  char *own; /* what `from` leads to, if it has to be freed */
  size_t bytes;
  fake_product product;
} fake_task;
void fake_enqueue(const fake_task *t);
int fake_is_busy(void);
int fake_is_stream(const void *stream);
void *fake_pinned(size_t bytes);
void fake_report_stream(FILE *file);

/* For the calls themselves. */
#define CALL __attribute__((visibility("default"))) int
enum { LOST = 999 };
int fake_fails(const char *name); /* whether this call is to fail */
int fake_is_lost(void);
void fake_needs_context(const char *name);
int fake_takes_host_pointers(void);
void *fake_on_host(const void *p, const char *what); /* ends the process at an address of the device */
#define BEGIN_IN_CONTEXT(name)        \
  if (fake_fails(#name)) return LOST; \
  fake_needs_context(#name)

/* races.c is told where kernels are, and what they count up. */
void fake_begin_launch(void);
void fake_begin_group(void);
void fake_pass_barrier(void);
void fake_count(int *p);

#ifdef __cplusplus
}
#endif
#endif
