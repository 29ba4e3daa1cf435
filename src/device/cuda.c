/* Backend "cuda": an NVIDIA GPU by its driver, kernels by NVRTC, large products by cuBLAS; all of them are found at run
 * time, so that choir needs none to be built.
 *
 * Addresses are the device's own. Everything goes through one stream, the default one, in the order of the calls. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/format.h"
#include "device/device.h"

/* What is used of cuda.h, nvrtc.h and cublas_v2.h. A line a call. */
typedef uint64_t device_address;
typedef void *handle;
enum {
  MULTIPROCESSOR_MAJOR = 75, /* CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, and _MINOR behind it */
  CUDA_R_32F = 0,
  CUDA_R_16BF = 14,
  CUBLAS_COMPUTE_32F = 68,
  CUBLAS_GEMM_DEFAULT = -1
};
/* clang-format off */
#define CUDA_CALLS(call) \
  call(cuInit, (unsigned)) call(cuDeviceGetCount, (int *)) call(cuDeviceGet, (int *, int)) \
  call(cuDeviceGetAttribute, (int *, int, int)) call(cuDeviceGetName, (char *, int, int)) \
  call(cuDeviceTotalMem_v2, (size_t *, int)) \
  call(cuDevicePrimaryCtxRetain, (handle *, int)) call(cuCtxSetCurrent, (handle)) call(cuCtxSynchronize, (void)) \
  call(cuMemGetInfo_v2, (size_t *, size_t *)) call(cuMemAlloc_v2, (device_address *, size_t)) \
  call(cuMemFree_v2, (device_address)) call(cuMemsetD8_v2, (device_address, unsigned char, size_t)) \
  call(cuMemcpyHtoD_v2, (device_address, const void *, size_t)) \
  call(cuMemcpyDtoH_v2, (void *, device_address, size_t)) \
  call(cuMemcpyDtoD_v2, (device_address, device_address, size_t)) \
  call(cuModuleLoadData, (handle *, const void *)) call(cuModuleGetFunction, (handle *, handle, const char *)) \
  call(cuLaunchKernel, (handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **))
#define NVRTC_CALLS(call) \
  call(nvrtcCreateProgram, (handle *, const char *, const char *, int, const char *const *, const char *const *)) \
  call(nvrtcCompileProgram, (handle, int, const char *const *)) call(nvrtcDestroyProgram, (handle *)) \
  call(nvrtcGetCUBINSize, (handle, size_t *)) call(nvrtcGetCUBIN, (handle, char *)) \
  call(nvrtcGetProgramLogSize, (handle, size_t *)) call(nvrtcGetProgramLog, (handle, char *))
#define CUBLAS_CALLS(call) \
  call(cublasCreate_v2, (handle *)) \
  call(cublasGemmStridedBatchedEx, (handle, int, int, int, int, int, const void *, const void *, int, int, long long, \
    const void *, int, int, long long, const void *, void *, int, int, long long, int, int, int))
/* clang-format on */
#define DECLARE(name, parameters) static int(*name) parameters;
CUDA_CALLS(DECLARE)
NVRTC_CALLS(DECLARE)
CUBLAS_CALLS(DECLARE)

static handle context, blas, function_of[CH_KERNELS];
static int opened; /* 1: it is there; -1: it cannot be had */
static int failed; /* the first error of a call that could not say so */
static char problem[512];

static int is_well(int code) {
  if (code && !failed) failed = code;
  return !failed;
}

/* A context belongs to a thread, and a program may call from any of its threads. */
static int here(void) {
  static _Thread_local int entered;
  if (!entered && !failed) entered = is_well(cuCtxSetCurrent(context));
  return !failed;
}

static device_address address(const void *p) { return (device_address)(uintptr_t)p; }

/* ---- memory ---- */

static void *cuda_alloc(const char *name, size_t bytes) {
  (void)name;
  device_address p = 0;
  if (!here() || cuMemAlloc_v2(&p, bytes)) return NULL;
  is_well(cuMemsetD8_v2(p, 0, bytes));
  return (void *)(uintptr_t)p;
}

static void cuda_free(void *p, size_t bytes) {
  (void)bytes;
  if (p && here()) cuMemFree_v2(address(p));
}

static size_t cuda_available(void) {
  size_t available = 0, all = 0;
  return !here() || cuMemGetInfo_v2(&available, &all) ? 0 : available;
}

static void cuda_zero(void *to, size_t bytes) {
  if (bytes && here()) is_well(cuMemsetD8_v2(address(to), 0, bytes));
}

static void cuda_copy(void *to, const void *from, size_t bytes) {
  if (bytes && here()) is_well(cuMemcpyDtoD_v2(address(to), address(from), bytes));
}

static void cuda_put(void *to, const void *from, size_t bytes) {
  if (bytes && here()) is_well(cuMemcpyHtoD_v2(address(to), from, bytes));
}

static void cuda_get(void *to, const void *from, size_t bytes) {
  if (bytes && here()) is_well(cuMemcpyDtoH_v2(to, address(from), bytes));
  if (failed) memset(to, 0xFF, bytes);
}

static void cuda_synchronise(void) {
  if (here()) is_well(cuCtxSynchronize());
}

/* ---- launches ---- */

static void cuda_launch(ch_kernel kernel, int64_t groups, const void *args) {
  void *parameters[] = {(void *)args};
  unsigned items = kernel == CH_KERNEL_product ? TILE * TILE : GROUP;
  if (here())
    is_well(cuLaunchKernel(function_of[kernel], (unsigned)groups, 1, 1, items, 1, 1, 0, NULL, parameters, NULL));
}

/* cuBLAS has columns where choir has rows: C^T = op(B)^T op(A)^T. What a kernel would round on reading is left to our
 * own, as are rows that belong to experts by number. */
static int cuda_multiply(const product_args *p, int64_t batch) {
  if (p->begin || p->a_is == ROUNDED || p->b_is == ROUNDED || p->a_is != p->b_is || !here()) return 0;
  int type = p->a_is == AS_BF16 ? CUDA_R_16BF : CUDA_R_32F;
  float beta = p->accumulate ? 1 : 0;
  if (p->m < 1 || p->n < 1 || p->k < 1 || batch < 1) return 0;
  is_well(cublasGemmStridedBatchedEx(blas, p->trans_b, p->trans_a, (int)p->n, (int)p->m, (int)p->k, &p->alpha,
                                     (const void *)p->b, type, (int)p->ldb, p->b_stride, (const void *)p->a, type,
                                     (int)p->lda, p->a_stride, &beta, (void *)p->c, CUDA_R_32F, (int)p->ldc,
                                     p->c_stride, (int)batch, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
  return 1;
}

/* ---- the driver ---- */

static int refuse(const char *what, int code) {
  snprintf(problem, sizeof problem, "backend 'cuda': %s (error %d); take backend 'cpu', or 'opencl'", what, code);
  return -1;
}

/* What is missing is named. */
static void *library(const char *name, const char *other) {
  void *found = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (!found && other) found = dlopen(other, RTLD_NOW | RTLD_LOCAL);
  if (!found) snprintf(problem, sizeof problem, "%s is not there", name);
  return found;
}

static int load(void) {
  void *cuda = library("libcuda.so.1", NULL), *nvrtc = cuda ? library("libnvrtc.so", "libnvrtc.so.13") : NULL;
  void *cublas = nvrtc ? library("libcublas.so", "libcublas.so.13") : NULL;
  char missing[256];
  snprintf(missing, sizeof missing, "%.200s", problem);
  if (!cublas) return refuse(missing, 0);
#define FIND_IN(library, name) \
  if (!(*(void **)&name = dlsym(library, #name))) return refuse("there is no " #name, 0);
#define FIND_CUDA(name, parameters) FIND_IN(cuda, name)
#define FIND_NVRTC(name, parameters) FIND_IN(nvrtc, name)
#define FIND_CUBLAS(name, parameters) FIND_IN(cublas, name)
  CUDA_CALLS(FIND_CUDA) NVRTC_CALLS(FIND_NVRTC) CUBLAS_CALLS(FIND_CUBLAS) return 1;
}

/* The text, compiled for this device, or NULL. */
static char *compile(int major, int minor) {
  char arch[32], *image = NULL;
  const char *const options[] = {arch, "--std=c++17"};
  size_t size = 0;
  handle program = NULL;
  snprintf(arch, sizeof arch, "-arch=sm_%d%d", major, minor);
  if (nvrtcCreateProgram(&program, ch_device_text, "choir.cu", 0, NULL, NULL)) return NULL;
  int code = nvrtcCompileProgram(program, 2, options);
  if (!code && !nvrtcGetCUBINSize(program, &size) && (image = malloc(size)) && nvrtcGetCUBIN(program, image)) {
    free(image);
    image = NULL;
  }
  if (code && !nvrtcGetProgramLogSize(program, &size) && (image = calloc(1, size + 1))) {
    nvrtcGetProgramLog(program, image);
    snprintf(problem, sizeof problem, "backend 'cuda': the kernels do not compile: %.400s", image);
    free(image);
    image = NULL;
  }
  nvrtcDestroyProgram(&program);
  return image;
}

static int build(int device) {
  int major = 0, minor = 0, code;
  handle module = NULL;
  if (cuDeviceGetAttribute(&major, MULTIPROCESSOR_MAJOR, device) ||
      cuDeviceGetAttribute(&minor, MULTIPROCESSOR_MAJOR + 1, device))
    return refuse("the device does not say what it is", 0);
  problem[0] = 0;
  char *image = compile(major, minor);
  if (!image) return problem[0] ? -1 : refuse("NVRTC did not compile the kernels", 0);
  code = cuModuleLoadData(&module, image);
  free(image);
  if (code) return refuse("the kernels were not loaded", code);
  for (int i = 0; i < CH_KERNELS; i++)
    if ((code = cuModuleGetFunction(&function_of[i], module, ch_kernel_infos[i].name)))
      return refuse(ch_kernel_infos[i].name, code);
  return 1;
}

static int start(void) {
  int device = 0, count = 0, code;
  if (load() < 0) return -1;
  if ((code = cuInit(0))) return refuse("the driver does not start", code);
  if ((code = cuDeviceGetCount(&count)) || !count) return refuse("no device is there", code);
  if (ch_device_wanted >= count) {
    snprintf(problem, sizeof problem, "backend 'cuda': there is no device %d; there are %d, counted from 0",
             ch_device_wanted, count);
    return -1;
  }
  if ((code = cuDeviceGet(&device, ch_device_wanted))) return refuse("the device is not to be had", code);
  if ((code = cuDevicePrimaryCtxRetain(&context, device)) || (code = cuCtxSetCurrent(context)))
    return refuse("no context", code);
  if ((code = cublasCreate_v2(&blas))) return refuse("cuBLAS does not start", code);
  return build(device);
}

static int cuda_open(void) {
  if (!opened) opened = start();
  return opened > 0 ? CHOIR_OK : ch_error(CHOIR_ERROR_UNSUPPORTED, "%s", problem);
}

/* Device `number` in words. */
static int cuda_describe(int number, char *text, size_t size) {
  char name[128] = "";
  size_t all = 0;
  int device = 0, count = 0;
  if (!opened && load() < 0) opened = -1;
  if (opened < 0 || cuInit(0) || cuDeviceGetCount(&count) || number >= count) return 0;
  if (cuDeviceGet(&device, number) || cuDeviceGetName(name, sizeof name, device)) return 0;
  if (cuDeviceTotalMem_v2(&all, device)) return 0;
  ch_format(text, size, "%s, %.1f GiB", name, (double)all / 0x1p30);
  return 1;
}

static const ch_device cuda = {
    .memory = {.alloc = cuda_alloc,
               .free = cuda_free,
               .available = cuda_available,
               .zero = cuda_zero,
               .copy = cuda_copy,
               .put = cuda_put,
               .get = cuda_get,
               .synchronise = cuda_synchronise},
    .open = cuda_open,
    .launch = cuda_launch,
    .multiply = cuda_multiply,
};

static int cuda_supports(ch_compute compute, int emulate) {
  (void)compute, (void)emulate; /* bf16 is in the hardware from sm_80 on, and right before it */
  return cuda_open();
}

static void cuda_fill(ch_ops *ops, ch_compute compute) {
  (void)compute;
  ch_device_fill(ops);
}

const ch_backend ch_backend_cuda = {"cuda", &cuda.memory, cuda_supports, cuda_fill, &ch_device_wanted, cuda_describe};
