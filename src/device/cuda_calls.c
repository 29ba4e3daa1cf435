/* Loads CUDA's libraries at run time: the build needs no CUDA. */
#include "device/cuda_calls.h"

#include <dlfcn.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/format.h"

cuda_calls ch_cuda;
ch_driver ch_cuda_driver = {.name = "cuda", .instead = "use backend 'cpu'"};

cuda_reason ch_cuda_reason(const char *call, int code) {
  cuda_reason reason;
  const char *name = NULL, *text = NULL;
  if (!strncmp(call, "cu", 2) && strncmp(call, "cublas", 6)) {
    ch_cuda.cuGetErrorName(code, &name);
    ch_cuda.cuGetErrorString(code, &text);
  }
  ch_format(reason.text, sizeof reason.text, "%s%s%s%serror %d%s", name ? name : "", text ? ": " : "", text ? text : "",
            name ? " (" : "", code, name ? ")" : "");
  return reason;
}

int ch_cuda_kernel_is_well(const char *call, const char *kernel, int code) {
  if (!code) return 1;
  cuda_reason reason = ch_cuda_reason(call, code);
  if (kernel) return ch_driver_note(&ch_cuda_driver, "%s failed for kernel '%s': %s", call, kernel, reason.text);
  return ch_driver_note(&ch_cuda_driver, "%s failed: %s", call, reason.text);
}

/* Opens the first file that matches a pattern. */
static void *open_matching(const char *pattern) {
  glob_t found;
  void *opened = NULL;
  if (!glob(pattern, 0, NULL, &found)) opened = dlopen(found.gl_pathv[0], RTLD_NOW | RTLD_LOCAL);
  globfree(&found);
  return opened;
}

/* Opens a library that the loader does not find: from the toolkit's directory, or from NVIDIA's wheels, which PyTorch
 * installs next to the choir package in site-packages. */
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

/* Opens the first library that exists; if none exists, notes the first name as missing. */
static void *library(const char *const names[]) {
  void *found = NULL;
  for (int i = 0; names[i] && !found; i++) found = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
  for (int i = 0; names[i] && !found; i++) found = open_elsewhere(names[i]);
  if (!found) ch_driver_note(&ch_cuda_driver, "%s is not there", names[0]);
  return found;
}
#define LIBRARY(...) library((const char *const[]){__VA_ARGS__, NULL})

int ch_cuda_load(void) {
  void *cuda = LIBRARY("libcuda.so.1");
  void *nvrtc = cuda ? LIBRARY("libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12") : NULL;
  void *cublas = nvrtc ? LIBRARY("libcublas.so", "libcublas.so.13", "libcublas.so.12") : NULL;
  if (!cublas) return 0;
#define FIND_IN(library, name)                            \
  if (!(*(void **)&ch_cuda.name = dlsym(library, #name))) \
    return ch_driver_note(&ch_cuda_driver,                \
                          "there is "                     \
                          "no " #name);
#define FIND_GRAPH(name, parameters) *(void **)&ch_cuda.name = dlsym(cuda, #name);
#define FIND_CUDA(name, parameters) FIND_IN(cuda, name)
#define FIND_NVRTC(name, parameters) FIND_IN(nvrtc, name)
#define FIND_CUBLAS(name, parameters) FIND_IN(cublas, name)
  CUDA_CALLS(FIND_CUDA) GRAPH_CALLS(FIND_GRAPH) NVRTC_CALLS(FIND_NVRTC) CUBLAS_CALLS(FIND_CUBLAS) return 1;
}

int ch_cuda_has_graphs(void) {
#define IS_THERE(name, parameters) &&ch_cuda.name
  return 1 GRAPH_CALLS(IS_THERE);
}
