/* The compiler that backend "cuda" calls, NVRTC, takes the library's text of the kernels for four kinds of GPU: no
 * warning, no register spilled. Needs no GPU. */
#include <dlfcn.h>
#include <stdio.h>

#include "device/cuda_calls.h"
#include "testing.h"

/* Loads NVRTC from the loader's path or the toolkit; 0: it is not there. */
static int load_nvrtc(void) {
  static const char *const names[] = {"libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12",
                                      "/usr/local/cuda/lib64/libnvrtc.so"};
  void *nvrtc = NULL;
  for (size_t i = 0; i < sizeof names / sizeof *names && !nvrtc; i++) nvrtc = dlopen(names[i], RTLD_NOW);
#define FIND(name, parameters) \
  if (!nvrtc || !(*(void **)&ch_cuda.name = dlsym(nvrtc, #name))) return 0;
  NVRTC_CALLS(FIND)
  return 1;
}

/* Compiles with the options of cuda.c, and lets ptxas list the registers. Returns NVRTC's error. */
static int compile(const char *arch, char **log) {
  const char *const options[] = {arch, "--std=c++17", "--ptxas-options=-v"};
  cuda_handle program = NULL;
  size_t size = 0;
  assert_int_equal(ch_cuda.nvrtcCreateProgram(&program, ch_device_text, "choir.cu", 0, NULL, NULL), 0);
  int code = ch_cuda.nvrtcCompileProgram(program, 3, options);
  assert_int_equal(ch_cuda.nvrtcGetProgramLogSize(program, &size), 0);
  *log = test_calloc(1, size + 1);
  assert_int_equal(ch_cuda.nvrtcGetProgramLog(program, *log), 0);
  assert_int_equal(ch_cuda.nvrtcDestroyProgram(&program), 0);
  return code;
}

static void assert_no_spills(const char *arch, const char *log) {
  int kernels = 0;
  for (const char *at = log; (at = strstr(at, " bytes stack frame, ")); at++, kernels++) {
    int stores = -1, loads = -1;
    assert_int_equal(sscanf(at, " bytes stack frame, %d bytes spill stores, %d bytes spill loads", &stores, &loads), 2);
    if (stores || loads) fail_msg("%s: registers are spilled: %.2000s", arch, log);
  }
  if (kernels < CH_KERNELS) fail_msg("%s: %d kernels of %d:\n%.2000s", arch, kernels, CH_KERNELS, log);
}

static void nvrtc_takes_the_kernels(void **state) {
  static const char *const archs[] = {"-arch=sm_75", "-arch=sm_80", "-arch=sm_90", "-arch=sm_100"};
  if (!load_nvrtc()) {
    print_message("NOT TESTED: the kernels as CUDA; there is no NVRTC\n");
    return;
  }
  for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
    char *log;
    if (compile(archs[i], &log) || strstr(log, "warning")) fail_msg("%s: %.2000s", archs[i], log);
    assert_no_spills(archs[i], log);
    test_free(log);
  }
}

int main(void) {
#ifdef CHOIR_SANITIZED
  print_message("NOT TESTED: NVRTC under sanitizers\n");
  return 0;
#endif
  const struct CMUnitTest tests[] = {cmocka_unit_test(nvrtc_takes_the_kernels)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
