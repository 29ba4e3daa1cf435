/* Backend "cuda": an NVIDIA GPU through the driver API, kernels compiled by NVRTC, large products by cuBLAS; these
 * libraries are loaded at run time (cuda_calls.h). Addresses are device addresses. All work goes through one queue
 * (cuda_queue.h), in the order of the calls. */
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/format.h"
#include "device/cuda_queue.h"

static cuda_handle context, blas, function_of[CH_KERNELS];
static int hosted;      /* ch_device_takes_host_pointers when the device was opened */
static int cache_bytes; /* of the L2 cache */

/* Makes the context current on the calling thread, which may be any thread of the program. 0: failed. */
static int here(void) {
  static _Thread_local cuda_handle entered;
  if (ch_cuda_driver.failed) return 0;
  if (entered != context && CALL(cuCtxSetCurrent, context)) entered = context;
  return !ch_cuda_driver.failed;
}

static device_address address(const void *p) { return (device_address)(uintptr_t)p; }

/* ---- memory ---- */

static void *cuda_alloc(const char *name, size_t bytes) {
  (void)name;
  device_address p = 0;
  void *host = NULL;
  if (!here()) return NULL;
  int code = hosted ? ch_cuda.cuMemHostAlloc(&host, bytes, 0) : ch_cuda.cuMemAlloc_v2(&p, bytes);
  if (code == CUDA_ERROR_OUT_OF_MEMORY) return NULL; /* the caller reports the size */
  if (!ch_cuda_is_well("cuMemAlloc_v2", code)) return NULL;
  if (hosted) p = address(host);
  ch_cuda_queue_zero(p, bytes);
  return (void *)(uintptr_t)p;
}

/* Also frees after a failed call, because a program that continues would leak. In that case the context may not be
 * current yet, and earlier work may still use the memory. */
static void cuda_free(void *p, size_t bytes) {
  (void)bytes;
  if (!p) return;
  if (!here()) ch_cuda.cuCtxSetCurrent(context);
  ch_cuda_queue_clear();
  hosted ? CALL(cuMemFreeHost, p) : CALL(cuMemFree_v2, address(p));
}

static size_t cuda_available(void) {
  size_t available = 0, all = 0;
  return here() && CALL(cuMemGetInfo_v2, &available, &all) ? available : 0;
}

static void cuda_zero(void *to, size_t bytes) {
  if (bytes && here()) ch_cuda_queue_zero(address(to), bytes);
}

static void cuda_copy(void *to, const void *from, size_t bytes) {
  if (bytes && here()) ch_cuda_queue_copy(address(to), address(from), bytes);
}

static void cuda_upload(void *to, const void *from, size_t bytes) {
  if (bytes && here()) ch_cuda_queue_upload(address(to), from, bytes);
}

static void cuda_download(void *to, const void *from, size_t bytes) {
  if (bytes && here()) ch_cuda_queue_download(to, address(from), bytes);
  if (ch_cuda_driver.failed) memset(to, 0xFF, bytes);
}

static void cuda_synchronise(void) {
  if (here()) ch_cuda_queue_wait();
}

static int cuda_check(void) {
  if (here()) ch_cuda_queue_run();
  return ch_driver_check(&ch_cuda_driver);
}

static void cuda_launch(ch_kernel kernel, int64_t groups, const void *args) {
  if (here()) ch_cuda_queue_launch(kernel, groups, args);
}

/* Refuses operands that are rounded when read, and unequal numbers of rows per expert (products.c pads these if it
 * can): choir's kernel runs them. */
static int cuda_multiply(const product_args *p, int64_t batch) {
  if (p->begin || p->a_is == ROUNDED || p->b_is == ROUNDED || p->a_is != p->b_is || !here()) return 0;
  if (p->m < 1 || p->n < 1 || p->k < 1 || batch < 1) return 0;
  ch_cuda_queue_multiply(p, batch);
  return 1;
}

static int64_t cuda_cache(void) { return cache_bytes; }

/* ---- the driver ---- */

/* Notes the compiler's log, truncated. */
static void note_log(cuda_handle program) {
  size_t size = 0;
  char *log = ch_cuda.nvrtcGetProgramLogSize(program, &size) ? NULL : calloc(1, size + 1);
  if (log && !ch_cuda.nvrtcGetProgramLog(program, log))
    ch_driver_note(&ch_cuda_driver, "the kernels do not compile: %.400s", log);
  free(log);
}

/* Compiles the kernels for this device; NULL: failed. */
static char *compile(int major, int minor) {
  char arch[32], *image = NULL;
  const char *const options[] = {arch, "--std=c++17"};
  size_t size = 0;
  cuda_handle program = NULL;
  snprintf(arch, sizeof arch, "-arch=sm_%d%d", major, minor);
  if (!CALL(nvrtcCreateProgram, &program, ch_device_text, "choir.cu", 0, NULL, NULL)) return NULL;
  int code = ch_cuda.nvrtcCompileProgram(program, 2, options);
  if (code) note_log(program);
  if (ch_cuda_is_well("nvrtcCompileProgram", code) && CALL(nvrtcGetCUBINSize, program, &size) &&
      (image = malloc(size)) && !CALL(nvrtcGetCUBIN, program, image)) {
    free(image);
    image = NULL;
  }
  if (!image) ch_driver_note(&ch_cuda_driver, "no memory for the kernels");
  ch_cuda.nvrtcDestroyProgram(&program);
  return image;
}

static int build_module(int device) {
  int major = 0, minor = 0;
  cuda_handle module = NULL;
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

/* Opens the device. On failure releases the context, which frees module, stream and memory. */
static int start_on(int device) {
  if (!CALL(cuDevicePrimaryCtxRetain, &context, device)) return 0;
  if (CALL(cuDeviceGetAttribute, &cache_bytes, L2_CACHE_SIZE, device) && CALL(cuCtxSetCurrent, context) &&
      CALL(cublasCreate_v2, &blas)) {
    if (build_module(device) && ch_cuda_queue_open(function_of, blas, hosted)) return 1;
    ch_cuda.cublasDestroy_v2(blas);
  }
  ch_cuda.cuDevicePrimaryCtxRelease_v2(device);
  context = NULL;
  return 0;
}

/* For tests: registers this process's current heap, stack and variables with the device, at the same addresses. Errors
 * for read-only memory are ignored: not all systems can register it, and few tests need it. */
static int register_memory(void) {
  FILE *maps = fopen("/proc/self/maps", "r");
  char line[512];
  unsigned long before = 0;
  while (maps && fgets(line, sizeof line, maps)) {
    unsigned long begin = 0, end = 0;
    char access[8] = "", path[256] = "";
    sscanf(line, "%lx-%lx %7s %*s %*s %*s %255s", &begin, &end, access, path);
    int own = !strcmp(path, "[heap]") || !strcmp(path, "[stack]") || strstr(path, "/tests/test_") ||
              (!*path && begin == before); /* .bss, mapped after .data */
    if (!own) continue;
    before = end;
    if (access[0] != 'r' || access[2] == 'x') continue;
    int code = ch_cuda.cuMemHostRegister_v2((void *)begin, end - begin, access[1] == 'w' ? 0 : READ_ONLY);
    if (code && access[1] == 'w') ch_driver_note(&ch_cuda_driver, "%s cannot be registered (error %d)", path, code);
  }
  if (maps) fclose(maps);
  return maps ? !ch_cuda_driver.failed : ch_driver_note(&ch_cuda_driver, "/proc/self/maps cannot be read");
}

static int start_cuda(void) {
  int device = 0, count = 0;
  hosted = ch_device_takes_host_pointers;
  if (!ch_cuda_load() || !CALL(cuInit, 0) || !CALL(cuDeviceGetCount, &count)) return 0;
  ch_cuda_driver.number = ch_device_choose(&ch_cuda_driver, count);
  return ch_cuda_driver.number >= 0 && CALL(cuDeviceGet, &device, ch_cuda_driver.number) && start_on(device) &&
         (!hosted || register_memory());
}

/* fp32 lanes per multiprocessor (CUDA C programming guide, throughput of arithmetic instructions). */
static int lanes_of(int major, int minor) {
  return major == 7 || (minor == 0 && (major == 6 || major == 8)) ? 64 : 128;
}

/* Describes device `number`. Peaks are computed from its clocks: two operations per clock and lane, two transfers per
 * clock. */
static int cuda_describe(int number, char *text, size_t size) {
  char name[128] = "";
  size_t all = 0;
  int device = 0, count = 0, major = 0, minor = 0, units = 0, clock = 0, memory_clock = 0, width = 0;
  const struct {
    int *value, of;
  } facts[] = {{&major, COMPUTE_CAPABILITY_MAJOR}, {&minor, COMPUTE_CAPABILITY_MINOR},
               {&units, MULTIPROCESSOR_COUNT},     {&clock, CLOCK_RATE},
               {&memory_clock, MEMORY_CLOCK_RATE}, {&width, GLOBAL_MEMORY_BUS_WIDTH}};
  if ((!ch_cuda_driver.opened && !ch_cuda_load()) || ch_cuda.cuInit(0) || ch_cuda.cuDeviceGetCount(&count) ||
      number >= count || ch_cuda.cuDeviceGet(&device, number) || ch_cuda.cuDeviceGetName(name, sizeof name, device) ||
      ch_cuda.cuDeviceTotalMem_v2(&all, device))
    return 0;
  for (size_t i = 0; i < sizeof facts / sizeof *facts; i++)
    if (ch_cuda.cuDeviceGetAttribute(facts[i].value, facts[i].of, device)) *facts[i].value = 0;
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
               .upload = cuda_upload,
               .download = cuda_download,
               .synchronise = cuda_synchronise,
               .check = cuda_check},
    .launch = cuda_launch,
    .multiply = cuda_multiply,
    .cache = cuda_cache,
};

static int cuda_supports(ch_compute compute, int emulate) {
  (void)compute, (void)emulate; /* bf16 runs in hardware from sm_80 on; older GPUs emulate it correctly */
  ch_cuda_driver.start = start_cuda;
  return ch_driver_open(&ch_cuda_driver);
}

const ch_backend ch_backend_cuda = {.name = "cuda",
                                    .memory = &cuda.memory,
                                    .supports = cuda_supports,
                                    .fill = ch_device_fill,
                                    .device = &ch_device_wanted,
                                    .describe = cuda_describe};
