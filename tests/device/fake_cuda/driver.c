/* The calls of libcuda, libnvrtc and libcublas that backend "cuda" makes, but for those of streams and graphs
 * (stream.c), and what CUDA asks of who makes them. */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fake.h"

enum { MAX = 4096, DEVICES = 2 };
static const int major[DEVICES] = {9, 6}, minor[DEVICES] = {0, 1}; /* compute capability of each */
static const size_t MEMORY_BYTES = (size_t)64 << 30;

static struct {
  char *begin;
  size_t bytes;
} area[MAX];
static int areas, workspaces, initialised, retained, current_device = -1, handles, programs, lost;
static char *untouchable, *bytes_of_device; /* device memory as addresses, and as bytes */
static size_t used;
static _Thread_local int current; /* this thread has entered the context */
static char context[1], blas[1], module[1], program[1], image[] = "choir's kernels";

void fake_wrong(const char *format, ...) {
  va_list args;
  va_start(args, format);
  fprintf(stderr, "fake CUDA: ");
  vfprintf(stderr, format, args);
  fprintf(stderr, "\n");
  abort();
}

int fake_takes_host_pointers(void) {
  static int takes = -1;
  if (takes < 0) takes = getenv("FAKE_CUDA_HOST") != NULL;
  return takes;
}

int fake_fails(const char *name) {
  static const char *wanted;
  static long left = -1;
  if (!wanted) {
    wanted = getenv("FAKE_CUDA_FAIL") ? getenv("FAKE_CUDA_FAIL") : "";
    const char *colon = strchr(wanted, ':');
    left = colon ? atol(colon + 1) : 0;
  }
  size_t length = strcspn(wanted, ":");
  int now = !lost && length && !strncmp(name, wanted, length) && !name[length] && --left == 0;
  if (now && !strstr(wanted, ":once")) lost = 1;
  return lost || now;
}
int fake_is_lost(void) { return lost; }
void fake_needs_context(const char *name) {
  if (!initialised) fake_wrong("%s before cuInit", name);
  if (!current) fake_wrong("%s without a context", name);
}
#define fails fake_fails
#define BEGIN(name)              \
  if (fails(#name)) return LOST; \
  if (!initialised) fake_wrong(#name " before cuInit")

__attribute__((destructor)) static void report(void) {
  FILE *file = getenv("FAKE_CUDA_REPORT") ? fopen(getenv("FAKE_CUDA_REPORT"), "a") : NULL;
  if (!file) return;
  fprintf(file, "left: %d allocations, %d programs, %d contexts, %d handles\ndevice %d\n", areas - workspaces, programs,
          retained, handles, current_device);
  fake_report_stream(file);
  fclose(file);
}

/* ---- the device ---- */

CALL cuGetErrorName(int code, const char **name) {
  *name = code == LOST ? "CUDA_ERROR_UNKNOWN" : "another error";
  return 0;
}
CALL cuGetErrorString(int code, const char **text) {
  *text = code == LOST ? "unknown error" : "another error, in words";
  return 0;
}
CALL cuInit(unsigned flags) {
  if (fails("cuInit")) return LOST;
  return !(initialised = flags == 0);
}
CALL cuDeviceGetCount(int *count) {
  BEGIN(cuDeviceGetCount);
  *count = DEVICES;
  return 0;
}
CALL cuDeviceGet(int *device, int number) {
  BEGIN(cuDeviceGet);
  if (number < 0 || number >= DEVICES) return 101;
  *device = number;
  return 0;
}
CALL cuDeviceGetName(char *name, int bytes, int device) {
  BEGIN(cuDeviceGetName);
  snprintf(name, (size_t)bytes, "fake GPU %d", device);
  return 0;
}
CALL cuDeviceTotalMem_v2(size_t *bytes, int device) {
  BEGIN(cuDeviceTotalMem_v2);
  (void)device;
  *bytes = MEMORY_BYTES;
  return 0;
}
CALL cuDeviceGetAttribute(int *value, int attribute, int device) {
  const struct {
    int attribute, value;
  } known[] = {{13, 1000000},       {16, 10},           {36, 2000000}, {37, 1024}, {38, 24 << 20},
               {75, major[device]}, {76, minor[device]}};
  BEGIN(cuDeviceGetAttribute);
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (known[i].attribute == attribute) {
      *value = known[i].value;
      return 0;
    }
  fake_wrong("attribute %d of a device", attribute);
}
CALL cuDevicePrimaryCtxRetain(void **to, int device) {
  BEGIN(cuDevicePrimaryCtxRetain);
  retained++;
  current_device = device;
  *to = context;
  return 0;
}
CALL cuDevicePrimaryCtxRelease_v2(int device) {
  (void)device; /* also of a device that is lost */
  if (retained-- < 1) fake_wrong("a context is released that nobody has");
  if (!retained) areas = workspaces = 0; /* these go with it */
  return 0;
}
CALL cuCtxSetCurrent(void *c) {
  BEGIN(cuCtxSetCurrent);
  if (c != context || !retained) fake_wrong("a context that nobody has becomes current");
  current = 1;
  return 0;
}

/* ---- memory ---- */

void *fake_bytes(const void *p, size_t bytes, const char *what) {
  const char *at = p;
  int on_device = at >= untouchable && at < untouchable + MEMORY_BYTES;
  if (!p || (fake_takes_host_pointers() && !on_device)) return (void *)(uintptr_t)p;
  if (!untouchable || !on_device) fake_wrong("%s: %p is no address of the device", what, p);
  for (int i = 0; i < areas; i++)
    if (at >= area[i].begin && at + bytes <= area[i].begin + area[i].bytes) return bytes_of_device + (at - untouchable);
  fake_wrong("%s: %zu bytes at %p are not in one allocation", what, bytes, p);
}

int fake_is_allocated(const void *p) {
  const char *at = p;
  int found = 0;
  for (int i = 0; i < areas && !found; i++) found = at >= area[i].begin && at < area[i].begin + area[i].bytes;
  return found;
}

int fake_is_global(const void *p, size_t bytes) {
  static int last; /* the area that was met last */
  const char *at = p;
  if (!bytes_of_device || at < bytes_of_device || at >= bytes_of_device + MEMORY_BYTES)
    return fake_takes_host_pointers() && !fake_is_stack(p);
  at = untouchable + (at - bytes_of_device);
  for (int i = 0; i < areas; i++, last = (last + 1) % areas)
    if (last < areas && at >= area[last].begin && at + bytes <= area[last].begin + area[last].bytes) return 1;
  fake_wrong("%s: %zu bytes are touched beside what was allocated", fake_running(), bytes);
}

void *fake_on_host(const void *p, const char *what) {
  const char *at = p;
  if (!fake_takes_host_pointers() && at >= untouchable && at < untouchable + MEMORY_BYTES)
    fake_wrong("%s: an address of the device for the host's", what);
  return (void *)(uintptr_t)p;
}

CALL cuMemGetInfo_v2(size_t *available, size_t *all) {
  BEGIN_IN_CONTEXT(cuMemGetInfo_v2);
  *available = MEMORY_BYTES - used;
  *all = MEMORY_BYTES;
  return 0;
}
/* No address is given out twice. What is new holds anything. */
CALL cuMemAlloc_v2(uint64_t *to, size_t bytes) {
  BEGIN_IN_CONTEXT(cuMemAlloc_v2);
  if (!bytes_of_device) {
    untouchable = mmap(NULL, MEMORY_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    bytes_of_device =
        mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (untouchable == MAP_FAILED || bytes_of_device == MAP_FAILED) fake_wrong("no addresses");
    if (fake_takes_host_pointers()) untouchable = bytes_of_device;
  }
  if (!bytes) return 1;
  if (areas == MAX || used + bytes > MEMORY_BYTES) return 2;
  area[areas].begin = untouchable + used;
  area[areas++].bytes = bytes;
  memset(bytes_of_device + used, 0xA5, bytes < 1 << 20 ? bytes : 1 << 20);
  *to = (uint64_t)(uintptr_t)(untouchable + used);
  used += (bytes + 4095) / 4096 * 4096;
  return 0;
}
CALL cuMemFree_v2(uint64_t p) { /* a lost device's memory has to be freed, too */
  int i = 0;
  fails("cuMemFree_v2");
  if (!lost && fake_is_busy()) fake_wrong("cuMemFree of memory that the stream may still use");
  while (i < areas && area[i].begin != (char *)(uintptr_t)p) i++;
  if (i == areas) fake_wrong("cuMemFree of what was not allocated");
  madvise(bytes_of_device + (area[i].begin - untouchable), area[i].bytes, MADV_DONTNEED);
  area[i] = area[--areas];
  return lost ? LOST : 0;
}
/* Memory of the host that the device reaches: with FAKE_CUDA_HOST all of it does. */
CALL cuMemHostAlloc(void **to, size_t bytes, unsigned flags) {
  uint64_t p = 0;
  BEGIN_IN_CONTEXT(cuMemHostAlloc);
  if (flags) fake_wrong("cuMemHostAlloc");
  if (!fake_takes_host_pointers()) return !(*to = fake_pinned(bytes));
  int code = cuMemAlloc_v2(&p, bytes);
  *to = (void *)(uintptr_t)p;
  return code;
}
CALL cuMemFreeHost(void *p) { return cuMemFree_v2((uint64_t)(uintptr_t)p); }
CALL cuMemHostRegister_v2(void *p, size_t bytes, unsigned flags) {
  BEGIN_IN_CONTEXT(cuMemHostRegister_v2);
  if (!p || !bytes || (flags & ~8u) || !fake_takes_host_pointers()) fake_wrong("cuMemHostRegister");
  return 0;
}

/* ---- kernels ---- */

/* The image is this library's own, or one that a real NVRTC has made. */
CALL cuModuleLoadData(void **to, const void *data) {
  BEGIN_IN_CONTEXT(cuModuleLoadData);
  if (memcmp(data, image, sizeof image) && memcmp(data, "\177ELF", 4)) fake_wrong("this is no image of kernels");
  *to = module;
  return 0;
}
CALL cuModuleGetFunction(void **to, void *m, const char *name) {
  BEGIN_IN_CONTEXT(cuModuleGetFunction);
  int i = 0;
  while (fake_kernels[i].name && strcmp(fake_kernels[i].name, name)) i++;
  if (m != module || !fake_kernels[i].name) return 500;
  *to = (void *)(uintptr_t)&fake_kernels[i];
  return 0;
}
CALL nvrtcCreateProgram(void **to, const char *text, const char *name, int headers, const char *const *header,
                        const char *const *include) {
  if (fails("nvrtcCreateProgram")) return 1;
  if (!strstr(text, "KERNEL(tally)") || !name || headers || header || include) fake_wrong("nvrtcCreateProgram");
  programs++;
  *to = program;
  return 0;
}
CALL nvrtcCompileProgram(void *p, int count, const char *const *options) {
  if (fails("nvrtcCompileProgram")) return 6;
  if (p != program || count != 2 || strcmp(options[0], current_device == 1 ? "-arch=sm_61" : "-arch=sm_90"))
    fake_wrong("nvrtcCompileProgram");
  return 0;
}
CALL nvrtcDestroyProgram(void **p) {
  if (*p != program || programs-- < 1) fake_wrong("nvrtcDestroyProgram");
  *p = NULL;
  return 0;
}
CALL nvrtcGetCUBINSize(void *p, size_t *bytes) {
  if (fails("nvrtcGetCUBINSize")) return 1;
  if (p != program) fake_wrong("nvrtcGetCUBINSize");
  *bytes = sizeof image;
  return 0;
}
CALL nvrtcGetCUBIN(void *p, char *to) {
  if (fails("nvrtcGetCUBIN")) return 1;
  if (p != program) fake_wrong("nvrtcGetCUBIN");
  memcpy(to, image, sizeof image);
  return 0;
}
static const char log_text[] = "choir.cu(1): error: made up";
CALL nvrtcGetProgramLogSize(void *p, size_t *bytes) {
  *bytes = sizeof log_text;
  return p != program;
}
CALL nvrtcGetProgramLog(void *p, char *to) {
  memcpy(to, log_text, sizeof log_text);
  return p != program;
}

/* ---- products ---- */

CALL cublasCreate_v2(void **to) {
  if (fails("cublasCreate_v2")) return 1;
  if (!current) fake_wrong("cublasCreate without a context");
  handles++;
  *to = blas;
  return 0;
}
CALL cublasDestroy_v2(void *handle) {
  if (handle != blas || handles-- < 1) fake_wrong("cublasDestroy");
  return 0;
}

CALL cublasSetStream_v2(void *handle, void *stream) {
  if (fails("cublasSetStream_v2")) return 1;
  if (handle != blas || !fake_is_stream(stream)) fake_wrong("cublasSetStream");
  return 0;
}
/* Another stream takes it away again. */
CALL cublasSetWorkspace_v2(void *handle, void *at, size_t bytes) {
  if (fails("cublasSetWorkspace_v2")) return 1;
  if (handle != blas || (uintptr_t)at % 256) fake_wrong("cublasSetWorkspace");
  fake_bytes(at, bytes, "cublasSetWorkspace");
  workspaces++;
  return 0;
}

/* Bytes from the first element to the last of `batch` matrices of rows x columns, column by column. */
static size_t extent(int rows, int columns, int ld, long long stride, int batch, int type) {
  if (ld < rows) fake_wrong("cublasGemmStridedBatchedEx: %d rows, but columns are %d apart", rows, ld);
  return (size_t)((batch - 1) * stride + (columns - 1) * (long long)ld + rows) * (type ? 2 : 4);
}

CALL cublasGemmStridedBatchedEx(void *handle, int trans_a, int trans_b, int m, int n, int k, const void *alpha,
                                const void *a, int a_type, int lda, long long a_stride, const void *b, int b_type,
                                int ldb, long long b_stride, const void *beta, void *c, int c_type, int ldc,
                                long long c_stride, int batch, int compute, int algorithm) {
  if (fails("cublasGemmStridedBatchedEx")) return 13;
  if (handle != blas || !current || m < 1 || n < 1 || k < 1 || batch < 1 || a_type != b_type ||
      (a_type && a_type != 14) || (c_type && (c_type != 14 || *(const float *)beta != 0)) || compute != 68 ||
      algorithm != -1 || (trans_a | trans_b) & ~1)
    fake_wrong("cublasGemmStridedBatchedEx: m %d, n %d, k %d, batch %d, types %d %d %d", m, n, k, batch, a_type, b_type,
               c_type);
  a = fake_bytes(a, extent(trans_a ? k : m, trans_a ? m : k, lda, a_stride, batch, a_type), "cuBLAS, A");
  b = fake_bytes(b, extent(trans_b ? n : k, trans_b ? k : n, ldb, b_stride, batch, b_type), "cuBLAS, B");
  c = fake_bytes(c, extent(m, n, ldc, c_stride, batch, c_type), "cuBLAS, C");
  fake_task task = {.kind = FAKE_PRODUCT};
  task.product = (fake_product){.m = m,
                                .n = n,
                                .k = k,
                                .batch = batch,
                                .alpha = *(const float *)alpha,
                                .beta = *(const float *)beta,
                                .a = {(void *)(uintptr_t)a, a_type, lda, trans_a, a_stride},
                                .b = {(void *)(uintptr_t)b, b_type, ldb, trans_b, b_stride},
                                .c = {c, c_type, ldc, 0, c_stride}};
  fake_enqueue(&task);
  return 0;
}
