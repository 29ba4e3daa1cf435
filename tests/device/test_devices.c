/* Whole runs on the kernels of devices, as OpenCL runs them on this CPU: in memory that the host cannot touch, each
 * router's losses are the CPU's within rounding, and bit for bit its own, stopped or not. CHOIR_TEST_DEVICE=cuda runs
 * them on a GPU. */
#include <jansson.h>

#include "choir/choir.h"
#include "program.h"

enum { STEPS = 10 };
#define SHORT "--set train.steps=10 --set train.eval_every=5 --set train.checkpoint_every=5 "

static const char *device(void) { return getenv("CHOIR_TEST_DEVICE") ? getenv("CHOIR_TEST_DEVICE") : "opencl"; }

/* A router needs these options. */
static const char *options_of(const char *router) {
  if (!strcmp(router, "dense")) return "--set model.experts=1";
  if (!strcmp(router, "switch_top1")) return "--set router.jitter=0.1";
  if (!strcmp(router, "gshard_top2")) return "--set router.random_second=true --set train.optimizer=adamw";
  if (!strcmp(router, "topk")) return "--set router.null_experts=5";
  if (!strcmp(router, "random")) return "--set router.consistency_weight=0.5";
  if (!strcmp(router, "expert_choice")) return "--set router.threshold_after=5 --set train.dropout=0.1";
  return "";
}

static void train(const char *router, const char *backend, const char *out, const char *more) {
  program_must("choir train --config config.json --data data --out %s --backend %s --set router.name=%s %s " SHORT "%s",
               out, backend, router, options_of(router), more);
}

static void trains_as_the_cpu_does(void **state) {
  const char *const *names = choir_router_names();
  for (int i = 0; names[i]; i++) {
    program_must("rm -rf cpu one two");
    train(names[i], "cpu", "cpu", "");
    train(names[i], device(), "one", "");
    train(names[i], device(), "two", "");
    program_close_losses(names[i], "one", "cpu", STEPS + 2);
    if (!program_same_runs("one", "two", STEPS)) fail_msg("%s: not the same twice", names[i]);
  }
}

static void resumes(void **state) {
  program_must("rm -rf one two");
  train("expert_choice", device(), "one", "");
  train("expert_choice", device(), "two", "--set train.steps=5");
  program_must("sed -i 's/\"steps\": 5/\"steps\": 10/' two/config.json");
  program_must("choir train --resume --out two --backend %s", device());
  char a[96], b[96]; /* the state counts bytes of a log that has one line more */
  snprintf(a, sizeof a, "one/checkpoints/%08d/model.safetensors", STEPS);
  snprintf(b, sizeof b, "two/checkpoints/%08d/model.safetensors", STEPS);
  assert_true(program_same(a, b));
}

/* Caches, thresholds, drawing: a device answers as the CPU does, to the digits that are printed. */
static void serves(void **state) {
  program_must(
      "rm -rf one prices && choir train --config config.json --data data --out one --set train.steps=40 && choir train "
      "--config config.json --data data --out prices --set train.steps=10 --set router.name=quantile_balanced");
  static const char *const verbs[] = {"eval one --data data --sequences 8 --json",
                                      "generate one --routing adaptive --prompt 'kalo miten' --temperature 0 --json",
                                      "generate prices --routing adaptive --prompt 'kalo miten' --temperature 0 --json",
                                      "generate one --prompt 'kalo miten' --max-tokens 20 --temperature 0 --json"};
  for (int v = 0; v < 4; v++) {
    program_must("choir %s --backend %s 2>/dev/null", verbs[v], device());
    json_t *got = program_json();
    program_must("choir %s 2>/dev/null", verbs[v]);
    json_t *cpu = program_json();
    if (v == 0)
      assert_true(fabs(json_at(got, "loss") - json_at(cpu, "loss")) < 1e-5);
    else
      assert_string_equal(json_string_value(json_object_get(got, "text")),
                          json_string_value(json_object_get(cpu, "text")));
    json_decref(got);
    json_decref(cpu);
  }
}

/* Arrays are made before there is an executor: the device must be open by then, the one that was asked for. */
static void benches(void **state) {
  program_must("choir bench gelu count=100 moe n=64 d=8 h=16 e=4 --seconds 0.001 --backend %s", device());
  static const char *const problems[] = {"gelu count=100", "step config=config.json"};
  for (int i = 0; i < 2; i++)
    program_refuses(1, "there is no device 99", "choir bench %s --backend %s:99", problems[i], device());
}

static void refuses_by_name(void **state) {
  program_refuses(1, "parameter", /* the compiler's words */
                  "POCL_EXTRA_BUILD_FLAGS=-Dvoid=7 choir bench gelu count=100 --backend opencl");
  program_refuses(1, "no bf16 products",
                  "choir train --config config.json --data data --out no --backend opencl --set train.compute=bf16");
  program_refuses(1, "libOpenCL.so.1",
                  "OCL_ICD_VENDORS=/nowhere CHOIR_OPENCL=/nowhere/libOpenCL.so.1 choir train --config config.json "
                  "--data data --out no --backend opencl");
}

int main(void) {
#ifdef CHOIR_SANITIZED
  print_message("NOT TESTED: devices; OpenCL's drivers do not run under sanitizers\n");
  return 0;
#endif
  const struct CMUnitTest tests[] = {cmocka_unit_test(trains_as_the_cpu_does), cmocka_unit_test(resumes),
                                     cmocka_unit_test(serves), cmocka_unit_test(benches),
                                     cmocka_unit_test(refuses_by_name)};
  return cmocka_run_group_tests(tests, program_setup, program_directory_remove);
}
