/* src/device/cuda.c against a GPU that is none (fake_cuda/): the order of its calls, what it gives back, and every call
 * that fails. The fake's memory cannot be touched from outside of its calls, and each kernel's pointers must lead into
 * it. */
#include <jansson.h>

#include "choir/choir.h"
#include "mpi.h"

#ifndef CHOIR_FAKE_CUDA
#define CHOIR_FAKE_CUDA "" /* not built under sanitizers */
#endif
#define FAKE "LD_LIBRARY_PATH=\"" CHOIR_FAKE_CUDA "\" FAKE_CUDA_REPORT=report "
#define SMALL                                                                                                        \
  "--set train.steps=3 --set train.eval_every=3 --set train.checkpoint_every=2 --set train.batch_sequences=2 --set " \
  "train.sequence_length=16 --set train.eval_sequences=2 "
#define NEW "choir train --config config.json --data data --out "

/* The losses of all steps of a run. */
static void assert_same_losses(const char *router, double tolerance) {
  FILE *file[] = {fopen("cpu/metrics.jsonl", "r"), fopen("gpu/metrics.jsonl", "r")};
  char line[2][4096];
  int count = 0;
  assert_true(file[0] && file[1]);
  while (fgets(line[0], sizeof *line, file[0]) && fgets(line[1], sizeof *line, file[1])) {
    json_t *want = json_loads(line[0], 0, NULL), *got = json_loads(line[1], 0, NULL);
    if (json_object_get(want, "loss")) {
      double difference = json_at(got, "loss") - json_at(want, "loss");
      if (!(fabs(difference) <= tolerance)) fail_msg("%s: loss %d is off by %g", router, count, difference);
      count++;
    }
    json_decref(want), json_decref(got);
  }
  assert_true(count >= 4);
  fclose(file[0]), fclose(file[1]);
}

/* Reads what the fake says at the end of a process: allocations, programs, contexts and handles that are left. */
static void assert_left(const char *line) {
  size_t size;
  char *report = program_read("report", &size);
  if (!report || !strstr(report, line)) fail_msg("not \"%s\":\n%.100s\nof: %s", line, report, program_command);
  free(report);
}

/* Each router is told enough that together they run every kernel. */
static const char *options_of(const char *router) {
  if (!strcmp(router, "dense")) return "--set model.experts=1 --set train.compute=bf16";
  if (!strcmp(router, "switch_top1")) return "--set router.jitter=0.1 --set router.z_loss_weight=0.001";
  if (!strcmp(router, "gshard_top2")) return "--set router.random_second=true --set train.optimizer=adamw";
  if (!strcmp(router, "random")) return "--set router.consistency_weight=0.5";
  if (!strcmp(router, "expert_choice")) return "--set router.threshold_after=1 --set train.dropout=0.1";
  if (!strcmp(router, "hash")) return "--set train.compute=bf16";
  if (!strcmp(router, "global_topk")) return "--set router.score=sigmoid --set router.gate_on=input";
  if (!strcmp(router, "capped_expert_choice"))
    return "--set model.position=rope --set model.qk_norm=true --set model.kv_heads=1 --set model.activation=swiglu "
           "--set model.expert_activation=swiglu --set model.tied=false --set model.shared_experts=1";
  if (!strcmp(router, "quantile_balanced")) return "--set router.normalize_gates=true";
  return "";
}

/* Whatever loads a router gives, no product of experts is left to our own kernel. */
static void assert_cublas_multiplies_experts(void) { program_must("grep -qx 'product 0' report"); }

static void runs_as_the_cpu_does(void **state) {
  const char *const *names = choir_router_names();
  program_must("rm -rf report all");
  for (int i = 0; names[i]; i++) {
    const char *options = options_of(names[i]), *bf16 = strstr(options, "bf16") ? "--emulate-bf16" : "";
    program_must("rm -rf cpu gpu report");
    program_must(NEW "cpu --set router.name=%s " SMALL "%s %s", names[i], options, bf16);
    program_must(FAKE NEW "gpu --backend cuda:1 --set router.name=%s " SMALL "%s", names[i], options);
    assert_same_losses(names[i], *bf16 ? 5e-3 : 1e-5); /* CPUs differ in how they round sums of bf16 pairs */
    assert_left("left: 0 allocations, 0 programs, 1 contexts, 1 handles");
    program_must("cat report >> all");
    assert_cublas_multiplies_experts();
    if (strcmp(names[i], "expert_choice") && strcmp(names[i], "quantile_balanced")) continue;
    program_must(FAKE "choir generate gpu --backend cuda --routing adaptive --prompt 'kalo miten' --max-tokens 5");
    program_must("cat report >> all");
  }
  program_must(FAKE "choir generate gpu --backend cuda --prompt 'kalo miten' --max-tokens 5 --temperature 0");
  program_must("cat report >> all");
}

/* Each rank takes a GPU of its own; if one GPU fails, all ranks end and name the rank that has it. */
#define RANKS MPIRUN TWO("env " FAKE "\"$CHOIR\"" SHARED, "exec env FAKE_CUDA_FAIL=%s:%d " FAKE "\"$CHOIR\"" SHARED)
#define SHARED                                                                                                       \
  " train --threads 1 --config config.json --data data --out gpu --backend cuda --set parallel.dispatch_dtype=bf16 " \
  "--set train.grad_chunks=2 " SMALL
static void ranks_have_one_each(void **state) {
  needs_mpi();
  program_must("rm -rf cpu gpu report");
  program_must(NEW "cpu --set parallel.dispatch_dtype=bf16 --set train.grad_chunks=2 " SMALL);
  program_must(RANKS, "nothing", 0);
  assert_same_losses("expert_choice", 1e-4); /* rounded to bf16 on their way */
  program_must("cat report >> all; grep -qx 'device 0' report && grep -qx 'device 1' report");
  static const char *const calls[] = {"cuLaunchKernel", "cuMemcpyDtoH_v2"};
  for (int i = 0; i < 2; i++) {
    char message[96];
    snprintf(message, sizeof message, "rank 1 of 2: backend 'cuda': %s failed", calls[i]);
    program_must("rm -rf gpu");
    assert_int_not_equal(program_run(RANKS, calls[i], 200), 0);
    if (!strstr(program_output, message)) fail_msg("not \"%s\": %s", message, program_output);
  }
}

/* Every kernel ran in what stands above, one of them for rows between ranks, but for `product`: cuBLAS had all of them.
 */
static void leaves_no_kernel_out(void **state) {
  const char *needs_ranks = without_mpi() ? "widen_bf16" : "none";
  program_must(
      "awk -v but=%s 'NF == 2 && $1 != \"device\" { ran[$1] += $2 } END { for (k in ran) if (!ran[k] && k != but && k "
      "!= \"product\") "
      "print k }' all",
      needs_ranks);
  if (*program_output) fail_msg("never ran: %s", program_output);
}

static void says_what_is_missing(void **state) {
  program_must("mkdir -p without && for lib in cuda.so.1 nvrtc.so; do ln -sf '" CHOIR_FAKE_CUDA
               "'/lib$lib without; done && touch without/libcublas.so without/libcublas.so.12 without/libcublas.so.13");
  program_refuses(1, "backend 'cuda': libcublas.so is not there; take backend 'cpu'",
                  "CUDA_HOME=/nowhere LD_LIBRARY_PATH=without " NEW "no --backend cuda");
  program_refuses(1, "there is no device 2; there are 2", FAKE NEW "no --backend cuda:2");
  program_refuses(0, "cuda:1  fake GPU 1, 64.0 GiB; peak 2.6 TFLOP/s in fp32, 0.51 TB/s; products by cuBLAS",
                  FAKE "choir devices");
}

/* One that fails while the device is opened, and one that fails later: refused by its name, and nothing stays. */
static void fails_at(const char *call, int number, const char *message, const char *left) {
  program_run("rm -rf gpu report");
  program_refuses(1, message, FAKE "FAKE_CUDA_FAIL=%s:%d " NEW "gpu --backend cuda " SMALL, call, number);
  if (!strstr(program_output, "backend 'cuda'")) fail_msg("%s: %s", call, program_output);
  assert_left(left);
}

static void every_call_may_fail(void **state) {
  static const struct {
    const char *call, *message;
    int number;
  } opening[] = {{"cuInit", "cuInit failed: CUDA_ERROR_UNKNOWN (error 999)", 1},
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
                 {"cuModuleGetFunction", "cuModuleGetFunction failed", 7}},
    later[] = {{"cuMemGetInfo_v2", "cuMemGetInfo_v2 failed", 1},
               {"cuMemAlloc_v2", "cuMemAlloc_v2 failed", 1},
               {"cuMemAlloc_v2", "cuMemAlloc_v2 failed", 3},
               {"cuMemsetD8_v2", "cuMemsetD8_v2 failed", 1},
               {"cuMemsetD8_v2", "cuMemsetD8_v2 failed", 12},
               {"cuMemcpyHtoD_v2", "cuMemcpyHtoD_v2 failed", 1},
               {"cuMemcpyHtoD_v2", "cuMemcpyHtoD_v2 failed", 40},
               {"cuMemcpyDtoH_v2", "cuMemcpyDtoH_v2 failed", 1},
               {"cuMemcpyDtoH_v2", "cuMemcpyDtoH_v2 failed", 20},
               {"cuLaunchKernel", "cuLaunchKernel failed", 1},
               {"cuLaunchKernel", "cuLaunchKernel failed", 300},
               {"cuLaunchKernel", "cuLaunchKernel failed", 600},
               {"cublasGemmStridedBatchedEx", "cublasGemmStridedBatchedEx failed", 1},
               {"cublasGemmStridedBatchedEx", "cublasGemmStridedBatchedEx failed", 60}};
  for (size_t i = 0; i < sizeof opening / sizeof *opening; i++)
    fails_at(opening[i].call, opening[i].number, opening[i].message,
             "left: 0 allocations, 0 programs, 0 contexts, 0 handles");
  for (size_t i = 0; i < sizeof later / sizeof *later; i++)
    fails_at(later[i].call, later[i].number, later[i].message,
             "left: 0 allocations, 0 programs, 1 contexts, 1 handles");
}

int main(void) {
#ifdef CHOIR_SANITIZED
  print_message("NOT TESTED: cuda; the fake's fibers do not run under sanitizers\n");
  return 0;
#else
  const struct CMUnitTest tests[] = {cmocka_unit_test(runs_as_the_cpu_does), cmocka_unit_test(ranks_have_one_each),
                                     cmocka_unit_test(leaves_no_kernel_out), cmocka_unit_test(says_what_is_missing),
                                     cmocka_unit_test(every_call_may_fail)};
  return cmocka_run_group_tests(tests, program_setup, program_directory_remove);
#endif
}
