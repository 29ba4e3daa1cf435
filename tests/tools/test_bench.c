/* ch_bench_run: every case runs small and agrees with the reference; problems that are wrong are refused by name. */
#include <sys/wait.h>
#include <unistd.h>

#include "bench/bench.h"
#include "bench/cases.h"
#include "moe/router.h"
#include "op/backend.h"
#include "testing.h"

static ch_peak peak = {.threads = 2, .fp32_gflops = 100, .bf16_gflops = 200, .read_gbs = 10, .triad_gbs = 10};
static ch_bench_options options = {.threads = 2, .repetitions = 2, .seconds = 1e-6, .peak = &peak};

static void check(const char *problem, const char *full, double tolerance) {
  ch_bench_result r;
  test_ok(ch_bench_run(problem, &options, &r));
  assert_string_equal(r.problem, full);
  if (!(r.error <= tolerance)) fail_msg("%s: error %g", problem, r.error);
  assert_true(r.repetitions >= 2 && r.min_seconds > 0 && r.min_seconds <= r.seconds);
  assert_true(r.flops > 0 || r.bytes > 0);
  assert_true(r.share > 0);
  double best = r.bytes > 0 ? peak.triad_gbs : strstr(full, "bf16") ? peak.bf16_gflops : peak.fp32_gflops;
  assert_true(fabs(r.share * best / (r.gflops + r.gbs) - 1) < 1e-9);
}

static void every_case_agrees_with_the_reference(void **state) {
  check("gemm m=50 n=33 k=65 tb=1", "gemm m=50 n=33 k=65 ta=0 tb=1 compute=fp32", 1e-5);
  check("  gemm  ta=1 m=50 k=65 n=33 ", "gemm m=50 n=33 k=65 ta=1 tb=0 compute=fp32", 1e-5);
  check("attention B=2 T=70 H=2 dh=8", "attention B=2 T=70 H=2 dh=8 bidirectional=0 compute=fp32", 1e-4);
  check("head n=40 d=32 V=300", "head n=40 d=32 V=300 compute=fp32", 1e-4);
  check("gelu count=1000", "gelu count=1000 compute=fp32", 1e-5);
  check("rmsnorm n=30 d=48", "rmsnorm n=30 d=48 compute=fp32", 1e-5);
  check("select n=300 e=4 k=20", "select n=300 e=4 k=20 compute=fp32", 0);
  check("gather n=300 d=24 e=4 k=20", "gather n=300 d=24 e=4 k=20 compute=fp32", 1e-5);
  check("assign n=300 e=8 d=16 h=16", "assign n=300 e=8 c=2 b=2 d=16 h=16 solver=exact compute=fp32", 1e-6);
  check("assign n=300 e=8 b=3 d=16 h=16 solver=dykstra",
        "assign n=300 e=8 c=2 b=3 d=16 h=16 solver=dykstra compute=fp32", 1);
  check("assign n=300 e=8 d=16 h=16 solver=base", "assign n=300 e=8 c=2 b=2 d=16 h=16 solver=base compute=fp32", 1e-6);
  check("route n=300 e=8 d=16 h=16", "route n=300 e=8 c=2 d=16 h=16 router=expert_choice compute=fp32", 1e-5);
  check("route n=300 e=8 c=1 d=16 h=16 router=gshard_top2",
        "route n=300 e=8 c=1 d=16 h=16 router=gshard_top2 compute=fp32", 1e-5);
  check("route n=300 e=8 c=1 d=16 h=16 router=switch_top1",
        "route n=300 e=8 c=1 d=16 h=16 router=switch_top1 compute=fp32", 1e-5);
  check("route n=300 e=8 d=16 h=16 router=base", "route n=300 e=8 c=2 d=16 h=16 router=base compute=fp32", 1e-5);
  check("adafactor batch=2 rows=24 cols=40", "adafactor batch=2 rows=24 cols=40 compute=fp32", 1e-5);
}

/* FLOPs of products, two for each pair of numbers; bytes as if every array were read or written once. */
static void work_by_hand(void **state) {
  static const struct {
    const char *problem;
    double flops, numbers;
  } of[] = {{"gemm m=50 n=33 k=65", 2 * 50 * 33 * 65, 0},
            {"attention B=2 T=70 H=2 dh=8", 6 * 2 * (70 * 70 / 2) * 2 * 2 * 8, 0}, /* the half that is not later */
            {"head n=40 d=32 V=300", 3 * 2 * 40 * 32 * 300, 0},
            {"gelu count=1000", 0, 5 * 1000},
            {"rmsnorm n=30 d=48", 0, 5 * 30 * 48},
            {"select n=300 e=4 k=20", 0, 300 * 4},
            {"gather n=300 d=24 e=4 k=20", 0, (3 * 4 * 20 + 300) * 24},
            {"adafactor batch=2 rows=24 cols=40", 0, 3 * 2 * 24 * 40}};
  for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
    ch_bench_result r;
    test_ok(ch_bench_run(of[i].problem, &options, &r));
    if (r.flops != of[i].flops || r.bytes != 4 * of[i].numbers)
      fail_msg("%s: %g FLOPs, %g bytes", of[i].problem, r.flops, r.bytes);
  }
}

/* Errors are relative to the largest number, and one that is no number hides behind no other. */
static void errors_are_seen(void **state) {
  assert_true(fabs(ch_bench_error((real[]){0.25f, 0.5f}, (real[]){0.25f, 0.375f}, 2) - 0.125 / 0.375) < 1e-12);
  assert_true(isnan(ch_bench_error((real[]){1, (real)NAN}, (real[]){1, 1}, 2)));
  assert_true(isnan(ch_bench_worse((double)NAN, 1)) && isnan(ch_bench_worse(1, (double)NAN)));
  assert_true(ch_bench_worse(1, 2) == 2 && ch_bench_worse(2, 1) == 2);
}

/* Sampled tokens, under every router, with drops. */
static void layers_agree_with_the_reference(void **state) {
  for (int i = 0; ch_routers[i]; i++) {
    char problem[128], full[160];
    int e = strcmp(ch_routers[i]->name, "dense") ? 8 : 1;
    int capacity = ch_router_takes(ch_routers[i], CH_OPTION_capacity_factor);
    snprintf(problem, sizeof problem, "moe n=200 d=32 h=48 e=%d c=%d skew=0 router=%s", e, capacity ? 1 : 2,
             ch_routers[i]->name);
    snprintf(full, sizeof full, "%s compute=fp32", problem);
    check(problem, full, 1e-5);
  }
  if (ch_backend_find("cpu")->supports(CH_COMPUTE_BF16, 0) == CHOIR_OK)
    check("moe compute=bf16 n=200 d=32 h=48 e=8",
          "moe n=200 d=32 h=48 e=8 c=2 skew=0 router=expert_choice compute=bf16", 0.03);
}

static void time_is_accounted_for(void **state) {
  ch_bench_result r;
  double sum = 0, products;
  test_ok(ch_bench_run("moe n=200 d=32 h=48 e=8", &options, &r));
  assert_true(r.parts > 3);
  for (int i = 0; i < r.parts; i++) {
    assert_true(r.part[i].seconds >= 0);
    sum += r.part[i].seconds;
  }
  products = r.part[0].seconds + r.part[1].seconds;
  assert_true(fabs(1 - products / sum - r.during_products) < 1e-9);
  assert_true(r.flops == 12.0 * 400 * 32 * 48 + 6.0 * 200 * 32 * 8);
}

/* c is experts a token, whoever chooses. */
static void dropless_choices_are_all_kept(void **state) {
  static const char *const routers[] = {"topk", "random", "quantile_balanced"};
  ch_bench_result r;
  for (int i = 0; i < 3; i++) {
    char problem[96];
    snprintf(problem, sizeof problem, "moe n=200 d=32 h=48 e=8 c=3 router=%s", routers[i]);
    test_ok(ch_bench_run(problem, &options, &r));
    double learned = i == 1 ? 0 : 6.0 * 200 * 32 * 8;
    assert_true(r.flops == 12.0 * 3 * 200 * 32 * 48 + learned);
  }
}

static double figure(const ch_bench_result *r, const char *name) {
  for (int i = 0; i < r->figures; i++)
    if (!strcmp(r->figure[i].name, name)) return r->figure[i].value;
  return (double)NAN;
}

/* With skew the experts of low numbers are full, by the same number of choices. */
static void skewed_loads_are_uneven(void **state) {
  ch_bench_result even, skewed;
  test_ok(ch_bench_run("moe n=400 d=32 h=8 e=16 c=3 router=topk", &options, &even));
  test_ok(ch_bench_run("moe n=400 d=32 h=8 e=16 c=3 skew=2 router=topk", &options, &skewed));
  assert_true(skewed.flops == even.flops && skewed.error < 1e-4);
  assert_true(figure(&even, "fullest expert over mean") < 1.7 && figure(&skewed, "fullest expert over mean") > 3);
  test_fails(ch_bench_run("moe n=400 d=32 h=8 e=16 skew=2 router=hash", &options, &skewed), CHOIR_ERROR_ARGUMENT,
             "skew has no effect with router 'hash'");
}

/* Every choice is kept or dropped; what is not filled is empty; where experts choose there is nothing to tell. */
static void token_choice_tells_its_losses(void **state) {
  ch_bench_result r;
  const int n = 240, e = 8, choices[] = {2, 1}, d = 16, h = 24;
  const char *const routers[] = {"gshard_top2", "switch_top1"};
  for (int i = 0; i < 2; i++) {
    char problem[128];
    snprintf(problem, sizeof problem, "moe n=%d d=%d h=%d e=%d c=1 router=%s", n, d, h, e, routers[i]);
    test_ok(ch_bench_run(problem, &options, &r));
    double slots = (r.flops - 6.0 * n * d * e) / (12.0 * d * h);
    double dropped = figure(&r, "% of choices dropped") / 100, empty = figure(&r, "% of the room empty") / 100;
    assert_true(fabs(figure(&r, "slots a token") * n - slots) < 1e-6);
    assert_true(fabs((1 - dropped) * choices[i] * n - slots) < 1e-6);
    assert_true(fabs((1 - empty) * choices[i] * n - slots) < 1e-6); /* at a factor of 1 there is room for all */
    double fullest = figure(&r, "fullest expert over mean"), asked = figure(&r, "most asked over mean");
    assert_true(dropped > 0 && fullest >= 1 && asked > fullest && fullest <= 1 / (1 - dropped) + 1e-9);
    assert_int_equal(r.tokens, n);
  }
  test_ok(ch_bench_run("moe n=240 d=16 h=24 e=8", &options, &r));
  assert_int_equal(r.figures, 0);
}

/* 70,000 tokens with 32 experts: the layer that was measured has 4,375 and 2, as full, and takes a sixteenth. */
static void a_router_is_a_share_of_a_layer_as_full(void **state) {
  ch_bench_result r;
  test_ok(ch_bench_run("route n=70000 e=32 d=4 h=64", &options, &r));
  assert_true(figure(&r, "measured with tokens") == 4375 && figure(&r, "and experts") == 2);
  double layer = figure(&r, "ms of the layer") * 1e-3;
  assert_true(fabs(r.layer_share * layer / r.min_seconds - 1) < 1e-9 && r.tokens == 70000);
  test_ok(ch_bench_run("route n=300 e=8 d=16 h=16", &options, &r));
  assert_true(isnan(figure(&r, "and experts")) && r.layer_share > 0);
}

static void refused(const char *problem, const char *words) {
  ch_bench_result r;
  test_fails(ch_bench_run(problem, &options, &r), CHOIR_ERROR_ARGUMENT, words);
}

static void refuses_wrong_problems(void **state) {
  refused("", "no bench case ''");
  refused("geem m=4", "did you mean 'gemm'");
  refused("gemm m=4 n=4", "k must be given");
  refused("gemm m=4 n=0 k=4", "n must be given, and at least 1");
  refused("gemm m=4x n=4 k=4", "m is '4x'");
  refused("gemm m=2000000000 n=2000000000 k=9", "too large");
  refused("gemm m", "'m' is not key=value");
  refused("moe router=expert_chioce", "did you mean 'expert_choice'");
  refused("moe n=64 e=128", "128 experts");
  refused("moe ruoter=hash", "did you mean 'router'");
  refused("moe compute=fp16", "compute 'fp16'");
  refused("gather n=50000 d=1 e=50000 k=50000", "too many slots");
  refused("step B=9999999999 config=" CHOIR_SOURCE_DIR "/configs/nano.json", "B=1e+10 is too large");
  refused("route router=hash", "learns no affinities");
  refused("moe router=base c=1.5", "'base' takes no capacity factor");
  refused("step c=1.5 router=random config=" CHOIR_SOURCE_DIR "/configs/nano.json",
          "c=1.5, but router 'random' gives every token as many experts");
  refused("route n=64 e=128", "128 experts");
  refused("tokenize MB=0", "MB is 0");
  refused("tokenize fiel=x", "did you mean 'file'");
  refused("decode prompt=0", "prompt must be given, and at least 1");
  refused("step router=hsah config=" CHOIR_SOURCE_DIR "/configs/nano.json", "did you mean 'hash'");
  refused("select n=10 e=1 k=nan", "k is 'nan'");
}

/* Defaults and groups name cases that there are, and no group has a case's name. */
static void defaults_name_cases(void **state) {
  for (const char *const *d = ch_bench_defaults(); *d; d++) test_ok(ch_bench_known(*d));
  for (const ch_bench_group *g = ch_bench_groups(); g->name; g++) {
    assert_int_equal(ch_bench_known(g->name), CHOIR_ERROR_ARGUMENT);
    assert_true(g->problems[0] && (g->problems[1] || g->by_threads));
    for (const char *const *p = g->problems; *p; p++) test_ok(ch_bench_known(*p));
  }
}

/* OpenMP's threads do not come along into a child: it is refused, and does not wait for them. */
static void forked(void **state) {
  ch_bench_result r;
  test_ok(ch_bench_run("moe n=32 d=8 h=16 e=4", &options, &r)); /* on two threads */
  fflush(NULL);
  pid_t child = fork();
  if (!child) {
    alarm(20);
    int code = ch_bench_run("moe n=32 d=8 h=16 e=4", &options, &r);
    _exit(code == CHOIR_ERROR_UNSUPPORTED && strstr(choir_error_message(), "forked") ? 0 : 1);
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
}

TEST_MAIN(NULL, NULL, every_case_agrees_with_the_reference, work_by_hand, errors_are_seen,
          layers_agree_with_the_reference, time_is_accounted_for, dropless_choices_are_all_kept,
          skewed_loads_are_uneven, token_choice_tells_its_losses, a_router_is_a_share_of_a_layer_as_full,
          refuses_wrong_problems, defaults_name_cases, forked)
