/* Whole runs on the kernels of devices, on the GPU that is none (fake_cuda/): in memory that the host cannot touch,
 * each router's losses are the CPU's within rounding, and bit for bit its own, stopped or not. CHOIR_TEST_DEVICE=cuda
 * runs them on a GPU. */
#include <jansson.h>

#include "choir/choir.h"
#include "program.h"
#include "stand_in.h"

enum { STEPS = 4 };
#define SHORT                                                                                                 \
  "--set train.steps=4 --set train.eval_every=4 --set train.checkpoint_every=2 --set train.eval_sequences=2 " \
  "--set train.batch_sequences=2 --set train.sequence_length=16 "

static const char *device(void) { return getenv("CHOIR_TEST_DEVICE") ? getenv("CHOIR_TEST_DEVICE") : "cuda"; }

/* What stands before a command that uses the device. */
static const char *on(void) { return getenv("CHOIR_TEST_DEVICE") ? "" : STAND_IN; }

/* Each router is told enough that together they run every kernel. */
static const char *options_of(const char *router) {
  if (!strcmp(router, "dense")) return "--set model.experts=1 --set train.compute=bf16";
  if (!strcmp(router, "switch_top1")) return "--set router.jitter=0.1 --set router.z_loss_weight=0.001";
  if (!strcmp(router, "gshard_top2")) return "--set router.random_second=true --set train.optimizer=adamw";
  if (!strcmp(router, "topk")) return "--set router.null_experts=5";
  if (!strcmp(router, "random")) return "--set router.consistency_weight=0.5";
  if (!strcmp(router, "expert_choice")) return "--set router.threshold_after=2 --set train.dropout=0.1";
  if (!strcmp(router, "hash")) return "--set train.compute=bf16";
  if (!strcmp(router, "global_topk")) return "--set router.score=sigmoid --set router.gate_on=input";
  if (!strcmp(router, "capped_expert_choice"))
    return "--set model.position=rope --set model.qk_norm=true --set model.kv_heads=1 --set model.activation=swiglu "
           "--set model.expert_activation=swiglu --set model.tied=false --set model.shared_experts=1";
  if (!strcmp(router, "quantile_balanced")) return "--set router.normalize_gates=true";
  return "";
}

static void train(const char *router, const char *backend, const char *out, const char *more) {
  int on_cpu = !strcmp(backend, "cpu");
  program_must("%schoir train --config config.json --data data --out %s --backend %s --set router.name=%s %s " SHORT
               "%s%s",
               on_cpu ? "" : on(), out, backend, router, options_of(router), more,
               strncmp(backend, "cuda", 4) ? " --emulate-bf16" : "");
}

/* At the end of a process nothing is left but the context and the handle, and no product of experts was left to our own
 * kernel, whatever loads a router gives. */
static void assert_report(void) {
  if (!*on()) return;
  program_must(
      "grep -qx 'left: 0 allocations, 0 programs, 1 contexts, 1 handles' report && grep -qx 'product 0' report");
  program_must("cat report >>all; rm report");
}

static void trains_as_the_cpu_does(void **state) {
  const char *const *names = choir_router_names();
  for (int i = 0; names[i]; i++) {
    program_must("rm -rf cpu one two");
    train(names[i], "cpu", "cpu", "");
    train(names[i], device(), "one", "");
    assert_report();
    /* CPUs differ in how they round sums of bf16 pairs. */
    program_close_losses(names[i], "one", "cpu", STEPS + 1, strstr(options_of(names[i]), "bf16") ? 5e-3 : 1e-5);
    if (!*on()) train(names[i], device(), "two", ""); /* what stands in has nothing that could differ */
    if (!*on() && !program_same_runs("one", "two", STEPS)) fail_msg("%s: not the same twice", names[i]);
  }
}

static void resumes(void **state) {
  program_must("rm -rf one two");
  train("expert_choice", device(), "one", "");
  train("expert_choice", device(), "two", "--set train.steps=2");
  program_must("sed -i 's/\"steps\": 2/\"steps\": 4/' two/config.json");
  program_must("%schoir train --resume --out two --backend %s", on(), device());
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
                                      "generate prices --prompt 'kalo miten' --temperature 0 --json",
                                      "generate one --prompt 'kalo miten' --max-tokens 20 --temperature 0 --json"};
  for (int v = 0; v < 3; v++) {
    program_must("%schoir %s --backend %s 2>/dev/null", on(), verbs[v], device());
    json_t *got = program_json();
    assert_report();
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

/* Every kernel ran in what stands above, but for `product`, since cuBLAS had all of them, and for `widen_bf16`, which
 * ranks need (test_cuda). */
static void leaves_no_kernel_out(void **state) {
  if (!*on()) test_skip("which kernels ran; a GPU does not count them");
  program_must(
      "awk 'NF == 2 && $1 != \"device\" { ran[$1] += $2 } END { for (k in ran) if (!ran[k] && k != \"widen_bf16\" && k "
      "!= "
      "\"product\") print k }' all");
  if (*program_output) fail_msg("never ran: %s", program_output);
}

/* Arrays are made before there is an executor: the device must be open by then, the one that was asked for. */
static void benches(void **state) {
  program_must("%schoir bench gelu count=100 moe n=64 d=8 h=16 e=4 --seconds 0.001 --backend %s", on(), device());
  static const char *const problems[] = {"gelu count=100", "step config=config.json"};
  for (int i = 0; i < 2; i++)
    program_refuses(1, "there is no device 99", "%schoir bench %s --backend %s:99", on(), problems[i], device());
}

int main(void) {
#ifdef CHOIR_SANITIZED
  print_message("NOT TESTED: devices; their stand-in does not run under sanitizers\n");
  return 0;
#endif
  const struct CMUnitTest tests[] = {cmocka_unit_test(trains_as_the_cpu_does), cmocka_unit_test(resumes),
                                     cmocka_unit_test(serves), cmocka_unit_test(leaves_no_kernel_out),
                                     cmocka_unit_test(benches)};
  return cmocka_run_group_tests(tests, program_setup, program_directory_remove);
}
