/* Backend "cuda": an NVIDIA GPU by its driver, kernels by NVRTC, large products by cuBLAS; all of them are found at run
 * time, so that choir needs none to be built.
 *
 * Addresses are the device's own. Everything goes through one stream, the default one, in the order of the calls. */
#include <dlfcn.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/format.h"
#include "device/device.h"

/* The parts of cuda.h, nvrtc.h and cublas_v2.h that are used here, a line for each call. */
typedef uint64_t device_address;
typedef void *handle;
enum {
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  READ_ONLY = 8,   /* CU_MEMHOSTREGISTER_... */
  CLOCK_RATE = 13, /* CU_DEVICE_ATTRIBUTE_..., kHz */
  MULTIPROCESSOR_COUNT = 16,
  MEMORY_CLOCK_RATE = 36, /* kHz */
  GLOBAL_MEMORY_BUS_WIDTH = 37,
  COMPUTE_CAPABILITY_MAJOR = 75,
  COMPUTE_CAPABILITY_MINOR = 76,
  CUDA_R_32F = 0,
  CUDA_R_16BF = 14,
  CUBLAS_COMPUTE_32F = 68,
  CUBLAS_GEMM_DEFAULT = -1
};
/* clang-format off */
#define CUDA_CALLS(call) \
  call(cuGetErrorName, (int, const char **)) call(cuInit, (unsigned)) call(cuDeviceGetCount, (int *)) call(cuDeviceGet, (int *, int)) \
  call(cuDeviceGetAttribute, (int *, int, int)) call(cuDeviceGetName, (char *, int, int)) \
  call(cuDeviceTotalMem_v2, (size_t *, int)) \
  call(cuDevicePrimaryCtxRetain, (handle *, int)) call(cuDevicePrimaryCtxRelease_v2, (int)) call(cuCtxSetCurrent, (handle)) call(cuCtxSynchronize, (void)) \
  call(cuMemGetInfo_v2, (size_t *, size_t *)) call(cuMemAlloc_v2, (device_address *, size_t)) \
  call(cuMemHostAlloc, (void **, size_t, unsigned)) call(cuMemFreeHost, (void *)) call(cuMemHostRegister_v2, (void *, size_t, unsigned)) \
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
  call(cublasCreate_v2, (handle *)) call(cublasDestroy_v2, (handle)) \
  call(cublasGemmStridedBatchedEx, (handle, int, int, int, int, int, const void *, const void *, int, int, long long, \
    const void *, int, int, long long, const void *, void *, int, int, long long, int, int, int))
/* clang-format on */
#define DECLARE(name, parameters) static int(*name) parameters;
CUDA_CALLS(DECLARE)
NVRTC_CALLS(DECLARE)
CUBLAS_CALLS(DECLARE)

static handle context, blas, function_of[CH_KERNELS];
static int hosted; /* ch_device_takes_host_pointers as it was when the device was opened */
static int start_cuda(void);
static ch_driver driver = {.name = "cuda", .instead = "take backend 'cpu', or 'opencl'", .start = start_cuda};

/* Whether a call of CUDA's succeeded; a failure is noted for ch_driver. */
static int is_well(const char *call, int code) {
  const char *meaning = NULL;
  if (!code) return 1;
  if (!strncmp(call, "cu", 2) && strncmp(call, "cublas", 6)) cuGetErrorName(code, &meaning);
  return ch_driver_note(&driver, "%s failed: %s (error %d)", call, meaning ? meaning : "no more is known", code);
}
#define CALL(name, ...) is_well(#name, name(__VA_ARGS__))

/* A context belongs to a thread, and a program may call from any of its threads. 0: there is no going on. */
static int here(void) {
  static _Thread_local handle entered;
  if (driver.failed) return 0;
  if (entered != context && CALL(cuCtxSetCurrent, context)) entered = context;
  return !driver.failed;
}

static device_address address(const void *p) { return (device_address)(uintptr_t)p; }

/* ---- memory ---- */

static void *cuda_alloc(const char *name, size_t bytes) {
  (void)name;
  device_address p = 0;
  void *host = NULL;
  if (!here()) return NULL;
  int code = hosted ? cuMemHostAlloc(&host, bytes, 0) : cuMemAlloc_v2(&p, bytes);
  if (code == CUDA_ERROR_OUT_OF_MEMORY) return NULL; /* the caller says what did not fit */
  if (!is_well("cuMemAlloc_v2", code)) return NULL;
  if (hosted) p = address(host);
  CALL(cuMemsetD8_v2, p, 0, bytes);
  return (void *)(uintptr_t)p;
}

/* Frees after a failed call, too: a program that goes on would leak. */
static void cuda_free(void *p, size_t bytes) {
  (void)bytes;
  if (p) here(), hosted ? CALL(cuMemFreeHost, p) : CALL(cuMemFree_v2, address(p));
}

static size_t cuda_available(void) {
  size_t available = 0, all = 0;
  return here() && CALL(cuMemGetInfo_v2, &available, &all) ? available : 0;
}

static void cuda_zero(void *to, size_t bytes) {
  if (bytes && here()) CALL(cuMemsetD8_v2, address(to), 0, bytes);
}

static void cuda_copy(void *to, const void *from, size_t bytes) {
  if (bytes && here()) CALL(cuMemcpyDtoD_v2, address(to), address(from), bytes);
}

static void cuda_put(void *to, const void *from, size_t bytes) {
  if (bytes && here()) CALL(cuMemcpyHtoD_v2, address(to), from, bytes);
}

static void cuda_get(void *to, const void *from, size_t bytes) {
  if (bytes && here()) CALL(cuMemcpyDtoH_v2, to, address(from), bytes);
  if (driver.failed) memset(to, 0xFF, bytes);
}

static void cuda_synchronise(void) {
  if (here()) CALL(cuCtxSynchronize);
}

static int cuda_check(void) { return ch_driver_check(&driver); }

/* ---- launches ---- */

static void cuda_launch(ch_kernel kernel, int64_t groups, const void *args) {
  void *parameters[] = {(void *)args};
  unsigned items = kernel == CH_KERNEL_product ? TILE * TILE : GROUP;
  if (!here()) return;
  int code = cuLaunchKernel(function_of[kernel], (unsigned)groups, 1, 1, items, 1, 1, 0, NULL, parameters, NULL);
  if (is_well("cuLaunchKernel", code) && hosted) CALL(cuCtxSynchronize); /* the host looks at its memory at any time */
}

/* cuBLAS has columns where choir has rows: C^T = op(B)^T op(A)^T. What a kernel would round on reading is left to our
 * own, as are rows that belong to experts by number (products.c makes these equal where it can). */
static int cuda_multiply(const product_args *p, int64_t batch) {
  if (p->begin || p->a_is == ROUNDED || p->b_is == ROUNDED || p->a_is != p->b_is || !here()) return 0;
  int type = p->a_is == AS_BF16 ? CUDA_R_16BF : CUDA_R_32F, c_type = p->c_is == AS_BF16 ? CUDA_R_16BF : CUDA_R_32F;
  float beta = p->accumulate ? 1 : 0;
  if (p->m < 1 || p->n < 1 || p->k < 1 || batch < 1) return 0;
  CALL(cublasGemmStridedBatchedEx, blas, p->trans_b, p->trans_a, (int)p->n, (int)p->m, (int)p->k, &p->alpha,
       (const void *)p->b, type, (int)p->ldb, p->b_stride, (const void *)p->a, type, (int)p->lda, p->a_stride, &beta,
       (void *)p->c, c_type, (int)p->ldc, p->c_stride, (int)batch, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
  if (hosted) CALL(cuCtxSynchronize);
  return 1;
}

/* ---- the driver ---- */

/* Opens the first file that a pattern matches. */
static void *open_matching(const char *pattern) {
  glob_t found;
  void *opened = NULL;
  if (!glob(pattern, 0, NULL, &found)) opened = dlopen(found.gl_pathv[0], RTLD_NOW | RTLD_LOCAL);
  globfree(&found);
  return opened;
}

/* Opens a library that the loader does not find: from the toolkit's directory, or from NVIDIA's wheels, which PyTorch
 * brings and which lie beside the choir package in site-packages. */
static void *open_elsewhere(const char *name) {
  const char *toolkit = getenv("CUDA_HOME");
  char self[PATH_MAX] = "", pattern[PATH_MAX + 128];
  Dl_info info;
  int known = dladdr((void *)(uintptr_t)open_elsewhere, &info) && strchr(info.dli_fname, '/');
  snprintf(pattern, sizeof pattern, "%s/lib64/%s", toolkit ? toolkit : "/usr/local/cuda", name);
  void *opened = open_matching(pattern);
  if (!realpath(known ? info.dli_fname : "/proc/self/exe", self)) return opened;
  for (int up = 0; up < 3 && !opened; up++) { /* site-packages/choir/libchoir.so, site-packages/choir/bin/choir */
    *strrchr(self, '/') = 0;
    if (!strchr(self, '/')) break;
    snprintf(pattern, sizeof pattern, "%s/nvidia/*/lib/%s", self, name);
    opened = open_matching(pattern);
  }
  return opened;
}

/* Opens the first of the libraries that exists; otherwise notes the missing names. */
static void *library(const char *const names[]) {
  void *found = NULL;
  for (int i = 0; names[i] && !found; i++) found = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
  for (int i = 0; names[i] && !found; i++) found = open_elsewhere(names[i]);
  if (!found) ch_driver_note(&driver, "%s is not there", names[0]);
  return found;
}
#define LIBRARY(...) library((const char *const[]){__VA_ARGS__, NULL})

static int load_driver(void) {
  void *cuda = LIBRARY("libcuda.so.1");
  void *nvrtc = cuda ? LIBRARY("libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12") : NULL;
  void *cublas = nvrtc ? LIBRARY("libcublas.so", "libcublas.so.13", "libcublas.so.12") : NULL;
  if (!cublas) return 0;
#define FIND_IN(library, name) \
  if (!(*(void **)&name = dlsym(library, #name))) return ch_driver_note(&driver, "there is no " #name);
#define FIND_CUDA(name, parameters) FIND_IN(cuda, name)
#define FIND_NVRTC(name, parameters) FIND_IN(nvrtc, name)
#define FIND_CUBLAS(name, parameters) FIND_IN(cublas, name)
  CUDA_CALLS(FIND_CUDA) NVRTC_CALLS(FIND_NVRTC) CUBLAS_CALLS(FIND_CUBLAS) return 1;
}

/* The compiler's own words, as far as they fit. */
static void note_log(handle program) {
  size_t size = 0;
  char *log = nvrtcGetProgramLogSize(program, &size) ? NULL : calloc(1, size + 1);
  if (log && !nvrtcGetProgramLog(program, log)) ch_driver_note(&driver, "the kernels do not compile: %.400s", log);
  free(log);
}

/* The text, compiled for this device, or NULL. */
static char *compile(int major, int minor) {
  char arch[32], *image = NULL;
  const char *const options[] = {arch, "--std=c++17"};
  size_t size = 0;
  handle program = NULL;
  snprintf(arch, sizeof arch, "-arch=sm_%d%d", major, minor);
  if (!CALL(nvrtcCreateProgram, &program, ch_device_text, "choir.cu", 0, NULL, NULL)) return NULL;
  int code = nvrtcCompileProgram(program, 2, options);
  if (code) note_log(program);
  if (is_well("nvrtcCompileProgram", code) && CALL(nvrtcGetCUBINSize, program, &size) && (image = malloc(size)) &&
      !CALL(nvrtcGetCUBIN, program, image)) {
    free(image);
    image = NULL;
  }
  if (!image) ch_driver_note(&driver, "no memory for the kernels");
  nvrtcDestroyProgram(&program);
  return image;
}

static int build_module(int device) {
  int major = 0, minor = 0;
  handle module = NULL;
  char *image = CALL(cuDeviceGetAttribute, &major, COMPUTE_CAPABILITY_MAJOR, device) &&
                        CALL(cuDeviceGetAttribute, &minor, COMPUTE_CAPABILITY_MINOR, device)
                    ? compile(major, minor)
                    : NULL;
  int well = image && CALL(cuModuleLoadData, &module, image);
  free(image);
  for (int i = 0; i < CH_KERNELS && well; i++)
    well = CALL(cuModuleGetFunction, &function_of[i], module, ch_kernel_infos[i].name);
  return well;
}

/* Gives back what was taken where the rest cannot be had; the module goes with its context. */
static int start_on(int device) {
  if (!CALL(cuDevicePrimaryCtxRetain, &context, device)) return 0;
  if (CALL(cuCtxSetCurrent, context) && CALL(cublasCreate_v2, &blas)) {
    if (build_module(device)) return 1;
    cublasDestroy_v2(blas);
  }
  cuDevicePrimaryCtxRelease_v2(device);
  context = NULL;
  return 0;
}

/* For tests: gives the device the memory that this process has now, its heap, its stack and its variables, at the same
 * addresses. What cannot be written cannot be registered everywhere, and few tests need it. */
static int register_memory(void) {
  FILE *maps = fopen("/proc/self/maps", "r");
  char line[512];
  unsigned long before = 0;
  while (maps && fgets(line, sizeof line, maps)) {
    unsigned long begin = 0, end = 0;
    char access[8] = "", path[256] = "";
    sscanf(line, "%lx-%lx %7s %*s %*s %*s %255s", &begin, &end, access, path);
    int own = !strcmp(path, "[heap]") || !strcmp(path, "[stack]") || strstr(path, "/tests/test_") ||
              (!*path && begin == before); /* the zeroed variables, mapped after the others */
    if (!own) continue;
    before = end;
    if (access[0] != 'r' || access[2] == 'x') continue;
    int code = cuMemHostRegister_v2((void *)begin, end - begin, access[1] == 'w' ? 0 : READ_ONLY);
    if (code && access[1] == 'w') ch_driver_note(&driver, "%s cannot be registered (error %d)", path, code);
  }
  if (maps) fclose(maps);
  return maps ? !driver.failed : ch_driver_note(&driver, "/proc/self/maps cannot be read");
}

static int start_cuda(void) {
  int device = 0, count = 0;
  hosted = ch_device_takes_host_pointers;
  if (!load_driver() || !CALL(cuInit, 0) || !CALL(cuDeviceGetCount, &count)) return 0;
  driver.number = ch_device_choose(&driver, count);
  return driver.number >= 0 && CALL(cuDeviceGet, &device, driver.number) && start_on(device) &&
         (!hosted || register_memory());
}

/* Of a multiprocessor, fp32: CUDA C programming guide, throughput of arithmetic instructions. */
static int lanes_of(int major, int minor) {
  return major == 7 || (minor == 0 && (major == 6 || major == 8)) ? 64 : 128;
}

/* Device `number` in words. Its peak is what its clocks say: two operations a clock and lane, two transfers a clock. */
static int cuda_describe(int number, char *text, size_t size) {
  char name[128] = "";
  size_t all = 0;
  int device = 0, count = 0, major = 0, minor = 0, units = 0, clock = 0, memory_clock = 0, width = 0;
  const struct {
    int *value, of;
  } facts[] = {{&major, COMPUTE_CAPABILITY_MAJOR}, {&minor, COMPUTE_CAPABILITY_MINOR},
               {&units, MULTIPROCESSOR_COUNT},     {&clock, CLOCK_RATE},
               {&memory_clock, MEMORY_CLOCK_RATE}, {&width, GLOBAL_MEMORY_BUS_WIDTH}};
  if ((!driver.opened && !load_driver()) || cuInit(0) || cuDeviceGetCount(&count) || number >= count ||
      cuDeviceGet(&device, number) || cuDeviceGetName(name, sizeof name, device) || cuDeviceTotalMem_v2(&all, device))
    return 0;
  for (size_t i = 0; i < sizeof facts / sizeof *facts; i++)
    if (cuDeviceGetAttribute(facts[i].value, facts[i].of, device)) *facts[i].value = 0;
  ch_format(text, size, "%s, %.1f GiB; peak %.1f TFLOP/s in fp32, %.2f TB/s; products by cuBLAS", name,
            (double)all / 0x1p30, 2e-9 * lanes_of(major, minor) * units * clock, 2e-9 * memory_clock * width / 8);
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
               .synchronise = cuda_synchronise,
               .check = cuda_check},
    .launch = cuda_launch,
    .multiply = cuda_multiply,
};

static int cuda_supports(ch_compute compute, int emulate) {
  (void)compute, (void)emulate; /* bf16 is in the hardware from sm_80 on, and right before it */
  return ch_driver_open(&driver);
}

const ch_backend ch_backend_cuda = {.name = "cuda",
                                    .memory = &cuda.memory,
                                    .supports = cuda_supports,
                                    .fill = ch_device_fill,
                                    .device = &ch_device_wanted,
                                    .describe = cuda_describe};
