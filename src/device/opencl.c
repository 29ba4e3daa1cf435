/* Backend "opencl": kernels by an OpenCL driver that is found at run time, so that choir needs none to be built.
 *
 * OpenCL knows buffers, not addresses. An arena's memory is therefore a buffer and a range of addresses that nothing
 * may touch; at a launch every pointer is looked up and becomes a buffer and an offset. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/format.h"
#include "device/device.h"

/* The part of CL/cl.h that is used here. */
typedef struct cl_object *cl_object;
typedef int32_t cl_int;
enum {
  CL_MEM_READ_WRITE = 1,
  CL_DEVICE_MAX_COMPUTE_UNITS = 0x1002,
  CL_DEVICE_MAX_CLOCK_FREQUENCY = 0x100C, /* MHz */
  CL_DEVICE_NAME = 0x102B,
  CL_DEVICE_GLOBAL_MEM_SIZE = 0x101F,
  CL_PROGRAM_BUILD_LOG = 0x1183
};
/* A line a call. */
/* clang-format off */
#define CL_CALLS(call) \
  call(cl_int, clGetPlatformIDs, (uint32_t, cl_object *, uint32_t *)) \
  call(cl_int, clGetDeviceIDs, (cl_object, uint64_t, uint32_t, cl_object *, uint32_t *)) \
  call(cl_int, clGetDeviceInfo, (cl_object, uint32_t, size_t, void *, size_t *)) \
  call(cl_object, clCreateContext, (const intptr_t *, uint32_t, const cl_object *, void *, void *, cl_int *)) \
  call(cl_object, clCreateCommandQueue, (cl_object, cl_object, uint64_t, cl_int *)) \
  call(cl_object, clCreateProgramWithSource, (cl_object, uint32_t, const char **, const size_t *, cl_int *)) \
  call(cl_int, clBuildProgram, (cl_object, uint32_t, const cl_object *, const char *, void *, void *)) \
  call(cl_int, clGetProgramBuildInfo, (cl_object, cl_object, uint32_t, size_t, void *, size_t *)) \
  call(cl_object, clCreateKernel, (cl_object, const char *, cl_int *)) \
  call(cl_int, clSetKernelArg, (cl_object, uint32_t, size_t, const void *)) \
  call(cl_int, clSetKernelArgSVMPointer, (cl_object, uint32_t, const void *)) \
  call(cl_int, clEnqueueNDRangeKernel, (cl_object, cl_object, uint32_t, const size_t *, const size_t *, const size_t *, uint32_t, const cl_object *, cl_object *)) \
  call(cl_object, clCreateBuffer, (cl_object, uint64_t, size_t, void *, cl_int *)) \
  call(cl_int, clReleaseMemObject, (cl_object)) \
  call(cl_int, clReleaseContext, (cl_object)) call(cl_int, clReleaseCommandQueue, (cl_object)) \
  call(cl_int, clEnqueueFillBuffer, (cl_object, cl_object, const void *, size_t, size_t, size_t, uint32_t, const cl_object *, cl_object *)) \
  call(cl_int, clEnqueueReadBuffer, (cl_object, cl_object, uint32_t, size_t, size_t, void *, uint32_t, const cl_object *, cl_object *)) \
  call(cl_int, clEnqueueWriteBuffer, (cl_object, cl_object, uint32_t, size_t, size_t, const void *, uint32_t, const cl_object *, cl_object *)) \
  call(cl_int, clEnqueueCopyBuffer, (cl_object, cl_object, cl_object, size_t, size_t, size_t, uint32_t, const cl_object *, cl_object *)) \
  call(cl_int, clFinish, (cl_object))
/* The part of clblast_c.h that is used here. */
enum { CLBLAST_ROW_MAJOR = 101, CLBLAST_TRANSPOSE_NO = 111 };
#define CLBLAST_CALLS(call) \
  call(cl_int, CLBlastSgemmStridedBatched, (int, int, int, size_t, size_t, size_t, float, cl_object, size_t, size_t, size_t, cl_object, size_t, size_t, size_t, \
    float, cl_object, size_t, size_t, size_t, size_t, cl_object *, cl_object *))
/* clang-format on */
#define DECLARE(type, name, parameters) static type(*name) parameters;
CL_CALLS(DECLARE)
CLBLAST_CALLS(DECLARE)

static cl_object device, context, queue, kernel_of[CH_KERNELS];
static int start_opencl(void);
static ch_device opencl;
static ch_driver driver = {.name = "opencl",
                           .instead = "on Debian, apt-get install pocl-opencl-icd runs it on the CPU",
                           .start = start_opencl};

/* A kernel's arguments belong to its object, and areas are one list: one thread at a time. */
static pthread_mutex_t lock;
static void make_lock(void) {
  pthread_mutexattr_t recursive;
  pthread_mutexattr_init(&recursive);
  pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
  pthread_mutex_init(&lock, &recursive);
  pthread_mutexattr_destroy(&recursive);
}
static void unlock(pthread_mutex_t **held) { pthread_mutex_unlock(*held); }
static pthread_mutex_t *hold(void) {
  static pthread_once_t made = PTHREAD_ONCE_INIT;
  pthread_once(&made, make_lock);
  return pthread_mutex_lock(&lock), &lock;
}
#define LOCKED __attribute__((cleanup(unlock), unused)) pthread_mutex_t *held = hold() /* to the end of the scope */

/* Notes a call that failed. */
static int is_well(const char *call, cl_int code) {
  return !code || ch_driver_note(&driver, "%s failed (OpenCL error %d)", call, code);
}
#define CALL(name, ...) is_well(#name, name(__VA_ARGS__))

/* ---- addresses ---- */

typedef struct {
  char *base;
  size_t bytes;
  cl_object buffer;
} buffer_area;
static buffer_area *areas;
static int area_count;

/* The area that a pointer leads into, and the offset in it. */
static const buffer_area *area_of(const void *p, size_t *offset) {
  *offset = 0;
  for (int i = 0; i < area_count; i++)
    if ((const char *)p >= areas[i].base && (const char *)p < areas[i].base + areas[i].bytes) {
      *offset = (size_t)((const char *)p - areas[i].base);
      return &areas[i];
    }
  return NULL;
}

/* Whether p is ordinary memory of the host, which only tests hand to kernels (ch_device_takes_host_pointers). */
static int is_host(const void *p) {
  size_t at;
  if (!p || !ch_device_takes_host_pointers || area_of(p, &at)) return 0;
  clFinish(queue);
  return 1;
}

/* ---- launches ---- */

/* Pointers come first: argument i is the buffer that field i leads into, and the field becomes the offset. */
static int set_arguments(ch_kernel kernel, const void *args) {
  const ch_kernel_info *info = &ch_kernel_infos[kernel];
  union {
    uint64_t field[64];
    char bytes[512];
  } copy;
  memcpy(copy.bytes, args, info->bytes);
  for (int i = 0; i < info->pointers; i++) {
    const void *p = (const void *)(uintptr_t)copy.field[i];
    size_t at;
    const buffer_area *a = area_of(p, &at);
    copy.field[i] = at;
    if (is_host(p) ? !CALL(clSetKernelArgSVMPointer, kernel_of[kernel], (uint32_t)i, p)
                   : !CALL(clSetKernelArg, kernel_of[kernel], (uint32_t)i, sizeof(cl_object), a ? &a->buffer : NULL))
      return 0;
  }
  return CALL(clSetKernelArg, kernel_of[kernel], (uint32_t)info->pointers, info->bytes, copy.bytes);
}

static void opencl_launch(ch_kernel kernel, int64_t groups, const void *args) {
  size_t items = kernel == CH_KERNEL_product ? TILE * TILE : GROUP, all = (size_t)groups * items;
  LOCKED;
  if (!driver.failed && set_arguments(kernel, args))
    CALL(clEnqueueNDRangeKernel, queue, kernel_of[kernel], 1, NULL, &all, &items, 0, NULL, NULL);
  if (ch_device_takes_host_pointers) clFinish(queue); /* the host looks at its memory whenever it likes */
}

/* CLBlast multiplies fp32 numbers in buffers. One product has a stride, too. */
static int opencl_multiply(const product_args *p, int64_t batch) {
  size_t at[3];
  if (p->begin || p->a_is != AS_FLOAT || p->b_is != AS_FLOAT || p->c_is != AS_FLOAT || p->m < 1 || p->n < 1 ||
      p->k < 1 || batch < 1)
    return 0;
  LOCKED;
  const buffer_area *a = area_of(p->a, &at[0]), *b = area_of(p->b, &at[1]), *c = area_of(p->c, &at[2]);
  int well = a && b && c;
  if (well && !driver.failed)
    CALL(CLBlastSgemmStridedBatched, CLBLAST_ROW_MAJOR, CLBLAST_TRANSPOSE_NO + p->trans_a,
         CLBLAST_TRANSPOSE_NO + p->trans_b, (size_t)p->m, (size_t)p->n, (size_t)p->k, p->alpha, a->buffer,
         at[0] / sizeof(float), (size_t)p->lda, (size_t)p->a_stride, b->buffer, at[1] / sizeof(float), (size_t)p->ldb,
         (size_t)p->b_stride, p->accumulate ? 1 : 0, c->buffer, at[2] / sizeof(float), (size_t)p->ldc,
         (size_t)(p->c_stride ? p->c_stride : p->m * p->ldc), (size_t)batch, &queue, NULL);
  return well;
}

/* ---- memory ---- */

static void opencl_zero(void *to, size_t bytes) {
  const uint64_t nothing = 0;
  size_t at;
  LOCKED;
  const buffer_area *a = area_of(to, &at);
  if (is_host(to)) memset(to, 0, bytes);
  if (a && bytes && !driver.failed)
    CALL(clEnqueueFillBuffer, queue, a->buffer, &nothing, (at | bytes) % sizeof nothing ? 1 : sizeof nothing, at, bytes,
         0, NULL, NULL);
}

static void *add_area(void *base, size_t bytes) {
  cl_int code;
  buffer_area *more = reallocarray(areas, (size_t)area_count + 1, sizeof *areas);
  if (!more) return NULL;
  areas = more;
  cl_object buffer = clCreateBuffer(context, CL_MEM_READ_WRITE, bytes, NULL, &code);
  if (code) return NULL; /* the caller says what did not fit */
  areas[area_count++] = (buffer_area){base, bytes, buffer};
  opencl_zero(base, bytes);
  return base;
}

static void *opencl_alloc(const char *name, size_t bytes) {
  (void)name;
  int access = ch_device_takes_host_pointers ? PROT_READ | PROT_WRITE : PROT_NONE;
  void *base = mmap(NULL, bytes, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return NULL;
  if (ch_device_takes_host_pointers) return base;
  LOCKED;
  void *added = add_area(base, bytes);
  if (!added) munmap(base, bytes);
  return added;
}

static void opencl_free(void *p, size_t bytes) {
  size_t at;
  LOCKED;
  const buffer_area *a = area_of(p, &at);
  if (a) {
    clFinish(queue);
    clReleaseMemObject(a->buffer);
    areas[a - areas] = areas[--area_count];
  }
  munmap(p, bytes);
}

static size_t opencl_available(void) {
  uint64_t bytes = 0;
  LOCKED;
  clGetDeviceInfo(device, CL_DEVICE_GLOBAL_MEM_SIZE, sizeof bytes, &bytes, NULL);
  for (int i = 0; i < area_count; i++) bytes -= areas[i].bytes < bytes ? areas[i].bytes : bytes;
  return bytes;
}

static void opencl_put(void *to, const void *from, size_t bytes) {
  size_t at;
  LOCKED;
  const buffer_area *a = area_of(to, &at);
  if (is_host(to)) memcpy(to, from, bytes);
  if (a && bytes && !driver.failed) CALL(clEnqueueWriteBuffer, queue, a->buffer, 1, at, bytes, from, 0, NULL, NULL);
}

static void opencl_get(void *to, const void *from, size_t bytes) {
  size_t at;
  LOCKED;
  const buffer_area *a = area_of(from, &at);
  if (a && bytes && !driver.failed) CALL(clEnqueueReadBuffer, queue, a->buffer, 1, at, bytes, to, 0, NULL, NULL);
  if (is_host(from))
    memcpy(to, from, bytes);
  else if (driver.failed || !a)
    memset(to, 0xFF, bytes);
}

static void opencl_copy(void *to, const void *from, size_t bytes) {
  size_t to_at, from_at;
  LOCKED;
  const buffer_area *a = area_of(to, &to_at), *b = area_of(from, &from_at);
  if (!a)
    opencl_get(to, from, bytes);
  else if (!b)
    opencl_put(to, from, bytes);
  else if (bytes && !driver.failed)
    CALL(clEnqueueCopyBuffer, queue, b->buffer, a->buffer, from_at, to_at, bytes, 0, NULL, NULL);
}

static void opencl_synchronise(void) {
  if (!driver.failed) CALL(clFinish, queue);
}

static int opencl_check(void) { return ch_driver_check(&driver); }

/* ---- the driver ---- */

static int load_driver(void) {
  void *library = dlopen(getenv("CHOIR_OPENCL") ? getenv("CHOIR_OPENCL") : "libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) return ch_driver_note(&driver, "libOpenCL.so.1 (or what CHOIR_OPENCL names) is not there");
#define FIND(type, name, parameters) \
  if (!(*(void **)&name = dlsym(library, #name))) return ch_driver_note(&driver, "libOpenCL.so.1 has no " #name);
  CL_CALLS(FIND)
  /* It calls the usual libOpenCL, and no other one. */
  void *products = getenv("CHOIR_OPENCL") ? NULL : dlopen("libclblast.so.1", RTLD_NOW | RTLD_LOCAL);
  if (products) *(void **)&CLBlastSgemmStridedBatched = dlsym(products, "CLBlastSgemmStridedBatched");
  return 1;
}

/* The devices of all platforms. */
enum { MOST_DEVICES = 64 };
static int find_devices(cl_object all[MOST_DEVICES]) {
  cl_object platforms[8];
  uint32_t found = 0, devices;
  int count = 0;
  if (clGetPlatformIDs(8, platforms, &found)) return 0;
  for (uint32_t i = 0; i < found && i < 8 && count < MOST_DEVICES; i++, count += (int)devices)
    if (clGetDeviceIDs(platforms[i], (uint64_t)0xFFFFFFFF, (uint32_t)(MOST_DEVICES - count), all + count, &devices))
      devices = 0;
  return count < MOST_DEVICES ? count : MOST_DEVICES;
}

/* Device `number` in words; how many operations a unit does in a clock OpenCL does not tell. */
static int opencl_describe(int number, char *text, size_t size) {
  cl_object all[MOST_DEVICES];
  char name[128] = "";
  uint64_t bytes = 0;
  uint32_t units = 0, clock = 0;
  if ((!driver.opened && !load_driver()) || number >= find_devices(all)) return 0;
  clGetDeviceInfo(all[number], CL_DEVICE_NAME, sizeof name - 1, name, NULL);
  clGetDeviceInfo(all[number], CL_DEVICE_GLOBAL_MEM_SIZE, sizeof bytes, &bytes, NULL);
  clGetDeviceInfo(all[number], CL_DEVICE_MAX_COMPUTE_UNITS, sizeof units, &units, NULL);
  clGetDeviceInfo(all[number], CL_DEVICE_MAX_CLOCK_FREQUENCY, sizeof clock, &clock, NULL);
  ch_format(text, size, "%s, %.1f GiB; %u compute units at %.2f GHz; products by %s", name, (double)bytes / 0x1p30,
            units, 1e-3 * clock, CLBlastSgemmStridedBatched ? "CLBlast" : "own kernel");
  return 1;
}

/* The compiler's own words, as far as they fit; a driver gives all of them or none. */
static int note_log(cl_object program, cl_int code) {
  size_t size = 0;
  clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, 0, NULL, &size);
  char *log = calloc(1, size + 1);
  if (log) clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, size, log, NULL);
  ch_driver_note(&driver, "the kernels do not compile (OpenCL error %d): %.400s", code, log ? log : "");
  free(log);
  return 0;
}

static int build_program(void) {
  cl_int code;
  const char *text = ch_device_text;
  cl_object program = clCreateProgramWithSource(context, 1, &text, NULL, &code);
  if (!is_well("clCreateProgramWithSource", code)) return 0;
  code = clBuildProgram(program, 1, &device, "-cl-std=CL1.2", NULL, NULL);
  if (code) return note_log(program, code);
  for (int i = 0; i < CH_KERNELS && !code; i++) kernel_of[i] = clCreateKernel(program, ch_kernel_infos[i].name, &code);
  return is_well("clCreateKernel", code);
}

static int start_opencl(void) {
  cl_object all[MOST_DEVICES];
  cl_int code;
  if (!load_driver() || (driver.number = ch_device_choose(&driver, find_devices(all))) < 0) return 0;
  device = all[driver.number];
  context = clCreateContext(NULL, 1, &device, NULL, NULL, &code);
  if (!is_well("clCreateContext", code)) return 0;
  queue = clCreateCommandQueue(context, device, 0, &code);
  if (is_well("clCreateCommandQueue", code)) {
    if (CLBlastSgemmStridedBatched) opencl.multiply = opencl_multiply;
    if (build_program()) return 1;
    clReleaseCommandQueue(queue);
  }
  clReleaseContext(context);
  return 0;
}

static ch_device opencl = {
    .memory = {.alloc = opencl_alloc,
               .free = opencl_free,
               .available = opencl_available,
               .zero = opencl_zero,
               .copy = opencl_copy,
               .put = opencl_put,
               .get = opencl_get,
               .synchronise = opencl_synchronise,
               .check = opencl_check},
    .launch = opencl_launch,
};

static int opencl_supports(ch_compute compute, int emulate) {
  if (compute == CH_COMPUTE_BF16 && !emulate)
    return ch_error(CHOIR_ERROR_UNSUPPORTED,
                    "compute 'bf16': OpenCL has no bf16 products; use fp32, or ask for emulation, which saves memory");
  return ch_driver_open(&driver);
}

const ch_backend ch_backend_opencl = {.name = "opencl",
                                      .memory = &opencl.memory,
                                      .supports = opencl_supports,
                                      .fill = ch_device_fill,
                                      .device = &ch_device_wanted,
                                      .describe = opencl_describe};
