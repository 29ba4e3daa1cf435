/* Steps of training as CUDA graphs, on the GPU that is none (fake_cuda/): the bits of plain launches, and no launch of
 * a kernel once all shapes have been captured. This program takes the steps itself where it is told to; each line it
 * then prints has a loss, the norm of the gradient, and how many kernels and graphs the host has launched so far. */
#include <dlfcn.h>

#include "model_testing.h"
#include "program.h"
#include "train/step.h"

#ifndef CHOIR_FAKE_CUDA
#define CHOIR_FAKE_CUDA "" /* not built under sanitizers */
#endif

enum {
  B = 2,
  T = 8,
  STEPS = 20,
  SEEN = 8
}; /* after SEEN steps each of two shapes has been captured, whichever came before it */

/* Of fake_cuda/stream.c. */
static void count_calls(long *launches, long *graphs) {
  void *fake = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  void (*count)(long *, long *) = NULL;
  if (fake) *(void **)&count = dlsym(fake, "fake_count_calls");
  if (!count) abort();
  count(launches, graphs);
}

/* Rates, dropout's draws and the norm that clips change from step to step; every second batch is shorter. */
static int take_steps(int steps) {
  choir_config c = model_config("expert_choice");
  choir_model_options options = CHOIR_MODEL_OPTIONS_INIT;
  choir_model *model;
  ch_trainer trainer;
  int32_t token[B * T], target[B * T];
  test_set(&c, "layers=2 d_model=16 d_hidden=16 d_expert=16 batch_sequences=%d sequence_length=%d", B, T);
  c.train.steps = STEPS;
  c.train.learning_rate = 0.05;
  c.train.cooldown_steps = STEPS;
  c.train.clip_norm = 0.5;
  c.train.dropout = 0.1;
  options.backend = "cuda";
  test_ok(choir_model_create(&c, 1, &options, &model));
  test_ok(ch_trainer_plan(model, &trainer));
  test_ok(ch_trainer_commit(&trainer));
  for (int step = 0; step < steps; step++) {
    long launches, graphs;
    choir_trainer_result r;
    model_tokens(token, B * T, (uint32_t)step);
    model_tokens(target, B * T, (uint32_t)step + STEPS);
    ch_batch batch = {.T = step % 2 ? T / 2 : T, .token = token, .target = target};
    test_ok(ch_trainer_step_on(&trainer, &batch, &r));
    count_calls(&launches, &graphs);
    printf("%a %a %ld %ld\n", r.loss, r.gradient_norm, launches, graphs);
  }
  long launches, graphs;
  model->x.memory->synchronise();
  count_calls(&launches, &graphs);
  printf("%ld launches in all\n", launches);
  ch_trainer_free(&trainer);
  puts(choir_notices());
  return 0;
}

typedef struct {
  double loss, norm;
  long launches, graphs;
} step_line;
static step_line with[STEPS]; /* as graphs */
static long launches_in_all;  /* once the host had waited after the last step */

/* Takes steps with the libraries of a folder, and more in the environment. */
static void take_steps_with(const char *folder, const char *more, int steps, step_line *line) {
  char self[PATH_MAX] = "";
  if (readlink("/proc/self/exe", self, sizeof self - 1) < 0) abort();
  program_must("LD_LIBRARY_PATH='%s' %s '%s' %d", folder, more, self, steps);
  const char *at = program_output;
  for (int i = 0; i < steps; i++, at = strchr(at, '\n') + 1)
    if (sscanf(at, "%la %la %ld %ld", &line[i].loss, &line[i].norm, &line[i].launches, &line[i].graphs) != 4)
      fail_msg("line %d of: %s", i, program_output);
  if (sscanf(at, "%ld launches in all", &launches_in_all) != 1) fail_msg("no launches in all: %s", program_output);
}

static void assert_same(const step_line *a, const step_line *b, int steps) {
  for (int i = 0; i < steps; i++)
    if (a[i].loss != b[i].loss || a[i].norm != b[i].norm)
      fail_msg("step %d: loss %a and norm %a, or %a and %a", i, a[i].loss, a[i].norm, b[i].loss, b[i].norm);
}

/* Two graphs a step: the update of the last step and the pass; the norm. Without CHOIR_CUDA_GRAPHS=1, and with a driver
 * that lacks a call, there are none. */
static void same_bits_without_launches(void **state) {
  step_line without[STEPS];
  take_steps_with(CHOIR_FAKE_CUDA, "CHOIR_CUDA_GRAPHS=1", STEPS, with);
  for (int i = SEEN; i < STEPS; i++) {
    assert_int_equal(with[i].launches, with[SEEN - 1].launches);
    assert_int_equal(with[i].graphs, with[i - 1].graphs + 2);
  }
  take_steps_with(CHOIR_FAKE_CUDA, "env -u CHOIR_CUDA_GRAPHS", STEPS, without);
  assert_int_equal(without[STEPS - 1].graphs, 0);
  assert_int_equal(without[STEPS - 1].launches, launches_in_all); /* also the update: the host waits for none of them */
  assert_same(with, without, STEPS);
  program_must(
      "mkdir old && sed s/cuGraphLaunch/cuGraphLaunck/ '" CHOIR_FAKE_CUDA
      "/libcuda.so.1' >old/libcuda.so.1 && ln -s libcuda.so.1 old/libnvrtc.so && ln -s libcuda.so.1 old/libcublas.so");
  take_steps_with("old", "CHOIR_CUDA_GRAPHS=1", STEPS, without);
  assert_int_equal(without[STEPS - 1].graphs, 0);
  assert_true(without[STEPS - 1].launches > 3 * with[STEPS - 1].launches);
  assert_same(with, without, STEPS);
}

/* Any call of graphs may fail: a notice says so once, and the steps are the same. */
static void steps_without_graphs_are_equal(void **state) {
  enum { SOME = 6 };
  static const char *const calls[] = {"cuStreamBeginCapture_v2:1",        "cuStreamGetCaptureInfo_v2:7",
                                      "cublasGemmStridedBatchedEx:200",   "cuGraphInstantiateWithFlags:2",
                                      "cuGraphExecKernelNodeSetParams:1", "cuGraphLaunch:3"};
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
    step_line line[SOME];
    char fail[128], notice[128];
    snprintf(fail, sizeof fail, "CHOIR_CUDA_GRAPHS=1 FAKE_CUDA_FAIL=%s:once", calls[i]);
    snprintf(notice, sizeof notice, "\nbackend 'cuda': %.*s failed: ", (int)strcspn(calls[i], ":"), calls[i]);
    take_steps_with(CHOIR_FAKE_CUDA, fail, SOME, line);
    const char *said = strstr(program_output, notice);
    if (!said || strstr(said + 2, "backend")) fail_msg("%s: not once \"%s\": %s", calls[i], notice, program_output);
    assert_same(line, with, SOME);
  }
}

int main(int argc, char **argv) {
#ifdef CHOIR_SANITIZED
  print_message("NOT TESTED: graphs; the fake's fibers do not run under sanitizers\n");
  return 0;
#endif
  if (argc > 1) return take_steps(atoi(argv[1]));
  const struct CMUnitTest tests[] = {cmocka_unit_test(same_bits_without_launches),
                                     cmocka_unit_test(steps_without_graphs_are_equal)};
  return cmocka_run_group_tests(tests, program_directory_make, program_directory_remove);
}
