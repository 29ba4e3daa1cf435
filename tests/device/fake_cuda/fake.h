/* A GPU that is none, for tests of src/device/cuda.c: libcuda, libnvrtc and libcublas in one library. driver.c has the
 * calls, kernels.cc the kernels, built by the C++ compiler.
 *
 * Device memory stands twice: where its addresses point nothing may be touched, and the bytes are `fake_apart` farther
 * on. A call that CUDA would leave undefined ends the process with a message.
 *
 * The environment says more:
 *   FAKE_CUDA_FAIL=CALL:N   the N-th call of that name fails, and all that follow it, as with a device that is lost
 *   FAKE_CUDA_REPORT=FILE   at the end: what was not given back, and how often each kernel ran
 *   FAKE_CUDA_HOST=1        host pointers are welcome everywhere, as tests of single ops want it */
#ifndef CH_TESTS_FAKE_H
#define CH_TESTS_FAKE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Ends the process. */
void fake_wrong(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* Where the bytes of device memory stand; 0 stays 0. Ends the process where p .. p + bytes is not in one allocation. */
void *fake_bytes(const void *p, size_t bytes, const char *what);

/* Kernel by name, or -1; and what there is to know of it. */
int fake_kernel(const char *name);
extern const int fake_kernels;
const char *fake_kernel_name(int kernel);

/* Runs a kernel: groups one after the other, items as fibers that take turns at barriers. */
void fake_run(int kernel, long groups, int items, const void *args);

#ifdef __cplusplus
}
#endif
#endif
