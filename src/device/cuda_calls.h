/* CUDA's libraries, loaded at run time: the used parts of cuda.h, nvrtc.h and cublas_v2.h, one line per function. */
#ifndef CH_DEVICE_CUDA_CALLS_H
#define CH_DEVICE_CUDA_CALLS_H

#include "device/device.h"

typedef uint64_t device_address;
typedef void *cuda_handle;
enum {
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  READ_ONLY = 8,   /* CU_MEMHOSTREGISTER_... */
  CLOCK_RATE = 13, /* CU_DEVICE_ATTRIBUTE_..., kHz */
  MULTIPROCESSOR_COUNT = 16,
  MEMORY_CLOCK_RATE = 36, /* kHz */
  GLOBAL_MEMORY_BUS_WIDTH = 37,
  L2_CACHE_SIZE = 38,
  COMPUTE_CAPABILITY_MAJOR = 75,
  COMPUTE_CAPABILITY_MINOR = 76,
  STREAM_NON_BLOCKING = 1, /* CU_STREAM_...: no synchronization with the default stream */
  CAPTURE_RELAXED = 2,     /* CU_STREAM_CAPTURE_MODE_... */
  CUDA_R_32F = 0,
  CUDA_R_16BF = 14,
  CUBLAS_COMPUTE_32F = 68,
  CUBLAS_GEMM_DEFAULT = -1
};
/* CUDA_KERNEL_NODE_PARAMS_v1 */
typedef struct cuda_node_params {
  cuda_handle function;
  unsigned groups, groups_y, groups_z, items, items_y, items_z, shared;
  void **parameters, **extra;
} cuda_node_params;

/* clang-format off */
#define CUDA_CALLS(call) \
  call(cuGetErrorName, (int, const char **)) call(cuGetErrorString, (int, const char **)) call(cuInit, (unsigned)) call(cuDeviceGetCount, (int *)) call(cuDeviceGet, (int *, int)) \
  call(cuDeviceGetAttribute, (int *, int, int)) call(cuDeviceGetName, (char *, int, int)) \
  call(cuDeviceTotalMem_v2, (size_t *, int)) \
  call(cuDevicePrimaryCtxRetain, (cuda_handle *, int)) call(cuDevicePrimaryCtxRelease_v2, (int)) call(cuCtxSetCurrent, (cuda_handle)) \
  call(cuStreamCreate, (cuda_handle *, unsigned)) call(cuStreamSynchronize, (cuda_handle)) \
  call(cuMemGetInfo_v2, (size_t *, size_t *)) call(cuMemAlloc_v2, (device_address *, size_t)) \
  call(cuMemHostAlloc, (void **, size_t, unsigned)) call(cuMemFreeHost, (void *)) call(cuMemHostRegister_v2, (void *, size_t, unsigned)) \
  call(cuMemFree_v2, (device_address)) call(cuMemsetD8Async, (device_address, unsigned char, size_t, cuda_handle)) \
  call(cuMemcpyHtoDAsync_v2, (device_address, const void *, size_t, cuda_handle)) \
  call(cuMemcpyDtoHAsync_v2, (void *, device_address, size_t, cuda_handle)) \
  call(cuMemcpyDtoDAsync_v2, (device_address, device_address, size_t, cuda_handle)) \
  call(cuModuleLoadData, (cuda_handle *, const void *)) call(cuModuleGetFunction, (cuda_handle *, cuda_handle, const char *)) \
  call(cuLaunchKernel, (cuda_handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, cuda_handle, void **, void **))
#define GRAPH_CALLS(call) /* also of libcuda; NULL if an old libcuda lacks the function */ \
  call(cuStreamBeginCapture_v2, (cuda_handle, int)) call(cuStreamEndCapture, (cuda_handle, cuda_handle *)) \
  call(cuStreamGetCaptureInfo_v2, (cuda_handle, int *, uint64_t *, cuda_handle *, const cuda_handle **, size_t *)) \
  call(cuGraphInstantiateWithFlags, (cuda_handle *, cuda_handle, unsigned long long)) \
  call(cuGraphExecKernelNodeSetParams, (cuda_handle, cuda_handle, const cuda_node_params *)) \
  call(cuGraphLaunch, (cuda_handle, cuda_handle)) call(cuGraphExecDestroy, (cuda_handle)) call(cuGraphDestroy, (cuda_handle))
#define NVRTC_CALLS(call) \
  call(nvrtcCreateProgram, (cuda_handle *, const char *, const char *, int, const char *const *, const char *const *)) \
  call(nvrtcCompileProgram, (cuda_handle, int, const char *const *)) call(nvrtcDestroyProgram, (cuda_handle *)) \
  call(nvrtcGetCUBINSize, (cuda_handle, size_t *)) call(nvrtcGetCUBIN, (cuda_handle, char *)) \
  call(nvrtcGetProgramLogSize, (cuda_handle, size_t *)) call(nvrtcGetProgramLog, (cuda_handle, char *))
#define CUBLAS_CALLS(call) \
  call(cublasCreate_v2, (cuda_handle *)) call(cublasDestroy_v2, (cuda_handle)) call(cublasSetStream_v2, (cuda_handle, cuda_handle)) \
  call(cublasSetWorkspace_v2, (cuda_handle, void *, size_t)) \
  call(cublasGemmStridedBatchedEx, (cuda_handle, int, int, int, int, int, const void *, const void *, int, int, long long, \
    const void *, int, int, long long, const void *, void *, int, int, long long, int, int, int))
#define CUDA_POINTER(name, parameters) int (*name) parameters;
typedef struct cuda_calls { CUDA_CALLS(CUDA_POINTER) GRAPH_CALLS(CUDA_POINTER) NVRTC_CALLS(CUDA_POINTER) CUBLAS_CALLS(CUDA_POINTER) } cuda_calls;
/* clang-format on */
extern cuda_calls ch_cuda;

extern ch_driver ch_cuda_driver;

/* Loads the libraries; 0: the missing ones have been noted. */
int ch_cuda_load(void);

/* Whether libcuda has all of GRAPH_CALLS. */
int ch_cuda_has_graphs(void);

/* Text of an error: "CUDA_ERROR_INVALID_VALUE: invalid argument (error 1)". Errors of NVRTC and cuBLAS are only
 * numbers. `call` determines the library. */
typedef struct cuda_reason {
  char text[256];
} cuda_reason;
cuda_reason ch_cuda_reason(const char *call, int code);

/* Whether a CUDA call succeeded; a failure is noted in the ch_driver. kernel: the kernel's name, or NULL. */
int ch_cuda_kernel_is_well(const char *call, const char *kernel, int code);
static inline int ch_cuda_is_well(const char *call, int code) { return ch_cuda_kernel_is_well(call, NULL, code); }
#define CALL(name, ...) ch_cuda_is_well(#name, ch_cuda.name(__VA_ARGS__))

/* Calls CUDA without a note: returns CUDA's error, and the function's name in *call. */
#define NAMED(call, name, ...) (*(call) = #name, ch_cuda.name(__VA_ARGS__))

#endif
