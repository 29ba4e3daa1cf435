/* Backend "cuda" against a GPU that is none (fake_cuda/): the order of its calls, what it gives back, and every call
 * that fails. The fake's memory cannot be touched from outside of its calls, and each kernel's pointers must lead into
 * it. */
#include <jansson.h>

#include "choir/choir.h"
#include "mpi.h"
#include "stand_in.h"

#define SMALL                                                                                                        \
  "--set train.steps=3 --set train.eval_every=3 --set train.checkpoint_every=2 --set train.batch_sequences=2 --set " \
  "train.sequence_length=16 --set train.eval_sequences=2 "
#define NEW "choir train --config config.json --data data --out "

/* Reads what the fake says at the end of a process: allocations, programs, contexts and handles that are left. */
static void assert_left(const char *line) {
  size_t size;
  char *report = program_read("report", &size);
  if (!report || !strstr(report, line)) fail_msg("not \"%s\":\n%.100s\nof: %s", line, report, program_command);
  free(report);
}

/* Each rank takes a GPU of its own; if one GPU fails, all ranks end and name the rank that has it. */
#define RANKS \
  MPIRUN TWO("env " STAND_IN "\"$CHOIR\"" SHARED, "exec env FAKE_CUDA_FAIL=%s:%d " STAND_IN "\"$CHOIR\"" SHARED)
#define SHARED                                                                                                       \
  " train --threads 1 --config config.json --data data --out gpu --backend cuda --set parallel.dispatch_dtype=bf16 " \
  "--set train.grad_chunks=2 " SMALL
static void ranks_have_one_each(void **state) {
  needs_mpi();
  program_must("rm -rf cpu gpu report");
  program_must(NEW "cpu --set parallel.dispatch_dtype=bf16 --set train.grad_chunks=2 " SMALL);
  program_must(RANKS, "nothing", 0);
  program_close_losses("expert_choice", "gpu", "cpu", 4, 1e-4); /* rounded to bf16 on their way */
  program_must("grep -qx 'device 0' report && grep -qx 'device 1' report");
  static const char *const calls[] = {"cuLaunchKernel", "cuMemcpyDtoHAsync_v2"};
  for (int i = 0; i < 2; i++) {
    char message[96];
    snprintf(message, sizeof message, "rank 1 of 2: backend 'cuda': %s failed", calls[i]);
    program_must("rm -rf gpu");
    assert_int_not_equal(program_run(RANKS, calls[i], 200), 0);
    if (!strstr(program_output, message)) fail_msg("not \"%s\": %s", message, program_output);
  }
}

static void says_what_is_missing(void **state) {
  program_must("mkdir -p without && for lib in cuda.so.1 nvrtc.so; do ln -sf '" CHOIR_FAKE_CUDA
               "'/lib$lib without; done && touch without/libcublas.so without/libcublas.so.12 without/libcublas.so.13");
  program_refuses(1, "backend 'cuda': libcublas.so is not there; use backend 'cpu'",
                  "CUDA_HOME=/nowhere LD_LIBRARY_PATH=without " NEW "no --backend cuda");
  program_refuses(1, "there is no device 2; there are 2", STAND_IN NEW "no --backend cuda:2");
  program_refuses(0, "cuda:1     fake GPU 1, 64.0 GiB; peak 2.6 TFLOP/s in fp32, 0.51 TB/s; products by cuBLAS",
                  "COLUMNS=200 " STAND_IN "choir devices");
}

/* One that fails while the device is opened, and one that fails later: refused by its name, and nothing stays. */
static void fails_at(const char *call, int number, const char *message, const char *left) {
  program_run("rm -rf gpu report");
  program_refuses(1, message, STAND_IN "FAKE_CUDA_FAIL=%s:%d " NEW "gpu --backend cuda " SMALL, call, number);
  if (!strstr(program_output, "backend 'cuda'")) fail_msg("%s: %s", call, program_output);
  assert_left(left);
}

static void every_call_may_fail(void **state) {
  static const struct {
    const char *call, *message;
    int number;
  } opening[] = {{"cuInit", "cuInit failed: CUDA_ERROR_UNKNOWN: unknown error (error 999)", 1},
                 {"cuDeviceGetCount", "cuDeviceGetCount failed", 1},
                 {"cuDeviceGet", "cuDeviceGet failed", 1},
                 {"cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain failed", 1},
                 {"cuCtxSetCurrent", "cuCtxSetCurrent failed", 1},
                 {"cublasCreate_v2", "cublasCreate_v2 failed", 1},
                 {"cuDeviceGetAttribute", "cuDeviceGetAttribute failed", 2},
                 {"nvrtcCreateProgram", "nvrtcCreateProgram failed", 1},
                 {"nvrtcCompileProgram", "the kernels do not compile: choir.cu(1): error: made up", 1},
                 {"nvrtcGetCUBINSize", "nvrtcGetCUBINSize failed", 1},
                 {"nvrtcGetCUBIN", "nvrtcGetCUBIN failed", 1},
                 {"cuModuleLoadData", "cuModuleLoadData failed", 1},
                 {"cuModuleGetFunction", "cuModuleGetFunction failed", 7},
                 {"cuStreamCreate", "cuStreamCreate failed", 1},
                 {"cublasSetStream_v2", "cublasSetStream_v2 failed", 1},
                 {"cuMemAlloc_v2", "cuMemAlloc_v2 failed", 1},
                 {"cublasSetWorkspace_v2", "cublasSetWorkspace_v2 failed", 1},
                 {"cuMemHostAlloc", "cuMemHostAlloc failed", 1}},
    later[] = {{"cuMemGetInfo_v2", "cuMemGetInfo_v2 failed", 1},
               {"cuMemAlloc_v2", "cuMemAlloc_v2 failed", 2},
               {"cuMemAlloc_v2", "cuMemAlloc_v2 failed", 4},
               {"cuMemsetD8Async", "cuMemsetD8Async failed", 1},
               {"cuMemsetD8Async", "cuMemsetD8Async failed", 12},
               {"cuMemcpyHtoDAsync_v2", "cuMemcpyHtoDAsync_v2 failed", 1},
               {"cuMemcpyHtoDAsync_v2", "cuMemcpyHtoDAsync_v2 failed", 40},
               {"cuMemcpyDtoHAsync_v2", "cuMemcpyDtoHAsync_v2 failed", 1},
               {"cuMemcpyDtoHAsync_v2", "cuMemcpyDtoHAsync_v2 failed", 20},
               {"cuLaunchKernel", "cuLaunchKernel failed", 1},
               {"cuLaunchKernel", "cuLaunchKernel failed", 300},
               {"cuLaunchKernel", "cuLaunchKernel failed", 600},
               {"cuGraphLaunch", "failed: CUDA_ERROR_UNKNOWN", 1}, /* what is launched instead fails, too */
               {"cuStreamSynchronize", "cuStreamSynchronize failed", 1},
               {"cuStreamSynchronize", "cuStreamSynchronize failed", 20},
               {"cublasGemmStridedBatchedEx", "cublasGemmStridedBatchedEx failed", 1},
               {"cublasGemmStridedBatchedEx", "cublasGemmStridedBatchedEx failed", 60}};
  for (size_t i = 0; i < sizeof opening / sizeof *opening; i++)
    fails_at(opening[i].call, opening[i].number, opening[i].message,
             "left: 0 allocations, 0 programs, 0 contexts, 0 handles");
  for (size_t i = 0; i < sizeof later / sizeof *later; i++)
    fails_at(later[i].call, later[i].number, later[i].message,
             "left: 0 allocations, 0 programs, 1 contexts, 1 handles");
}

/* A call that fails once, while the device and its stream go on: training, evaluation and generation end with exit code
 * 1 and the reason, and the stand-in sees no memory freed that the stream still uses. */
static void single_failure_gives_its_reason(void **state) {
  static const char *const programs[] = {NEW "gpu --backend cuda " SMALL, "choir eval run --backend cuda",
                                         "choir generate run --prompt a --max-tokens 8 --backend cuda"};
  static const struct {
    const char *call, *message;
    int number[3]; /* for each program */
  } fault[] = {
      {"cuLaunchKernel", "cuLaunchKernel failed for kernel '", {1, 1, 1}},
      {"cuLaunchKernel", "': CUDA_ERROR_UNKNOWN: unknown error (error 999); ", {700, 40, 40}},
      {"cublasGemmStridedBatchedEx", "cublasGemmStridedBatchedEx failed: error 13; ", {60, 3, 3}},
      {"cuMemsetD8Async", "cuMemsetD8Async failed: CUDA_ERROR_UNKNOWN: unknown error (error 999); ", {12, 3, 3}},
      {"cuMemcpyHtoDAsync_v2", "cuMemcpyHtoDAsync_v2 failed: CUDA_ERROR_UNKNOWN: unknown error", {40, 9, 9}},
      {"cuMemcpyDtoHAsync_v2", "cuMemcpyDtoHAsync_v2 failed: CUDA_ERROR_UNKNOWN: unknown error", {3, 2, 2}},
      {"cuStreamSynchronize", "cuStreamSynchronize failed: CUDA_ERROR_UNKNOWN: unknown error", {20, 5, 5}}};
  unsetenv("CHOIR_CUDA_GRAPHS"); /* the reference */
  program_must(NEW "run " SMALL);
  for (size_t i = 0; i < sizeof fault / sizeof *fault; i++)
    for (int p = 0; p < 3; p++) {
      program_run("rm -rf gpu report");
      program_refuses(1, fault[i].message, "export FAKE_CUDA_FAIL=%s:%d:once; " STAND_IN "%s", fault[i].call,
                      fault[i].number[p], programs[p]);
      assert_left("left: 0 allocations, 0 programs, 1 contexts, 1 handles");
    }
}

int main(void) {
#ifdef CHOIR_SANITIZED
  print_message("NOT TESTED: cuda; the fake's fibers do not run under sanitizers\n");
  return 0;
#else
  setenv("CHOIR_CUDA_GRAPHS", "1", 1); /* calls of graphs fail, too */
  const struct CMUnitTest tests[] = {cmocka_unit_test(ranks_have_one_each), cmocka_unit_test(says_what_is_missing),
                                     cmocka_unit_test(every_call_may_fail),
                                     cmocka_unit_test(single_failure_gives_its_reason)};
  return cmocka_run_group_tests(tests, program_setup, program_directory_remove);
#endif
}
